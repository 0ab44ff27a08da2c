"""Patches that are taken in parts give the step that they give together, and gradients are synchronised once for all parts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medweave_core.errors import UsageError
from medweave_steps.training.data.batch import Batch
from medweave_steps.training.distributed.group import Alone
from support import strategy_work
from support.rank_work import run_to_its_end
from support.strategy_work import Case, case_of, largest_difference, options
from support.training_set import training_set


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_set(tmp_path_factory.mktemp("data"))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["single", "local-sgd"])
def test_parts_give_the_step_of_the_whole(data: Path, strategy: str) -> None:
    for kind, tolerance in (("accumulated", 1e-6), ("float64", 1e-12)):
        whole = strategy_work.trained(case_of(data, kind, accumulate=1), Alone())
        parts = strategy_work.trained(case_of(data, kind, accumulate=3, strategy=strategy), Alone())
        assert largest_difference(parts, whole) <= tolerance
        assert parts["loss"] == pytest.approx(whole["loss"], abs=2e-6)
    assert largest_difference(whole, strategy_work.start(case_of(data, kind))) > 0.01


class Wrapped:
    """A network as a strategy wraps it; counts forward passes with and without synchronisation."""

    def __init__(self, network: Any) -> None:
        self.network, self.is_silent, self.calls = network, False, {True: 0, False: 0}

    def __call__(self, image_BCIJK: Any) -> Any:
        self.calls[self.is_silent] += 1
        return self.network(image_BCIJK)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        self.is_silent = True
        yield
        self.is_silent = False


def test_gradients_are_synchronised_once_a_step(data: Path) -> None:
    trainer = strategy_work.trainer_of(Case(config=options(data, accumulate=4)), Alone())
    trainer.stepper.wrapped = Wrapped(trainer.network)
    run_to_its_end(trainer)
    assert trainer.stepper.wrapped.calls == {True: 20 * 3, False: 20}


def test_parts_hold_every_patch_once_and_in_order() -> None:
    image = np.arange(5, dtype=np.float32).reshape(5, 1, 1, 1, 1)
    batch = Batch(image_BCIJK=image, label_BCIJK=image, case_ids=("a", "b", "c", "d", "e"), num_together=5)
    parts = batch.parts(3)
    assert [part.case_ids for part in parts] == [("a",), ("b", "c"), ("d", "e")]
    for name in ("image_BCIJK", "label_BCIJK"):
        np.testing.assert_array_equal(np.concatenate([getattr(part, name) for part in parts]), image)


def test_more_parts_than_a_rank_has_patches_are_refused(data: Path) -> None:
    for changes in ({"accumulate": 0}, {"accumulate": 3, "strategy": "ddp", "ranks": 2}):
        with pytest.raises(UsageError) as caught:
            options(data, **changes)
        assert "the number of patches per rank and step" in caught.value.expected


def test_only_what_is_used_is_part_of_the_identity(data: Path) -> None:
    assert "accumulate" not in options(data).identity()
    assert options(data, accumulate=2).identity()["accumulate"] == 2
