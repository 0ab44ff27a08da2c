"""`train-distributed` writes a checkpoint after every round, and resumes from the last one under any engine to the same bits."""

from __future__ import annotations

import json
import random
import shutil
import signal
from pathlib import Path

import pytest
import torch

from medweave_steps.cli import main
from medweave_steps.training.loop.checkpoint import newest_complete, read_checkpoint
from support import fake_pycompss
from support.continued import folder_to_continue, words
from support.engine import wait_until
from support.processes import KILLED_AT, interrupted, names_below, started, wait_for_line
from support.training_set import TINY
from support.weights import assert_equal_weights

pytestmark = pytest.mark.slow  # each starts training processes, or waits for a fixture that does

ROUNDS, APPLIED = 4, 4
"""Rounds of a training here, and changes of the weights in each: two replicas, two steps."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data/, parent/, model/ of four uninterrupted rounds, and saved/ with their checkpoints."""
    folder = folder_to_continue(tmp_path_factory.mktemp("whole"))
    assert main(saving(folder, folder / "saved", data=folder)) == 0
    return folder


def saving(folder: Path, saved: Path, *options: str, data: Path, name: str = "model") -> list[str]:
    return words(folder, "--rounds", str(ROUNDS), "--checkpoint-folder", str(saved), *options, name=name, data=data)


