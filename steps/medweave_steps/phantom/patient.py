"""The identity of a synthetic patient: names and UIDs that follow from the seed alone."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """One synthetic patient.

    Attributes:
        seed: of the cohort the patient belongs to.
        ordinal: 1, 2, 3 … within that cohort.
        held_out: whether the patient is fixed to the test split.
        prefix: of the names of cases to develop on.
    """

    seed: int
    ordinal: int
    held_out: bool
    prefix: str = "lung"

    @property
    def name(self) -> str:
        """Name of the case in MSD folders and in progress lines: `lung_001`, `heldout_001`."""
        return f"{'heldout' if self.held_out else self.prefix}_{self.ordinal:03d}"

    @property
    def patient_id(self) -> str:
        """Value of DICOM's PatientID."""
        return f"PHANTOM-{self.seed}-{self.ordinal:04d}"

    @property
    def chest_seed(self) -> int:
        """Seed of the anatomy; patients of different cohorts never share one."""
        return int.from_bytes(self._digest("anatomy")[:6], "big")

    def uid(self, *what: object) -> str:
        """Return a DICOM UID below 2.25 (from a UUID-sized number), the same for the same patient and purpose."""
        number = int.from_bytes(self._digest(*what)[:16], "big")
        return f"2.25.{number}"

    def _digest(self, *what: object) -> bytes:
        return hashlib.sha256("/".join(map(str, ("medweave", self.seed, self.ordinal, *what))).encode()).digest()
