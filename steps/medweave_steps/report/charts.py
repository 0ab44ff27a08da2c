"""Charts as inline SVG whose bytes depend on the figures alone, and whose colors follow the page (light, dark, print)."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medweave_core.contracts.evaluation import Evaluation
from medweave_steps.report.gather import Curves, LesionRow
from medweave_steps.runtime.imports import require

# matplotlib writes these; the page's own colours take their place (see contracts/report_style.css).
_COLOURS = {
    "#010101": "currentColor",
    "#020202": "var(--soft)",
    "#030303": "var(--line)",
    "#040404": "var(--c1)",
    "#050505": "var(--c2)",
    "#060606": "var(--c3)",
    "#070707": "var(--paper)",
}
INK, SOFT, LINE, FIRST, SECOND, THIRD, PAPER = _COLOURS

SIZES_MM = (6.0, 8.0, 10.0, 15.0, 20.0)
MASK_FIGURES = {"dice": "Dice", "sensitivity": "lesion sensitivity"}
CLASS_FIGURES = {"macro_f1": "macro-F1", "accuracy": "accuracy"}
"""Figures of the training curves, the validation score first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart with its alternative text."""

    svg: str
    alt: str
    caption: str


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


def svg_of(draw: Callable[[Any], None], name: str, *, rows: int = 1) -> str:
    """Draw on one pair of axes; with more `rows`, on a list of axes below each other with one horizontal axis, on a wide picture.

    Args:
        name: keeps the identifiers of several charts on one page apart.
    """
    matplotlib = require("matplotlib", extra="report")
    figure_module, backend = (
        require("matplotlib.figure", extra="report"),
        require("matplotlib.backends.backend_svg", extra="report"),
    )
    settings = {
        "svg.fonttype": "none", "svg.hashsalt": f"medweave-{name}", "font.family": "sans-serif", "font.size": 10.5,
        "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": SOFT, "xtick.color": SOFT, "ytick.color": SOFT,
        "xtick.labelcolor": INK, "ytick.labelcolor": INK, "grid.color": LINE, "hatch.color": SECOND, "hatch.linewidth": 1.0,
        "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "path.simplify": False,
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        figsize = (5.6, 3.3) if rows == 1 else (11.0, 1.8 * rows)
        figure = figure_module.Figure(figsize=figsize, layout="constrained")
        figure.patch.set_visible(False)
        panels = list(figure.subplots(rows, sharex=True, squeeze=False)[:, 0])
        for axes in panels:
            axes.patch.set_visible(False)
            axes.grid(axis="y", linewidth=0.8)
        draw(panels[0] if rows == 1 else panels)
        stream = io.BytesIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        backend.FigureCanvasSVG(figure).print_svg(stream, metadata=nothing)
    return _for_page(stream.getvalue().decode("utf-8"), name)


def _for_page(svg: str, name: str) -> str:
    svg = svg[svg.index("<svg") :].rstrip()
    # Its style sheet would reach every other picture of the page, and its identifiers those of every other chart.
    svg = re.sub(r"<style.*?</style>|<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    used = set(re.findall(r'url\(#([^)]+)\)|xlink:href="#([^"]+)"', svg))
    referenced = {part for pair in used for part in pair if part}

    def identifier(match: re.Match[str]) -> str:
        return f' id="{name}-{match[1]}"' if match[1] in referenced else ""

    svg = re.sub(r' id="([^"]+)"', identifier, svg)
    svg = svg.replace("url(#", f"url(#{name}-").replace('xlink:href="#', f'href="#{name}-')
    svg = re.sub(r"font-family: [^;\"]*; ?", "", svg)
    svg = re.sub(r"font: [^;\"]*?(\d+(?:\.\d+)?)px[^;\"]*", r"font-size: \1px", svg)
    head = re.match(r"<svg[^>]*>", svg)
    assert head is not None
    box = re.search(r'viewBox="[^"]+"', head[0])
    assert box is not None
    svg = f'<svg {box[0]} stroke-linejoin="round" aria-hidden="true" focusable="false">' + svg[head.end() :]
    for written, shown in _COLOURS.items():
        svg = svg.replace(written, shown)
    return re.sub(r"\n\s*", "\n", svg)
