"""A mistake to seed into a copy of this repository's files, with the place and the rule that `medweave validate` must report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A text that replaces another one.

    Attributes:
        old: the text to replace, once; empty if a file is added.
        at: text of the line that must be named, where that is not the first line that differs.
        fix: words that the fix must have.
    """

    name: str
    rule: str
    file: str
    old: str
    new: str
    at: str = ""
    fix: str = ""


def of(file: str, *rows: tuple[str, ...]) -> list[Mistake]:
    """Return mistakes in one file, each a row: name, rule, old, new and, if needed, `at` and `fix`."""
    return [
        Mistake(
            name=row[0], rule=row[1], file=file, old=row[2], new=row[3], at="".join(row[4:5]), fix="".join(row[5:6])
        )
        for row in rows
    ]