@pytest.fixture(scope="module")
def killed(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints by engine of rounds that were killed at any time after the first; copy it to write into it."""
    retained = {}
    with pytest.MonkeyPatch.context() as patch:
        fake_pycompss.install(patch)
        for engine in ("in-order", "compss"):
            folder, at = tmp_path_factory.mktemp(engine), random.randint(APPLIED + 1, ROUNDS * APPLIED)
            command = saving(folder, folder / "saved", "--engine", engine, data=whole, name="killed")
            process = started(command, folder=folder, before=KILLED_AT.format(step=at))
            _, message = process.communicate(timeout=180)
            assert process.returncode == -signal.SIGKILL, message
            done = len(read_checkpoint(folder / "saved")["state"]["rounds"])
            assert done == (at - 1) // APPLIED, f"killed at the {at}th change of the weights"
            assert not (folder / "killed").exists()
            retained[engine] = folder / "saved"
    return retained


def assert_the_same(folder: Path, whole: Path) -> None:
    assert_equal_weights(folder / "model", whole / "model")
    curves = [(item / "model_log" / "curves.json").read_text() for item in (folder, whole)]
    assert curves[0] == curves[1]
    message = [json.loads((item / "model_report.json").read_text()) for item in (folder, whole)]
    rounds = [[{**record, "seconds": 0} for record in report["results"]["rounds"]] for report in message]
    assert rounds[0] == rounds[1]
    assert [facts["samples"] for facts in message[0]["ranks"]] == [facts["samples"] for facts in message[1]["ranks"]]
    assert message[0]["results"]["metrics"] == message[1]["results"]["metrics"]


@pytest.mark.parametrize(("engine", "then"), [("in-order", "compss"), ("compss", "in-order"), ("compss", "compss")])
def test_rounds_that_are_killed_anywhere_continue_to_the_same_weights(
    whole: Path, killed: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, then: str
) -> None:
    fake_pycompss.install(monkeypatch)
    saved = tmp_path / "saved"
    shutil.copytree(killed[engine], saved)
    monkeypatch.setenv("MEDWEAVE_RESUME_FROM", str(saved))
    assert main(saving(tmp_path, saved, "--engine", then, data=whole)) == 0
    assert_the_same(tmp_path, whole)


def test_a_rank_per_replica_continues_from_what_one_process_has_kept(
    whole: Path, killed: dict[str, Path], tmp_path: Path
) -> None:
    values = ("--resume-from", str(killed["in-order"]), "--engine", "ddp", "--threads-per-replica", "1")
    assert main(saving(tmp_path, tmp_path / "saved", *values, data=whole)) == 0
    assert_the_same(tmp_path, whole)
    retained, before = read_checkpoint(tmp_path / "saved")["state"], read_checkpoint(whole / "saved")["state"]
    for own, other in zip(retained["memories"], before["memories"], strict=True):
        for name, tensor in own["optimiser"]["state"][0].items():
            assert torch.equal(tensor, other["optimiser"]["state"][0][name]), name


def test_checkpoints_change_no_weight(whole: Path, tmp_path: Path) -> None:
    assert main(words(tmp_path, "--rounds", str(ROUNDS), data=whole)) == 0
    assert_equal_weights(tmp_path / "model", whole / "model")


def test_the_round_before_the_newest_is_kept(whole: Path) -> None:
    assert names_below(whole / "saved") == ["checkpoint-before.pt", "checkpoint.pt"]
    done = [len(read_checkpoint(whole / "saved" / name)["state"]["rounds"]) for name in names_below(whole / "saved")]
    assert done == [ROUNDS - 1, ROUNDS]


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (("checkpoint.pt",), f"resumed from a checkpoint after round {ROUNDS - 1} of {ROUNDS}"),
        (("checkpoint.pt", "checkpoint-before.pt"), "no complete checkpoint; training starts from the beginning"),
    ],
)
def test_a_checkpoint_that_was_cut_is_passed_over(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    cut: tuple[str, ...], message: str,
) -> None:  # fmt: skip
    saved = tmp_path / "saved"
    shutil.copytree(whole / "saved", saved)
    for name in cut:
        (saved / name).write_bytes((saved / name).read_bytes()[:-100])
    monkeypatch.setenv("MEDWEAVE_RESUME_FROM", str(saved))
    assert main(saving(tmp_path, saved, data=whole)) == 0
    assert_the_same(tmp_path, whole)
    assert message in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--seed", "1"), "seed = 0"),
        (("--rounds", "5"), f"rounds = {ROUNDS}"),
        (("--replicas", "3"), "replicas = 2"),
    ],
)
def test_a_checkpoint_of_other_rounds_is_refused(
    whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    values = saving(tmp_path, tmp_path / "saved", "--resume-from", str(whole / "saved"), *options, data=whole)
    assert main(values) == 65
    messages = capfd.readouterr().err
    assert "the checkpoint belongs to another training" in messages
    assert message in messages
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_checkpoint_that_was_asked_for_is_refused(
    whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cut.pt").write_bytes((whole / "saved" / "checkpoint.pt").read_bytes()[:-100])
    values = saving(tmp_path, tmp_path / "saved", "--resume-from", str(tmp_path / "cut.pt"), data=whole)
    assert main(values) == 65
    assert "the checkpoint of --resume-from cannot be used" in capfd.readouterr().err


def test_checkpoints_of_train_and_of_rounds_are_not_taken_for_each_other(
    whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train = ["train", "--training-set", str(whole / "data"), *TINY, "--run-report", str(tmp_path / "report.json")]
    train += ["--training-log", str(tmp_path / "log"), "--num-threads", "1"]
    assert main([*train, "--output", str(tmp_path / "a"), "--checkpoint-folder", str(tmp_path / "of-train"),
                 "--checkpoint-interval", "3"]) == 0  # fmt: skip
    shutil.rmtree(tmp_path / "log")
    assert main([*train, "--output", str(tmp_path / "b"), "--resume-from", str(whole / "saved")]) == 65
    assert main(words(tmp_path, "--resume-from", str(tmp_path / "of-train"), data=whole)) == 65
    assert capfd.readouterr().err.count("the checkpoint belongs to another training") == 2


def test_term_ends_rounds_and_usr1_does_not(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = tmp_path / "saved"
    command = saving(tmp_path, saved, "--rounds", "100000", data=whole, name="ended")
    process = started(command, folder=tmp_path)
    wait_for_line(process, "round 1/")
    wait_until(lambda: newest_complete(saved) is not None, 30)
    process.send_signal(signal.SIGUSR1)
    wait_for_line(process, "round ")  # it may have been in transit
    wait_for_line(process, "round ")
    wait_for_line(process, "round ")
    code, message = interrupted(process, signal.SIGTERM)
    assert code == 128 + signal.SIGTERM, message
    assert newest_complete(saved) == saved / "checkpoint.pt"
    assert [name for name in names_below(tmp_path) if not name.startswith("saved/checkpoint")] == []


def test_a_network_that_draws_is_trained_alike_under_every_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from medweave_steps.io.model.folder import read_card
    from support.model_folders import TINY_UNET, trained_model

    folder = folder_to_continue(tmp_path)
    drops = {**TINY_UNET, "arguments": {**TINY_UNET["arguments"], "dropout": 0.5}}
    trained_model(folder / "parent", architecture=drops, input=read_card(folder / "parent").input)
    fake_pycompss.install(monkeypatch)
    for name, engine in (("one", "in-order"), ("two", "compss")):
        torch.rand(1)
        assert main(words(folder, "--engine", engine, name=name)) == 0
    assert_equal_weights(folder / "one", folder / "two")
