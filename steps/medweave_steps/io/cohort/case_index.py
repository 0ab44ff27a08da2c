"""Finds the cases that a cell of a table names: by file, by case id, or, for volumes, by patient."""

from __future__ import annotations

from collections.abc import Iterable

from medweave_steps.io.cohort.discovery import patient_key_of
from medweave_steps.io.cohort.tables import CaseNames


class CaseIndex:
    """The cases that a cell of a table can name.

    Attributes:
        names: of all cases.
        by_patient: case ids of volumes by patient key.
    """

    def __init__(self, issuers: Iterable[str] = ("",)) -> None:
        """Make an index without cases.

        Args:
            issuers: of the patient ids that headers name.
        """
        self.names = CaseNames()
        self.by_patient: dict[str, set[str]] = {}
        self._issuers = tuple(issuers)

    def add(self, case_id: str, *, file: str = "", patient_key: str = "") -> None:
        """Add a case.

        Args:
            file: its path in the cohort; empty for a case without a file of its own.
            patient_key: of a volume, which its patient names, too; empty for an image.
        """
        self.names.add(case_id, case_id=case_id, file=file)
        if patient_key:
            self.by_patient.setdefault(patient_key, set()).add(case_id)

    def cases_of(self, cell: str) -> set[str]:
        """Return the case ids that a cell names; several for a patient with several volumes."""
        found = self.names.cases_of(cell)
        if found or not self.by_patient:
            return found
        identities = [*(f"{cell}\n{issuer}" for issuer in self._issuers), f"subject {cell.removeprefix('sub-')}"]
        return set().union(*(self.by_patient.get(patient_key_of(text), set()) for text in identities))
