"""A training goes on from its checkpoint under another strategy, on another number of ranks, and after it was killed."""

from __future__ import annotations

import json
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from medweave_steps.cli import main
from medweave_steps.contracts.errors import UserInputError
from medweave_steps.training.average import mean_state
from medweave_steps.training.checkpoint import check_identity, read_checkpoint, spread_before
from support import strategy_work
from support.processes import KILLED_AT, started
from support.strategy_work import by_two_ranks, case_of, largest_difference
from support.training_set import TINY, training_set
from support.weights import assert_equal_weights

DDP: dict[str, Any] = {"strategy": "ddp", "ranks": 2}
LOCAL: dict[str, Any] = {"strategy": "local-sgd", "ranks": 2, "sync_interval": 1}
KINDS = ("uneven", "float64")
CHECKPOINTS = ("1/checkpoint-before.pt", "2/checkpoint.pt", "3/checkpoint.pt")
"""Of the steps 12 (of 6, 12 and 18), 14 and 16, by the first, second and third training of a kind."""


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, dict[str, Any]], Path]:
    """Trainings of two ranks, one, two again and one again, each from a checkpoint of that before; and the folder of these."""
    folder = tmp_path_factory.mktemp("resumed")
    data, cases = training_set(folder), {}

    def saves(name: str, interval: int) -> dict[str, Any]:
        return {"checkpoint_folder": folder / name, "checkpoint_interval": interval}

    for kind in KINDS:
        at_12, at_14, at_16 = (folder / f"{kind}-{name}" for name in CHECKPOINTS)
        cases[kind] = case_of(data, kind, **DDP, **saves(at_12.parent.name, 6))
        cases[f"{kind}, one"] = case_of(data, kind, resume=at_12, **saves(at_14.parent.name, 7))
        cases[f"{kind}, ddp"] = case_of(data, kind, resume=at_14, **DDP)
        cases[f"{kind}, local-sgd"] = case_of(data, kind, resume=at_14, **LOCAL, **saves(at_16.parent.name, 8))
        cases[f"{kind}, one after local-sgd"] = case_of(data, kind, resume=at_16)
    return by_two_ranks(strategy_work.all_trained, cases), folder


@pytest.mark.parametrize("then", ["one", "ddp", "local-sgd", "one after local-sgd"])
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_one_and_two_again_train_what_two_ranks_do(
    resumed: tuple[dict[str, dict[str, Any]], Path], kind: str, then: str
) -> None:
    results, folder = resumed
    assert [read_checkpoint(folder / f"{kind}-{name}")["state"]["step"] for name in CHECKPOINTS] == [12, 14, 16]
    assert largest_difference(results[f"{kind}, {then}"], results[kind]) <= (1e-12 if kind == "float64" else 1e-6)
    assert results[f"{kind}, {then}"]["loss"] == pytest.approx(results[kind]["loss"], abs=2e-6)


def test_another_number_of_ranks_is_told() -> None:
    by_two = {"identity": json.dumps({"strategy": "local-sgd", "ranks": 2, "sync_interval": 5, "seed": 0})}
    assert spread_before(by_two, {"strategy": "local-sgd", "ranks": 2, "sync_interval": 5, "seed": 0}) == ""
    told = ", written by 2 ranks under --strategy local-sgd"
    assert spread_before(by_two, {"strategy": "local-sgd", "ranks": 4, "sync_interval": 5}) == told
    assert spread_before(by_two, {"strategy": "single", "ranks": 1}) == told


def test_a_checkpoint_of_another_recipe_is_refused_on_another_number_of_ranks() -> None:
    content = {"identity": json.dumps({"strategy": "ddp", "ranks": 2, "seed": 0}), "data_sha256": "ab"}
    check_identity(content, identity={"strategy": "single", "ranks": 1, "seed": 0}, data_sha256="ab")
    with pytest.raises(UserInputError) as caught:
        check_identity(content, identity={"strategy": "single", "ranks": 1, "seed": 3}, data_sha256="ab")
    assert (caught.value.seen, caught.value.expected) == ("seed = 0", "seed = 3")


def test_ranks_in_one_state_have_it_as_their_mean_bit_for_bit() -> None:
    weight = torch.nn.Parameter(torch.linspace(-1, 1, 7))
    optimiser = torch.optim.Adam([weight], lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.1, total_steps=5)
    (weight**2).sum().backward()
    optimiser.step()
    schedule.step()
    state = {"optimiser": optimiser.state_dict(), "schedule": schedule.state_dict()}
    mean = mean_state([state] * 3)
    assert mean["schedule"] == state["schedule"]
    assert mean["optimiser"]["param_groups"] == state["optimiser"]["param_groups"]
    for name, tensor in state["optimiser"]["state"][0].items():
        assert torch.equal(mean["optimiser"]["state"][0][name], tensor), name


def test_a_rank_without_a_state_of_its_own_takes_the_mean() -> None:
    states = [
        {"optimiser": {"state": {0: {"exp_avg": torch.tensor([value, 1.0])}}, "param_groups": [{"lr": 0.1}]}, "step": 4}
        for value in (1.0, 2.0)
    ]
    mean = mean_state(states)
    assert mean["optimiser"]["state"][0]["exp_avg"].tolist() == [1.5, 1.0]
    assert (mean["optimiser"]["param_groups"], mean["step"]) == ([{"lr": 0.1}], 4)


def test_a_training_that_is_killed_at_any_step_goes_on_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, saved, interval, step = training_set(tmp_path / "data"), tmp_path / "saved", 4, random.randint(5, 24)

    def words(name: str) -> list[str]:
        given = ["train", "--training-set", str(data), "--output", str(tmp_path / name), *TINY, "--steps", "24"]
        given += ["--training-log", str(tmp_path / f"{name}_log"), "--run-report", str(tmp_path / f"{name}.json")]
        return [*given, "--checkpoint-folder", str(saved), "--checkpoint-interval", str(interval)]

    process = started(words("killed"), folder=tmp_path, before=KILLED_AT.format(step=step))
    _, told = process.communicate(timeout=180)
    assert process.returncode == -signal.SIGKILL, told
    done = read_checkpoint(saved)["state"]["step"]
    assert 0 <= step - 1 - done < interval, f"killed in step {step}, but the checkpoint is that of step {done}"
    assert not (tmp_path / "killed").exists()

    monkeypatch.setenv("MEDWEAVE_RESUME_FROM", str(saved))
    assert main([*words("resumed"), "--num-threads", "1"]) == 0
    monkeypatch.delenv("MEDWEAVE_RESUME_FROM")
    shutil.rmtree(saved)
    assert main([*words("whole"), "--num-threads", "1"]) == 0
    assert_equal_weights(tmp_path / "resumed", tmp_path / "whole")
    curves = [(tmp_path / f"{name}_log" / "curves.json").read_text() for name in ("resumed", "whole")]
    assert curves[0] == curves[1], f"killed in step {step}"
