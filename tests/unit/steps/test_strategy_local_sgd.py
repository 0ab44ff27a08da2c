"""`local-sgd`: averaged after every step it is `ddp`, more rarely it sends less; its average is that of `train-distributed`."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from medweave_core.errors import InternalError, UsageError
from medweave_steps.cli import main
from medweave_steps.io.model.folder import read_card
from medweave_steps.train.network import architecture, seeded_network
from medweave_steps.train_distributed.config import DistributedConfig
from medweave_steps.train_distributed.engines.in_order import InOrderEngine
from medweave_steps.train_distributed.engines.replica import ReplicaJob
from medweave_steps.training.distributed.average import averaged, packed, unpacked
from medweave_steps.training.distributed.group import Alone
from medweave_steps.training.strategies import STRATEGIES, Strategy, strategy_class
from support import strategy_work
from support.one_label import TASK
from support.rank_work import run_to_its_end
from support.server_work import train_in_threads, weights_of
from support.strategy_work import KINDS, Case, by_two_ranks, case_of, largest_difference, options
from support.train_jobs import train_job
from support.training_set import training_set

pytestmark = pytest.mark.slow  # each starts training processes, or waits for a fixture that does

LOCAL: dict[str, Any] = {"strategy": "local-sgd", "ranks": 2}
BY_EPOCH, EVERY_FIVE, EVERY_TWO = LOCAL, LOCAL | {"sync_interval": 5}, LOCAL | {"sync_interval": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_set(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def by_ranks(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, dict[str, Any]], Any, list[int]]:
    """All that two ranks do for the tests, and the verb's results with each rank's samples: to start ranks takes the longest."""
    saved = tmp_path_factory.mktemp("saved")
    saving = EVERY_FIVE | {"checkpoint_folder": saved, "checkpoint_interval": 12}
    cases = {f"{kind}, ddp": case_of(data, kind, strategy="ddp", ranks=2) for kind in KINDS}
    cases |= {kind: case_of(data, kind, **LOCAL, sync_interval=1) for kind in KINDS}
    cases |= {"five": case_of(data, "instance", **EVERY_FIVE), "epoch": case_of(data, "instance", **BY_EPOCH)}
    cases |= {"recipe": Case(config=options(data, **EVERY_TWO, epoch_steps=4), recipe=True)}
    # With Adam, whose moments are each rank's own; the checkpoint of step 12 is written when the ranks meet after it.
    cases |= {"saving": Case(config=options(data, **saving), recipe=True)}
    cases |= {"resumed": Case(config=options(data, **EVERY_FIVE), recipe=True, resume=saved)}
    verb, folder = options(data, **LOCAL, sync_interval=3, steps=6, epoch_steps=2), data / "model"
    folder.mkdir()
    job = train_job(verb, folder=folder, log_folder=data / "log")
    trained, results, samples = by_two_ranks(strategy_work.trained_and_reported, (cases, job))
    assert sorted(path.name for path in saved.iterdir()) == ["checkpoint.pt"]
    assert strategy_work.read_checkpoint(saved)["state"]["step"] == 15
    return trained, results, samples


@pytest.fixture(scope="module")
def shared(by_ranks: tuple[dict[str, dict[str, Any]], Any, list[int]]) -> dict[str, dict[str, Any]]:
    return by_ranks[0]


@pytest.mark.parametrize("kind", KINDS)
def test_an_average_after_every_step_of_plain_sgd_is_ddp(shared: dict[str, dict[str, Any]], kind: str) -> None:
    assert largest_difference(shared[kind], shared[f"{kind}, ddp"]) <= (1e-12 if kind == "float64" else 1e-6)
    assert shared[kind]["loss"] == pytest.approx(shared[f"{kind}, ddp"]["loss"], abs=2e-6)


def test_an_epoch_lasts_until_the_slowest_shard_has_arrived(data: Path) -> None:
    epochs, delay_s = 3, 0.2
    case = case_of(data, "instance", **LOCAL, steps=2 * epochs, epoch_steps=2, validation_interval=epochs)
    arrived: list[list[float]] = [[], []]
    left: list[list[float]] = [[], []]

    def prepare(trainer: Any, rank: int) -> None:
        synchronize = trainer.strategy._synchronize

        def timed(*arguments: Any) -> Any:
            time.sleep(delay_s * rank)  # the shard of rank 1 takes longer
            arrived[rank].append(time.monotonic())
            result = synchronize(*arguments)
            left[rank].append(time.monotonic())
            return result

        trainer.strategy._synchronize = timed

    started = time.monotonic()
    fast, slow = train_in_threads(case, prepare=prepare)
    assert [len(times) for times in (*arrived, *left)] == [epochs] * 4
    for epoch in range(epochs):
        slowest = max(times[epoch] for times in arrived)
        exchanges = [times[epoch] - slowest for times in left]
        assert min(exchanges) >= 0, "no rank starts its next epoch before the slowest one has arrived"
    assert left[0][-1] - started >= epochs * delay_s
    assert slow.state.train_seconds >= epochs * delay_s
    waits = sum(end - begin for begin, end in zip(arrived[0], left[0], strict=True))
    assert fast.state.train_seconds >= waits, "the time of a rank includes its wait for the others"
    own, other = weights_of(fast), weights_of(slow)
    assert all((own[name] == other[name]).all() for name in own)


def test_bytes_fall_with_the_interval(data: Path, shared: dict[str, dict[str, Any]]) -> None:
    of_weights = sum(weights.nbytes for weights in strategy_work.start(case_of(data, "instance")).values())
    assert shared["instance"]["bytes"] == 20 * 2 * of_weights == shared["instance, ddp"]["bytes"]
    assert shared["five"]["bytes"] * 5 == shared["instance"]["bytes"]
    assert shared["epoch"]["bytes"] * 10 == shared["instance"]["bytes"]
    assert largest_difference(shared["five"], shared["instance"]) > 1e-6, "rarer averages train other weights"


def test_it_averages_as_train_distributed_does_bit_for_bit(data: Path, shared: dict[str, dict[str, Any]]) -> None:
    config = options(data)
    further = DistributedConfig(
        training_set=data, output=data / "m", trained_model=data / "parent", rounds=10, steps_per_round=2, replicas=2,
        batch_size=config.batch_size, patch_shape=config.patch_shape, learning_rate=config.learning_rate,
    )  # fmt: skip
    job = ReplicaJob(
        config=further, **further.of_replicas(), task=TASK,
        architecture=json.dumps(architecture(config)), window_shape=config.window_shape,
        overlap=config.overlap, first_step=0, num_threads=1,
    )  # fmt: skip
    engine, content = InOrderEngine(job), packed(seeded_network(config, TASK).state_dict())
    for number in range(further.rounds):
        shares = engine.train(number, content, bfloat16=False)
        content = packed(averaged([unpacked(share.weights) for share in shares], [share.samples for share in shares]))
    for name, weights in unpacked(content).items():
        assert torch.equal(weights, torch.from_numpy(shared["recipe"][name])), name


def test_a_resumed_training_equals_an_uninterrupted_one(shared: dict[str, dict[str, Any]]) -> None:
    assert largest_difference(shared["resumed"], shared["saving"]) == 0
    assert shared["resumed"]["loss"] == shared["saving"]["loss"]
    assert shared["resumed"]["bytes"] == shared["saving"]["bytes"] > 0


def test_one_rank_is_single_bit_for_bit(data: Path) -> None:
    results = [
        strategy_work.trained(Case(config=options(data, strategy=name), recipe=True), Alone())
        for name in ("single", "local-sgd")
    ]
    assert largest_difference(*results) == 0
    assert results[0]["loss"] == results[1]["loss"]
    assert [result["bytes"] for result in results] == [0, 0]


def test_a_loss_that_is_not_a_number_names_step_and_cases(tmp_path: Path) -> None:
    data = training_set(tmp_path)
    trainer = strategy_work.trainer_of(Case(config=options(data, strategy="local-sgd", batch_size=8)), Alone())
    for case in trainer.sampler.cases:
        object.__setattr__(case, "volume_CIJK", np.full(case.volume_CIJK.shape, math.nan, np.float32))
    with pytest.raises(InternalError, match=r"the loss is NaN or infinite at step 1\.") as caught:
        run_to_its_end(trainer)
    assert "the volume of case-0, case-1 contains NaN or infinite values" in caught.value.seen


def test_the_verb_reports_what_was_synchronised(
    data: Path, by_ranks: tuple[dict[str, dict[str, Any]], Any, list[int]]
) -> None:
    _, results, samples = by_ranks
    training = read_card(data / "model").training
    assert (training["strategy"], training["sync_interval"], training["world_size"]) == ("local-sgd", 3, 2)
    weights = sum(tensor.numel() * tensor.element_size() for tensor in saved_weights(data / "model").values())
    # Six steps, epochs of two: averages after the steps 2, 3, 4 and 6.
    assert training["synchronised_bytes"] == results["training"]["synchronised_bytes"] == 4 * 2 * weights
    assert samples == [12, 12]


def saved_weights(folder: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = torch.load(folder / "models" / "model.pt", weights_only=True)
    return weights


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy": "ddp", "sync_interval": 2}, "with --strategy local-sgd only"),
        ({"strategy": "local-sgd", "sync_interval": 0}, "at least 1"),
        ({"strategy": "local-sgd", "ranks": 5}, "1 to 4: every rank needs at least one patch of --batch-size"),
    ],
)
def test_values_that_cannot_be_used_are_refused(data: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        options(data, **changes)
    assert message in caught.value.expected


def test_the_interval_is_part_of_what_the_weights_depend_on_where_there_is_one(data: Path) -> None:
    assert "sync_interval" not in options(data).identity()
    config = options(data, **EVERY_FIVE)
    assert config.identity()["sync_interval"] == 5
    assert options(data, **LOCAL).identity() != config.identity()


@pytest.mark.parametrize(
    ("name", "message"),
    [("local_sgd", "write 'local-sgd' (closest match)"), ("horovod", "choose one of the listed strategies")],
)
def test_a_name_that_no_strategy_has_is_refused_with_the_closest_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    words = ["--training-set", str(tmp_path / "none"), "--output", str(tmp_path / "m"), "--strategy", name]
    assert main(["train", *words]) == UsageError.exit_code, "before the data are looked at"
    shown = capsys.readouterr().err
    assert f"unknown strategy '{name}'" in shown
    assert f"one of {', '.join(STRATEGIES)}" in shown
    assert message in shown


def test_the_help_lists_every_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert f"--strategy {{{','.join(STRATEGIES)}}}" in capsys.readouterr().out


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_module_of_the_package_is_a_strategy(name: str) -> None:
    assert issubclass(strategy_class(name), Strategy)
