"""Statistics as an HTML page: box plots of the groups, and the tables. Its sections fit into the page of `report`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from medweave_core.contracts.model import RESEARCH_USE_ONLY
from medweave_core.contracts.report_fragment import SECTIONS_BEGIN, SECTIONS_END, stylesheet
from medweave_core.contracts.statistics import Analysis, Statistics
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.svg import FIRST, INK, SECOND, SOFT, Chart, svg_of
from medweave_steps.stats import tables
from medweave_steps.stats.groups import EXTRA

LONGEST_LABEL = 60
"""Characters of all names of groups below a chart; longer ones are slanted."""


def page_of(statistics: Statistics, values: Sequence[Mapping[str, Sequence[float]]]) -> str:
    """Return the page.

    Args:
        values: of each analysis, the values of each group.
    """
    jinja2 = require("jinja2", extra=EXTRA)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("medweave_steps.stats", "."), autoescape=True, trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    text: str = environment.get_template("fragment.html.j2").render(
        title=f"{statistics.response} by {statistics.factor}",
        intended_use=RESEARCH_USE_ONLY,
        style=stylesheet(),
        begin=SECTIONS_BEGIN,
        end=SECTIONS_END,
        parts=[
            _part(statistics, analysis, own, number)
            for number, (analysis, own) in enumerate(zip(statistics.analyses, values, strict=True))
        ],
    )
    return text


def _part(
    statistics: Statistics, analysis: Analysis, values: Mapping[str, Sequence[float]], number: int
) -> dict[str, Any]:
    parts = [
        (
            f"Analysis of variance of {statistics.response}.{_adjusted(statistics, analysis)}",
            tables.anova_cells(analysis),
        )
    ]
    return {
        "name": f"{statistics.by} {analysis.name}" if statistics.by else "",
        "chart": box_chart(statistics, analysis, values, name=f"boxes-{number}"),
        "tables": [
            *(parts if analysis.anova else []),
            (tables.method_of(analysis, statistics), tables.group_cells(analysis, statistics)),
            (f"Differences of {statistics.response}, larger mean first.", tables.comparison_cells(analysis)),
        ],
    }


def _adjusted(statistics: Statistics, analysis: Analysis) -> str:
    """Return the p-value after correction, if there are several analyses."""
    number, p = len(statistics.analyses), analysis.anova[0].adjusted_p if analysis.anova else None
    return f" p after Holm's correction for {number} analyses: {p:.4f}." if number > 1 and p is not None else ""


def box_chart(statistics: Statistics, analysis: Analysis, values: Mapping[str, Sequence[float]], *, name: str) -> Chart:
    """Draw a box of each group with its letters.

    Args:
        values: of each group, in the order of the groups.
        name: of the chart, different for each chart of a page.
    """
    groups = [group.name for group in analysis.groups]
    lines = {part: {"color": INK} for part in ("boxprops", "whiskerprops", "capprops")}

    def draw(axes: Any) -> None:
        axes.boxplot(
            [list(values[group]) for group in groups],
            tick_labels=groups,
            medianprops={"color": FIRST, "linewidth": 2},
            flierprops={"marker": "o", "markersize": 3, "markerfacecolor": SOFT, "markeredgecolor": SOFT},
            **lines,
        )
        axes.plot(range(1, len(groups) + 1), [group.mean for group in analysis.groups], "D", color=SECOND, markersize=4)
        for place, group in enumerate(analysis.groups, start=1):
            axes.annotate(
                group.letters, (place, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 4),
                textcoords="offset points", ha="center", color=INK,
            )  # fmt: skip
        axes.set(xlabel=statistics.factor, ylabel=statistics.response)
        if sum(map(len, groups)) > LONGEST_LABEL:
            axes.tick_params(axis="x", labelrotation=30)

    means = ", ".join(f"{group.name}: {group.mean:.4g} ({group.letters})" for group in analysis.groups)
    return Chart(
        svg=svg_of(draw, name, extra=EXTRA),
        alt=f"Box plot of {statistics.response} by {statistics.factor}. Means: {means}.",
        caption="Line: median; box: quartiles; whiskers: values within 1.5 times the box; diamond: mean; above: letters.",
    )
