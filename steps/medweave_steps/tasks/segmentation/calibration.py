"""The calibration windows of the training cases: half of them around lesions of each label in turn, half anywhere.

Anywhere means inside the lungs for a model whose input is cropped to the lungs.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.labels import Label, declared_or_lesion
from medweave_core.contracts.model import InputContract, ModelCard
from medweave_core.contracts.volume import Triple
from medweave_core.errors import UserInputError
from medweave_steps.inference.windows import scale_hu
from medweave_steps.io.cohort.prepared import CaseFolder
from medweave_steps.io.hashing import sha256_of_text
from medweave_steps.tasks import Calibration

FloatArray = npt.NDArray[np.float32]
AnyMask = npt.NDArray[np.bool_] | npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationWindow:
    """One network input for calibration.

    Attributes:
        kind: of structure in its middle.
        label: name of the lesion's label; empty for background.
        values_BCIJK: float32 [1, C, I, J, K], scaled as the model card says.
    """

    case_id: str
    kind: Literal["lesion", "background"]
    label: str
    start: Triple
    values_BCIJK: FloatArray


def calibration(cases: Sequence[CaseFolder], card: ModelCard, *, num_windows: int, seed: int) -> Calibration:
    """Return the calibration inputs of a model; arguments and errors as `choose_windows`."""
    labels = declared_or_lesion(card.labels)
    windows = choose_windows(cases, card.input, labels, num_windows=num_windows, seed=seed)
    by_label = Counter(window.label for window in windows if window.kind == "lesion")
    figures: dict[str, Any] = {"lesion_windows": by_label.total()}
    text = f"{by_label.total()} of them around lesions"
    if len(labels) > 1:
        figures["lesion_windows_by_label"] = {label.name: by_label[label.name] for label in labels}
        text += f" ({', '.join(f'{by_label[label.name]} {label.name}' for label in labels)})"
    return Calibration(
        inputs_BCIJK=tuple(window.values_BCIJK for window in windows),
        num_cases=len({window.case_id for window in windows}),
        figures=figures,
        text=text,
        sha256=calibration_sha256(windows),
    )


def choose_windows(
    cases: Sequence[CaseFolder], contract: InputContract, labels: Sequence[Label], *, num_windows: int, seed: int
) -> list[CalibrationWindow]:
    """Draw windows from the cases in turn, lesion and background alternating, the lesions of each label in turn.

    Lesions are a thousandth of a scan: windows drawn evenly would hardly show the network's large activations,
    and the int8 ranges would cut them off.

    Args:
        cases: training cases; a case without label or lesion gives background only, one without the label in turn the next.
        contract: window_hu, scaled range and patch shape.
        labels: of the model, at least one; with one, every voxel that is not background is a lesion's.
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
    windows: list[CalibrationWindow] = []
    for number in range(num_windows):
        folder = ordered[number % len(ordered)]
        random = np.random.default_rng([seed, number])
        # A chequerboard of cases and rounds: every case gives both kinds, and half of any number of windows is of each.
        lesion_turn = (number % len(ordered) + number // len(ordered)) % 2 == 0
        in_turn = _in_turn(labels, folder.case.case_id, windows) if lesion_turn else ()
        windows.append(_window(folder, contract, in_turn, random=random))
    return windows


def _in_turn(labels: Sequence[Label], case_id: str, windows: Sequence[CalibrationWindow]) -> list[Label]:
    """Return the labels by rising number of windows, of equal ones that with fewer windows in this case first."""
    in_all = Counter(window.label for window in windows)
    in_case = Counter(window.label for window in windows if window.case_id == case_id)
    return sorted(labels, key=lambda label: (in_all[label.name], in_case[label.name]))


def calibration_sha256(windows: Sequence[CalibrationWindow]) -> str:
    """Return the digest over cases, places and values of all windows."""
    parts = [
        f"{w.case_id} {w.kind} {w.start} {hashlib.sha256(np.ascontiguousarray(w.values_BCIJK).tobytes()).hexdigest()}"
        for w in windows
    ]
    return sha256_of_text(parts)


def _window(
    folder: CaseFolder, contract: InputContract, labels: Sequence[Label], *, random: np.random.Generator
) -> CalibrationWindow:
    volume_CIJK, is_ct = folder.volume_CIJK(), contract.window_hu is not None
    shape = volume_CIJK.shape[1:]
    label, center = _lesion_voxel(folder, labels, random)
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
    return CalibrationWindow(
        case_id=folder.case.case_id,
        kind="lesion" if label else "background",
        label=label,
        start=(i, j, k),
        values_BCIJK=padded[None],
    )


def _lesion_voxel(
    folder: CaseFolder, labels: Sequence[Label], random: np.random.Generator
) -> tuple[str, tuple[int, ...] | None]:
    """Return the first of the labels that the case has, and one of its voxels; "" and None if it has none of them."""
    if not labels or not folder.case.has_label:
        return "", None
    label_IJK = folder.label_IJK()
    for label in labels:
        is_lesion = label_IJK == label.value if len(labels) > 1 else label_IJK > 0
        if folder.ignore_value is not None:
            is_lesion &= label_IJK != folder.ignore_value
        voxel = _draw(is_lesion, random)
        if voxel is not None:
            return label.name, voxel
    return "", None


def _draw(mask_IJK: AnyMask, random: np.random.Generator) -> tuple[int, ...] | None:
    voxels = np.flatnonzero(mask_IJK)
    if not len(voxels):
        return None
    return tuple(int(x) for x in np.unravel_index(int(random.choice(voxels)), mask_IJK.shape))
