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

from medweave_core.contracts.labels import as_regions, distinct_names
from medweave_core.contracts.model import InputContract, ModelCard
from medweave_core.contracts.volume import Triple
from medweave_steps.inference.head import OutputHead
from medweave_steps.inference.intensity import air_of
from medweave_steps.inference.windows import scale_hu
from medweave_steps.io.cohort.prepared import CaseFolder
from medweave_steps.io.hashing import sha256_of_text
from medweave_steps.tasks import Calibration, LazyInputs, no_training_case
from medweave_steps.tasks.segmentation.targets import Targets

FloatArray = npt.NDArray[np.float32]
Voxel = tuple[int, ...]
AnyMask = npt.NDArray[np.bool_] | npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationWindow:
    """One network input for calibration.

    Attributes:
        contract: of the network's input.
        label: value of the lesion's label in its middle; 0 for background.
    """

    folder: CaseFolder
    contract: InputContract
    label: int
    start: Triple

    @property
    def case_id(self) -> str:
        """Return the case that it is cut from."""
        return self.folder.case.case_id

    @property
    def kind(self) -> Literal["lesion", "background"]:
        """Return the kind of structure in its middle."""
        return "lesion" if self.label else "background"

    @property
    def values_BCIJK(self) -> FloatArray:
        """Cut it from the case; return float32 [1, C, I, J, K], scaled as the model card says.

        As the sliding window of `segment`, it lies inside the volume, which is padded with air where it is smaller.
        """
        contract = self.contract
        where = tuple(slice(s, s + side) for s, side in zip(self.start, contract.patch_shape, strict=True))
        scaled_CIJK = scale_hu(self.folder.volume_CIJK()[:, *where], contract)
        missing = [side - n for side, n in zip(contract.patch_shape, scaled_CIJK.shape[1:], strict=True)]
        width = [(0, 0), *((m // 2, m - m // 2) for m in missing)]
        air = air_of(contract.window_hu, contract.scaled_range)
        padded: FloatArray = np.pad(scaled_CIJK, width, constant_values=np.float32(air))
        return padded[None]


def calibration(cases: Sequence[CaseFolder], card: ModelCard, *, num_windows: int, seed: int) -> Calibration:
    """Return the calibration inputs of a model; arguments and errors as `choose_windows`."""
    labels = OutputHead.of(card).labels
    windows = choose_windows(cases, card, num_windows=num_windows, seed=seed)
    drawn = Counter(window.label for window in windows if window.label)
    figures: dict[str, Any] = {"lesion_windows": drawn.total()}
    text = f"{drawn.total()} of them around lesions"
    if len(labels) > 1:
        names = distinct_names(as_regions(labels))
        by_label = {name: drawn[label.value] for name, label in zip(names, labels, strict=True)}
        figures["lesion_windows_by_label"] = by_label
        text += f" ({', '.join(f'{number} {name}' for name, number in by_label.items())})"
    return Calibration(
        inputs_BCIJK=LazyInputs(windows, lambda window: window.values_BCIJK),
        num_cases=len({window.case_id for window in windows}),
        figures=figures,
        text=text,
        sha256=calibration_sha256(windows),
    )


def choose_windows(
    cases: Sequence[CaseFolder], card: ModelCard, *, num_windows: int, seed: int
) -> list[CalibrationWindow]:
    """Draw windows from the cases in turn, lesion and background alternating, the lesions of each label in turn.

    Lesions are a thousandth of a scan: windows drawn evenly would hardly show the network's large activations,
    and the int8 ranges would cut them off.

    Args:
        cases: training cases; a case without label or lesion gives background only, one without the label in turn the next.
        card: the model, with labels, window_hu, scaled range and patch shape.
        num_windows: how many, at least 1.
        seed: the same seed and cases give the same windows.
    Raises:
        UserInputError: there is no training case.
    """
    if not cases:
        raise no_training_case()
    ordered = sorted(cases, key=lambda folder: folder.case.case_id)
    windows: list[CalibrationWindow] = []
    for number in range(num_windows):
        folder = ordered[number % len(ordered)]
        random = np.random.default_rng([seed, number])
        # A chequerboard of cases and rounds: every case gives both kinds, and half of any number of windows is of each.
        lesion_turn = (number % len(ordered) + number // len(ordered)) % 2 == 0
        label, voxel = _lesion_voxel(folder, card, windows, random) if lesion_turn else (0, None)
        windows.append(_window(folder, card.input, label, voxel, random))
    return windows


def _lesion_voxel(
    folder: CaseFolder, card: ModelCard, windows: Sequence[CalibrationWindow], random: np.random.Generator
) -> tuple[int, Voxel | None]:
    """Return the label of the case that fewest windows show so far, and one of its voxels; 0 and None if it has no label."""
    if not folder.case.has_label:
        return 0, None
    in_all = Counter(window.label for window in windows)
    in_case = Counter(window.label for window in windows if window.case_id == folder.case.case_id)
    targets, label_IJK = Targets(head=OutputHead.of(card), ignore_value=folder.ignore_value), folder.label_IJK()
    for label in sorted(targets.head.labels, key=lambda label: (in_all[label.value], in_case[label.value])):
        voxel = _draw(targets.mask_of_label(label_IJK, label), random)
        if voxel is not None:
            return label.value, voxel
    return 0, None


def calibration_sha256(windows: Sequence[CalibrationWindow]) -> str:
    """Return the digest over cases, places and values of all windows."""
    parts = [
        f"{w.case_id} {w.kind} {w.start} {hashlib.sha256(np.ascontiguousarray(w.values_BCIJK).tobytes()).hexdigest()}"
        for w in windows
    ]
    return sha256_of_text(parts)


def _window(
    folder: CaseFolder, contract: InputContract, label: int, voxel: Voxel | None, random: np.random.Generator
) -> CalibrationWindow:
    shape = folder.volume_CIJK().shape[1:]
    if voxel is None:
        inside = _draw(folder.lung_IJK(), random) if contract.crop == "lungs" else None
        voxel = inside or tuple(int(random.integers(n)) for n in shape)
    i, j, k = (
        min(max(c - side // 2, 0), max(n - side, 0))
        for c, side, n in zip(voxel, contract.patch_shape, shape, strict=True)
    )
    return CalibrationWindow(folder=folder, contract=contract, label=label, start=(i, j, k))


def _draw(mask_IJK: AnyMask, random: np.random.Generator) -> Voxel | None:
    voxels = np.flatnonzero(mask_IJK)
    if not len(voxels):
        return None
    return tuple(int(x) for x in np.unravel_index(int(random.choice(voxels)), mask_IJK.shape))
