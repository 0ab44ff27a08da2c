"""`medweave-step encode-table`: rows of a table as input of a network, with everything fitted on the training rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.cohort import Split
from medweave_core.contracts.tables import ENCODER_FILE, TableEncoder, TableSchema
from medweave_core.errors import UserInputError
from medweave_steps.encode_table.config import EncodeTableConfig
from medweave_steps.encode_table.labels import RowLabels, check_classes_known, read_labels
from medweave_steps.encode_table.leak import leak_sample, leaking_columns
from medweave_steps.encode_table.schema import check_columns, read_schema
from medweave_steps.encode_table.split import IntArray, partition_sizes, split_rows, undersample
from medweave_steps.encode_table.write import BATCHES, TRAINING_SET, TablePart, write_parts
from medweave_steps.io.cohort.prepared import read_contract
from medweave_steps.io.model.folder import listed_file, read_card
from medweave_steps.io.tables.encoder import EncoderFit, RowEncoder, cell_types
from medweave_steps.io.tables.reader import EXTRA, TableFile, read_matrix
from medweave_steps.io.tables.row_block import NO_CLASS, make_block
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.verb import StepContext, Verb
from medweave_steps.runtime.write import atomic_directory

Rows = dict[Split, IntArray]


def run(config: EncodeTableConfig, context: StepContext) -> Mapping[str, Any]:
    """Encode the rows; return the counts of rows and features."""
    tables = [TableFile(path=config.path_of(path)) for path in config.tables]
    matrix = read_matrix(config.path_of(config.matrix)) if config.matrix else None
    if config.model is not None:
        return _apply(config, tables, matrix, context)
    assert config.table_schema is not None, "the configuration requires it"
    schema = read_schema(config.path_of(config.table_schema), has_matrix=matrix is not None)
    _check_target_list(config, schema)
    for table in tables:
        check_columns(table, schema, is_fit=True)
    source = _Source(tables=tables, schema=schema, matrix=matrix)
    labels = read_labels(tables, schema, target_list=_target_list(config))
    source.check_rows(len(labels.targets))
    check_classes_known(labels)
    rows = _drawn_rows(config, schema, labels, context)
    sizes = partition_sizes(len(rows["train"]), nodes=config.nodes, most=config.rows_per_part)
    encoder = _fit(source, rows["train"], labels)
    checked = leak_sample(rows["train"], labels.targets, seed=config.seed)
    encoded = _EncodedRows.of(source, encoder, np.sort(np.concatenate(list(rows.values()))), checked)
    _report_unseen(encoded, context)
    leaks = leaking_columns(encoded.of_rows(checked), encoded.empty, labels.targets[checked], encoder)
    for name, leak in leaks.items():
        context.notice(
            f"the column '{name}' alone predicts the class '{labels.classes[leak.target]}' (ROC-AUC {leak.area:.3f} on a sample of "
            "the training rows): it may hold the answer. If it is not known at the time of a prediction, declare it as identifier "
            "in the schema."
        )
    parts = [
        *_training_parts(rows, sizes, encoded, labels, seed=config.seed),
        *_batches(rows["test"], encoded, labels, most=config.rows_per_part),
    ]
    with atomic_directory(config.output) as folder:
        write_parts(folder, parts, encoder, seed=config.seed)
    facts = {"partition": sizes, "leaking_columns": {name: round(leak.area, 4) for name, leak in leaks.items()}}
    return _results(rows, labels, encoder, encoded, context) | facts


def _apply(
    config: EncodeTableConfig, tables: Sequence[TableFile], matrix: Any, context: StepContext
) -> Mapping[str, Any]:
    """Encode all rows by the encoder of a model."""
    assert config.model is not None
    card = read_card(config.model)
    path = listed_file(config.model, card, ENCODER_FILE, made_by="train")
    encoder = read_contract(TableEncoder, path, where=f"the encoder of the model ({ENCODER_FILE})")
    for table in tables:
        check_columns(table, encoder.table, is_fit=False)
    source = _Source(tables=tables, schema=encoder.table, matrix=matrix)
    if source.matrix_columns != encoder.matrix_columns:
        raise UserInputError(
            "the matrix does not fit the model.",
            seen=f"{source.matrix_columns} columns",
            expected=f"{encoder.matrix_columns} columns ({ENCODER_FILE})",
            do="give the matrix of the same codes with --matrix",
        )
    labels = read_labels(tables, encoder.table, target_list=_target_list(config), classes=encoder.classes)
    source.check_rows(len(labels.targets))
    rows: Rows = {"train": np.zeros(0, np.int64), "validation": np.zeros(0, np.int64)}
    rows["test"] = np.arange(len(labels.targets))
    encoded = _EncodedRows.of(source, encoder, rows["test"])
    _report_unseen(encoded, context)
    with atomic_directory(config.output) as folder:
        parts = list(_batches(rows["test"], encoded, labels, most=config.rows_per_part))
        write_parts(folder, parts, encoder, seed=config.seed)
    return _results(rows, labels, encoder, encoded, context)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The rows of all tables, with the rows of the sparse matrix."""

    tables: Sequence[TableFile]
    schema: TableSchema
    matrix: Any

    @property
    def matrix_columns(self) -> int:
        return 0 if self.matrix is None else int(self.matrix.shape[1])

    def check_rows(self, number: int) -> None:
        if self.matrix is not None and self.matrix.shape[0] != number:
            raise UserInputError(
                "table and matrix have different rows.",
                seen=f"{number} rows of the tables, {self.matrix.shape[0]} of the matrix",
                expected="a row of the matrix for each row of the tables, in their order",
                do="write both from the same rows",
            )

    def chosen(self, rows: IntArray) -> Iterator[tuple[Any, Any]]:
        """Yield the chosen rows, ascending, as batches of the table and their rows of the matrix."""
        arrow = require("pyarrow", extra=EXTRA)
        first, types = 0, cell_types(self.schema)
        if not types:
            yield arrow.RecordBatch.from_arrays([arrow.nulls(len(rows))], names=["row"]), self.matrix[rows]
            return
        for batch in (batch for table in self.tables for batch in table.batches(types)):
            low, high = np.searchsorted(rows, (first, first + batch.num_rows))
            own = rows[low:high]
            if len(own):
                yield batch.take(arrow.array(own - first)), None if self.matrix is None else self.matrix[own]
            first += batch.num_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _EncodedRows:
    """The features of the chosen rows.

    Attributes:
        numbers: rows of the source, ascending.
        matrix: scipy.sparse.csr_matrix [rows, features], in this order.
        empty: bool [rows of the leak check, columns of the encoder], in this order: cells without a feature.
        unseen: cells with an unknown category, by column.
    """

    numbers: IntArray
    matrix: Any
    empty: npt.NDArray[np.bool_]
    unseen: Mapping[str, int]

    @staticmethod
    def of(source: _Source, encoder: TableEncoder, numbers: IntArray, checked: IntArray | None = None) -> _EncodedRows:
        """Encode the chosen rows of a source.

        Args:
            checked: rows of the leak check, ascending; none by default.
        """
        sparse = require("scipy.sparse", extra=EXTRA)
        rows = RowEncoder(encoder)
        parts, empty, first = [], [np.zeros((0, len(encoder.columns)), np.bool_)], 0
        for batch, matrix in source.chosen(numbers):
            parts.append(rows.encode(batch, matrix))
            own, first = numbers[first : first + batch.num_rows], first + batch.num_rows
            empty.append(rows.empty[np.isin(own, () if checked is None else checked)])
        width = len(encoder.features)
        matrix = sparse.vstack(parts, format="csr") if parts else sparse.csr_matrix((0, width), dtype=np.float32)
        unseen = {name: count for name, count in rows.unseen.items() if count}
        return _EncodedRows(numbers=numbers, matrix=matrix, empty=np.concatenate(empty), unseen=unseen)

    def of_rows(self, rows: IntArray) -> Any:
        """Return the features of some rows."""
        return self.matrix[np.searchsorted(self.numbers, rows)]

    def part(self, case_id: str, folder: str, split: Split, rows: IntArray, labels: RowLabels) -> TablePart:
        """Return some rows as a part."""
        own = np.sort(rows)
        block = make_block(
            self.of_rows(own), targets=labels.targets[own], row_numbers=own, groups=labels.groups[own]
        )  # fmt: skip
        return TablePart(case_id=case_id, folder=folder, split=split, rows=block)


