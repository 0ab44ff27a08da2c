"""What the tables of the generator share: the writing of tables, and of the schema that belongs to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.tables import TableSchema

SCHEMA_FILE = "schema.yml"


def write_table(path: Path, columns: Mapping[str, npt.NDArray[Any] | Sequence[Any]], *, separator: str) -> None:
    """Write columns of equal lengths as text with a header line; no cell may have the separator, a quote or a line break."""
    texts = [np.asarray(values).astype(str) for values in columns.values()]
    with path.open("w", encoding="utf-8", newline="") as stream:
        stream.write(separator.join(columns) + "\n")
        stream.writelines(separator.join(cells) + "\n" for cells in zip(*texts, strict=True))


def schema_text(schema: TableSchema) -> str:
    """Return a schema as YAML, one column per line, without the keys that have their default."""
    lines = ["synthetic: true"] if schema.synthetic else []
    lines.append("columns:")
    for column in schema.columns:
        keys = [f"name: {column.name}", f"kind: {column.kind}"]
        keys += ["log: true"] if column.log else []
        keys += [f"buckets: {column.buckets}"] if column.kind == "hashed" else []
        keys += [f'positive: "{column.positive}"'] if column.positive is not None else []
        lines.append(f"  - {{{', '.join(keys)}}}")
    if schema.listed_target is not None:
        listed = schema.listed_target
        lines.append(
            f"listed_target: {{column: {listed.column}, list_column: {listed.list_column}, listed: {listed.listed}, "
            f"unlisted: {listed.unlisted}}}"
        )
    return "\n".join(lines) + "\n"
