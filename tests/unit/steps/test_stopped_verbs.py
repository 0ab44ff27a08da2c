"""A signal or a full disk in the verbs whose own tests show neither: what they end with, and that they leave nothing behind.

The others: check and evaluate (signals), preprocess, train, export, bundle, quantize, gate and segment (both), beside their tests.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest

from support.dicom_builder import CtSeries
from support.evaluated import write_run
from support.processes import interrupted, names_below, started, wait_for_line
from support.reported import evaluated, three_cases

PHANTOM = ("phantom", "lung", "--grid", "demo", "--output", "cohort")


@pytest.mark.slow
def test_an_interrupted_phantom_leaves_nothing(tmp_path: Path) -> None:
    process = started([*PHANTOM, "--cases", "500"], folder=tmp_path)
    wait_for_line(process, "patient 1/500")
    assert names_below(tmp_path), "the first patient is written"
    code, told = interrupted(process)
    assert code == 130
    assert "interrupted" in told
    assert names_below(tmp_path) == []


def test_an_interrupted_report_leaves_nothing(tmp_path: Path) -> None:
    made, options = evaluated(tmp_path / "run")
    blocked = next(made.batches[0].glob("cases/*/volume.npy"))
    blocked.unlink()
    os.mkfifo(blocked)  # reading the prepared volume waits for ever
    (tmp_path / "here").mkdir()
    process = started(["report", *options, "--output", "report"], folder=tmp_path / "here")
    writer = None
    while writer is None:  # opens once the step has begun to read
        assert process.poll() is None, process.communicate()[1]
        with contextlib.suppress(OSError):
            writer = os.open(blocked, os.O_WRONLY | os.O_NONBLOCK)
        time.sleep(0.01)
    code, told = interrupted(process)
    os.close(writer)
    assert code == 130
    assert "interrupted" in told
    assert names_below(tmp_path / "here") == []


def words_of(verb: str, folder: Path) -> list[str]:
    """A call that would succeed, with its inputs made."""
    if verb == "phantom":
        return [*PHANTOM, "--cases", "1"]
    if verb == "check":
        CtSeries().write(folder / "cohort")
        return ["check", "--cohort", str(folder / "cohort"), "--output", "index.json"]
    if verb == "evaluate":
        return ["evaluate", *write_run(folder / "run", three_cases()).options(Path("evaluation"))]
    return ["report", *evaluated(folder / "run")[1], "--output", "report"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "largest_file"), [("phantom", 50_000), ("check", 500), ("evaluate", 500), ("report", 5_000)]
)
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, verb: str, largest_file: int) -> None:
    words = words_of(verb, tmp_path / "inputs")
    (tmp_path / "here").mkdir()
    process = started(words, folder=tmp_path / "here", largest_file=largest_file)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 74, told
    assert "a file could not be read or written" in told
    assert "Traceback" not in told
    assert names_below(tmp_path / "here") == []
