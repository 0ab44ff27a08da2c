"""A signal or a full disk in the verbs whose own tests have neither: exit codes, and no partial outputs.

The others, in their tests: check and evaluate (signals); phantom (both, several processes), preprocess, train, export, bundle,
quantize, gate and segment (both).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from medweave_steps.cli import main
from support.dicom_builder import CtSeries
from support.evaluated import write_run
from support.processes import interrupted, names_below, nearly_full_disk, started, wait_for_line
from support.reported import evaluated, three_cases


@pytest.mark.slow
def test_a_phantom_runs_on_after_the_announcement_of_its_time_limit_and_an_interrupt_leaves_nothing(
    tmp_path: Path,
) -> None:
    process = started(["phantom", "lung", "--grid", "demo", "--output", "cohort", "--cases", "500"], folder=tmp_path)
    wait_for_line(process, "patient 1/500")
    assert names_below(tmp_path), "the first patient is written"
    process.send_signal(signal.SIGUSR1)  # a training writes a checkpoint; this step has nothing to save
    wait_for_line(process, "patient 2/500")
    code, message = interrupted(process)
    assert code == 130
    assert "interrupted" in message
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
    code, message = interrupted(process)
    os.close(writer)
    assert code == 130
    assert "interrupted" in message
    assert names_below(tmp_path / "here") == []


def words_of(verb: str, folder: Path) -> list[str]:
    """A call that would succeed, with its inputs made."""
    if verb == "check":
        CtSeries().write(folder / "cohort")
        return ["check", "--cohort", str(folder / "cohort"), "--output", "index.json"]
    if verb == "evaluate":
        return ["evaluate", *write_run(folder / "run", three_cases()).options(Path("evaluation"))]
    return ["report", *evaluated(folder / "run")[1], "--output", "report"]


@pytest.mark.parametrize(("verb", "largest_file"), [("check", 500), ("evaluate", 500), ("report", 5_000)])
def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path: Path, verb: str, largest_file: int) -> None:
    words = words_of(verb, tmp_path / "inputs")
    (tmp_path / "here").mkdir()
    with nearly_full_disk(tmp_path / "here", largest_file) as output:
        code = main([*words, "--num-threads", "1"])
    message = output.getvalue()
    assert code == 74, message
    assert "a file could not be read or written" in message
    assert "Traceback" not in message
    assert names_below(tmp_path / "here") == []


def test_a_process_on_a_full_disk_ends_with_its_exit_code(tmp_path: Path) -> None:
    words = words_of("check", tmp_path / "inputs")
    (tmp_path / "here").mkdir()
    process = started(words, folder=tmp_path / "here", largest_file=500)
    _, message = process.communicate(timeout=120)
    assert process.returncode == 74, message
    assert "a file could not be read or written" in message
    assert names_below(tmp_path / "here") == []
