"""The files of the verb `report` for `medweave report`: HTML sections between two marks, and the headline as `summary.json`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import Literal

from medweave_core.contracts.evaluation import Interval
from medweave_core.contracts.model import RESEARCH_USE_ONLY, Precision
from medweave_core.contracts.volume import DataClass

FRAGMENT_FILE = "fragment.html"
SUMMARY_FILE = "summary.json"
SECTIONS_BEGIN = "<!-- medweave:sections -->"
SECTIONS_END = "<!-- /medweave:sections -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadlineFigure:
    """One figure of the headline.

    Attributes:
        key: as in `metrics.json`.
        label: displayed name.
        value: None if it is not defined.
        interval: bootstrap 95 % interval over patients, or None.
        baseline: the same figure for the baseline, or None if it has none.
        note: what the figure counts, such as `33 of 36 lesions`.
        is_share: a value from 0 to 1.
    """

    key: str
    label: str
    value: float | None
    interval: Interval | None
    baseline: float | None
    note: str
    is_share: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSummary:
    """Summary of a report.

    Attributes:
        title: the task.
        synthetic: the evaluated cases come from a generator.
        patients, cases, lesions: numbers in the evaluation; lesions of 6 mm or more, 0 for a classification.
        precision: numeric precision of `segment` or `classify`; None without its report.
        gate: the gate's decision in one line, or None.
        sections: id and heading of each section of the fragment, in order.
    """

    title: str
    synthetic: bool
    patients: int
    cases: int
    lesions: int
    figures: tuple[HeadlineFigure, ...]
    precision: Precision | None
    gate: str | None
    sections: tuple[tuple[str, str], ...]
    intended_use: str = RESEARCH_USE_ONLY
    summary_version: Literal[1] = 1
    data_class: DataClass = "aggregate"


def stylesheet() -> str:
    """Return the style sheet of the report, for the fragment alone and for the whole page."""
    return (resources.files("medweave_core.contracts") / "report_style.css").read_text(encoding="utf-8")
