"""`hybrid`: stages times replicas train what one process trains; a checkpoint is that of every other strategy."""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import random
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from medweave_core.contracts.placement import Partition
from medweave_core.contracts.report import RankFacts
from medweave_core.errors import TryAgainError, UsageError, UserInputError
from medweave_steps.io.model.folder import WEIGHTS_FILE, read_card
from medweave_steps.train.config import TrainConfig
from medweave_steps.train.rank import train_on_rank
from medweave_steps.training.distributed.group import Alone
from medweave_steps.training.loop.checkpoint import newest_complete, read_checkpoint
from medweave_steps.training.loop.pipeline import num_micro_batches
from medweave_steps.training.placement.cut import cut
from medweave_steps.training.placement.loads import measure_loads
from medweave_steps.training.placement.stages import place_stages
from medweave_steps.training.strategies import StrategyOptions
from medweave_steps.training.strategies.hybrid import HybridOptions, check_trained
from support import ring_work, strategy_work
from support.image_set import image_set
from support.strategy_work import VOLUMES, Case, Stop, by_ranks, case_of, largest_difference, options
from support.train_jobs import train_job
from support.training_set import training_set

HYBRID: dict[str, Any] = {"strategy": "hybrid", "ranks": 2, "stages": 2}
FOUR: dict[str, Any] = {"strategy": "hybrid", "ranks": 4, "stages": 2}
KINDS = ("instance", "group", "uneven", "float64")
KINDS_OF_FOUR = ("instance", "float64")
CLIPPED = {"gradient_clip": 0.05}
DELAYED = {"pipelined": True, "micro_batches": 4}
VOLUME_SHAPE = (32, 32, 32)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_set(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_set(tmp_path_factory.mktemp("volumes"), ("train", "train", "train", "validation"))


def recipe(data: Path, **changes: Any) -> Case:
    """Return a training with the verb's own batch norm and Adam."""
    return Case(config=options(data, **changes), recipe=True)


@dataclass(frozen=True, kw_only=True)
class ByRanks:
    """The results of two or four ranks.

    Attributes:
        trained: the weights of each training.
        refusals: the error of each rank.
        results, ranks: of the verb.
        verb: its options.
        folder: its model, and the checkpoints.
    """

    trained: dict[str, Any]
    refusals: dict[str, Any]
    results: dict[str, Any]
    ranks: list[RankFacts]
    verb: TrainConfig
    folder: Path


def resattnet(folder: Path, **spread: Any) -> Any:
    """Return the options of a narrow 3D-ResAttNet on small volumes, in micro-batches of two volumes."""
    shapes = dict.fromkeys(range(8), VOLUME_SHAPE)
    data = image_set(folder, of_split={"train": 5, "validation": 3}, shapes=shapes)
    return options(
        data, task="classification", network="resattnet18", width=1 / 16, steps=4, batch_size=4, epoch_steps=2,
        validation_interval=1, patch_shape=VOLUME_SHAPE, window_shape=VOLUME_SHAPE, **spread,
    )  # fmt: skip


@pytest.fixture(scope="module")
def by_two(data: Path, tmp_path_factory: pytest.TempPathFactory) -> ByRanks:
    """All that two ranks do for the tests, because starting them takes longer than training."""
    folder = tmp_path_factory.mktemp("two")
    saves = {"checkpoint_folder": folder / "saved", "checkpoint_interval": 7}
    resumed = {"recipe": True, "resume": folder / "saved/checkpoint.pt"}
    cases = {kind: case_of(data, kind, **HYBRID) for kind in KINDS}
    cases |= {
        "one stage": recipe(data, strategy="hybrid", ranks=2, stages=1),
        "chosen": recipe(data, strategy="hybrid", ranks=2),
        "ddp": recipe(data, strategy="ddp", ranks=2),
        "recipe": recipe(data, **HYBRID, micro_batches=2),
        "recomputed": case_of(data, "instance", **HYBRID, recompute=True),
        "clipped": case_of(data, "instance", **HYBRID, **CLIPPED),
        "saving": recipe(data, **HYBRID, micro_batches=1, **saves),
        "resumed": Case(config=options(data, **HYBRID, micro_batches=1), **resumed),
        "delayed": case_of(data, "float64", **HYBRID, **DELAYED),
        "delayed, saving": recipe(data, **HYBRID, **DELAYED, **saves | {"checkpoint_folder": folder / "delayed"}),
        "delayed, resumed": Case(
            config=options(data, **HYBRID, **DELAYED), recipe=True, resume=folder / "delayed/checkpoint.pt"
        ),
        "as one process": Case(config=options(data), **resumed),
    }  # fmt: skip
    verb = resattnet(folder / "volumes", **HYBRID, micro_batches=2)
    others = {"too small": [dataclasses.replace(verb, strategy_options=HybridOptions(stages=2))] * 2}
    model = folder / "model"
    model.mkdir()
    job = train_job(verb, folder=model, log_folder=folder / "log")
    trained, refusals, [(results, ranks)] = by_ranks(strategy_work.trained_and_refused, (cases, others, [job]), ranks=2)
    return ByRanks(trained=trained, refusals=refusals, results=results, ranks=ranks, verb=verb, folder=folder)


@pytest.fixture(scope="module")
def by_four(data: Path, volumes: Path, tmp_path_factory: pytest.TempPathFactory) -> ByRanks:
    folder = tmp_path_factory.mktemp("four")
    cases = {kind: case_of(data, kind, **FOUR) for kind in KINDS_OF_FOUR}
    saves = {"checkpoint_folder": folder / "saved", "checkpoint_interval": 12}
    resumed = {"recipe": True, "resume": folder / "saved/checkpoint.pt"}
    cases |= {
        "volumes": case_of(volumes, "instance", **FOUR, **VOLUMES),
        "saving": recipe(data, **FOUR, micro_batches=1, **saves),
        "resumed": Case(config=options(data, **FOUR, micro_batches=1), **resumed),
        "four stages": case_of(data, "instance", strategy="hybrid", ranks=4, stages=4, channels=(4, 8, 8), strides=(2, 2)),
    }  # fmt: skip
    unfit = training_set(folder / "unfit")
    volume = np.load(unfit / "cases/case-0/volume.npy")
    np.save(unfit / "cases/case-0/volume.npy", np.full_like(volume, np.nan))
    others = {"not a number": [options(unfit, **FOUR, batch_size=8)] * 4}
    verb, model = options(volumes, **FOUR, **VOLUMES | {"precision": "bfloat16"}), folder / "model"
    model.mkdir()
    job = train_job(verb, folder=model, log_folder=folder / "log")
    trained, refusals, [(results, ranks)] = by_ranks(strategy_work.trained_and_refused, (cases, others, [job]), ranks=4)
    return ByRanks(trained=trained, refusals=refusals, results=results, ranks=ranks, verb=verb, folder=folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_stages_train_what_one_process_trains(data: Path, by_two: ByRanks, kind: str) -> None:
    alone = strategy_work.trained(case_of(data, kind), Alone())
    assert largest_difference(alone, strategy_work.start(case_of(data, kind))) > 0.01, (
        "twenty steps have moved the weights"
    )
    assert largest_difference(by_two.trained[kind], alone) <= (1e-12 if kind == "float64" else 1e-6)
    assert by_two.trained[kind]["loss"] == pytest.approx(alone["loss"], abs=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS_OF_FOUR)
def test_two_stages_of_two_replicas_train_what_one_process_trains(data: Path, by_four: ByRanks, kind: str) -> None:
    alone = strategy_work.trained(case_of(data, kind), Alone())
    assert largest_difference(by_four.trained[kind], alone) <= (1e-12 if kind == "float64" else 1e-6)
    assert by_four.trained[kind]["loss"] == pytest.approx(alone["loss"], abs=2e-6)


@pytest.mark.slow
def test_four_stages_train_what_one_process_trains(data: Path, by_four: ByRanks) -> None:
    alone = strategy_work.trained(case_of(data, "instance", channels=(4, 8, 8), strides=(2, 2)), Alone())
    assert largest_difference(by_four.trained["four stages"], alone) <= 1e-6


@pytest.mark.slow
def test_a_replica_without_a_case_at_the_end_of_an_epoch_changes_nothing(volumes: Path, by_four: ByRanks) -> None:
    alone = strategy_work.trained(case_of(volumes, "instance", **VOLUMES), Alone())
    assert largest_difference(by_four.trained["volumes"], alone) <= 1e-6
    # Ten epochs of three cases, two at a time: the second replica has none in the second step of each.
    assert [(facts.samples, facts.padding) for facts in by_four.ranks] == [(20, 0), (20, 0), (10, 10), (10, 10)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one stage", "chosen"])
def test_one_stage_is_ddp_bit_for_bit(by_two: ByRanks, name: str) -> None:
    assert largest_difference(by_two.trained[name], by_two.trained["ddp"]) == 0
    assert by_two.trained[name]["loss"] == by_two.trained["ddp"]["loss"]
    assert by_two.trained[name]["bytes"] == by_two.trained["ddp"]["bytes"] > 0


@pytest.mark.slow
def test_micro_batches_are_the_parts_of_one_process(data: Path, by_two: ByRanks) -> None:
    """With batch norm, whose statistics are those of a micro-batch, and Adam."""
    alone = strategy_work.trained(recipe(data, accumulate=2), Alone())
    assert (
        largest_difference(by_two.trained["recipe"], alone) <= 1e-4
    )  # Adam divides rounding errors by small gradients
    assert by_two.trained["recipe"]["loss"] == pytest.approx(alone["loss"], abs=2e-6)
    assert by_two.trained["recipe"]["bytes"] == 0, "one replica averages nothing"


def delayed(case: Case, *, stages: int, micro_batches: int) -> dict[str, Any]:
    """Return the weights of a delayed training, computed in one process by the definition.

    Stage i of S computes a micro-batch, forward and backward, with its weights after all updates but the last S - i - 1 of those
    before; at the start of a step it has all updates.
    """
    trainer = strategy_work.trainer_of(case, Alone())
    network, loss = trainer.network, trainer.stepper.loss
    shape = (1, 1, *case.config.patch_shape)
    partitions = cut(network, torch.linspace(0, 1, math.prod(shape), dtype=torch.float64).reshape(shape))
    placement = place_stages(
        measure_loads(partitions, torch.zeros(shape, dtype=torch.float64)),
        [stages],
        patches=lambda _: 1,
        memory_mib=None,
    )
    stage_of = {
        id(parameter): stage
        for (_, module), stage in zip(partitions, placement.assignment, strict=True)
        for parameter in module.parameters()
    }
    names = {name: stage_of[id(parameter)] for name, parameter in network.named_parameters()}
    assert set(names.values()) == set(range(stages))
    weights = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    for step in range(case.config.steps):
        versions = [weights]
        for number, part in enumerate(trainer.sampler.batch(step).parts(micro_batches)):
            used = {name: versions[max(0, number - (stages - stage) + 1)][name] for name, stage in names.items()}
            leaves = {name: weight.clone().requires_grad_() for name, weight in used.items()}
            image, label = (torch.from_numpy(array).double() for array in (part.image_BCIJK, part.label_BCIJK))
            loss(torch.func.functional_call(network, leaves, image), label).backward()
            versions.append(
                {name: versions[-1][name] - strategy_work.LEARNING_RATE * leaves[name].grad for name in names}
            )
        weights = versions[-1]
    return {name: weight.numpy() for name, weight in weights.items()}


@pytest.mark.slow
def test_a_delayed_pipeline_follows_its_definition(data: Path, by_two: ByRanks) -> None:
    expected = delayed(case_of(data, "float64"), stages=2, micro_batches=4)
    assert largest_difference(by_two.trained["delayed"], expected) <= 1e-12
    not_delayed = delayed(case_of(data, "float64"), stages=1, micro_batches=4)
    assert largest_difference(expected, not_delayed) > 1e-6


@pytest.mark.slow
def test_the_gradient_is_clipped_by_its_norm_over_all_stages(data: Path, by_two: ByRanks) -> None:
    alone = strategy_work.trained(case_of(data, "instance", **CLIPPED), Alone())
    assert largest_difference(by_two.trained["clipped"], alone) <= 1e-6
    assert largest_difference(by_two.trained["clipped"], by_two.trained["instance"]) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("which", "name"), [("by_two", ""), ("by_two", "delayed, "), ("by_four", "")])
def test_a_resumed_training_equals_an_uninterrupted_one(request: pytest.FixtureRequest, which: str, name: str) -> None:
    results: ByRanks = request.getfixturevalue(which)
    resumed, whole = results.trained[f"{name}resumed"], results.trained[f"{name}saving"]
    assert largest_difference(resumed, whole) == 0
    assert (resumed["loss"], resumed["bytes"]) == (whole["loss"], whole["bytes"])


@pytest.mark.slow
def test_a_checkpoint_has_the_form_of_one_process_and_resumes_in_one_process(data: Path, by_two: ByRanks) -> None:
    content = read_checkpoint(by_two.folder / "saved")
    assert content["state"]["step"] == 14
    trainer = strategy_work.trainer_of(recipe(data), Alone())
    trainer.restore(content)
    assert sorted(content["optimiser"]["state"]) == list(range(len(list(trainer.network.parameters()))))
    steps = {float(moments["step"]) for moments in content["optimiser"]["state"].values()}
    assert steps == {14.0}
    for name, tensor in trainer.network.state_dict().items():
        assert torch.equal(tensor, content["network"][name]), name
    whole = by_two.trained["saving"]
    assert largest_difference(by_two.trained["as one process"], whole) <= 1e-4
    assert by_two.trained["as one process"]["loss"] == pytest.approx(whole["loss"], abs=2e-6)


@pytest.mark.slow
def test_the_verb_trains_resattnet_in_stages_and_reports_them(by_two: ByRanks) -> None:
    training = read_card(by_two.folder / "model").training
    assert (training["strategy"], training["stages"], training["replicas"]) == ("hybrid", 2, 1)
    first, second = training["partitions"]
    assert (first[0], second[-1]) == ("stem", "head")
    assert len(first) + len(second) == 10
    assert training["activation_bytes_per_patch"] > 0
    assert [facts.samples for facts in by_two.ranks] == [16, 16], "both stages see all volumes"
    alone = dataclasses.replace(
        by_two.verb, strategy="single", ranks=1, strategy_options=StrategyOptions(), accumulate=2
    )
    folder = by_two.folder / "alone"
    folder.mkdir()
    train_on_rank(train_job(alone, folder=folder, log_folder=by_two.folder / "log of one"), Alone())
    weights, expected = (load_file(path / WEIGHTS_FILE) for path in (by_two.folder / "model", folder))
    assert max(float((weights[name] - expected[name]).abs().max()) for name in expected) <= 1e-5


@pytest.mark.slow
def test_stages_exchange_bfloat16_in_mixed_precision(by_four: ByRanks) -> None:
    training = read_card(by_four.folder / "model").training
    assert (training["precision"], training["stages"], training["replicas"]) == ("bfloat16", 2, 2)
    # The skip and the features of the lowest level, of 4 and 8 channels, and their gradients; 2 bytes each.
    voxels = math.prod(side // 2 for side in VOLUMES["patch_shape"])
    assert training["activation_bytes_per_patch"] == 2 * 2 * (4 + 8) * voxels


@pytest.mark.slow
def test_recomputed_activations_change_nothing(by_two: ByRanks) -> None:
    assert largest_difference(by_two.trained["recomputed"], by_two.trained["instance"]) == 0


@pytest.mark.slow
def test_a_micro_batch_with_one_value_per_channel_is_refused(by_two: ByRanks) -> None:
    refusals = by_two.refusals["too small"]
    assert refusals[0] == refusals[1], "every rank ends with the same words"
    assert refusals[0]["what"] == "a micro-batch is too small for the network."
    assert "1 patch of 32 x 32 x 32 voxels" in refusals[0]["seen"]
    assert "reduce --micro-batches" in refusals[0]["do"]


@pytest.mark.slow
def test_a_loss_that_is_not_a_number_names_step_and_cases_on_every_rank(by_four: ByRanks) -> None:
    refusals = by_four.refusals["not a number"]
    assert all(refusal == refusals[0] for refusal in refusals), "every rank ends with the same words"
    assert "the loss is NaN or infinite at step 1." in refusals[0]["what"]
    assert "the volume of case-0 contains NaN or infinite values" in refusals[0]["seen"]
    assert "of 8 patches" in refusals[0]["seen"]


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_other_stages_and_the_checkpoint_remains(data: Path, tmp_path: Path) -> None:
    config = options(data, **HYBRID, checkpoint_folder=tmp_path / "saved", checkpoint_interval=4)
    rank, step = random.choice([0, 1]), random.randint(5, 20)
    stop = Stop(case=Case(config=config, recipe=True), rank=rank, step=step, number=signal.SIGKILL)
    with pytest.raises(TryAgainError, match=rf"rank {rank} on .* ended before training finished") as caught:
        by_ranks(strategy_work.stopped, stop, ranks=2)
    assert "killed by signal 9" in caught.value.seen, str(stop)
    assert not multiprocessing.active_children(), "all ranks have ended"
    saved = newest_complete(tmp_path / "saved")
    assert saved is not None, str(stop)
    assert read_checkpoint(saved)["state"]["step"] == (stop.step - 1) // 4 * 4, str(stop)


@pytest.mark.slow
def test_the_all_reduce_of_torch_is_the_mean_and_sends_the_bytes_of_a_ring() -> None:
    length = 1_200_000
    results = by_ranks(ring_work.reduced, length, ranks=4)
    assert sorted({result.ranks for result in results}) == [2, 3, 4]
    for result in results:
        assert result.deviation <= 1e-6
        expected = 2 * (result.ranks - 1) / result.ranks * 4 * length
        assert expected <= result.sent_bytes <= 1.01 * expected, result


# -- without ranks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "option", "expected"),
    [
        ({"stages": 3}, "stages", "a divisor of --ranks, 4"),
        ({"stages": 0}, "stages", "a divisor of --ranks, 4"),
        ({"micro_batches": 0}, "micro-batches", "at least 1"),
        ({"stage_memory_mib": 0.0}, "stage-memory-mib", "more than 0"),
        ({"stages": 2, "accumulate": 2}, "accumulate", "1 with --strategy hybrid"),
        ({"pipelined": True}, "stages", "--ranks, 4, at least 2: --pipelined has one replica"),
        ({"pipelined": True, "stages": 2}, "stages", "--ranks, 4, at least 2: --pipelined has one replica"),
        ({"pipelined": True, "stages": 4, "gradient_clip": 1.0}, "gradient-clip", "0 with --pipelined"),
        ({"pipelined": True, "stages": 4, "recompute": True}, "recompute", "no value with --pipelined"),
        ({"strategy": "ddp", "stages": 2}, "stages", "with --strategy hybrid only"),
        ({"ranks": 10, "stages": 2}, "ranks", "1 to 8: every rank needs at least one patch"),
    ],
)
def test_values_that_cannot_be_used_are_refused(
    tmp_path: Path, changes: dict[str, Any], option: str, expected: str
) -> None:
    with pytest.raises(UsageError, match=f"--{option}") as caught:
        options(tmp_path, **{"strategy": "hybrid", "ranks": 4} | changes)
    assert expected in caught.value.expected


def test_ranks_may_outnumber_the_patches_if_the_replicas_do_not(tmp_path: Path) -> None:
    assert options(tmp_path, strategy="hybrid", ranks=8, stages=2).ranks == 8
    with pytest.raises(UsageError):
        options(tmp_path, strategy="ddp", ranks=8)
    whole = options(tmp_path, strategy="hybrid", ranks=8, stages=2, **VOLUMES | {"batch_size": 4})
    assert whole.for_cases(4, num_channels=1).steps == 10
    with pytest.raises(UserInputError, match="more replicas than training cases") as caught:
        whole.for_cases(3, num_channels=1)
    assert caught.value.seen == "4 replicas, 3 training cases"


PARTITIONS = tuple(
    Partition(name=f"p{place}", load=load, memory_mib=10.0 * load) for place, load in enumerate((1, 2, 3))
)


def placed(numbers: list[int], memory_mib: float | None = None) -> Any:
    return place_stages(PARTITIONS, numbers, patches=lambda stages: stages, memory_mib=memory_mib)


def test_the_fewest_stages_that_fit_are_chosen() -> None:
    assert placed([1, 2]).assignment == (0, 0, 0)
    assert placed([1, 3], memory_mib=60.0).assignment == (0, 0, 0)
    # A replica of two stages has twice the patches: partitions of 20, 40 and 60 MiB.
    assert placed([1, 2], memory_mib=60.0).assignment == (0, 0, 0)
    assert placed([2, 3], memory_mib=60.0).assignment == (0, 0, 1)


def test_every_device_needs_memory_for_the_weights_of_all_stages() -> None:
    """Two partitions of 2**20 parameters: 4 MiB of values each, and 12 MiB to train one; 1 MiB of activations."""
    partitions = [Partition(name=name, load=1.0, memory_mib=17.0, parameters=2**20) for name in ("a", "b")]

    def stages(memory_mib: float) -> int:
        placement = place_stages(partitions, [1, 2], patches=lambda stages: 1, memory_mib=memory_mib)
        return len(placement.devices)

    assert (stages(8 + 26), stages(8 + 25.9), stages(8 + 13)) == (1, 2, 2)
    with pytest.raises(UserInputError, match="is larger than the memory") as caught:
        stages(8 + 12.9)
    assert caught.value.seen is not None
    assert "8 MiB of each device are for the weights of all stages" in caught.value.seen
    with pytest.raises(UserInputError, match="the weights of the network do not fit"):
        stages(8.0)
    with pytest.raises(UserInputError, match="more stages than partitions") as caught:
        place_stages(partitions, [3], patches=lambda stages: 1, memory_mib=100.0)
    assert "MiB" not in str(caught.value)


@pytest.mark.parametrize(
    ("numbers", "memory_mib", "message", "do"),
    [
        ([4], None, "cannot be placed on 4 stages: there are more stages than partitions", "--stages to at most 3"),
        ([1], 20.0, "placed on 1 stage: the partition 'p2' is larger than the memory", "more --ranks and --stages"),
    ],
)
def test_stages_that_cannot_be_placed_are_refused(
    numbers: list[int], memory_mib: float | None, message: str, do: str
) -> None:
    with pytest.raises(UserInputError, match=message) as caught:
        placed(numbers, memory_mib)
    assert do in caught.value.do


def test_a_stage_without_a_parameter_to_train_is_refused() -> None:
    first, last = torch.nn.Conv3d(1, 1, 1), torch.nn.Conv3d(1, 1, 1)
    check_trained([[first], [torch.nn.ReLU(), last]])
    last.requires_grad_(False)
    with pytest.raises(UserInputError, match="stage 1 has no parameter to train"):
        check_trained([[first], [torch.nn.ReLU(), last]])


def test_micro_batches_have_equal_sizes() -> None:
    assert [num_micro_batches(patches, 4) for patches in (1, 2, 4, 5, 6, 8, 9)] == [1, 2, 4, 1, 3, 4, 3]
