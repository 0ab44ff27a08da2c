"""Charts of a training and of an evaluation."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from medweave_core.contracts.evaluation import Evaluation
from medweave_steps.report.gather import Curves, LesionRow
from medweave_steps.runtime.svg import FIRST, INK, PAPER, SECOND, SOFT, Chart, svg_of

SIZES_MM = (6.0, 8.0, 10.0, 15.0, 20.0)
MASK_FIGURES = {"dice": "Dice", "sensitivity": "lesion sensitivity"}
CLASS_FIGURES = {"macro_f1": "macro-F1", "accuracy": "accuracy"}
"""Figures of the training curves, the validation score first."""


def loss_chart(curves: Curves) -> Chart:
    """Draw the training loss over optimizer steps."""
    steps, values = zip(*curves.loss, strict=True)

    def draw(axes: Any) -> None:
        axes.plot(steps, values, color=FIRST, linewidth=1.6)
        axes.set(
            xlabel="optimizer step",
            ylabel="training loss",
            ylim=(0, max(values) * 1.05 or 1),
            xlim=(0, steps[-1] * 1.02),
        )

    alt = f"Training loss falls from {values[0]:.3f} at step {steps[0]} to {values[-1]:.3f} at step {steps[-1]}."
    return Chart(svg=svg_of(draw, "loss"), alt=alt, caption="Training loss (mean since the previous point).")


def validation_chart(curves: Curves, names: Mapping[str, str], how: str) -> Chart:
    """Draw figures on the validation split over optimizer steps.

    Args:
        names: figure to its displayed name; the first is the validation score.
        how: how the cases were predicted, as the caption has it.
    """
    score = next(iter(names))
    styles = dict(zip(names, ((FIRST, "-"), (SECOND, "--")), strict=False))
    best_step, best = max(curves.validation.get(score, ((0, 0.0),)), key=lambda point: point[1])

    def draw(axes: Any) -> None:
        for name, points in curves.validation.items():
            colour, style = styles[name]
            steps, values = zip(*points, strict=True)
            axes.plot(steps, values, style, color=colour, linewidth=1.6, marker="o", markersize=3, label=names[name])
        last = max(points[-1][0] for points in curves.validation.values())
        axes.set(xlabel="optimizer step", ylabel="validation split", ylim=(0, 1.02), xlim=(0, last * 1.02))
        axes.legend(loc="lower right", frameon=False, labelcolor=INK)

    alt = f"Validation {names[score]} over optimizer steps; the best is {best:.3f} at step {best_step}."
    caption = f"Validation split, {how}. Best {names[score]} {best:.3f}, at step {best_step}."
    return Chart(svg=svg_of(draw, "validation"), alt=alt, caption=caption)


def dice_chart(evaluation: Evaluation) -> Chart:
    """Draw the Dice of every case, from the worst to the best, next to the baseline's."""
    ranked = sorted(
        (case for case in evaluation.per_case if case.dice is not None), key=lambda case: (case.dice, case.case_id)
    )
    dices = [case.dice for case in ranked]
    places = range(1, len(ranked) + 1)
    baseline_name = "threshold baseline" if evaluation.baseline.threshold_hu is None else "HU threshold baseline"

    def draw(axes: Any) -> None:
        if evaluation.dice_ci is not None:
            axes.axhspan(*evaluation.dice_ci, color=FIRST, alpha=0.15, linewidth=0)
        if evaluation.dice_mean is not None:
            axes.axhline(evaluation.dice_mean, color=FIRST, linewidth=1)
        axes.scatter(places, dices, s=26, color=FIRST, label="network", zorder=3)
        baseline = [float("nan") if case.baseline_dice is None else case.baseline_dice for case in ranked]
        axes.scatter(places, baseline, s=22, marker="x", linewidths=1.4, color=SECOND, label=baseline_name, zorder=2)
        axes.set(xlabel="case, from worst to best", ylabel="Dice", ylim=(-0.02, 1.02), xlim=(0.3, len(ranked) + 0.7))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=2, frameon=False, labelcolor=INK)

    alt = (
        f"Dice of {len(ranked)} cases, from {_two(dices, 0)} to {_two(dices, -1)}, each with the Dice of the baseline."
    )
    what = "each case, all labels as one mask" if evaluation.by_label else "each case"
    caption = f"Dice of {what}. Line and band: mean over cases and its 95 % interval."
    return Chart(svg=svg_of(draw, "dice"), alt=alt, caption=caption)


def size_chart(lesions: Sequence[LesionRow]) -> Chart:
    """Return lesions found and missed by longest in-plane diameter."""
    edges = (0.0, *SIZES_MM, float("inf"))
    names = [
        f"below {edges[1]:g}",
        *(f"{a:g} to {b:g}" for a, b in itertools.pairwise(SIZES_MM)),
        f"from {edges[-2]:g}",
    ]
    groups = [[x.is_hit for x in lesions if a <= x.diameter_mm < b] for a, b in itertools.pairwise(edges)]
    found, total = [sum(group) for group in groups], [len(group) for group in groups]

    def draw(axes: Any) -> None:
        missed = [n - hit for n, hit in zip(total, found, strict=True)]
        axes.bar(names, found, color=FIRST, width=0.72, label="detected")
        axes.bar(names, missed, bottom=found, color=PAPER, edgecolor=SECOND, hatch="////", width=0.72, label="missed")
        top = max([*total, 1])
        for place, (n, hit) in enumerate(zip(total, found, strict=True)):
            axes.text(place, n + top * 0.025, f"{hit}/{n}" if n else "none", ha="center", color=INK if n else SOFT)
        axes.set(xlabel="longest in-plane diameter, mm", ylabel="lesions", ylim=(0, top * 1.18))
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.tick_params(axis="x", length=0)
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=2, frameon=False, labelcolor=INK)

    counts = "; ".join(f"{name} mm: {hit} of {n}" for name, hit, n in zip(names, found, total, strict=True) if n)
    return Chart(
        svg=svg_of(draw, "sizes"), alt=f"Detected lesions by diameter. {counts}.", caption="Detected lesions by size."
    )


def _two(values: Sequence[float | None], place: int) -> str:
    return f"{values[place]:.2f}" if values else "none"
