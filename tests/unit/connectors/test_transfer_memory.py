"""How much memory a copy takes in the driver: a bounded part of what is sent, however slow its destination is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.direct_ends import PATH
from support.transfers import Places, places, replaced, with_pods

MIB = 2**20
MOST_MIB = 64  # of a transfer: issue 6
LARGE_MIB = 160
WAITS = 'case "$1" in x*) sleep 2;; esac; exec "$real" "$@"'  # time enough to send all of it, if somebody held it


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Places]:
    with places(tmp_path) as made:
        yield made


def growth_mib(at: Places, folder: Path, source: str, target: str, name: str) -> float:
    """What a driver of its own grows by, while it copies this."""
    (at.source / "small").write_text("scan")
    programs = folder / "driver-programs"
    programs.mkdir()
    for each in (at.programs, programs):
        replaced(each, "tar", WAITS)
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
        told = subprocess.run(
            [sys.executable, "-m", "support.driver_growth", json.dumps(facts)],
            cwd=Path(__file__).parents[2],
            env=os.environ | {"PATH": f"{programs}:{PATH}"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert told.returncode == 0, told.stderr
    assert (at.target / "copy").exists()
    return float(told.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "target"),
    [("laptop", "site"), ("site", "laptop"), ("laptop", "pods"), ("pods", "laptop"), ("pods", "site")],
)
def test_a_large_file_waits_for_the_slowest(at: Places, tmp_path: Path, source: str, target: str) -> None:
    with (at.source / "scan").open("wb") as stream:
        for _ in range(LARGE_MIB // 2):
            stream.write(os.urandom(MIB))  # which is sent as it is
        stream.truncate(LARGE_MIB * MIB)  # and the rest in hardly a byte
    assert growth_mib(at, tmp_path, source, target, "scan") <= MOST_MIB


@pytest.mark.slow
def test_many_small_files(at: Places, tmp_path: Path) -> None:
    (at.source / "cohort").mkdir()
    for n in range(20_000):
        (at.source / "cohort" / f"case-{n:05}").write_bytes(n.to_bytes(64, "big"))
    assert growth_mib(at, tmp_path, "laptop", "site", "cohort") <= MOST_MIB
