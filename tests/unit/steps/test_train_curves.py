"""The curves of a running and of a failed training, as TensorBoard reads them."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from medweave_core.errors import InternalError, UsageError
from medweave_steps.cli import main
from medweave_steps.runtime.monitor import read_recordings
from medweave_steps.training.loop.stepper import Stepper
from support.engine import wait_until
from support.training_set import TINY, training_set


def words(folder: Path, *options: str) -> list[str]:
    values = ["train", "--training-set", str(folder / "data"), "--output", str(folder / "model")]
    values += ["--training-log", str(folder / "log"), "--run-report", str(folder / "report.json"), "--num-threads", "1"]
    return [*values, *TINY, *options]


def steps_of(log: Path, name: str) -> list[int]:
    """Steps of a curve, as TensorBoard reads them now."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    if not log.is_dir():
        return []
    events = EventAccumulator(str(log))
    events.Reload()
    return [event.step for event in events.Scalars(name)] if name in events.Tags()["scalars"] else []


def failing_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From so many losses on, each is not a number."""
    loss_of, number = Stepper.loss_of, iter(range(1, 1000))

    def wrong(self: Stepper, batch: Any) -> Any:
        return loss_of(self, batch) * (math.nan if next(number) >= step else 1)

    monkeypatch.setattr(Stepper, "loss_of", wrong)


@pytest.mark.slow
def test_events_can_be_read_while_the_training_continues_and_after_it_was_killed(tmp_path: Path) -> None:
    training_set(tmp_path / "data")
    process = subprocess.Popen(
        [sys.executable, "-m", "medweave_steps", *words(tmp_path, "--steps", "1000000", "--epoch-steps", "2")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        # After the loss of an epoch comes what its validation found.
        wait_until(lambda: len(steps_of(tmp_path / "log", "validation/dice")) >= 2 or process.poll() is not None, 120)
        assert process.poll() is None, "it is running"
    finally:
        process.kill()
        process.wait()
    assert steps_of(tmp_path / "log", "training/loss")[:2] == [2, 4]
    assert steps_of(tmp_path / "log", "validation/dice")[:2] == [2, 4]
    (killed,) = read_recordings(tmp_path / "log")
    assert [mark["step"] for mark in killed.marks[:2]] == [2, 4]
    assert killed.samples[0]["process_memory_mib"] > 0


def test_the_curves_of_a_failed_training_stay_until_the_next_one_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training_set(tmp_path / "data")
    failing_at(5, monkeypatch)
    assert main(words(tmp_path)) == InternalError.exit_code
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "log"]
    names = ["events.out.tfevents.0.medweave", "hardware-rank-0.jsonl"]
    assert sorted(path.name for path in (tmp_path / "log").iterdir()) == names, "not whole"
    (failed,) = read_recordings(tmp_path / "log")
    assert [mark["step"] for mark in failed.marks] == [2, 4]
    assert steps_of(tmp_path / "log", "training/loss") == [2, 4]

    monkeypatch.undo()
    assert main(words(tmp_path)) == 0
    assert sorted(path.name for path in (tmp_path / "log").iterdir()) == ["curves.json", *names]
    assert steps_of(tmp_path / "log", "training/loss") == [2, 4, 6]


def test_a_training_that_fails_before_its_first_figure_leaves_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training_set(tmp_path / "data")
    failing_at(1, monkeypatch)
    assert main(words(tmp_path)) == InternalError.exit_code
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("name", ["curves.json", "events.out.tfevents.1.host.2.0"])
def test_a_log_that_no_failed_training_of_ours_has_left_is_not_touched(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    training_set(tmp_path / "data")
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / name).write_text("mine")
    assert main(words(tmp_path)) == UsageError.exit_code
    assert "the training log 'log' exists already" in capsys.readouterr().err
    assert (tmp_path / "log" / name).read_text() == "mine"
