"""Optimizers and learning-rate schedules of `train`."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import pytest

from medweave_core.errors import UsageError
from medweave_steps.train.config import TrainConfig
from medweave_steps.training.optimizers import build_optimizer, build_schedule, clip_gradients

torch = pytest.importorskip("torch")

RATE, STEPS = 0.1, 20


def config(**options: Any) -> TrainConfig:
    return TrainConfig(training_set=Path("a"), output=Path("b"), learning_rate=RATE, steps=STEPS, **options)


def rates(**options: Any) -> list[float]:
    """Return the learning rate of each step."""
    recipe = config(**options)
    optimizer = build_optimizer(recipe, [torch.nn.Parameter(torch.ones(3))], RATE)
    schedule = build_schedule(recipe, optimizer, learning_rate=RATE, num_steps=STEPS, epoch_steps=4)
    found = []
    for _ in range(STEPS):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [RATE] * STEPS),
        ("polynomial", [RATE * (1 - t / STEPS) ** 0.9 for t in range(STEPS)]),
        ("cosine", [RATE * (1 + math.cos(math.pi * t / STEPS)) / 2 for t in range(STEPS)]),
        ("geometric", [RATE * 0.01 ** (t / STEPS) for t in range(STEPS)]),
        ("geometric-by-epoch", [RATE * 0.01 ** (t // 4 / 4) for t in range(STEPS)]),
    ],
)
def test_a_schedule_follows_its_formula(schedule: str, expected: list[float]) -> None:
    assert rates(schedule=schedule) == pytest.approx(expected)


def test_the_cyclic_schedule_rises_and_falls_as_often_as_requested() -> None:
    found = rates(schedule="cyclic", cycles=2, last_rate=0.1)
    assert found[:11] == pytest.approx([RATE * (0.1 + 0.9 * t / 5) for t in (0, 1, 2, 3, 4, 5, 4, 3, 2, 1, 0)])
    assert found[10:] == pytest.approx(found[:10])


def test_the_default_is_adam_with_one_cycle_as_before_the_options_existed() -> None:
    weight, by_hand = (torch.nn.Parameter(torch.linspace(-1, 1, 7)) for _ in range(2))
    recipe = config()
    optimizer = build_optimizer(recipe, [weight], RATE)
    schedule = build_schedule(recipe, optimizer, learning_rate=RATE, num_steps=STEPS)
    plain = torch.optim.Adam([by_hand], lr=RATE, betas=(0.9, 0.999), amsgrad=False, fused=True)
    one_cycle = torch.optim.lr_scheduler.OneCycleLR(plain, RATE, total_steps=STEPS, pct_start=0.1)
    for _ in range(5):
        for one, step in ((weight, (optimizer, schedule)), (by_hand, (plain, one_cycle))):
            one.grad = one.detach() ** 3
            for part in step:
                part.step()
    assert torch.equal(weight, by_hand)


def test_sgd_has_nesterov_momentum_and_an_l2_penalty() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = build_optimizer(config(optimizer="sgd", momentum=0.5, weight_decay=0.1), [weight], RATE)
    for expected in (1 - RATE * (2.1 * 1.5),):  # gradient 2 + 0.1 * 1, and half of it once more
        weight.grad = torch.tensor([2.0])
        optimizer.step()
        assert weight.item() == pytest.approx(expected)


def test_the_state_of_every_optimizer_and_schedule_survives_a_checkpoint() -> None:
    for optimizer_name in ("adam", "sgd"):
        for schedule_name in (
            "one-cycle",
            "constant",
            "polynomial",
            "cosine",
            "geometric",
            "geometric-by-epoch",
            "cyclic",
        ):
            recipe = config(optimizer=optimizer_name, schedule=schedule_name)
            weight = torch.nn.Parameter(torch.ones(3))

            def parts(weight: Any = weight, recipe: TrainConfig = recipe) -> tuple[Any, Any]:
                optimizer = build_optimizer(recipe, [weight], RATE)
                return optimizer, build_schedule(recipe, optimizer, learning_rate=RATE, num_steps=STEPS)

            def advance(pair: tuple[Any, Any], weight: Any = weight) -> list[float]:
                weight.grad = torch.ones(3)
                pair[0].step()
                pair[1].step()
                found: list[float] = [*weight.tolist(), pair[0].param_groups[0]["lr"]]
                return found

            first = parts()
            advance(first)
            buffer, before = io.BytesIO(), weight.detach().clone()
            torch.save([part.state_dict() for part in first], buffer)
            expected = advance(first)
            weight.data.copy_(before)
            second = parts()
            states = torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
            for part, state in zip(second, states, strict=True):
                part.load_state_dict(state)
            assert advance(second) == expected, (optimizer_name, schedule_name)


def test_gradients_are_scaled_together_to_the_largest_norm() -> None:
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    for weight, value in zip(weights, (30.0, 40.0), strict=True):
        weight.grad = torch.tensor([value])
    clip_gradients(weights, 0)
    assert [weight.grad.item() for weight in weights] == [30, 40]
    clip_gradients(weights, 5)
    assert [weight.grad.item() for weight in weights] == pytest.approx([3, 4])


def test_the_identity_of_a_training_has_the_new_options_only_where_they_are_used() -> None:
    new = {"optimizer", "momentum", "last_rate", "cycles", "gradient_clip"}
    assert not new & config().identity().keys()
    used = config(optimizer="sgd", momentum=0.9, gradient_clip=12.0).identity()
    assert {name: used[name] for name in new & used.keys()} == {
        "optimizer": "sgd",
        "momentum": 0.9,
        "gradient_clip": 12.0,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "adamw"}, "weight-decay"),
        ({"momentum": 0.5}, "momentum"),
        ({"optimizer": "sgd", "momentum": 1.0}, "momentum"),
        ({"optimizer": "sgd", "beta2": 0.9}, "beta2"),
        ({"optimizer": "sgd", "amsgrad": True}, "amsgrad"),
        ({"cycles": 3}, "cycles"),
        ({"schedule": "cyclic", "cycles": 0}, "cycles"),
        ({"last_rate": 0.5}, "last-rate"),
        ({"schedule": "geometric-by-epoch", "last_rate": 2.0}, "last-rate"),
        ({"schedule": "geometric", "last_rate": 0.0}, "last-rate"),
        ({"gradient_clip": -1.0}, "gradient-clip"),
    ],
)
def test_options_that_cannot_be_used_or_have_no_effect_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"--{message}"):
        config(**options)
