"""A rank that is lost while a workflow trains: the run continues, to the weights of an undisturbed training.

On several nodes, and on nodes that Slurm gives, tests/hybrid/test_reactions.py has the same with `ddp`.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from medweave_steps.io.model.folder import read_card
from support.both_engines import begin, digests, only
from support.cwl_files import WORKFLOWS
from support.engine import valid_events, wait_until
from support.training_set import training_set

STEPS = 200
AT_ONCE = "{reactions: {StepFailed: {wait: 0}}}"


def last_rank_of(engine: int) -> psutil.Process | None:
    """Return the newest process of the ranks that the training of an engine has started."""
    result = [
        item for item in psutil.Process(engine).children(recursive=True) if "spawn_main" in " ".join(_words(item))
    ]
    return max(result, key=lambda item: item.pid, default=None)


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:  # it has ended in between
        return []


def lose_a_rank(going: subprocess.Popen[str], folder: Path, message: Callable[[], str]) -> None:
    """Kill a rank once there is a checkpoint."""
    wait_until(lambda: "epoch 2/" in message() or going.poll() is not None, 300)
    rank = last_rank_of(going.pid)
    assert rank is not None, message()
    rank.send_signal(signal.SIGUSR1)
    wait_until(lambda: any(folder.rglob("checkpoints/*.pt")), 60)
    rank.kill()


@pytest.mark.pipeline
def test_a_rank_that_is_lost_is_replaced_and_a_run_in_two_stages_continues(tmp_path: Path) -> None:
    data = str(training_set(tmp_path / "data"))
    options = (
        "batch_size: 2, patch_shape: [16, 16, 16], channels: [4, 4, 4, 4, 4], epoch_steps: 20, threads_per_rank: 1"
    )
    job = (
        f"{{training_set: {{class: Directory, path: {data}}}, training_steps: {STEPS}, {options}, precision: float32, "
        f"validation_interval: 20, strategy: hybrid, ranks: 2, stages: 2}}"
    )
    (tmp_path / "job.yml").write_text(job, encoding="utf-8")
    train = WORKFLOWS / "tools" / "train.cwl"
    with (tmp_path / "whole.log").open("w") as log:
        whole = begin(tmp_path, train, "cwltool", "job.yml", "whole", log=log)
    with (tmp_path / "cut.log").open("w") as log:
        going = begin(tmp_path, train, "streamflow", "job.yml", "cut", log=log, laptop=AT_ONCE)
    message = (tmp_path / "cut.log").read_text
    try:
        lose_a_rank(going, tmp_path / "runs", message)
        assert going.wait(600) == 0, message()
        assert whole.wait(600) == 0, (tmp_path / "whole.log").read_text()
    finally:
        going.kill()
        whole.kill()
    (log_of_run,) = (tmp_path / "runs").glob("*/events.jsonl")
    events = valid_events(log_of_run)
    again = [event["data"]["again"] for event in events if event["type"] == "job.reaction"]
    assert again == [True], message()
    assert "resumed from a checkpoint at step " in message()
    weights = {name: only(digests(tmp_path / name), "model.safetensors", "curves.json") for name in ("whole", "cut")}
    assert weights["cut"] == weights["whole"]
    assert read_card(tmp_path / "cut" / "trained_model").training["stages"] == 2
