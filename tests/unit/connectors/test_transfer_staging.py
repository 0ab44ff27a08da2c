"""The shell commands that stage, publish and discard a copy at a site, run by a real shell."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medweave_connectors.transfer import shell_commands
from support.transfers import replaced


def run_shell(words: list[str], **keywords: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", " ".join(words)], capture_output=True, text=True, check=False, env=os.environ | keywords
    )


@pytest.mark.parametrize("below", [False, True])
def test_a_copy_is_staged_and_renamed(tmp_path: Path, below: bool) -> None:
    destination = tmp_path / "not there yet" / 'it\'s "$HOME"'
    if below:
        destination.mkdir(parents=True)
    prepared = shell_commands.parse_prepared(run_shell(shell_commands.prepare(str(destination), "t")).stdout)
    assert prepared is not None
    assert prepared.below == below
    usage = shutil.disk_usage(tmp_path)
    assert prepared.free_bytes is not None
    assert abs(prepared.free_bytes - usage.free) < 2**30
    place = shell_commands.staging_place(str(destination), "name", "t", below=below)
    part = Path(place.part)
    assert (part.parent, part.name) == (destination if below else destination.parent, ".medweave-t.part")
    assert stat.S_IMODE(part.stat().st_mode) == 0o700
    Path(place.inside("real")).mkdir(mode=0o500)
    assert run_shell(shell_commands.publish(place, "real")).returncode == 0
    assert Path(place.final) == (destination / "name" if below else destination)
    assert stat.S_IMODE(Path(place.final).stat().st_mode) == 0o500
    assert not part.exists()
    assert run_shell(shell_commands.publish(place, "real")).returncode == 0, "by a second pod on the same volume"
    Path(place.final).rmdir()
    assert run_shell(shell_commands.publish(place, "real")).returncode == shell_commands.REFUSED


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    (tmp_path / "link").symlink_to("input")
    place = shell_commands.StagingPlace(str(tmp_path / ".part"), str(tmp_path / "link"))
    Path(place.part).mkdir()
    Path(place.inside("x")).write_text("new")
    assert run_shell(shell_commands.publish(place, "x")).returncode == 0
    assert (tmp_path / "link").read_text() == "new"
    assert list((tmp_path / "input").iterdir()) == []


def before(folder: Path, kind: str) -> shell_commands.StagingPlace:
    """Create a folder or link `data` of an earlier run, and return the staging place of a copy that replaces it."""
    (folder / "old").mkdir()
    (folder / "old" / "precious").touch()
    if kind == "link":
        (folder / "data").symlink_to("old")
    else:
        (folder / "old").rename(folder / "data")
    run_shell(shell_commands.prepare(str(folder / "new"), "t"))
    place = shell_commands.StagingPlace(str(folder / ".medweave-t.part"), str(folder / "data"))
    Path(place.inside("x")).mkdir()
    return place


def with_mv(folder: Path, script: str) -> str:
    """Return a PATH with a script as `mv`, which can run the real program as `$real`."""
    (folder / "bin").mkdir()
    replaced(folder / "bin", "mv", script)
    return f"{folder}/bin:{os.environ['PATH']}"


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_an_existing_folder_is_kept_if_the_copy_cannot_replace_it(tmp_path: Path, kind: str) -> None:
    path = with_mv(tmp_path, '[ "$1" != -f ] || exit 1; exec $real "$@"')
    assert (
        run_shell(shell_commands.publish(before(tmp_path, kind), "x"), PATH=path).returncode == shell_commands.REFUSED
    )
    assert (tmp_path / "data" / "precious").exists()
    assert (tmp_path / "data").is_symlink() == (kind == "link")


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_an_existing_folder_is_restored_if_the_replacement_was_interrupted(tmp_path: Path, kind: str) -> None:
    place = before(tmp_path, kind)
    path = with_mv(tmp_path, '[ "$1" != -f ] || kill -KILL $PPID; exec $real "$@"')
    run_shell(shell_commands.publish(place, "x"), PATH=path)
    shutil.rmtree(tmp_path / "data", ignore_errors=True)  # the `mv` of the killed shell may still complete
    assert os.path.lexists(Path(place.part, ".medweave-old", "data"))
    assert run_shell(shell_commands.discard(str(tmp_path / "data"), "t")).returncode == 0
    assert (tmp_path / "data" / "precious").exists()
    assert not Path(place.part).exists()


def test_a_copy_does_not_replace_a_folder_created_during_the_copy(tmp_path: Path) -> None:
    run_shell(shell_commands.prepare(str(tmp_path / "data"), "t"))
    place = shell_commands.StagingPlace(str(tmp_path / ".medweave-t.part"), str(tmp_path / "data"))
    Path(place.inside("x")).mkdir()
    path = with_mv(tmp_path, f'[ "$1" != -f ] || mkdir -p "{tmp_path}/data/of another"; exec $real "$@"')
    assert run_shell(shell_commands.publish(place, "x"), PATH=path).returncode == shell_commands.REFUSED
    assert [file.name for file in (tmp_path / "data").iterdir()] == ["of another"]


def test_an_incomplete_copy_is_removed_whatever_its_permissions(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "to"):
        run_shell(shell_commands.prepare(str(folder / "to"), "t"))
        (folder / ".medweave-t.part" / "x" / "y").mkdir(parents=True)
        (folder / ".medweave-t.part" / "x").chmod(0)
    assert run_shell(shell_commands.discard(str(tmp_path / "to"), "t")).returncode == 0
    assert [file.name for file in tmp_path.rglob("*")] == ["to"]


@pytest.mark.parametrize(
    ("line", "free"),
    [
        ("/dev/sda1 1000 400 600 40% /", 600 * 1024),
        ("//server/my share 50% off 1000 400 600 40% /mnt/my disk", 600 * 1024),
        ("s3fs 0 0 0 - /bucket", None),
        ("s3fs 0 0 0 0% /bucket", None),
        ("odd", None),
    ],
)
def test_the_free_bytes_of_a_file_system(tmp_path: Path, line: str, free: int | None) -> None:
    (tmp_path / "df").write_text(f"#!/bin/sh\necho Filesystem 1024-blocks; echo '{line}'\n")
    (tmp_path / "df").chmod(0o755)
    output = run_shell(
        shell_commands.prepare(str(tmp_path / "to"), "t"), PATH=f"{tmp_path}:{os.environ['PATH']}"
    ).stdout
    assert shell_commands.parse_prepared(output) == shell_commands.StagingFolder(below=False, free_bytes=free)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60) | st.from_regex(r"medweave-place (new|below) (\d{1,6000}|unknown)\.", fullmatch=True))
def test_parsing_the_free_space_of_a_site_never_fails(text: str) -> None:
    prepared = shell_commands.parse_prepared(text)
    assert prepared is None or prepared.free_bytes is None or prepared.free_bytes >= 0
