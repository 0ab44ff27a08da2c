"""Charts of a search with several objectives: every combination of options, and the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medweave_core.contracts.search import Objective, SearchTable
from medweave_steps.report.words import plural
from medweave_steps.runtime.svg import FIRST, INK, PAPER, Chart, svg_of

_UNITS = {"seconds": "time, s", "wh": "electricity, Wh"}


def pareto_charts(table: SearchTable, *, name: str) -> list[Chart]:
    """Draw the first objective over each of the others; none without a Pareto front.

    A combination with repeats is drawn at its means. One that lacks a figure is left out, and the caption counts it.

    Args:
        name: keeps the identifiers of several searches on one page apart.
    """
    if not table.front:
        return []
    first, *others = table.objectives
    return [_chart(table, first, other, name=f"{name}-{other.name}") for other in others]


def _chart(table: SearchTable, first: Objective, other: Objective, *, name: str) -> Chart:
    candidates = _candidates(table)
    known = {
        trial_id: (figures[other.name], figures[first.name])
        for trial_id, figures in candidates.items()
        if figures[other.name] is not None and figures[first.name] is not None
    }
    front = [known[trial_id] for trial_id in table.front if trial_id in known]
    rest = [point for trial_id, point in known.items() if trial_id not in table.front]
    labels = [_UNITS.get(objective.name, table.metric) for objective in (other, first)]

    def draw(axes: Any) -> None:
        for points, color, label in ((rest, PAPER, "other combinations"), (front, FIRST, "Pareto front")):
            if points:
                axes.scatter(*zip(*points, strict=True), s=34, color=color, edgecolor=FIRST, linewidth=1.2, label=label)
        axes.set(xlabel=labels[0], ylabel=labels[1])
        axes.grid(axis="x", linewidth=0.8)
        axes.margins(0.1)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False, labelcolor=INK)

    missing = len(candidates) - len(known)
    left_out = f" {plural(missing, 'combination')} without both figures left out." if missing else ""
    several = " The front is that of all objectives together." if len(table.objectives) > 2 else ""
    counts = f"{len(front)} of {plural(len(known), 'combination')} on the Pareto front"
    alt = f"{labels[1]} over {labels[0]}: {counts}."
    return Chart(svg=svg_of(draw, name), alt=alt, caption=f"{counts}.{several}{left_out}")


def _candidates(table: SearchTable) -> dict[str, Mapping[str, float | None]]:
    """Return the objectives of each combination of options, by the trial id that the front has for it."""
    if table.repeated:
        return {
            one.trial_ids[0]: {"score": one.score_mean, "seconds": one.seconds_mean, "wh": one.energy_wh_mean}
            for one in table.repeated
        }
    return {
        row.trial_id: {"score": row.score, "seconds": row.seconds, "wh": row.energy_wh}
        for row in table.rows
        if row.state == "completed"
    }
