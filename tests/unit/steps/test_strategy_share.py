"""What each rank of a strategy gets and computes: its part of a step and of an epoch, its gradients, its statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medweave_core.errors import UsageError, UserInputError
from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.runtime.environment import NodeGroup
from medweave_steps.tasks.segmentation.volumes import VolumeSampler
from medweave_steps.train.config import TrainConfig
from medweave_steps.training.distributed.group import Alone
from medweave_steps.training.distributed.launch import run_ranks
from medweave_steps.training.strategies.hybrid import HybridOptions
from support import rank_work
from support.one_label import open_sampler
from support.training_set import SHAPE, training_set


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five training cases."""
    return training_set(tmp_path_factory.mktemp("data"), ("train",) * 5 + ("validation",))


def run(work: Any, job: Any) -> Any:
    return run_ranks(work, job, num_here=2, num_threads=1, device="cpu", node_group=NodeGroup())


def plain(**options: Any) -> TrainConfig:
    return TrainConfig(**{"training_set": Path("a"), "output": Path("b")} | options)


def volumes(data: Path, *, batch_size: int) -> VolumeSampler:
    config = plain(
        training_set=data,
        epochs=3,
        patch_shape=SHAPE,
        window_shape=SHAPE,
        batch_size=batch_size,
        channels=(4, 8),
        strides=(2,),
    )
    sampler = open_sampler(config, open_prepared(data), open_prepared(data).cases("train"), whole_volumes=True)
    assert isinstance(sampler, VolumeSampler)
    return sampler


