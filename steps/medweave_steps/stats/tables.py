"""Statistics as tables: text for the terminal, and rows for CSV. Pure."""

from __future__ import annotations

from medweave_core.contracts.statistics import Analysis, Statistics
from medweave_steps.runtime.tables import aligned_text, csv_text

ANOVA_HEADER = ("", "Df", "Sum Sq", "Mean Sq", "F", "Pr(>F)")
"""Names of the columns in R's `aov`, and in the tables of Parallel SGD (Journal of Big Data 6, 2019)."""


def text_of(statistics: Statistics) -> str:
    """Return all analyses as text for people."""
    return "\n\n".join(_text_of_analysis(analysis, statistics) for analysis in statistics.analyses)


def _text_of_analysis(analysis: Analysis, statistics: Statistics) -> str:
    parts = [f"{statistics.by} {analysis.name}"] if statistics.by else []
    parts += [aligned_text(anova_cells(analysis))] if analysis.anova else []
    return "\n\n".join([*parts, aligned_text(group_cells(analysis, statistics)), *_comparison_text(analysis)])


def anova_cells(analysis: Analysis) -> list[list[str]]:
    """Return the header and the rows of the analysis of variance."""
    rows = [list(ANOVA_HEADER)]
    for row in analysis.anova:
        figures = ["" if value is None else f"{value:.{digits}f}" for value, digits in ((row.f, 2), (row.p, 4))]
        rows.append([row.source, str(row.df), f"{row.sum_sq:.2f}", f"{row.mean_sq:.2f}", *figures])
    return rows


def group_cells(analysis: Analysis, statistics: Statistics) -> list[list[str]]:
    """Return the header and the rows of the groups, the largest mean first."""
    rows = [[statistics.factor, "n", "mean", "sd", "median", "min", "max", "group"]]
    for group in sorted(analysis.groups, key=lambda group: -group.mean):
        figures = (group.mean, group.sd, group.median, group.minimum, group.maximum)
        rows.append([group.name, str(group.count), *(f"{value:.4g}" for value in figures), group.letters])
    return rows


def comparison_cells(analysis: Analysis) -> list[list[str]]:
    """Return the header and the rows of the pairs."""
    rows = [["pair", "difference", "interval", "p", "adjusted p", "differs"]]
    for pair in analysis.comparisons:
        interval = " to ".join(f"{bound:.4g}" for bound in pair.interval)
        verdict = "yes" if pair.is_different else "no"
        p_values = (f"{pair.p:.4f}", f"{pair.adjusted_p:.4f}")
        rows.append([f"{pair.first} - {pair.second}", f"{pair.difference:.4g}", interval, *p_values, verdict])
    return rows


def _comparison_text(analysis: Analysis) -> list[str]:
    return [aligned_text(comparison_cells(analysis))] if analysis.patients is not None else []


def method_of(analysis: Analysis, statistics: Statistics) -> str:
    """Return in words what the letters and intervals of an analysis mean."""
    alpha = f"alpha {statistics.alpha:g}"
    letters = "Groups without a letter in common differ"
    if analysis.patients is not None:
        return (
            f"{letters} ({alpha}): Wilcoxon signed-rank test over {analysis.patients} patients, p-values after Holm's "
            f"correction for {len(analysis.comparisons)} pairs. Intervals: mean difference, bootstrap over patients, "
            f"level {1 - statistics.alpha:g}."
        )
    return f"{letters}: Tukey's honestly significant difference, {alpha}, {difference_of(analysis)}."


def difference_of(analysis: Analysis) -> str:
    """Return the studentized range and the honestly significant difference of an analysis."""
    hsd = "another difference for each pair (Tukey-Kramer)" if analysis.hsd is None else f"HSD {analysis.hsd:.4g}"
    return f"q {analysis.q:.3f}, {hsd}"


def groups_csv(statistics: Statistics) -> str:
    """Return one line for each group."""
    header = ("analysis", statistics.factor, "count", "mean", "sd", "median", "minimum", "maximum", "letters")
    rows = [
        (analysis.name, one.name, one.count, one.mean, one.sd, one.median, one.minimum, one.maximum, one.letters)
        for analysis in statistics.analyses
        for one in analysis.groups
    ]
    return csv_text(header, rows)


def comparisons_csv(statistics: Statistics) -> str:
    """Return one line for each pair of groups."""
    header = ("analysis", "first", "second", "difference", "lower", "upper", "p", "adjusted_p", "is_different")
    rows = [
        (analysis.name, one.first, one.second, one.difference, *one.interval, one.p, one.adjusted_p, one.is_different)
        for analysis in statistics.analyses
        for one in analysis.comparisons
    ]
    return csv_text(header, rows)


def anova_csv(statistics: Statistics) -> str:
    """Return two lines for each analysis of variance."""
    header = ("analysis", "source", "df", "sum_sq", "mean_sq", "f", "p", "adjusted_p")
    rows = [
        (analysis.name, row.source, row.df, row.sum_sq, row.mean_sq, row.f, row.p, row.adjusted_p)
        for analysis in statistics.analyses
        for row in analysis.anova
    ]
    return csv_text(header, rows)
