"""`parameter-server`: synchronous training is that of one process; asynchronous training is that of a reference loop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from medweave_core.errors import StepError, UsageError, UserInputError
from medweave_steps.runtime.monitor import read_recordings
from medweave_steps.training.distributed.async_server import write_arrivals
from medweave_steps.training.distributed.group import Alone
from medweave_steps.training.loop.flat import FlatNetwork
from support import server_work
from support.rank_work import run_to_its_end
from support.server_work import ASYNC_ORDER, Pace, needs_open_mpi, scripted, train_in_threads, weights_of
from support.strategy_work import (
    LEARNING_RATE,
    Case,
    by_ranks,
    case_of,
    largest_difference,
    options,
    start,
    trained,
    trainer_of,
)
from support.train_jobs import train_job
from support.training_set import training_set

SERVER: dict[str, Any] = {"strategy": "parameter-server", "ranks": 3}
ASYNC = SERVER | {"coordination": "async"}
FEW: dict[str, Any] = {"steps": 8, "epoch_steps": 4}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_set(tmp_path_factory.mktemp("data"), ("train", "train", "validation", "validation"))


def num_weights(data: Path) -> int:
    return sum(weights.size for weights in start(case_of(data, "instance")).values())


@pytest.mark.parametrize("kind", ["accumulated", "float64"])
def test_sync_gradient_is_one_process_with_the_whole_batch(data: Path, kind: str) -> None:
    trainers = train_in_threads(case_of(data, kind, **SERVER, **FEW))
    single = trained(case_of(data, kind, **FEW), Alone())
    for trainer in trainers:
        assert largest_difference(weights_of(trainer), single) <= (1e-12 if kind == "float64" else 1e-6)
    assert [point["loss"] for point in trainers[0].points if "loss" in point] == pytest.approx(single["loss"], abs=2e-6)


def use_adam(trainer: Any, rank: int = 0) -> None:
    optimizer = torch.optim.Adam(trainer.network.parameters(), lr=0.01)
    trainer.stepper.optimiser = optimizer
    trainer.stepper.schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)


@pytest.mark.parametrize("num_workers", [2, 4])
@pytest.mark.parametrize("prepare", [None, use_adam], ids=["sgd", "adam"])
def test_sync_gradient_is_one_process_after_twenty_steps(data: Path, num_workers: int, prepare: Any) -> None:
    server, *_ = train_in_threads(case_of(data, "float64", **SERVER | {"ranks": num_workers + 1}), prepare=prepare)
    single = trainer_of(case_of(data, "float64"), Alone())
    if prepare:
        prepare(single)
    run_to_its_end(single)
    assert server.state.step == single.state.step == 20
    for name, weights in weights_of(server).items():
        np.testing.assert_allclose(weights, weights_of(single)[name], rtol=1e-5)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_set(tmp_path_factory.mktemp("many"), ["train"] * 2 + ["validation"] * 4)


def test_a_synchronous_round_waits_for_the_slowest_worker(many: Path) -> None:
    pace, leads = Pace(num_workers=4), list[int]()

    def wait() -> None:
        pace.reached.wait_for(lambda: False, timeout=0.05)  # s, in which the others would begin their next step
        leads.append(max(pace.steps.values()) - pace.steps[4])

    pace.before_slow_step = wait
    train_in_threads(case_of(many, "instance", **SERVER | {"ranks": 5}, steps=6, epoch_steps=6), prepare=pace.prepare)
    assert len(leads) == 6
    assert max(leads) == 1, "steps"


def test_with_a_slow_worker_asynchronous_training_has_twice_the_updates(many: Path) -> None:
    pace = Pace(num_workers=4)

    def wait_until_others_have_a_lead() -> None:
        # Four times as slow as the others. In synchronous training, where each waits for all, this would wait in vain.
        own, others = pace.steps[4], [1, 2, 3]
        assert pace.reached.wait_for(lambda: min(pace.steps[n] for n in others) >= min(4 * (own + 1), 8), timeout=60)

    pace.before_slow_step = wait_until_others_have_a_lead
    few: dict[str, Any] = {"ranks": 5, "steps": 8, "epoch_steps": 2, "validation_interval": 8, "rule": "async-weights"}
    server, *_ = train_in_threads(case_of(many, "instance", **ASYNC | few), prepare=pace.prepare)
    events = server.strategy._server._server.events  # type: ignore[attr-defined]
    updates = [rank for rank, kind in events if kind == "update"]
    until_slow = updates[: updates.index(4) + 1]
    assert len(until_slow) >= 2 * 4, "a synchronous server has one of each worker by then"
    assert [updates.count(rank) for rank in (1, 2, 3, 4)] == [4, 4, 4, 4]


def test_a_synchronous_round_moves_the_weights_twice_per_worker(data: Path) -> None:
    server, *_ = train_in_threads(case_of(data, "instance", **SERVER, steps=4, epoch_steps=2))
    transport = server.strategy._transport  # type: ignore[attr-defined]
    assert server.state.synchronised_bytes == transport.num_bytes == 4 * 2 * 2 * 4 * num_weights(data)


def test_sync_weights_is_the_average_of_local_sgd(data: Path) -> None:
    trainers = train_in_threads(case_of(data, "instance", **SERVER, rule="sync-weights"))
    local = train_in_threads(case_of(data, "instance", strategy="local-sgd", ranks=2))
    for trainer in trainers:
        assert largest_difference(weights_of(trainer), weights_of(local[0])) == 0
    assert trainers[0].points == local[0].points
    assert trainers[0].state.synchronised_bytes == 2 * 2 * 2 * 4 * num_weights(data), "two epochs"


def test_one_worker_with_sync_weights_is_single_bit_for_bit(data: Path) -> None:
    trainers = train_in_threads(case_of(data, "instance", **SERVER | {"ranks": 2}, rule="sync-weights"))
    assert largest_difference(weights_of(trainers[0]), trained(case_of(data, "instance"), Alone())) == 0


def test_a_synchronous_training_is_resumed_bit_for_bit(data: Path, tmp_path: Path) -> None:
    changes = SERVER | {"rule": "sync-weights"}
    saving = options(data, **changes, checkpoint_folder=tmp_path, checkpoint_interval=10)
    whole, *_ = train_in_threads(Case(config=saving, recipe=True))
    before = tmp_path / "checkpoint-before.pt"
    resumed, *_ = train_in_threads(Case(config=options(data, **changes), recipe=True, resume=before))
    assert largest_difference(weights_of(resumed), weights_of(whole)) == 0
    assert resumed.points == whole.points


def test_batch_norm_statistics_are_averaged_or_those_of_the_first_worker(data: Path) -> None:
    def statistics(**changes: Any) -> tuple[list[Any], dict[str, Any]]:
        case = Case(config=options(data, **SERVER, **changes, steps=4, epoch_steps=4), recipe=True)
        trainers = train_in_threads(case)
        own = [
            trainer.strategy._own_statistics if trainer.strategy._own_statistics is not None  # type: ignore[attr-defined]
            else trainer.strategy._flat.statistics() for trainer in trainers  # type: ignore[attr-defined]
        ]  # fmt: skip
        return own, trainers[0].strategy.card_facts()

    (server, first, second), facts = statistics()
    assert facts["batch_norm_statistics"] == "averaged"
    assert (server == first).all()
    assert (server == second).all()
    (of_server, own_first, own_second), facts = statistics(batch_norm_statistics="local")
    assert facts["batch_norm_statistics"] == "local"
    assert (of_server == own_first).all()
    assert (own_first != own_second).any()
    np.testing.assert_allclose((own_first + own_second) / 2, server, rtol=1e-4, atol=1e-6)


Order = list[tuple[int, str]]
QUORUM_ORDER: Order = [(2, "update"), (1, "update"), (1, "report"), (2, "report"), (1, "update"), (2, "update"),
                       (2, "converged"), (1, "converged")]  # fmt: skip
STEP_ORDER: Order = [(1, "update"), (2, "update"), (2, "update"), (1, "update"), (2, "report"), (2, "update"),
                     (1, "report"), (1, "update"), (1, "update"), (2, "update"), (2, "converged"), (1, "converged")]  # fmt: skip
"""Two epochs of two steps, for a quorum of 1 or 2."""


def reference(
    data: Path, order: Order, *, rule: str, quorum: int = 1, weighting: float = 1, **steps: Any
) -> tuple[np.ndarray, float]:
    """The loops of the paper, for two workers; weights of the server, rank 0, and the last loss of worker 1."""
    trainers = [trainer_of(case_of(data, "instance", **steps), Alone()) for _ in range(3)]
    flats, interval = [FlatNetwork(trainer.network) for trainer in trainers], trainers[0].config.epoch_steps
    losses: list[list[float]] = [[], [], []]
    state, waiting = flats[0].weights().astype(np.float64), {}
    for number, k in enumerate(worker for worker, kind in order if kind == "update"):
        stepper = trainers[k].stepper
        for _ in range(interval if rule == "async-weights" else 1):
            batch = trainers[k].sampler.batch(len(losses[k]), rank=k - 1, world_size=2)
            stepper.begin()
            losses[k].append(stepper.backward(stepper.loss_of(batch)))
            if rule == "async-weights":
                stepper.apply()
        waiting[k] = flats[k].weights() if rule == "async-weights" else flats[k].gradient()
        if len(waiting) == quorum:
            mean = (sum(vector.astype(np.float64) for vector in waiting.values()) / quorum).astype(np.float32)
            if rule == "async-gradient":
                state = state - LEARNING_RATE * mean
            else:
                state = mean if number < quorum else (weighting * state + mean) / (weighting + 1)
            state = state.astype(np.float32).astype(np.float64)
            for worker in waiting:
                flats[worker].set_weights(state.astype(np.float32))
            waiting = {}
    return state, sum(losses[1][-interval:]) / interval


@pytest.mark.parametrize(
    ("order", "options_of_server", "steps"),
    [
        pytest.param(ASYNC_ORDER, {"rule": "async-weights"}, {}, id="async-weights"),
        pytest.param(
            QUORUM_ORDER, {"rule": "async-weights", "quorum": 2, "weighting": 3.0}, {}, id="quorum of weights"
        ),
        pytest.param(STEP_ORDER, {"rule": "async-gradient"}, {"steps": 4, "epoch_steps": 2}, id="async-gradient"),
        pytest.param(
            STEP_ORDER,
            {"rule": "async-gradient", "quorum": 2},
            {"steps": 4, "epoch_steps": 2},
            id="quorum of gradients",
        ),
    ],
)
def test_asynchronous_training_in_a_scripted_order_is_the_reference_loop(
    data: Path, tmp_path: Path, order: Order, options_of_server: dict[str, Any], steps: dict[str, int]
) -> None:
    (tmp_path / "arrivals.json").write_text(json.dumps(scripted(order)))
    script = {"replay_arrivals": tmp_path / "arrivals.json"}
    server, first, _ = train_in_threads(case_of(data, "instance", **ASYNC, **options_of_server, **steps, **script))
    state, loss = reference(data, order, **options_of_server, **steps)
    weights, atol = FlatNetwork(server.network).weights(), 0 if options_of_server["rule"] == "async-weights" else 1e-7
    np.testing.assert_allclose(weights, state, rtol=0, atol=atol)
    assert first.points[-2]["loss"] == pytest.approx(loss, abs=1e-6)
    facts = server.strategy.card_facts()
    assert (facts["converged"], facts["lost"], facts["updates"]) == ([2, 1], [], len(order) - 4)


def test_async_gradient_with_one_worker_is_sequential_training(data: Path) -> None:
    server, _ = train_in_threads(case_of(data, "instance", **ASYNC | {"ranks": 2, "rule": "async-gradient"}, **FEW))
    assert largest_difference(weights_of(server), trained(case_of(data, "instance", **FEW), Alone())) == 0
    assert server.strategy.card_facts()["updates"] == 8


@pytest.mark.parametrize("changes", [{"rule": "async-gradient"}, {"quorum": 2, "weighting": 3.0}])
def test_a_recorded_order_is_replayed_from_start_and_from_a_checkpoint_bit_for_bit(
    data: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    saved = tmp_path / "saved"
    few = FEW | {"validation_interval": 1}
    config = options(data, **ASYNC, **changes, **few, checkpoint_folder=saved, checkpoint_interval=4)
    whole, *workers = train_in_threads(Case(config=config, recipe=True))
    events = whole.strategy._server._server.events  # type: ignore[attr-defined]
    assert [kind for _, kind in events].count("converged") == 2
    write_arrivals(tmp_path, events, num_workers=2, facts={})
    replay = options(data, **ASYNC, **changes, **few, replay_arrivals=tmp_path / "arrivals.json")
    for resume in (None, saved / "checkpoint-before.pt"):
        again, *_ = train_in_threads(Case(config=replay, recipe=True, resume=resume))
        assert largest_difference(weights_of(again), weights_of(whole)) == 0
        assert again.points == whole.points
        best, expected = (
            {name: tensor.numpy() for name, tensor in trainer.state.best_weights.items()} for trainer in (again, whole)
        )
        assert largest_difference(best, expected) == 0
    for worker in workers:
        assert worker.state.best_weights.keys() == whole.state.best_weights.keys(), "those of the server, for all"


def test_an_asynchronous_training_is_resumed_live(data: Path, tmp_path: Path) -> None:
    changes = ASYNC | {"ranks": 2}
    saving = options(data, **changes, checkpoint_folder=tmp_path, checkpoint_interval=10)
    whole, _ = train_in_threads(Case(config=saving, recipe=True))
    resumed, worker = train_in_threads(
        Case(config=options(data, **changes), recipe=True, resume=tmp_path / "checkpoint-before.pt")
    )
    assert largest_difference(weights_of(resumed), weights_of(whole)) == 0
    assert worker.state.step == 20
    ended, idle = train_in_threads(Case(config=options(data, **changes), recipe=True, resume=tmp_path))
    assert largest_difference(weights_of(ended), weights_of(whole)) == 0
    assert idle.state.step == 20


def test_a_worker_that_is_recorded_as_lost_is_dismissed_by_a_replay(data: Path, tmp_path: Path) -> None:
    order = [(1, "update"), (2, "update"), (2, "lost"), (1, "report"), (1, "update"), (1, "converged")]
    (tmp_path / "arrivals.json").write_text(json.dumps(scripted(order)))
    server, _, lost = train_in_threads(case_of(data, "instance", **ASYNC, replay_arrivals=tmp_path / "arrivals.json"))
    assert server.strategy.card_facts()["lost"] == [2]
    assert lost.state.step == 10
    assert list(server.strategy.closing_notices()) == ["worker 2 was lost; the training continued without it."]


def test_a_record_of_other_options_is_refused(data: Path, tmp_path: Path) -> None:
    order = [(1, "update"), (1, "update")]
    (tmp_path / "arrivals.json").write_text(json.dumps(scripted(order)))
    with pytest.raises(UserInputError, match="do not fit this training") as caught:
        train_in_threads(case_of(data, "instance", **ASYNC, replay_arrivals=tmp_path / "arrivals.json"))
    assert caught.value.seen == "worker 1 sent 'report' where 'update' is recorded, after 1 events"


class Falling:
    """A validator with a lower score at each validation."""

    def __init__(self, validator: Any) -> None:
        self._validator, self._scores = validator, iter(range(9, 0, -1))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._validator, name)

    def score(self, figures: Any) -> float:
        return float(next(self._scores))


def test_each_asynchronous_worker_stops_by_itself(data: Path) -> None:
    def overfit(trainer: Any, rank: int) -> None:
        if rank == 1:
            trainer.validator = Falling(trainer.validator)
            losses, backward = iter(range(99, 0, -1)), trainer.stepper.backward
            trainer.stepper.backward = lambda *arguments: (backward(*arguments), float(next(losses)))[1]

    config = options(data, **ASYNC, epoch_steps=5, validation_interval=1, patience=2)
    server, first, second = train_in_threads(Case(config=config, recipe=True), prepare=overfit)
    assert first.state.stopped_early
    assert first.state.step == 15, "two validations after the first were not better while the loss fell"
    assert (second.state.step, server.state.stopped_early) == (20, False)
    assert sorted(server.strategy.card_facts()["converged"]) == [1, 2]


def test_what_is_of_one_rank_is_multiplied_by_the_workers(data: Path) -> None:
    together = options(data, **SERVER, learning_rate=0.1, scale_by_ranks=True).for_all_ranks()
    assert (together.batch_size, together.learning_rate) == (8, pytest.approx(0.2))


def test_more_workers_than_validation_cases_are_refused(data: Path) -> None:
    with pytest.raises(UserInputError, match="fewer validation cases than workers"):
        train_in_threads(case_of(data, "instance", **ASYNC | {"ranks": 4}))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"ranks": 1}, UsageError, "at least 2: rank 0 is the server"),
        ({"ranks": 6}, UsageError, "1 to 5: every rank needs at least one patch"),
        ({"rule": "async-weights"}, UsageError, "sync-gradient or sync-weights, with --coordination sync"),
        ({"coordination": "async", "rule": "sync-weights"}, UsageError, "async-weights or async-gradient"),
        ({"coordination": "async", "quorum": 3}, UsageError, "1 to 2, the number of workers"),
        ({"quorum": 2}, UsageError, "no value with --coordination sync"),
        ({"weighting": 2.0}, UsageError, "with the rule async-weights only"),
        ({"coordination": "async", "weighting": -1.0}, UsageError, "0 or more"),
        ({"coordination": "async", "worker_timeout": 1.0}, UsageError, "at least 5 s"),
        ({"replay_arrivals": Path("arrivals.json")}, UsageError, "no value with --coordination sync"),
        ({"coordination": "async", "replay_arrivals": Path("none.json")}, UserInputError, "an arrivals.json"),
        ({"strategy": "ddp", "quorum": 2}, UsageError, "applies only to --strategy parameter-server"),
    ],
)
def test_values_that_cannot_be_used_are_refused(
    data: Path, changes: dict[str, Any], error: type[StepError], message: str
) -> None:
    with pytest.raises(error) as caught:
        options(data, **SERVER | changes)
    assert message in caught.value.expected


# Gloo notices a closed connection, MPI only that heartbeats are missing.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("transport", "lost_after_s"), [("gloo", 40.0), pytest.param("mpi", 8.0, marks=needs_open_mpi)]
)
def test_asynchronous_training_goes_on_without_a_worker_that_is_killed(
    data: Path, tmp_path: Path, transport: str, lost_after_s: float
) -> None:
    folder, log = tmp_path / "model", tmp_path / "log"
    for path in (folder, log):
        path.mkdir()
    job = train_job(options(data, **ASYNC, transport=transport, output=folder), folder=folder, log_folder=log)
    kill = server_work.Kill(job=job, rank=2, step=14)
    results, notices, ranks = by_ranks(server_work.trained_with_a_kill, kill, ranks=3, lost_after_s=lost_after_s)
    assert ranks == [0, 1]
    assert "worker 2 was lost; the training continued without it." in notices
    assert (results["training"]["lost"], results["training"]["converged"]) == ([2], [1])
    record = json.loads((log / "arrivals.json").read_text())
    assert [2, "lost"] in record["events"]
    assert record["events"].count([2, "update"]) == 1
    assert (folder / "model_card.json").is_file()
    assert results["training"]["hardware"]["missing"][-1] == "rank 2 (lost during the training)"
    assert [recording.rank for recording in read_recordings(log)] == [0, 1, 2]
