"""The options of one de-identification, and its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from medweave_core.contracts.cohort import Finding
from medweave_core.contracts.deidentification import PatientAtHome
from medweave_core.contracts.volume import DataClass
from medweave_steps.deidentify.faces import IDENTIFIABLE, DeclaredFaces, FaceState
from medweave_steps.deidentify.participants import Kind
from medweave_steps.deidentify.profile import Option
from medweave_steps.io.cohort.brain_mask import MASK_FOLDER
from medweave_steps.io.cohort.files import DEIDENTIFIED
from medweave_steps.runtime.imports import require


@dataclass(slots=True, kw_only=True)
class Deidentified:
    """The result of de-identifying a cohort.

    Attributes:
        case_ids: new ids of the written cases, in order, with the number of files of each.
        options: of the profile, beyond those of all files.
        faces: by new id of a case, whether it may show a face.
        num_resampled: series to which a brain mask of another grid was applied.
        num_unstated: radiographs whose header does not state whether text is burned in.
        new_ids: case id in the source to case id in the output, of every case; empty for one that was left out.
        findings: errors; with one or more of them the output is not complete.
    """

    patients: list[PatientAtHome] = field(default_factory=list)
    uids: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    actions: Counter[str] = field(default_factory=Counter)
    left_aside: Counter[str] = field(default_factory=Counter)
    case_ids: dict[str, int] = field(default_factory=dict)
    num_patients: int = 0
    options: set[Option] = field(default_factory=set)
    faces: dict[str, FaceState] = field(default_factory=dict)
    num_resampled: int = 0
    num_unstated: int = 0
    new_ids: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def data_class(self) -> DataClass:
        """Return `identified` where a case may show a face, else `de-identified`."""
        return "identified" if IDENTIFIABLE & set(self.faces.values()) else DEIDENTIFIED


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The options of one de-identification.

    Attributes:
        faces: `auto` leaves it to the cohort card.
        brain_masks: folder of masks.
        refuse_faces: refuse cases that may show a face.
        keep_brain_masks: write the brain masks of the output's cases.
        columns: columns of participants.tsv to keep, with the kind of their values.
    """

    cohort: Path
    output: Path
    key: bytes
    retain_patient_characteristics: bool
    faces: DeclaredFaces
    brain_masks: Path | None
    refuse_faces: bool
    keep_brain_masks: bool = False
    columns: Mapping[str, Kind] = field(default_factory=dict)

    @property
    def mask_folder(self) -> Path:
        """Folder of the output for kept brain masks: the same as in the cohort, or `brain-masks` for masks from elsewhere."""
        cohort, masks = self.cohort.resolve(), self.brain_masks
        if masks is None or not masks.resolve().is_relative_to(cohort):
            return self.output / MASK_FOLDER
        return self.output / masks.resolve().relative_to(cohort)


def load_libraries(*modules: str) -> None:
    """Import the libraries before processes are forked, so that a missing one is reported early and all have them loaded."""
    for module in modules:
        require(module, extra="deidentify")