@pytest.mark.parametrize(("batch_size", "world_size"), [(2, 1), (2, 2), (4, 2), (3, 3), (4, 4)])
def test_over_all_ranks_each_case_is_used_once_an_epoch(data: Path, batch_size: int, world_size: int) -> None:
    sampler = volumes(data, batch_size=batch_size)
    names = sorted(case.case_id for case in sampler.cases)
    in_epoch = -(-len(names) // batch_size)
    counted, padding = 0, [0] * world_size
    for epoch in range(3):
        seen: list[str] = []
        for number in range(epoch * in_epoch, (epoch + 1) * in_epoch):
            shares = [sampler.batch(number, rank=rank, world_size=world_size) for rank in range(world_size)]
            real = [share for share in shares if not share.is_padding]
            assert {share.num_together for share in shares} == {sum(share.num_counted for share in real)}
            padding = [
                number + share.is_padding * len(share.case_ids) for number, share in zip(padding, shares, strict=True)
            ]
            seen += [name for share in real for name in share.case_ids]
            counted += len(real) and sum(share.num_counted for share in real)
        assert sorted(seen) == names
    by_rank = [sampler.num_counted(3 * in_epoch, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert sum(by_rank) == counted == 3 * len(names)
    message = [sampler.num_padding(3 * in_epoch, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert message == padding


def test_ranks_share_one_global_batch(data: Path) -> None:
    prepared = open_prepared(data)
    config = plain(
        training_set=data, batch_size=5, patch_shape=(8, 8, 8), channels=(4, 8), strides=(2,), window_shape=(8, 8, 8)
    )
    cut = open_sampler(config, prepared, prepared.cases("train"))
    whole = cut.batch(7)
    parts = [cut.batch(7, rank=rank, world_size=2) for rank in range(2)]
    assert [len(part.case_ids) for part in parts] == [3, 2]
    np.testing.assert_array_equal(parts[0].image_BCIJK, whole.image_BCIJK[::2])
    np.testing.assert_array_equal(parts[1].label_BCIJK, whole.label_BCIJK[1::2])


def test_more_ranks_than_cases_are_refused() -> None:
    arguments = TrainConfig(
        training_set=Path("a"), output=Path("b"), epochs=2, strategy="ddp", ranks=4, batch_size=2, scale_by_ranks=True
    ).for_all_ranks()
    assert arguments.for_cases(9, num_channels=4).steps == 4
    with pytest.raises(UserInputError, match="more ranks than training cases"):
        arguments.for_cases(3, num_channels=4)


def test_what_is_of_one_rank_is_multiplied_by_the_ranks() -> None:
    arguments = plain(strategy="ddp", ranks=4, batch_size=2, learning_rate=1e-4, scale_by_ranks=True)
    together = arguments.for_all_ranks()
    assert (together.batch_size, together.learning_rate) == (8, pytest.approx(4e-4))
    assert together.for_all_ranks() is together
    with pytest.raises(UsageError, match="ranks"):
        plain(strategy="ddp", ranks=4, batch_size=2)


def test_what_is_of_one_rank_is_multiplied_by_the_replicas_of_stages() -> None:
    arguments = plain(
        strategy="hybrid",
        strategy_options=HybridOptions(stages=2),
        ranks=4,
        batch_size=2,
        learning_rate=1e-4,
        scale_by_ranks=True,
    )
    together = arguments.for_all_ranks()
    assert (together.batch_size, together.learning_rate) == (4, pytest.approx(2e-4))


def options(folder: Path, **changes: Any) -> TrainConfig:
    """One step, with plain cross-entropy: over a batch it is the mean of its patches', as Dice is not."""
    values: dict[str, Any] = {
        "training_set": folder, "output": folder / "m", "steps": 1, "batch_size": 5, "patch_shape": (8, 8, 8), "channels": (4, 8),
        "strides": (2,), "window_shape": (24, 20, 16), "dice_weight": 0.0, "epoch_steps": 1, "validation_interval": 1,
    }  # fmt: skip
    return TrainConfig(**values | changes)


@pytest.fixture(scope="module")
def steps(data: Path) -> dict[str, tuple[TrainConfig, rank_work.Step]]:
    """Of each kind of normalisation, the options, and the step that two ranks take together."""
    configs = {
        # Three patches for one rank and two for the other.
        "INSTANCE": options(data, strategy="ddp", ranks=2),
        "BATCH": options(data, batch_size=4, strategy="ddp", ranks=2, dice_weight=1.0),
    }
    shared = run(rank_work.steps, configs)
    return {norm: (config, shared[norm]) for norm, config in configs.items()}


@pytest.mark.slow
def test_two_ranks_compute_the_gradients_of_one(
    data: Path, steps: dict[str, tuple[TrainConfig, rank_work.Step]]
) -> None:
    # No normalisation over patches, so nothing else may differ.
    loss, gradients, _ = rank_work.one_step(options(data), "INSTANCE", Alone())
    _, (shared_loss, shared, _) = steps["INSTANCE"]
    assert shared_loss == pytest.approx(loss, rel=1e-5)
    largest = max(np.abs(gradient).max() for gradient in gradients.values())
    for name, gradient in gradients.items():
        np.testing.assert_allclose(shared[name], gradient, atol=1e-5 * largest, err_msg=name)


@pytest.mark.slow
def test_batch_norm_takes_a_ranks_own_patches_and_the_running_statistics_are_averaged(
    steps: dict[str, tuple[TrainConfig, rank_work.Step]],
) -> None:
    # The same in one process: each rank's patches by themselves, then the mean.
    config, (_, shared, statistics) = steps["BATCH"]
    expected = [rank_work.one_step(config, "BATCH", rank_work.OneOfTwo(rank)) for rank in range(2)]
    largest = max(np.abs(gradient).max() for gradient in expected[0][1].values())
    for name in shared:
        mean = (expected[0][1][name] + expected[1][1][name]) / 2
        np.testing.assert_allclose(shared[name], mean, atol=1e-5 * largest, err_msg=name)
    assert statistics
    for name, values in statistics.items():
        mean = (expected[0][2][name].astype(np.float64) + expected[1][2][name]) / 2
        np.testing.assert_allclose(values, mean, rtol=1e-6, err_msg=name)
