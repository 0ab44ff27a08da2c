"""The results of the earlier steps of a classification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medweave_core.contracts.classification_evaluation import ClassificationEvaluation
from medweave_core.contracts.classifications import Classifications
from medweave_core.contracts.cohort import PreparedCohort
from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.prepared import read_classifications, read_contract
from medweave_steps.report.classification.explanations import ExplainedBatch
from medweave_steps.report.gather import RunMaterial


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassMaterial(RunMaterial):
    """The content of the report fragment of a classification.

    Attributes:
        cohort: description of the classified cases.
        classified: what `classify` wrote about the first batch: model, temperature and thresholds are those of all batches.
        explained: what `explain` wrote about each batch; empty where it was not run.
    """

    evaluation: ClassificationEvaluation
    cohort: PreparedCohort
    classified: Classifications
    explained: Sequence[ExplainedBatch] = ()


def read_class_evaluation(folder: Path) -> ClassificationEvaluation:
    """Read `metrics.json` of the evaluation of a classification.

    Raises:
        UserInputError: the file is missing or is not what `evaluate` writes.
    """
    return read_contract(ClassificationEvaluation, folder / "metrics.json", where="the evaluation (metrics.json)")


def read_classified(folders: Sequence[Path]) -> Classifications:
    """Read what `classify` wrote, of the first batch.

    Raises:
        UserInputError: a file is missing or is not what `classify` writes, or the batches were classified differently.
    """
    first, *others = [read_classifications(folder) for folder in folders]
    if any(other.model_sha256 != first.model_sha256 for other in others):
        raise UserInputError(
            "the folders of --classifications are of different models.",
            seen="different digests of the model card",
            expected="folders that classify wrote with one model",
            do="use all folders of the same run",
        )
    return first
