"""`medweave-step phantom lung` on several processes: the same bytes, the same errors, and nothing left by a signal."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from medweave_steps.cli import main
from support.processes import interrupted, names_below, nearly_full_disk, wait_for_line

ENDS_S = 30  # finds what does not end; how soon it ends depends on the machine


def words_of(*words: str, processes: int) -> list[str]:
    """Return a command line that writes `cohort` in the working directory."""
    return ["phantom", "lung", "--grid", "demo", "--output", "cohort", "--num-threads", str(processes), *words]


def started(folder: Path, *words: str, processes: int) -> subprocess.Popen[str]:
    """Start the verb in a new process group, with its standard error piped.

    Args:
        folder: where `cohort` and the report go.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "medweave_steps", *words_of(*words, processes=processes)],
        stderr=subprocess.PIPE, text=True, cwd=folder, start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


def living(group: int) -> list[int]:
    """Processes of a process group, zombies left out."""
    result = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            result.append(int(stat.parent.name))
    return result


def gone(group: int) -> bool:
    """Waits until no process of the group lives."""
    deadline = time.monotonic() + ENDS_S
    while living(group) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not living(group)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[int, Path]]:
    """The same three patients in both formats, by 1, 2 and 3 processes."""
    words = ("--cases", "2", "--held-out-cases", "1", "--seed", "3", "--held-out-seed", "4", "--format", "both")
    folders = {number: tmp_path_factory.mktemp(f"by-{number}") for number in (1, 2, 3)}
    for number, folder in folders.items():
        process = started(folder, *words, processes=number)
        _, message = process.communicate()
        assert process.returncode == 0, message
    yield folders
    for folder in folders.values():
        shutil.rmtree(folder)


def report_of(folder: Path) -> dict[str, Any]:
    report = json.loads((folder / "run_report.json").read_text())
    assert isinstance(report, dict)
    return report


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_any_number_of_processes_writes_the_same_bytes(written: Mapping[int, Path], processes: int) -> None:
    names = names_below(written[1] / "cohort")
    assert names_below(written[processes] / "cohort") == names
    assert {Path(name).suffix for name in names} == {".dcm", ".gz", ".json"}
    changed = [
        n for n in names if (written[1] / "cohort" / n).read_bytes() != (written[processes] / "cohort" / n).read_bytes()
    ]
    assert changed == []


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_any_number_of_processes_reports_the_same(written: Mapping[int, Path], processes: int) -> None:
    alone, together = report_of(written[1]), report_of(written[processes])
    assert {"pydicom", "highdicom", "nibabel"} <= set(alone["versions"])
    for key in ("versions", "results", "cases"):
        assert together[key] == alone[key]
    # A volume was in another process: the work was shared.
    assert together["peak_memory_children_mib"] > 100 > alone["peak_memory_children_mib"]


@pytest.mark.slow
@pytest.mark.parametrize("cohort_format", ["dicom", "msd"])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_full_disk_is_reported_the_same(tmp_path: Path, cohort_format: str, processes: int) -> None:
    with nearly_full_disk(tmp_path, 50_000) as output:
        code = main(words_of("--cases", "2", "--format", cohort_format, processes=processes))
    message = output.getvalue()
    assert code == 74, message
    assert "a file could not be read or written" in message
    assert "EFBIG: File too large" in message
    assert "Traceback" not in message
    assert multiprocessing.active_children() == []
    assert names_below(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "whole_group"), [(signal.SIGINT, True), (signal.SIGINT, False), (signal.SIGTERM, False)]
)
def test_a_signal_ends_all_processes_and_leaves_nothing(
    tmp_path: Path, number: signal.Signals, whole_group: bool
) -> None:
    """Ctrl-C in a terminal reaches the whole group; a scheduler may signal the parent alone."""
    process = started(tmp_path, "--cases", "500", processes=2)
    wait_for_line(process, "patient 1/500")
    assert len(living(process.pid)) == 3
    if whole_group:
        for worker in set(living(process.pid)) - {process.pid}:
            os.kill(worker, number)
    code, message = interrupted(process, number)
    assert code == 128 + number
    assert "interrupted" in message
    assert "Traceback" not in message
    assert gone(process.pid)
    assert names_below(tmp_path) == []
