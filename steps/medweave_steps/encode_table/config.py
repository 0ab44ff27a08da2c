"""Options of `encode-table`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from medweave_core.errors import UsageError
from medweave_steps.io.cohort.files import in_cohort
from medweave_steps.runtime.options import check_option, option

Fractions = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeTableConfig:
    """Options of `encode-table`."""

    tables: tuple[Path, ...] = option(
        "tables with the same columns, read one after the other: CSV, TSV (each also .gz) or Parquet", metavar="FILE"
    )
    cohort: Path | None = option(
        "folder of the other files, whose options can then be paths below it", default=None, metavar="DIR"
    )
    table_schema: Path | None = option(
        "YAML or JSON file that declares every column (`medweave schema table-schema`); required without --model",
        default=None, metavar="FILE",
    )  # fmt: skip
    model: Path | None = option(
        "model folder whose encoder is applied: all rows become inference batches, and nothing is fitted",
        default=None, metavar="DIR",
    )  # fmt: skip
    target_list: Path | None = option(
        "table whose column lists the rows of one class, such as a list of excluded providers; with `listed_target` in the schema",
        default=None, metavar="FILE",
    )  # fmt: skip
    matrix: Path | None = option(
        "sparse binary matrix (.npz of scipy.sparse.save_npz) with a row for each row of the tables; its columns are features, too",
        default=None, metavar="FILE",
    )  # fmt: skip
    output: Path = option("folder to write: training_set/ and inference_batches/; must not exist yet", metavar="DIR")
    fractions: Fractions = option(
        "fractions of each class for training, validation and test, with sum 1; without validation the last weights of a training "
        "are kept",
        default=(0.8, 0.0, 0.2), metavar="TRAIN VALIDATION TEST",
    )  # fmt: skip
    split_by: Literal["row", "group"] = option(
        "row draws rows; group keeps rows with equal values of the schema's group column, such as those of a patient, together",
        default="row",
    )
    ratio: int | None = option(
        "random under-sampling of the training rows: as many rows of the larger of two classes for each row of the smaller one, "
        "drawn without replacement (default: all rows)",
        default=None,
    )
    test_ratio: int | None = option(
        "the same for the test rows; 1 is as many of both (default: all rows)", default=None
    )
    nodes: int = option(
        "number of equal partitions of the training rows, each split into parts of at most --rows-per-part rows; train reads all "
        "parts, and shuffles the rows and distributes them over its ranks in each epoch",
        default=1,
    )
    rows_per_part: int = option(
        "maximum number of rows of a part, which is one set of files, and of an inference batch; each partition of --nodes has "
        "as many parts",
        default=100_000,
    )
    seed: int = option(
        "random seed of split and under-sampling; the drawn rows of the smaller class do not depend on --ratio",
        default=0,
    )

    def __post_init__(self) -> None:
        """Raise UsageError for a value that cannot be used."""
        if (self.table_schema is None) == (self.model is None):
            raise UsageError(
                "encode-table needs a schema or a model.",
                seen="neither --table-schema nor --model" if self.model is None else "both",
                expected="--table-schema to fit an encoder, or --model to apply that of a model",
            )
        train, validation, test = self.fractions
        fits = all(map(math.isfinite, self.fractions)) and train > 0 and min(validation, test) >= 0
        fits = fits and abs(sum(self.fractions) - 1) < 1e-6
        check_option(fits, "fractions", self.fractions, "three fractions with sum 1; training above 0")
        for name in ("ratio", "test_ratio"):
            value = getattr(self, name)
            check_option(value is None or value >= 1, name, value, "at least 1")
        for name in ("nodes", "rows_per_part"):
            check_option(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        check_option(self.seed >= 0, "seed", self.seed, "0 or more")

    def path_of(self, path: Path) -> Path:
        """Return the file of an option: the path itself, or below the cohort."""
        return path if self.cohort is None else in_cohort(self.cohort, path)
