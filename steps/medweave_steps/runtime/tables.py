"""Tables for spreadsheets and for the terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence


def csv_text(header: Iterable[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as CSV with a header; lines end with a line feed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def aligned_text(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as lines with aligned columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        ).rstrip()
        for row in rows
    ]
    return "\n".join(lines)
