"""What is wrong with a series, as a value that `check` collects and as an error that a later step raises."""

from __future__ import annotations

from collections.abc import Sequence

from medweave_core.contracts.cohort import Finding
from medweave_core.errors import UserInputError


class FindingError(UserInputError):
    """Bad data, told as a `Finding`: `check` lists it, every other verb ends with exit code 65."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.what, finding.seen, finding.expected, finding.do)
        self.finding = finding


def refuse(code: str, what: str, *, seen: str, expected: str, do: str, case_id: str | None = None) -> FindingError:
    """An error about a case (or the cohort), ready to raise."""
    return FindingError(
        Finding(severity="error", code=code, what=what, seen=seen, expected=expected, do=do, case_id=case_id)
    )


def notice(code: str, what: str, *, seen: str = "", do: str = "", case_id: str | None = None) -> Finding:
    """Something worth saying that stops nothing."""
    return Finding(severity="notice", code=code, what=what, seen=seen, do=do, case_id=case_id)


def first_of(values: Sequence[object], most: int = 8) -> str:
    """Return the first values as text, and how many more there are: `1, 2 and 3 more`."""
    return ", ".join(map(str, values[:most])) + (f" and {len(values) - most} more" if len(values) > most else "")
