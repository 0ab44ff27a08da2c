"""The schema of a table, checked against itself and against the tables."""

from __future__ import annotations

from pathlib import Path

from medweave_core.contracts import codec
from medweave_core.contracts.tables import TableSchema
from medweave_core.documents.closest_match import closest
from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.json_or_yaml import read_document
from medweave_steps.io.tables.encoder import FEATURE_KINDS
from medweave_steps.io.tables.reader import TableFile


def read_schema(path: Path, *, has_matrix: bool) -> TableSchema:
    """Read the schema of a table.

    Raises:
        UserInputError: the file cannot be read, or the declarations contradict each other.
    """
    try:
        document = read_document(path)
    except (ValueError, OSError) as error:
        raise _bad_schema(str(error) if isinstance(error, ValueError) else "no such file") from error
    schema = codec.from_json(TableSchema, document, where="the schema of the table (--table-schema)")
    names = [column.name for column in schema.columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise _bad_schema(f"the column {twice[0]!r} twice")
    kinds = {column.name: column.kind for column in schema.columns}
    targets = [name for name, kind in kinds.items() if kind == "target"]
    if len(targets) + (schema.listed_target is not None) != 1:
        seen = f"{len(targets)} columns of kind target{', and listed_target' if schema.listed_target else ''}"
        raise _bad_schema(seen, "one column of kind target, or listed_target")
    if list(kinds.values()).count("group") > 1:
        raise _bad_schema("several columns of kind group", "at most one")
    if not has_matrix and not any(kind in FEATURE_KINDS for kind in kinds.values()):
        raise _bad_schema("no column with features", f"at least one column of kind {', '.join(FEATURE_KINDS)}")
    for column in schema.columns:
        if column.buckets < 1 or (column.log and column.kind != "numeric"):
            raise _bad_schema(
                f"the column {column.name!r}: log {column.log}, buckets {column.buckets}", "log of numeric columns only"
            )
    listed = schema.listed_target
    if listed is not None and kinds.get(listed.column) not in ("identifier", "group"):
        raise _bad_schema(
            f"listed_target of the column {listed.column!r}, of kind {kinds.get(listed.column, 'none')}",
            "a column of kind identifier or group: as a feature it would give the class away",
        )
    return schema


def check_columns(table: TableFile, schema: TableSchema, *, is_fit: bool) -> None:
    """Compare the columns of a table with its schema.

    Args:
        is_fit: the table is trained on; otherwise only columns with features must be there.
    Raises:
        UserInputError: a column is missing, or is not declared.
    """
    seen = table.column_names()
    declared = {column.name: column.kind for column in schema.columns}
    needed = [name for name, kind in declared.items() if is_fit or kind in FEATURE_KINDS]
    missing = [name for name in needed if name not in seen]
    if missing:
        is_target = declared[missing[0]] == "target"
        raise UserInputError(
            f"the table has no {'target ' if is_target else ''}column '{missing[0]}'.",
            seen=f"{len(missing)} of {len(needed)} {'declared columns' if is_fit else 'columns'} missing in {table.path.name}",
            expected="every column of the schema" if is_fit else "every column that the encoder of the model reads",
            do=closest(missing[0], seen)
            or (
                "correct the name in the schema, or remove the column from it"
                if is_fit
                else "add the column to the table, or train a model without it"
            ),
        )
    unknown = [name for name in seen if name not in declared]
    if is_fit and unknown:
        raise UserInputError(
            f"the schema does not declare the column '{unknown[0]}'.",
            seen=f"{len(unknown)} columns of {table.path.name} that the schema does not have",
            expected="every column of the table in the schema",
            do=closest(unknown[0], tuple(declared)) or "declare it; kind identifier excludes it from the features",
        )


def _bad_schema(
    seen: str, expected: str = "a YAML or JSON document with `columns`: name and kind of each column"
) -> UserInputError:
    return UserInputError(
        "the schema of the table cannot be used.",
        seen=seen,
        expected=expected,
        do="correct the file of --table-schema; docs/how-to/train-on-tables.md has an example",
    )
