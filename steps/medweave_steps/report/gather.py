"""The results of the earlier steps: metrics, lesions, curves, run reports, prepared cases and delivered masks."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_core.contracts import codec
from medweave_core.contracts.cohort import PreparedCohort
from medweave_core.contracts.evaluation import ALL_LABELS, Evaluation
from medweave_core.contracts.gate import GateDecision
from medweave_core.contracts.labels import Label, LabelMerge, Region, ascending, declared_or_lesion
from medweave_core.contracts.report import RunReport
from medweave_core.contracts.report_fragment import FRAGMENT_FILE, SECTIONS_BEGIN, SECTIONS_END
from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.prepared import CaseFolder, open_prepared, read_contract, read_segmentations
from medweave_steps.report.outlines import ShownLabel
from medweave_steps.report.overlay import Display
from medweave_steps.runtime.monitor import Recording, read_recordings

NIFTI_MASK = "lesion_mask.nii.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class LesionRow:
    """One reference lesion of `lesions.csv`."""

    case_id: str
    diameter_mm: float
    is_hit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Training curves: points of (step, value)."""

    loss: tuple[tuple[int, float], ...]
    validation: Mapping[str, tuple[tuple[int, float], ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMaterial:
    """What the report of every task shows.

    Attributes:
        reports: run reports in the order of the command line.
        gate: the gate's decision, None without a report of gate.
        cases: prepared cases by id.
        statistics: section that `stats` wrote, as HTML; empty without one.
        hardware: hardware samples of each rank of the training; empty without any.
    """

    curves: Curves
    reports: tuple[RunReport, ...]
    gate: GateDecision | None
    cases: Mapping[str, CaseFolder]
    statistics: str = ""
    hardware: tuple[Recording, ...] = ()

    def results_of(self, verb: str) -> Mapping[str, Any]:
        """Return the figures of the last run of a verb; empty without one."""
        results: Mapping[str, Any] = {}
        for report in self.reports:
            if report.verb == verb:
                results = report.results
        return results


@dataclass(frozen=True, slots=True, kw_only=True)
class Material(RunMaterial):
    """The content of the report fragment of a segmentation.

    Attributes:
        masks: delivered NIfTI masks by case id.
        labels, merges: of the prepared cases.
        shown: labels that the pictures outline: those of the delivered masks.
        regions: unions of labels that the model predicts.
        display: values of the volumes that the pictures show as black and as white.
    """

    evaluation: Evaluation
    lesions: tuple[LesionRow, ...]
    masks: Mapping[str, Path]
    labels: tuple[Label, ...]
    merges: tuple[LabelMerge, ...]
    shown: tuple[ShownLabel, ...]
    regions: tuple[Region, ...]
    display: Display


def read_evaluation(folder: Path) -> tuple[Evaluation, tuple[LesionRow, ...]]:
    """Read `metrics.json` and `lesions.csv` of an evaluation.

    Raises:
        UserInputError: a file is missing or is not what `evaluate` writes.
    """
    evaluation = read_contract(Evaluation, folder / "metrics.json", where="the evaluation (metrics.json)")
    try:
        with (folder / "lesions.csv").open(encoding="utf-8", newline="") as stream:
            rows = tuple(
                LesionRow(case_id=row["case_id"], diameter_mm=float(row["diameter_mm"]), is_hit=_flag(row["hit"]))
                for row in csv.DictReader(stream)
                if row.get("label", ALL_LABELS) == ALL_LABELS
            )
    except (FileNotFoundError, KeyError, TypeError, ValueError) as error:
        raise _unreadable("the table of lesions (lesions.csv)", error, "evaluate") from error
    return evaluation, rows


def read_statistics(folder: Path | None) -> str:
    """Return the section of the page that `stats` wrote; empty without a folder.

    Raises:
        UserInputError: the page is missing or has no section.
    """
    if folder is None:
        return ""
    try:
        html = (folder / FRAGMENT_FILE).read_text(encoding="utf-8")
        return html[html.index(SECTIONS_BEGIN) + len(SECTIONS_BEGIN) : html.index(SECTIONS_END)]
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise _unreadable(f"the statistics ({FRAGMENT_FILE})", error, "stats") from error


def read_curves(folder: Path | None, names: Sequence[str]) -> Curves:
    """Return `curves.json` of a training log; no curves without one.

    Args:
        names: figures on the validation split to read.
    Raises:
        UserInputError: it is missing or is not what `train` writes.
    """
    if folder is None:
        return Curves(loss=(), validation={})
    try:
        points = json.loads((folder / "curves.json").read_text(encoding="utf-8"))
        loss = tuple((int(p["step"]), float(p["loss"])) for p in points if p.get("loss") is not None)
        validation = {
            name: tuple((int(p["step"]), float(p[name])) for p in points if p.get(name) is not None) for name in names
        }
    except (FileNotFoundError, NotADirectoryError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unreadable("the training log (curves.json)", error, "train") from error
    return Curves(loss=loss, validation={name: points for name, points in validation.items() if points})


def read_hardware(folder: Path | None) -> tuple[Recording, ...]:
    """Return the hardware samples in a training log; none without a log, or of a training without a monitor.

    Raises:
        UserInputError: a file of samples is not what `train` writes.
    """
    return () if folder is None else tuple(read_recordings(folder))


def read_reports(paths: Sequence[Path]) -> tuple[RunReport, ...]:
    """Read the run reports of the earlier steps.

    Raises:
        UserInputError: a file is missing or is not a run report.
    """
    return tuple(read_contract(RunReport, path, where="a run report (run_report.json)") for path in paths)


def gate_decision(reports: Sequence[RunReport]) -> GateDecision | None:
    """Return the gate's decision, which its run report holds as results."""
    for report in reversed(reports):
        if report.verb == "gate":
            results = json.loads(json.dumps(codec.to_json(report.results)))
            return codec.from_json(GateDecision, results, where="the results in gate's run report")
    return None


def prepared_cases(folders: Sequence[Path]) -> dict[str, CaseFolder]:
    """Return the prepared cases of all batches, by case id."""
    return {case.case.case_id: case for folder in folders for case in open_prepared(folder).cases()}


def prepared_cohort(folders: Sequence[Path]) -> PreparedCohort:
    """Return the description of the first batch; all batches of a run have the same labels."""
    return open_prepared(folders[0]).cohort


def delivered_masks(folders: Sequence[Path]) -> dict[str, Path]:
    """Return the delivered NIfTI masks of all folders of segmentations, by case id."""
    return {path.parent.name: path for folder in folders for path in sorted(folder.glob(f"*/{NIFTI_MASK}"))}


def delivered_outputs(folders: Sequence[Path], labels: Sequence[Label]) -> tuple[tuple[Label, ...], tuple[Region, ...]]:
    """Return labels, ascending by value, and regions of the delivered masks; without a record the labels of the prepared cases."""
    record = read_segmentations(folders[0])
    regions: tuple[Region, ...] = ()
    if record is not None:
        labels, regions = declared_or_lesion(record.labels), record.regions
    return ascending(labels), regions


def _flag(text: str) -> bool:
    return {"0": False, "1": True}[text]


def _unreadable(what: str, error: Exception, verb: str) -> UserInputError:
    return UserInputError(
        f"{what} cannot be read.",
        seen=type(error).__name__,
        expected=f"the file written by {verb}",
        do=f"run {verb} again",
    )