def _target_list(config: EncodeTableConfig) -> Path | None:
    return config.path_of(config.target_list) if config.target_list else None


def _check_target_list(config: EncodeTableConfig, schema: TableSchema) -> None:
    if (schema.listed_target is None) != (config.target_list is None):
        raise UserInputError(
            "schema and target list do not fit.",
            seen="no --target-list"
            if config.target_list is None
            else "--target-list without listed_target in the schema",
            expected="--target-list for a schema with listed_target, and for no other",
            do="give the target list with --target-list, or correct the schema",
        )


def _drawn_rows(config: EncodeTableConfig, schema: TableSchema, labels: RowLabels, context: StepContext) -> Rows:
    """Return the rows of each split, after under-sampling."""
    has_groups = any(column.kind == "group" for column in schema.columns)
    if config.split_by == "group" and not has_groups:
        raise UserInputError(
            "the table has no groups to split by.",
            seen="--split-by group, and no column of kind group in the schema",
            expected="a column of kind group",
            do="declare the column of the patient or provider as group, or use --split-by row",
        )
    groups = labels.groups if config.split_by == "group" else None
    rows = split_rows(labels.targets, groups, fractions=config.fractions, seed=config.seed)
    unknown = int((labels.targets == NO_CLASS).sum())
    if unknown:
        context.notice(f"{unknown} of {len(labels.targets)} rows have no class and are left out.")
    ratios: dict[Split, int | None] = {"train": config.ratio, "test": config.test_ratio}
    for split, ratio in ratios.items():
        if ratio is not None:
            rows[split] = undersample(rows[split], labels.targets, ratio=ratio, seed=config.seed, split=split)
    _check_training_classes(rows, labels)
    if has_groups:
        shared = np.intersect1d(labels.groups[rows["train"]], labels.groups[rows["test"]])
        if len(shared):
            context.notice(
                f"{len(shared)} groups have rows in training and test, as with any split by row: --split-by group keeps them apart."
            )
    return rows


