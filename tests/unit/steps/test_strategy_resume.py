"""A training resumes from its checkpoint under another strategy, on another number of ranks, and after it was killed."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import random
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from medweave_core.errors import TryAgainError, UserInputError
from medweave_steps.cli import main
from medweave_steps.runtime.signals import Terminated
from medweave_steps.training.distributed.average import mean_state
from medweave_steps.training.loop.checkpoint import (
    check_identity,
    newest_complete,
    random_state,
    read_checkpoint,
    restore_random_state,
    spread_before,
)
from medweave_steps.training.strategies import resumable_options
from support import strategy_work
from support.processes import KILLED_AT, started
from support.strategy_work import VOLUMES, Case, Stop, by_two_ranks, case_of, largest_difference, options
from support.training_set import TINY, training_set
from support.weights import assert_equal_weights

pytestmark = pytest.mark.slow  # each starts training processes, or waits for a fixture that does

DDP: dict[str, Any] = {"strategy": "ddp", "ranks": 2}
LOCAL: dict[str, Any] = {"strategy": "local-sgd", "ranks": 2, "sync_interval": 1}
STAGES: dict[str, Any] = {"strategy": "hybrid", "ranks": 2, "stages": 2}
KINDS = ("uneven", "float64", "volumes")
CHECKPOINTS = ("1/checkpoint-before.pt", "2/checkpoint.pt", "3/checkpoint.pt")
"""Of the steps 12 (of 6, 12 and 18), 14 and 16, by the first, second and third training of a kind."""

WHOLE: dict[str, Any] = VOLUMES | {"epochs": 6, "steps": 18, "epoch_steps": 3}
"""Five whole cases, two at a time: of two ranks, one has none in the last step of each epoch, which comes right after step 14."""


STEPS_BETWEEN = {"ddp": 4, "local-sgd": 3}
"""Two checkpoints; two averages, for TERM is obeyed at the next one."""


Stopped = tuple[dict[str, tuple[Stop, BaseException, int]], dict[str, Case]]
Resumed = tuple[dict[str, dict[str, Any]], dict[str, list[tuple[list[float], list[float]]]], Path]


@pytest.fixture(scope="module")
def patches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_set(tmp_path_factory.mktemp("patches"))


@pytest.fixture(scope="module")
def stopped(patches: Path, tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    """Of each strategy, what stopped it, how it ended and at which step its checkpoint is; and trainings to compare.

    These are the whole one, and one from the checkpoint.
    """
    folder, stops, cases = tmp_path_factory.mktemp("stopped"), {}, {}
    more = {"ddp": DDP, "local-sgd": LOCAL | {"sync_interval": STEPS_BETWEEN["local-sgd"]}}
    for name, number in (("ddp", signal.SIGKILL), ("local-sgd", signal.SIGTERM)):
        whole = Case(config=options(patches, **more[name]), recipe=True)
        saves = dataclasses.replace(whole.config, checkpoint_folder=folder / name, checkpoint_interval=4)
        case = dataclasses.replace(whole, config=saves)
        stop = Stop(case=case, rank=random.randrange(2), step=random.randint(5, 20), number=number)
        with pytest.raises((TryAgainError, Terminated)) as caught:
            by_two_ranks(strategy_work.stopped, stop)
        assert not multiprocessing.active_children(), "all ranks have ended"
        saved = newest_complete(folder / name)
        assert saved is not None, str(stop)
        stops[name] = stop, caught.value, read_checkpoint(saved)["state"]["step"]
        cases |= {name: whole, f"{name}, resumed": dataclasses.replace(whole, resume=saved)}
    return stops, cases


@pytest.fixture(scope="module")
def resumed(stopped: Stopped, patches: Path, tmp_path_factory: pytest.TempPathFactory) -> Resumed:
    """Trainings of two ranks, one, two again and one again, each from a checkpoint of that before; and the folder of these.

    After them, those of `stopped`, and what each rank of a strategy drew after a checkpoint was written, and again after it was
    read. All by the same two processes: to start these takes longer than to train.
    """
    folder = tmp_path_factory.mktemp("resumed")
    volumes = training_set(folder / "volumes", (*["train"] * 5, "validation"))
    cases = {}

    def case(kind: str, **more: Any) -> Case:
        return case_of(volumes, "instance", **WHOLE, **more) if kind == "volumes" else case_of(patches, kind, **more)

    def saves(name: str, interval: int) -> dict[str, Any]:
        return {"checkpoint_folder": folder / name, "checkpoint_interval": interval}

    for kind in KINDS:
        at_12, at_14, at_16 = (folder / f"{kind}-{name}" for name in CHECKPOINTS)
        cases[kind] = case(kind, **DDP, **saves(at_12.parent.name, 6))
        cases[f"{kind}, one"] = case(kind, resume=at_12, **saves(at_14.parent.name, 7))
        cases[f"{kind}, ddp"] = case(kind, resume=at_14, **DDP)
        cases[f"{kind}, hybrid"] = case(kind, resume=at_14, **STAGES)
        cases[f"{kind}, local-sgd"] = case(kind, resume=at_14, **LOCAL, **saves(at_16.parent.name, 8))
        cases[f"{kind}, one after local-sgd"] = case(kind, resume=at_16)
    draws = {
        own["strategy"]: case_of(patches, "instance", **own, checkpoint_folder=folder / f"random-{own['strategy']}")
        for own in (DDP, LOCAL, STAGES)
    }
    trained, drawn = by_two_ranks(strategy_work.trained_and_drawn, (cases | stopped[1], draws))
    return trained, drawn, folder


@pytest.mark.parametrize("then", ["one", "ddp", "hybrid", "local-sgd", "one after local-sgd"])
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_one_and_two_again_train_what_two_ranks_do(resumed: Resumed, kind: str, then: str) -> None:
    results, _, folder = resumed
    assert [read_checkpoint(folder / f"{kind}-{name}")["state"]["step"] for name in CHECKPOINTS] == [12, 14, 16]
    assert largest_difference(results[f"{kind}, {then}"], results[kind]) <= (1e-12 if kind == "float64" else 1e-6)
    assert results[f"{kind}, {then}"]["loss"] == pytest.approx(results[kind]["loss"], abs=2e-6)


@pytest.mark.parametrize("strategy", ["ddp", "local-sgd", "hybrid"])
def test_every_rank_draws_on_where_it_was(resumed: Resumed, strategy: str) -> None:
    of_ranks = resumed[1][strategy]
    assert of_ranks[0][0] != of_ranks[1][0], "each rank has its own random numbers"
    assert [again for _, again in of_ranks] == [drawn for drawn, _ in of_ranks]


def test_on_another_number_of_ranks_those_that_were_there_draw_on(resumed: Resumed) -> None:
    _, drawn_by, folder = resumed
    content, device = read_checkpoint(folder / "random-ddp"), torch.device("cpu")
    with torch.random.fork_rng():
        for rank, (drawn, _) in enumerate(drawn_by["ddp"]):
            restore_random_state(content, rank=rank, device=device)
            assert torch.rand(3).tolist() == drawn
        torch.manual_seed(5)
        seeded = torch.rand(3).tolist()
        torch.manual_seed(5)
        restore_random_state(content, rank=2, device=device)
        assert torch.rand(3).tolist() == seeded, "there was no third rank"


def test_a_checkpoint_from_before_every_ranks_state_was_kept_is_taken() -> None:
    with torch.random.fork_rng():
        content = {"random_state": {"0": torch.get_rng_state()}}
        drawn = torch.rand(3).tolist()
        restore_random_state(content, rank=0, device=torch.device("cpu"))
        assert torch.rand(3).tolist() == drawn
        restore_random_state(content, rank=1, device=torch.device("cpu"))
        assert torch.rand(3).tolist() != drawn


def test_the_gpus_random_numbers_continue_too(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, put_back = torch.device("cuda", 1), []
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: torch.tensor([device.index], dtype=torch.uint8))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: put_back.append((state.item(), device)))
    content = {"random_state": {"3": random_state(gpu)}}
    restore_random_state(content, rank=3, device=gpu)
    restore_random_state(content, rank=2, device=gpu)
    assert put_back == [(1, gpu)]


def test_another_number_of_ranks_is_reported() -> None:
    names = resumable_options(["local-sgd"])
    by_two = {"identity": json.dumps({"strategy": "local-sgd", "ranks": 2, "sync_interval": 5, "seed": 0})}
    assert (
        spread_before(by_two, {"strategy": "local-sgd", "ranks": 2, "sync_interval": 5, "seed": 0}, names=names) == ""
    )
    message = ", written by 2 ranks under --strategy local-sgd"
    assert spread_before(by_two, {"strategy": "local-sgd", "ranks": 4, "sync_interval": 5}, names=names) == message
    assert spread_before(by_two, {"strategy": "single", "ranks": 1}, names=names) == message


def test_a_checkpoint_of_another_recipe_is_refused_on_another_number_of_ranks() -> None:
    content = {"identity": json.dumps({"strategy": "ddp", "ranks": 2, "seed": 0}), "data_sha256": "ab"}
    differing = resumable_options(["ddp"])
    one = {"strategy": "single", "ranks": 1}
    check_identity(content, identity={**one, "seed": 0}, data_sha256="ab", may_differ=differing)
    with pytest.raises(UserInputError) as caught:
        check_identity(content, identity={**one, "seed": 3}, data_sha256="ab", may_differ=differing)
    assert (caught.value.seen, caught.value.expected) == ("seed = 0", "seed = 3")


@pytest.mark.parametrize("epochs", [None, 6])
def test_a_batch_that_went_by_the_ranks_is_named_with_the_options_to_continue(
    tmp_path: Path, epochs: int | None
) -> None:
    def identity(**more: Any) -> dict[str, Any]:
        config = options(tmp_path, epochs=epochs, batch_size=2, learning_rate=0.0001, **more)
        return {**config.for_all_ranks().for_cases(7, num_channels=1).identity(), "precision": "float32"}

    by_three = identity(scale_by_ranks=True, strategy="ddp", ranks=3)
    content = {"identity": json.dumps(by_three), "data_sha256": "ab"}
    with pytest.raises(UserInputError) as caught:
        check_identity(content, identity=identity(scale_by_ranks=True), data_sha256="ab")
    assert "batch_size = 6; " in caught.value.seen
    assert "batch_size = 2; " in caught.value.expected
    message = re.search(r"use --batch-size (\d+) --learning-rate (\S+) without --scale-by-ranks", caught.value.do)
    assert message, caught.value.do
    batch_size, learning_rate = int(message[1]), float(message[2])
    assert (batch_size, learning_rate) == (6, 0.0001 * 3)
    config = options(tmp_path, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate)
    continues = {**config.for_cases(7, num_channels=1).identity(), "precision": "float32"}
    check_identity(content, identity=continues, data_sha256="ab")


def test_another_batch_that_did_not_go_by_the_ranks_is_reported_without_them() -> None:
    content = {"identity": json.dumps({"strategy": "ddp", "ranks": 2, "batch_size": 4}), "data_sha256": "ab"}
    with pytest.raises(UserInputError) as caught:
        check_identity(content, identity={"strategy": "single", "ranks": 1, "batch_size": 8}, data_sha256="ab")
    assert "--scale-by-ranks" not in caught.value.do


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


def test_a_training_that_is_killed_at_any_step_continues_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, saved, interval, step = training_set(tmp_path / "data"), tmp_path / "saved", 4, random.randint(5, 24)
    print(f"killed in step {step}")  # pytest shows it if the test fails

    def words(name: str) -> list[str]:
        values = ["train", "--training-set", str(data), "--output", str(tmp_path / name), *TINY, "--steps", "24"]
        values += ["--training-log", str(tmp_path / f"{name}_log"), "--run-report", str(tmp_path / f"{name}.json")]
        return [*values, "--checkpoint-folder", str(saved), "--checkpoint-interval", str(interval)]

    process = started(words("killed"), folder=tmp_path, before=KILLED_AT.format(step=step))
    _, message = process.communicate(timeout=180)
    assert process.returncode == -signal.SIGKILL, message
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
    assert curves[0] == curves[1]


@pytest.mark.parametrize("strategy", ["ddp", "local-sgd"])
def test_ranks_that_a_signal_stops_in_any_step_continue_to_the_same_bits(
    stopped: Stopped, resumed: Resumed, strategy: str
) -> None:
    stop, error, done = stopped[0][strategy]
    message = str(stop)
    between = STEPS_BETWEEN[strategy]
    if stop.number == signal.SIGKILL:
        assert isinstance(error, TryAgainError), message
        assert re.match(rf"rank {stop.rank} on .* ended before training finished", str(error)), message
        assert "killed by signal 9" in error.seen, message
        assert done == (stop.step - 1) // between * between, message
    else:
        assert isinstance(error, Terminated), message
        assert error.exit_code == 143, message
        averages = {*range(between, 20, between), 10, 20}  # an epoch has ten steps
        # A rank's flags are sent with the next step; the last step's checkpoint is due anyway.
        assert done == min((step for step in averages if step > stop.step), default=20), message
    further, whole = resumed[0][f"{strategy}, resumed"], resumed[0][strategy]
    assert largest_difference(further, whole) == 0, message
    assert (further["loss"], further["bytes"]) == (whole["loss"], whole["bytes"]), message
