"""Options of `report`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from medweave_core.errors import UsageError
from medweave_steps.runtime.options import check_option, option


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportConfig:
    """Options of `report`."""

    evaluation: Path = option("output folder of evaluate", metavar="DIR")
    case_batches: tuple[Path, ...] = option(
        "preprocessed batches that were segmented or classified, for the pictures", metavar="DIR"
    )
    segmentations: tuple[Path, ...] = option(
        "one or more output folders of segment; for a classification, use --classifications", default=(), metavar="DIR"
    )
    classifications: tuple[Path, ...] = option(
        "one or more output folders of classify, in place of --segmentations", default=(), metavar="DIR"
    )
    explanations: tuple[Path, ...] = option(
        "output folders of explain, for the maps of a classification (optional)", default=(), metavar="DIR"
    )
    training_log: Path | None = option("training log of train (folder with curves.json)", default=None, metavar="DIR")
    run_reports: tuple[Path, ...] = option("run_report.json of the previous steps", metavar="FILE")
    statistics: Path | None = option(
        "output folder of stats, for its box plots and tables (optional)", default=None, metavar="DIR"
    )
    output: Path = option("folder to write: fragment.html (self-contained) and summary.json", metavar="DIR")
    title: str | None = option(
        "title of the report (default: derived from the labels or classes of the preprocessed cases)", default=None
    )
    max_overlays: int = option(
        "maximum number of cases shown as pictures: best, median, worst and cases between them; of a classification the worst, "
        "and as many maps of explain",
        default=6,
    )

    def __post_init__(self) -> None:
        if self.max_overlays < 1:
            raise UsageError("invalid value of --max-overlays.", seen=str(self.max_overlays), expected="1 or more")
        check_option(
            not (self.explanations and self.segmentations), "explanations", "folders", "none for a segmentation"
        )
        if bool(self.segmentations) == bool(self.classifications):
            raise UsageError(
                "the results of the model are missing or of two kinds.",
                seen="both --segmentations and --classifications"
                if self.segmentations
                else "neither of the two options",
                expected="--segmentations of a segmentation, or --classifications of a classification",
                do="set one of the two options",
            )