def _check_training_classes(rows: Rows, labels: RowLabels) -> None:
    counts = np.bincount(labels.targets[rows["train"]], minlength=len(labels.classes))
    absent = [name for name, count in zip(labels.classes, counts, strict=True) if not count]
    if absent:
        raise UserInputError(
            f"no training row has the class {absent[0]}.",
            seen=f"{len(rows['train'])} training rows, {labels.counts[absent[0]]} rows of this class in all",
            expected="each class in at least one training row",
            do="add rows of this class, or increase the fraction of the training rows",
        )


def _fit(source: _Source, rows: IntArray, labels: RowLabels) -> TableEncoder:
    fit = EncoderFit(source.schema)
    for batch, _ in source.chosen(rows):
        fit.add(batch)
    return fit.encoder(classes=labels.classes, matrix_columns=source.matrix_columns)


def _training_parts(
    rows: Rows, sizes: Sequence[Sequence[int]], encoded: _EncodedRows, labels: RowLabels, *, seed: int
) -> Iterator[TablePart]:
    """Yield the training rows in random order, cut into the parts of each node, and the validation rows as one part."""
    order = np.random.default_rng((seed, len(rows["train"]))).permutation(rows["train"])
    ends = np.cumsum([size for of_node in sizes for size in of_node]).tolist()
    for number, (low, high) in enumerate(itertools.pairwise((0, *ends))):
        yield encoded.part(f"train-{number:03d}", TRAINING_SET, "train", order[low:high], labels)
    if len(rows["validation"]):
        yield encoded.part("validation-000", TRAINING_SET, "validation", rows["validation"], labels)


def _batches(rows: IntArray, encoded: _EncodedRows, labels: RowLabels, *, most: int) -> Iterator[TablePart]:
    for number, low in enumerate(range(0, len(rows), most)):
        yield encoded.part(
            f"test-{number:03d}", f"{BATCHES}/batch-{number:03d}", "test", rows[low : low + most], labels
        )


def _report_unseen(encoded: _EncodedRows, context: StepContext) -> None:
    for name, count in encoded.unseen.items():
        context.notice(
            f"the column '{name}' has {count} cells with a category that no training row has: no feature is set there."
        )


def _results(
    rows: Rows, labels: RowLabels, encoder: TableEncoder, encoded: _EncodedRows, context: StepContext
) -> dict[str, Any]:
    counts = {
        split: dict(
            zip(labels.classes, np.bincount(own[own >= 0], minlength=len(labels.classes)).tolist(), strict=True)
        )
        for split, own in ((split, labels.targets[numbers]) for split, numbers in rows.items())
    }
    text = "; ".join(f"{len(numbers)} {split}" for split, numbers in rows.items() if len(numbers))
    context.notice(f"{len(labels.targets)} rows read: {text} rows with {len(encoder.features)} features.")
    return {
        "rows_read": len(labels.targets), "rows": {split: len(numbers) for split, numbers in rows.items()},
        "rows_by_class": counts, "features": len(encoder.features), "unseen_categories": dict(encoded.unseen),
        "synthetic": encoder.table.synthetic,
    }  # fmt: skip


DESCRIPTION = """\
Turns the rows of a table into the input of a network. The schema declares every column: numeric (log(1 + x) on request, then
z-score), category (one-hot), hashed (one-hot of a fixed number of buckets), binary, identifier and group (no features), target. All
statistics are fitted on the training rows only and saved as table_encoder.json, which travels with the model; --model applies them
to other rows. A sparse binary matrix can add columns.

Rows are divided by row or by group into training, validation and test. --ratio and --test-ratio draw rows of the larger of two
classes without replacement, and keep all rows of the smaller one.

Output: training_set/ (input of train) and inference_batches/batch-000/ ... (test rows; all rows with --model; input of classify).

A column that alone predicts a class (ROC-AUC of 0.98 or more on a sample of the training rows) is reported with its name. So are
categories that no training row has.
Errors: columns that the schema does not declare or the table does not have, a column of another kind than declared, fewer than two
classes, a ratio beyond the rows of the larger class, more nodes than rows."""
EXAMPLE = """\
medweave-step encode-table --cohort claims --tables claims.tsv --table-schema schema.yml \\
      --target-list exclusions.csv --ratio 1 --test-ratio 1 --output encoded"""

VERB = Verb(name="encode-table", description=DESCRIPTION, example=EXAMPLE, config=EncodeTableConfig, run=run)
