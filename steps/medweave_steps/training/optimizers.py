"""Optimizers and learning-rate schedules by name, as `--optimizer` and `--schedule` select them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from medweave_steps.runtime.imports import require
from medweave_steps.training.recipe import Recipe

BETA1 = 0.9
POLYNOMIAL_POWER = 0.9
"""Exponent of the polynomial schedule. Source: Isensee et al. 2021, Nat Methods 18:203, after Chen et al. 2018 (DeepLab)."""


def build_optimizer(recipe: Recipe, weights: Iterable[Any], learning_rate: float) -> Any:
    """Return the optimizer of a training, with one kernel for all weights, because these are many and small.

    `adam` with a weight decay is AdamW. The weight decay of `sgd` is that of torch: an L2 penalty in the gradient.

    Args:
        weights: torch parameters.
        learning_rate: of the first step, or the largest one of a one-cycle or cyclic schedule.
    Source: Kingma and Ba 2015, ICLR, "Adam"; Loshchilov and Hutter 2019, ICLR, "Decoupled weight decay"; Sutskever et al. 2013,
        ICML, for Nesterov momentum.
    """
    optimizers = require("torch", extra="train").optim
    if recipe.optimizer == "sgd":
        return optimizers.SGD(
            weights,
            lr=learning_rate,
            momentum=recipe.momentum,
            nesterov=recipe.momentum > 0,
            weight_decay=recipe.weight_decay,
            fused=True,
        )
    options = {"lr": learning_rate, "betas": (BETA1, recipe.beta2), "amsgrad": recipe.amsgrad, "fused": True}
    if recipe.weight_decay:
        return optimizers.AdamW(weights, weight_decay=recipe.weight_decay, **options)
    return optimizers.Adam(weights, **options)


def build_schedule(
    recipe: Recipe, optimizer: Any, *, learning_rate: float, num_steps: int, epoch_steps: int = 1
) -> Any:
    """Return the schedule, a torch scheduler that takes one step after each optimizer step.

    With t for the share of steps done, r for `learning_rate` and f for `recipe.last_rate`, the rate of a step is

    - constant: r.
    - one-cycle: rises to r, then falls to almost zero; the momentum goes opposite to it, and with it Adam's beta1.
    - polynomial: r (1 - t)^0.9.
    - cosine: r (1 + cos(pi t)) / 2.
    - geometric: r f^t.
    - geometric-by-epoch: r f^(e / (E - 1)) in epoch e = 0 ... E - 1, so that the first has r and the last r f.
    - cyclic: from r f to r and back, linearly, `recipe.cycles` times; the momentum is constant.

    Args:
        num_steps: steps of the whole training.
        epoch_steps: steps of an epoch, for geometric-by-epoch.
    Source: Smith and Topin 2019, Proc. SPIE 11006, "Super-convergence" (one-cycle); Loshchilov and Hutter 2017, ICLR, "SGDR"
        (cosine, here without restarts); Smith 2017, WACV, "Cyclical learning rates" (cyclic).
    """
    schedules = require("torch", extra="train").optim.lr_scheduler
    if recipe.schedule == "constant":
        return schedules.ConstantLR(optimizer, factor=1.0)
    if recipe.schedule == "polynomial":
        return schedules.PolynomialLR(optimizer, total_iters=num_steps, power=POLYNOMIAL_POWER)
    if recipe.schedule == "cosine":
        return schedules.CosineAnnealingLR(optimizer, T_max=num_steps)
    if recipe.schedule == "geometric":
        return schedules.ExponentialLR(optimizer, gamma=recipe.last_rate ** (1 / num_steps))
    if recipe.schedule == "geometric-by-epoch":
        last_epoch = max(1, math.ceil(num_steps / epoch_steps) - 1)
        return schedules.LambdaLR(optimizer, lambda step: recipe.last_rate ** (step // epoch_steps / last_epoch))
    if recipe.schedule == "cyclic":
        half = num_steps / (2 * recipe.cycles)
        lowest = learning_rate * recipe.last_rate
        return schedules.CyclicLR(optimizer, lowest, learning_rate, step_size_up=half, cycle_momentum=False)
    # A rise of exactly one step is divided by zero in torch.
    rise = recipe.warm_up * (1.001 if math.isclose(recipe.warm_up * num_steps, 1) else 1)
    return schedules.OneCycleLR(optimizer, learning_rate, total_steps=num_steps, pct_start=rise)


def clip_gradients(weights: Iterable[Any], max_norm: float, *, norm: float | None = None) -> None:
    """Scale all gradients together so that their norm is at most `max_norm`; 0 leaves them as they are.

    Where the norm is not finite, torch raises no error: the gradients become 0 or NaN.

    Args:
        norm: of gradients of which these weights have a part; by default that of these.
    """
    if not max_norm:
        return
    torch = require("torch", extra="train")
    if norm is None:
        torch.nn.utils.clip_grad_norm_(weights, max_norm)
    else:
        torch.nn.utils.clip_grads_with_norm_(weights, max_norm, torch.tensor(norm))
