"""`medweave-step stats`: compare groups of measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_core.contracts import codec
from medweave_core.contracts.report_fragment import FRAGMENT_FILE
from medweave_core.contracts.statistics import STATISTICS_FILE, Analysis, Statistics
from medweave_steps.runtime.options import check_option, option
from medweave_steps.runtime.tables import csv_text
from medweave_steps.runtime.verb import StepContext, Verb
from medweave_steps.runtime.write import atomic_directory, write_text
from medweave_steps.stats import tables
from medweave_steps.stats.independent import adjust_analyses, analyze_independent
from medweave_steps.stats.measurements import (
    Columns,
    Measurements,
    check_columns,
    measurements_of,
    read_measurements,
)
from medweave_steps.stats.paired import analyze_paired, smallest_p, values_of_patients
from medweave_steps.stats.training_times import COLUMNS, rows_of_reports


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsConfig:
    """Options of `stats`."""

    measurements: Path | None = option(
        "CSV or TSV table in long form: one measurement in each row", default=None, metavar="FILE"
    )
    run_reports: tuple[Path, ...] = option(
        f"run reports of trainings, in place of --measurements; the columns are {', '.join(COLUMNS)}",
        default=(),
        metavar="FILE",
    )
    response: str = option("column of the measured values, such as seconds or dice", metavar="COLUMN")
    factor: str = option("column of the groups, such as nodes or model", metavar="COLUMN")
    patient: str | None = option(
        "column of the patients, for paired tests (default: the values are independent of each other)",
        default=None,
        metavar="COLUMN",
    )
    by: str | None = option(
        "column whose values are analyzed separately, such as the data set (default: one analysis)",
        default=None,
        metavar="COLUMN",
    )
    alpha: float = option("probability of an error of the first kind over all pairs of an analysis", default=0.05)
    bootstrap_seed: int = option("random seed of the bootstrap over patients", default=0)
    bootstrap_resamples: int = option("number of draws of the bootstrap", default=2000)
    output: Path = option(
        "folder to write: statistics.json, groups.csv, comparisons.csv, anova.csv and fragment.html (box plots)",
        default=Path("statistics"),
        metavar="DIR",
    )

    def __post_init__(self) -> None:
        check_option(0 < self.alpha < 1, "alpha", self.alpha, "a number between 0 and 1")
        check_option(self.bootstrap_seed >= 0, "bootstrap_seed", self.bootstrap_seed, "0 or more")
        check_option(self.bootstrap_resamples >= 100, "bootstrap_resamples", self.bootstrap_resamples, "100 or more")
        fits = bool(self.run_reports) != (self.measurements is not None)
        check_option(fits, "measurements", self.measurements, "either --measurements or --run-reports")
        names = [name for name in (self.response, self.factor, self.patient, self.by) if name is not None]
        check_option(len(set(names)) == len(names), "factor", self.factor, "another column in each option")

    @property
    def columns(self) -> Columns:
        """Return the columns to read."""
        return Columns(response=self.response, factor=self.factor, patient=self.patient or "", by=self.by or "")


def run(config: StatsConfig, context: StepContext) -> Mapping[str, Any]:
    """Read the measurements, compare the groups, print the tables and write all files."""
    from medweave_steps.stats.page import page_of

    rows = rows_of_reports(config.run_reports)
    by_name = _measurements(config, rows)
    statistics = statistics_of(by_name, config)
    for analysis in statistics.analyses:
        _report_too_few_patients(analysis, statistics, context)
    print(tables.text_of(statistics), flush=True)
    for analysis in statistics.analyses:
        print(f"\n{tables.method_of(analysis, statistics)}", flush=True)
    with atomic_directory(config.output) as folder:
        write_text(folder / STATISTICS_FILE, codec.dumps(statistics))
        if rows:
            write_text(folder / "measurements.csv", csv_text(COLUMNS, [tuple(row.values()) for row in rows]))
        write_text(folder / "groups.csv", tables.groups_csv(statistics))
        write_text(folder / "comparisons.csv", tables.comparisons_csv(statistics))
        if statistics.design == "independent":
            write_text(folder / "anova.csv", tables.anova_csv(statistics))
        write_text(folder / FRAGMENT_FILE, page_of(statistics, [_drawn(own, config) for own in by_name.values()]))
    results: dict[str, Any] = codec.to_json(statistics)
    return {name: value for name, value in results.items() if name not in ("statistics_version", "data_class")}


def _measurements(config: StatsConfig, rows: Sequence[Mapping[str, str]]) -> dict[str, Measurements]:
    """Return the measurements of the table, or of the rows of run reports."""
    if config.measurements is not None:
        return read_measurements(config.measurements, config.columns)
    check_columns(COLUMNS, config.columns)
    return measurements_of(rows, config.columns)


def statistics_of(by_name: Mapping[str, Measurements], config: StatsConfig) -> Statistics:
    """Return the statistics of all analyses.

    Args:
        by_name: measurements by the value of the column `by`.
    """
    seed, resamples, alpha = config.bootstrap_seed, config.bootstrap_resamples, config.alpha
    analyses: Sequence[Analysis]
    if config.patient:
        analyses = [
            analyze_paired(name, own, alpha=alpha, seed=seed, num_resamples=resamples) for name, own in by_name.items()
        ]
    else:
        analyses = adjust_analyses(
            [analyze_independent(name, own, factor=config.factor, alpha=alpha) for name, own in by_name.items()]
        )
    return Statistics(
        response=config.response,
        factor=config.factor,
        by=config.by or "",
        design="paired" if config.patient else "independent",
        alpha=alpha,
        bootstrap={"seed": seed, "resamples": resamples, "level": 1 - alpha} if config.patient else {},
        analyses=tuple(analyses),
    )


def _drawn(measurements: Measurements, config: StatsConfig) -> Mapping[str, Sequence[float]]:
    """Return the values of each group that the tests use: of a paired test, one for each patient."""
    if config.patient:
        return {group: own.tolist() for group, own in values_of_patients(measurements).items()}
    return measurements.values


def _report_too_few_patients(analysis: Analysis, statistics: Statistics, context: StepContext) -> None:
    if analysis.patients is None:
        return
    least = min(1.0, smallest_p(analysis.patients) * len(analysis.comparisons))
    if least >= statistics.alpha:
        context.notice(
            f"{analysis.patients} patients are too few for {len(analysis.comparisons)} paired tests at alpha "
            f"{statistics.alpha:g}: no adjusted p-value can be below {least:.3g}."
        )


DESCRIPTION = """\
Compares groups of measurements: times of repeated runs, or scores of several models on the same patients. The input is a table in
long form: one measurement in each row, with a column for its value (--response) and one for its group (--factor). Or it is the run
reports of repeated trainings; their rows are also written, to measurements.csv.

Independent values: one-way analysis of variance with the columns Df, Sum Sq, Mean Sq, F and Pr(>F), and Tukey's honestly
significant difference of each pair; of groups of unequal size by Tukey and Kramer. With --patient, the values are paired:
Wilcoxon signed-rank test of each pair over patients, Holm's correction for all pairs, and the mean difference with its bootstrap
interval over patients. Several values of a patient in one group are averaged. Groups without a letter in common differ at level
--alpha; the largest mean has the letter a. With --by, each value of a column has an analysis of its own; the p-values of the
analyses of variance are also written after Holm's correction.

statistics.json has all figures (schema: `medweave schema statistics`). fragment.html shows box plots and tables, alone or in the
report of a run. Both name groups, and no patient.

Errors: fewer than two groups; one value in a group; patients without a value in a group; a missing or infinite value; a column that
does not exist; values without variance."""
EXAMPLE = "medweave-step stats --measurements times.csv --response seconds --factor nodes --output statistics"

VERB = Verb(name="stats", description=DESCRIPTION, example=EXAMPLE, config=StatsConfig, run=run)
