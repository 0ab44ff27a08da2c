"""Folders of prepared cases, as `preprocess` writes them and every later step reads them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from medweave_core.contracts import codec
from medweave_core.contracts.classifications import RECORD_FILE as CLASSIFICATIONS_FILE
from medweave_core.contracts.classifications import Classifications
from medweave_core.contracts.cohort import CohortIndex, PreparedCase, PreparedCohort, Split
from medweave_core.contracts.segmentations import RECORD_FILE, Segmentations
from medweave_core.contracts.volume import VolumeInfo
from medweave_core.errors import UserInputError
from medweave_steps.io.tables.row_block import ROW_FILES, RowBlock, read_block

COHORT_FILE = "cohort.json"
INDEX_FILE = "cohort_index.json"
ARRAY_FILES = ("volume.npy", "label.npy", "lung.npy", *ROW_FILES)

T = TypeVar("T")


def read_contract(cls: type[T], path: Path, *, where: str) -> T:
    """Read one JSON contract.

    Raises:
        UserInputError: the file is missing, is not JSON, or does not fit the contract.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserInputError(
            f"{where} is missing.", seen=f"no file {path.name}", expected=f"{path.name}",
            do="correct the path, or run the step that writes this file first",
        ) from error  # fmt: skip
    except (ValueError, NotADirectoryError) as error:
        raise UserInputError(f"{where} cannot be read.", seen=str(error), expected="a JSON document") from error
    return codec.from_json(cls, data, where=where)


def read_index(path: Path) -> CohortIndex:
    """Read `cohort_index.json`, the result of `check`."""
    return read_contract(CohortIndex, path, where="the cohort index (cohort_index.json)")


def read_segmentations(folder: Path) -> Segmentations | None:
    """Read the record of a folder of segmentations; None where `segment` left none."""
    path = folder / RECORD_FILE
    if not path.is_file():
        return None
    return read_contract(Segmentations, path, where=f"the record of the segmentations ({RECORD_FILE})")


def read_classifications(folder: Path) -> Classifications:
    """Read the record of a folder of classifications.

    Raises:
        UserInputError: the record is missing or does not fit the contract.
    """
    where = f"the record of the classifications ({CLASSIFICATIONS_FILE})"
    return read_contract(Classifications, folder / CLASSIFICATIONS_FILE, where=where)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseFolder:
    """One prepared case on disk; its methods return memory-mapped arrays.

    Attributes:
        ignore_value: value of label voxels without annotation, as the cohort declares it; None if there are none.
    """

    case: PreparedCase
    folder: Path
    ignore_value: int | None = None

    def info(self) -> VolumeInfo:
        """Return the geometry, with the inverse transform to the source."""
        return read_contract(
            VolumeInfo, self.folder / "volume_info.json", where=f"volume_info.json of {self.case.case_id}"
        )

    def volume_CIJK(self) -> npt.NDArray[np.float32]:
        """Return the volume, float32 [channel, I, J, K], HU or, for MR, standard deviations; a read-only memory map."""
        volume: npt.NDArray[np.float32] = self._array("volume.npy")
        return volume if volume.ndim == 4 else volume[None]

    def volume_IJK(self) -> npt.NDArray[np.float32]:
        """Return the CT volume, float32 [I, J, K], HU; a read-only memory map."""
        volume: npt.NDArray[np.float32] = self._array("volume.npy")
        return volume

    def label_IJK(self) -> npt.NDArray[np.uint8]:
        """Return the label values, uint8 [I, J, K]; only for a case with ground truth."""
        label: npt.NDArray[np.uint8] = self._array("label.npy")
        return label

    def lung_IJK(self) -> npt.NDArray[np.bool_]:
        """Return the mask of the lungs with their vessels and nodules filled in, bool [I, J, K]; only for CT."""
        lung: npt.NDArray[np.bool_] = self._array("lung.npy")
        return lung

    def rows(self) -> RowBlock:
        """Return the rows of a part; only for a table."""
        return read_block(self._array)

    def array_files(self) -> list[Path]:
        """Return the existing files of the case's arrays."""
        return [path for name in ARRAY_FILES if (path := self.folder / name).is_file()]

    def _array(self, name: str) -> Any:
        verb = "encode-table" if name in ROW_FILES else "preprocess"
        try:
            return np.load(self.folder / name, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise UserInputError(
                f"{name} of {self.case.case_id} cannot be read.",
                seen=type(error).__name__,
                expected=f"a complete array written by {verb}",
                do=f"run {verb} again",
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedFolder:
    """A folder of prepared cases.

    Attributes:
        scaled_range: range that a network's input is scaled to, for CT.
    """

    cohort: PreparedCohort
    folder: Path
    scaled_range: tuple[float, float] = (0.0, 1.0)

    def with_input(self, *, window_hu: tuple[float, float] | None, scaled_range: tuple[float, float]) -> PreparedFolder:
        """Return the folder for a network that clips and scales CT in another way.

        Args:
            window_hu: within that of the cohort; None for MR.
        """
        cohort = dataclasses.replace(self.cohort, window_hu=window_hu)
        return dataclasses.replace(self, cohort=cohort, scaled_range=scaled_range)

    def digest(self) -> str:
        """Return the SHA-256 of the entries of all cases in cohort.json; the arrays are not read."""
        return hashlib.sha256(codec.dumps(self.cohort).encode()).hexdigest()

    def cases(self, split: Split | None = None) -> list[CaseFolder]:
        """Return the cases of one split, or all, in the order of the cohort file."""
        return [
            CaseFolder(case=case, folder=self.folder / "cases" / case.case_id, ignore_value=self.cohort.ignore_value)
            for case in self.cohort.cases
            if split in (None, case.split)
        ]

    def training_cases(self) -> tuple[list[CaseFolder], list[CaseFolder]]:
        """Return the training and the validation cases.

        Raises:
            UserInputError: one of the two splits has no case.
        """
        splits: dict[Split, list[CaseFolder]] = {name: self.cases(name) for name in ("train", "validation")}
        for name, cases in splits.items():
            if not cases:
                raise UserInputError(
                    f"the training set has no {'training' if name == 'train' else name} case.",
                    seen=", ".join(f"{len(listed)} {split}" for split, listed in splits.items()),
                    expected="at least one case in each of train and validation",
                    do="run preprocess with more cases, or with a larger fraction for the empty split in --fractions",
                )
        return splits["train"], splits["validation"]


def open_prepared(folder: Path) -> PreparedFolder:
    """Open a folder that `preprocess` wrote.

    Raises:
        UserInputError: there is no cohort file in it, or it does not fit.
    """
    cohort = read_contract(PreparedCohort, folder / COHORT_FILE, where="the preprocessed cohort (cohort.json)")
    return PreparedFolder(cohort=cohort, folder=folder)
