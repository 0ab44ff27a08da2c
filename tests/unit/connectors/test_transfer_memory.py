"""Memory of the driver during a copy: bounded for any size of the copy and any speed of the destination."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.direct_ends import PATH
from support.transfers import TransferSites, replaced, transfer_sites, with_pods

MIB = 2**20
MOST_MIB = 64  # of a transfer: issue 6
LARGE_MIB = 160
WAITS = (
    'case "$1" in x*) sleep 2;; esac; exec "$real" "$@"'  # long enough to send everything, if the driver buffered it
)


@pytest.fixture
def at(tmp_path: Path) -> Iterator[TransferSites]:
    with transfer_sites(tmp_path) as sites:
        yield sites


def growth_mib(at: TransferSites, folder: Path, source: str, target: str, name: str) -> float:
    """Return the memory growth of a separate driver process during a copy."""
    (at.source / "small").write_text("scan")
    programs = folder / "driver-programs"
    programs.mkdir()
    for folder_of_programs in (at.programs, programs):
        replaced(folder_of_programs, "tar", WAITS)
    with with_pods(at, folder):
        facts = {
            "folder": str(folder / "driver"),
            "port": at.server.port,
            "key": str(at.server.key),
            "known_hosts": str(at.server.known_hosts),
            "kubeconfig": str(folder / "kubeconfig"),
            "from": source,
            "to": target,
            "path": str(at.source / name),
            "target": str(at.target),
        }
        (folder / "driver").mkdir()
        result = subprocess.run(
            [sys.executable, "-m", "support.driver_growth", json.dumps(facts)],
            cwd=Path(__file__).parents[2],
            env=os.environ | {"PATH": f"{programs}:{PATH}"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert result.returncode == 0, result.stderr
    assert (at.target / "copy").exists()
    return float(result.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "target"),
    [("laptop", "site"), ("site", "laptop"), ("laptop", "pods"), ("pods", "laptop"), ("pods", "site")],
)
def test_a_large_file_to_a_slow_destination_takes_bounded_memory(
    at: TransferSites, tmp_path: Path, source: str, target: str
) -> None:
    with (at.source / "scan").open("wb") as stream:
        for _ in range(LARGE_MIB // 2):
            stream.write(os.urandom(MIB))  # not compressible
        stream.truncate(LARGE_MIB * MIB)  # the rest compresses to almost nothing
    assert growth_mib(at, tmp_path, source, target, "scan") <= MOST_MIB


@pytest.mark.slow
def test_many_small_files_take_bounded_memory(at: TransferSites, tmp_path: Path) -> None:
    (at.source / "cohort").mkdir()
    for n in range(20_000):
        (at.source / "cohort" / f"case-{n:05}").write_bytes(n.to_bytes(64, "big"))
    assert growth_mib(at, tmp_path, "laptop", "site", "cohort") <= MOST_MIB
