"""The calibration windows of the training cases: half of them around lesions, half anywhere in the lungs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.model import InputContract
from medweave_core.contracts.volume import Triple
from medweave_core.errors import UserInputError
from medweave_steps.inference.windows import scale_hu
from medweave_steps.io.cohort.prepared import CaseFolder
from medweave_steps.io.hashing import sha256_of_text

FloatArray = npt.NDArray[np.float32]
AnyMask = npt.NDArray[np.bool_] | npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationWindow:
    """One network input for calibration.

    Attributes:
        kind: of structure in its middle.
        values_BCIJK: float32 [1, C, I, J, K], scaled as the model card says.
    """

    case_id: str
    kind: Literal["lesion", "background"]
    start: Triple
    values_BCIJK: FloatArray


def choose_windows(
    cases: Sequence[CaseFolder], contract: InputContract, *, num_windows: int, seed: int
) -> list[CalibrationWindow]:
    """Draw windows from the cases in turn, lesion and background alternating.

    Lesions are a thousandth of a scan: windows drawn evenly would hardly show the network's large activations,
    and the int8 ranges would cut them off.

    Args:
        cases: training cases; a case without label or lesion gives background only.
        contract: window_hu, scaled range and patch shape.
        num_windows: how many, at least 1.
        seed: the same seed and cases give the same windows.
    Raises:
        UserInputError: there is no training case.
    """
    if not cases:
        raise UserInputError(
            "there is no training case for calibration.",
            seen="no training case in the training set",
            expected="at least one case of split 'train'",
            do="use the training_set folder of preprocess with --purpose training",
        )
    ordered = sorted(cases, key=lambda folder: folder.case.case_id)
    windows = []
    for number in range(num_windows):
        folder = ordered[number % len(ordered)]
        random = np.random.default_rng([seed, number])
        # A chequerboard of cases and rounds: every case gives both kinds, and half of any number of windows is of each.
        lesion_turn = (number % len(ordered) + number // len(ordered)) % 2 == 0
        windows.append(_window(folder, contract, lesion_turn=lesion_turn, random=random))
    return windows


def calibration_sha256(windows: Sequence[CalibrationWindow]) -> str:
    """Return the digest over cases, places and values of all windows."""
    parts = [
        f"{w.case_id} {w.kind} {w.start} {hashlib.sha256(np.ascontiguousarray(w.values_BCIJK).tobytes()).hexdigest()}"
        for w in windows
    ]
    return sha256_of_text(parts)


def _window(
    folder: CaseFolder, contract: InputContract, *, lesion_turn: bool, random: np.random.Generator
) -> CalibrationWindow:
    volume_CIJK, is_ct, center = folder.volume_CIJK(), contract.window_hu is not None, None
    shape = volume_CIJK.shape[1:]
    if lesion_turn and folder.case.has_label:
        center = _draw(folder.label_IJK(), random)
    kind: Literal["lesion", "background"] = "background" if center is None else "lesion"
    if center is None:
        inside = _draw(folder.lung_IJK(), random) if contract.crop == "lungs" else None
        center = inside or tuple(int(random.integers(n)) for n in shape)
    # As the sliding window of `segment`: inside the volume, which is padded with air where it is smaller.
    start = [
        min(max(c - side // 2, 0), max(n - side, 0))
        for c, side, n in zip(center, contract.patch_shape, shape, strict=True)
    ]
    where = tuple(slice(s, s + side) for s, side in zip(start, contract.patch_shape, strict=True))
    scaled_CIJK = scale_hu(volume_CIJK[:, *where], contract)
    missing = [side - n for side, n in zip(contract.patch_shape, scaled_CIJK.shape[1:], strict=True)]
    width = [(0, 0), *((m // 2, m - m // 2) for m in missing)]
    padded = np.pad(scaled_CIJK, width, constant_values=np.float32(contract.scaled_range[0] if is_ct else 0))
    i, j, k = start
    return CalibrationWindow(case_id=folder.case.case_id, kind=kind, start=(i, j, k), values_BCIJK=padded[None])


def _draw(mask_IJK: AnyMask, random: np.random.Generator) -> tuple[int, ...] | None:
    voxels = np.flatnonzero(mask_IJK)
    if not len(voxels):
        return None
    return tuple(int(x) for x in np.unravel_index(int(random.choice(voxels)), mask_IJK.shape))
