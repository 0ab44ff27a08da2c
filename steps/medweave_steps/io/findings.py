"""Errors in a series, as values that `check` collects and as exceptions that later steps raise; names of series in messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from medweave_core.contracts.cohort import Finding
from medweave_core.errors import UserInputError


class FindingError(UserInputError):
    """An error in the data with its `Finding`: `check` lists it; every other verb exits with code 65."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.what, finding.seen, finding.expected, finding.do)
        self.finding = finding


def refuse(code: str, what: str, *, seen: str, expected: str, do: str, case_id: str | None = None) -> FindingError:
    """Return an error about a case or the cohort, to be raised."""
    return FindingError(
        Finding(severity="error", code=code, what=what, seen=seen, expected=expected, do=do, case_id=case_id)
    )


def notice(code: str, what: str, *, seen: str = "", do: str = "", case_id: str | None = None) -> Finding:
    """Return a notice, which does not stop the step."""
    return Finding(severity="notice", code=code, what=what, seen=seen, do=do, case_id=case_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesName:
    """The name of a series or image in messages; contains no UID, patient or path.

    Attributes:
        ordinal: its number in the cohort, from 1.
        noun: `series` or `image`.
    """

    case_id: str
    ordinal: int
    noun: str = "series"

    def __str__(self) -> str:
        return f"{self.case_id} ({self.noun} {self.ordinal})"

    def refuse(self, code: str, what: str, *, seen: str, expected: str, do: str) -> FindingError:
        """Return an error about this series."""
        return refuse(code, f"{self}: {what}", seen=seen, expected=expected, do=do, case_id=self.case_id)

    def changed(self, seen: str) -> FindingError:
        """Return the error that a file of this series or image is not what `check` saw."""
        return self.refuse(
            "cohort-changed",
            "the cohort has changed since `check` ran.",
            seen=seen,
            expected="the files listed in cohort_index.json, unchanged",
            do="run check again and use the new cohort_index.json",
        )


def first_of(values: Sequence[object], most: int = 8) -> str:
    """Return the first values as text, and how many more there are: `1, 2 and 3 more`."""
    return ", ".join(map(str, values[:most])) + (f" and {len(values) - most} more" if len(values) > most else "")
