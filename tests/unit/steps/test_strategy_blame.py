"""A loss that is not a number: which patch it was, whatever else was in the batch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from medweave_core.errors import InternalError
from medweave_steps.training.data.batch import Batch
from medweave_steps.training.distributed.group import Alone
from medweave_steps.training.loop.stepper import Stepper, not_a_number
from support.strategy_work import Case, options, trainer_of
from support.training_set import training_set


@pytest.fixture
def stepper(tmp_path: Path) -> Stepper:
    # With batch norm, a bad patch spoils the whole batch, and the running statistics after it.
    config = options(training_set(tmp_path / "data"), batch_size=2, norm="batch", strategy="single")
    return trainer_of(Case(config=config, recipe=True), Alone()).stepper


def batch_of(*values: float) -> Batch:
    """Patches of noise around these values."""
    noise = np.random.default_rng(0).normal(size=(len(values), 1, 8, 8, 8)).astype(np.float32)
    image = noise + np.array(values, np.float32)[:, None, None, None, None]
    names = tuple(f"case-{place}" for place in range(len(values)))
    return Batch(
        image_BCIJK=image, label_BCIJK=np.zeros_like(image), case_ids=names, num_together=len(values)
    )  # fmt: skip


def reported_of(stepper: Stepper, batch: Batch) -> str:
    value = float(stepper.loss_of(batch).detach())
    error = not_a_number(value, step=3, blames=[stepper.blame_of(batch)], learning_rate=0.1)
    assert isinstance(error, InternalError)
    return error.seen


def test_of_two_patches_the_bad_one_is_named(stepper: Stepper) -> None:
    seen = reported_of(stepper, batch_of(0.0, math.nan))
    assert seen == (
        "loss nan on patches of case-1 (1 of 2 patches); the volume of case-1 contains NaN or infinite values"
    )


def test_where_each_patch_alone_is_finite_the_largest_is_named(
    stepper: Stepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loss(_: Any, network: Any, batch: Batch) -> Any:
        return torch.tensor(math.inf if len(batch.case_ids) > 1 else float(batch.image_BCIJK.mean()))

    monkeypatch.setattr(Stepper, "_loss", loss)
    assert reported_of(stepper, batch_of(1.0, 5.0)).startswith(
        "loss inf on patches of case-1, which has the largest loss: "
    )
