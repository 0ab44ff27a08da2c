"""The identity of a synthetic patient: names and UIDs that follow from the seed alone; and groups in given proportions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
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


def names_in_turn(counts: Mapping[str, int], number: int) -> list[str]:
    """Return names one after the other, each time the one that is furthest below its share so far."""
    total, used = sum(counts.values()), dict.fromkeys(counts, 0)
    names = []
    for place in range(1, number + 1):
        name = max(counts, key=lambda one: counts[one] * place / total - used[one])
        used[name] += 1
        names.append(name)
    return names
