"""`medweave doctor`: free space in a workdir, on real file systems: one with a quota, one with few files."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from medweave.doctor.disk_space import hop_of, parse_probe, probe_line
from medweave.doctor.hop_result import Health, HopResult


def check_folder(path: Path) -> HopResult:
    result = subprocess.run(
        ["sh", "-c", probe_line(str(path))], capture_output=True, text=True, timeout=20, check=False
    )
    return hop_of("hpc", str(path), parse_probe(result.stdout), "deployments.hpc.workdir")


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root mounts file systems")
    folder = tmp_path / "mounted"
    folder.mkdir()
    yield folder
    subprocess.run(["umount", "-q", folder], check=False)


@pytest.fixture
def with_quota(mounted: Path, tmp_path: Path) -> Path:
    """30 GiB of btrfs in a sparse file, with a quota of 1 GiB for the folder. `df` shows the whole file system."""
    if shutil.which("mkfs.btrfs") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no btrfs-progs on this machine")
    image, folder = tmp_path / "image", mounted / "of a user"
    subprocess.run(["truncate", "-s", "30G", image], check=True)
    for words in (
        ["mkfs.btrfs", "-q", image],
        ["mount", "-o", "loop", image, mounted],
        ["btrfs", "quota", "enable", mounted],
        ["btrfs", "subvolume", "create", folder],
        ["btrfs", "qgroup", "limit", "1G", folder],
    ):
        subprocess.run(words, check=True, capture_output=True)
    return folder


@pytest.mark.slow
def test_a_quota_that_df_does_not_show_is_reported(with_quota: Path) -> None:
    hop = check_folder(with_quota)
    assert hop.health == Health.WARNING
    assert hop.seen.endswith("GiB free; quota: 640 MiB more are allowed, 1.25 GiB are not"), hop.seen
    assert "ask the site for a larger quota" in hop.do
    assert list(with_quota.iterdir()) == []
    (with_quota / "filled").write_bytes(bytes(2**20))
    subprocess.run(["fallocate", "-l", "500M", with_quota / "filled"], check=True)
    assert "quota: 320 MiB more are allowed, 640 MiB are not" in check_folder(with_quota).seen


def test_few_free_files_are_reported(mounted: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=100,size=30g", "tmpfs", mounted], check=True)
    result = subprocess.run(
        ["sh", "-c", probe_line(str(mounted))], capture_output=True, text=True, timeout=20, check=True
    )
    assert "medweave-let" not in result.stdout, "nothing is reserved in memory"
    hop = check_folder(mounted)
    assert hop.health == Health.WARNING
    assert hop.seen.endswith("30 GiB free; 98 free inodes"), hop.seen
    assert "fewer than 100000 are not enough for most runs" in hop.do
    assert list(mounted.iterdir()) == []


def test_a_folder_without_a_quota(tmp_path: Path) -> None:
    hop = check_folder(tmp_path / "not" / "yet")
    assert "will be created; " in hop.seen
    assert " a quota " not in hop.seen
    assert list(tmp_path.iterdir()) == []


def test_one_that_cannot_be_written_to() -> None:
    hop = check_folder(Path("/proc/medweave"))
    assert (hop.health, hop.seen) == (Health.FAULT, "/proc/medweave: not writable")
    assert "deployments.hpc.workdir" in hop.do


@pytest.mark.parametrize(
    ("text", "free"),
    [
        ("space /dev/vda 100 50 50 50% /\nfiles /dev/vda 100 40 60 40% /", (51200, 60)),
        ("space /dev/vda 100 50 50 50% /\nfiles /dev/vda 0 0 0 - /", (51200, None)),
        ("space a b 100 40 60 40% /of a user\nfiles - 100 40 60 40% /of a user", (61440, 60)),
        ("space \nfiles ", (None, None)),
    ],
)
def test_what_df_prints(text: str, free: tuple[int | None, int | None]) -> None:
    room = parse_probe(text)
    assert (room.free_bytes, room.free_files) == free
