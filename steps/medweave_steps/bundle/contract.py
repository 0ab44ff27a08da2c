"""The input contract of a Bundle, in the terms of the model card; options supply what the Bundle does not state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from medweave_core.errors import UserInputError
from medweave_steps.bundle.documents import BundleDocuments, NotPlainError, short_name

# Transforms that change neither the values nor the grid that the network sees.
_HARMLESS = frozenset({
    "LoadImaged", "EnsureChannelFirstd", "EnsureTyped", "ToTensord", "ToDeviced", "CastToTyped", "SelectItemsd",
    "DeleteItemsd", "Identityd",
})  # fmt: skip
_CROPS = frozenset({"CropForegroundd", "SpatialPadd", "DivisiblePadd", "BorderPadd"})
Floats = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleContract:
    """The input contract of a Bundle; None where neither the Bundle nor an option has a value.

    Attributes:
        activation: `sigmoid` or `softmax`, as the postprocessing names it.
        label: name of the lesion's class.
        notices: messages for the user about the import.
    """

    spacing_mm: Floats | None
    window_hu: Floats | None
    scaled_range: Floats
    patch_shape: Floats | None
    overlap: float
    threshold: float
    activation: str | None
    label: str
    notices: tuple[str, ...]


def read_contract_of(
    documents: BundleDocuments, *, spacing_mm: Floats | None, window_hu: Floats | None, patch_shape: Floats | None
) -> BundleContract:
    """Return the contract from preprocessing, inferer and postprocessing.

    Args:
        spacing_mm, window_hu, patch_shape: values of the user, which take precedence over the Bundle's.
    Raises:
        UserInputError: a model card cannot describe the preprocessing, and the user gave no window and spacing.
    """
    reader = _Reader(documents, has_options=spacing_mm is not None and window_hu is not None)
    reader.read_preprocessing()
    inferer = next((c for c in documents.components("inferer") if short_name(c) == "SlidingWindowInferer"), {})
    posts = {short_name(component): component for component in documents.components("postprocessing")}
    activations, discrete = posts.get("Activationsd", {}), posts.get("AsDiscreted", {})
    return BundleContract(
        spacing_mm=spacing_mm or reader.spacing_mm,
        window_hu=window_hu or reader.window_hu,
        scaled_range=reader.scaled_range,
        patch_shape=patch_shape
        or reader.numbers(inferer.get("roi_size"), 3)
        or reader.numbers(_metadata_patch(documents), 3),
        overlap=reader.number(inferer.get("overlap"), 0.25, lambda x: 0 <= x < 1),
        threshold=reader.number(discrete.get("threshold"), 0.5, lambda x: 0 < x < 1),
        activation=next((kind for kind in ("softmax", "sigmoid") if activations.get(kind) is True), None),
        label=_label(documents),
        notices=tuple(reader.notices),
    )


class _Reader:
    def __init__(self, documents: BundleDocuments, *, has_options: bool) -> None:
        self.documents, self.has_options = documents, has_options
        self.spacing_mm: Floats | None = None
        self.window_hu: Floats | None = None
        self.scaled_range: Floats = (0.0, 1.0)
        self.notices: list[str] = []

    def read_preprocessing(self) -> None:
        for component in self.documents.components("preprocessing"):
            name = short_name(component)
            if name == "Spacingd":
                self.spacing_mm = self.numbers(component.get("pixdim"), 3)
            elif name == "ScaleIntensityRanged":
                self._read_window(component)
            elif name == "Orientationd":
                self._read_orientation(component)
            elif name in _CROPS:
                self.notices.append(f"{name} of the Bundle is ignored: medweave has its own cropping and padding.")
            elif name not in _HARMLESS:
                self._unknown(f"{name} in the preprocessing")

    def _read_window(self, component: Mapping[str, Any]) -> None:
        window = [self.numbers([component.get(key)], 1) for key in ("a_min", "a_max")]
        scaled = [self.numbers([component.get(key)], 1) for key in ("b_min", "b_max")]
        self.window_hu = window[0] + window[1] if window[0] and window[1] else None
        if scaled[0] and scaled[1]:
            self.scaled_range = scaled[0] + scaled[1]
        elif component.get("b_min") is not None or component.get("b_max") is not None:
            self._unknown("ScaleIntensityRanged with a range that is not numeric")
        if component.get("clip") is not True:
            self.notices.append("the Bundle does not clip to its HU window; medweave clips.")

    def _read_orientation(self, component: Mapping[str, Any]) -> None:
        if component.get("axcodes") != "RAS":
            self._unknown(f"Orientationd with axcodes {component.get('axcodes')!r}")

    def _unknown(self, what: str) -> None:
        if self.has_options:
            self.notices.append(
                f"{what} is not supported and not applied; spacing and window are those of the options."
            )
            return
        raise UserInputError(
            "the Bundle uses preprocessing that a model card cannot describe.",
            seen=what,
            expected="at most Orientationd to RAS, Spacingd (mm) and ScaleIntensityRanged from HU",
            do="if the network was trained with these transforms only, set --spacing-mm and --window-hu; "
            "other networks are not supported",
        )

    def numbers(self, value: Any, count: int) -> Floats | None:
        """Return `count` finite numbers (a single one is repeated), or None for any other value."""
        try:
            plain = self.documents.plain(value)
        except NotPlainError:
            return None
        items = list(plain) if isinstance(plain, list | tuple) else [plain] * count
        if len(items) != count or not all(
            isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x) for x in items
        ):
            return None
        return tuple(float(x) for x in items)

    def number(self, value: Any, default: float, allowed: Callable[[float], bool]) -> float:
        """Return one number, or the default where it is missing or not allowed."""
        numbers = self.numbers([value], 1)
        return numbers[0] if numbers and allowed(numbers[0]) else default


def _metadata_patch(documents: BundleDocuments) -> Any:
    return _image(documents, "inputs").get("spatial_shape")


def _image(documents: BundleDocuments, side: str) -> Mapping[str, Any]:
    formats = documents.metadata.get("network_data_format")
    part = formats.get(side) if isinstance(formats, Mapping) else None
    first = next(iter(part.values()), None) if isinstance(part, Mapping) else None
    return first if isinstance(first, Mapping) else {}


def _label(documents: BundleDocuments) -> str:
    channels = _image(documents, "outputs").get("channel_def")
    names = [str(name) for name in channels.values()] if isinstance(channels, Mapping) else []
    return names[-1] if names and names[-1] else "lesion"
