"""The folders of encoded rows: a training set and inference batches, as `train` and `classify` read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from medweave_core.contracts import codec
from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.cohort import PreparedCase, PreparedCohort, Split
from medweave_core.contracts.tables import ENCODER_FILE, TableEncoder
from medweave_steps.io.cohort.prepared import COHORT_FILE
from medweave_steps.io.hashing import sha256_of_file, sha256_of_text
from medweave_steps.io.tables.row_block import ROW_FILES, RowBlock, write_block

TRAINING_SET = "training_set"
BATCHES = "inference_batches"


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePart:
    """A block of rows that is to be written.

    Attributes:
        case_id: such as train-000.
        folder: training_set, or a batch.
    """

    case_id: str
    folder: str
    split: Split
    rows: RowBlock


def write_parts(output: Path, parts: Sequence[TablePart], encoder: TableEncoder, *, seed: int) -> None:
    """Write every part, and the cohort file and the encoder of each folder; the training set of a model's encoder has no rows."""
    (output / BATCHES).mkdir()
    for name in dict.fromkeys((TRAINING_SET, *(part.folder for part in parts))):
        own = [part for part in parts if part.folder == name]
        (output / name).mkdir()
        for part in own:
            folder = output / name / "cases" / part.case_id
            folder.mkdir(parents=True)
            write_block(folder, part.rows)
        (output / name / ENCODER_FILE).write_text(codec.dumps(encoder), encoding="utf-8")
        cohort = _cohort(output / name, own, encoder, seed=seed)
        (output / name / COHORT_FILE).write_text(codec.dumps(cohort), encoding="utf-8")


def _cohort(folder: Path, parts: Sequence[TablePart], encoder: TableEncoder, *, seed: int) -> PreparedCohort:
    files = (folder / "cases" / part.case_id / name for part in parts for name in ROW_FILES)
    return PreparedCohort(
        spacing_mm=(1.0, 1.0, 1.0),
        window_hu=None,
        crop="none",
        margin_mm=0.0,
        split_seed=seed,
        synthetic=encoder.table.synthetic,
        labels=(),
        data_sha256=sha256_of_text(sha256_of_file(path) for path in files),
        channels=encoder.features,
        classes=tuple(ImageClass(name=name) for name in encoder.classes),
        cases=tuple(
            PreparedCase(
                case_id=part.case_id,
                patient_key=part.case_id,
                split=part.split,
                has_label=True,
                num_lesions=0,
                num_label_voxels=0,
                rows_by_class=_counts(part.rows, encoder.classes),
                num_rows=len(part.rows),
            )
            for part in parts
        ),
    )


def _counts(rows: RowBlock, classes: Sequence[str]) -> Mapping[str, int]:
    return {name: int((rows.targets == number).sum()) for number, name in enumerate(classes)}
