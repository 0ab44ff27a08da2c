"""The input contract of a Bundle, in the terms of the model card; options supply what the Bundle does not state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from medweave_core.contracts.volume import CT_CHANNELS, IMAGE_CHANNELS, are_images, modality_of
from medweave_core.errors import UserInputError
from medweave_steps.bundle.documents import BundleDocuments, NotPlainError, short_name

# Transforms that change neither the values nor the grid that the network sees.
_HARMLESS = frozenset({
    "LoadImaged", "EnsureChannelFirstd", "EnsureTyped", "ToTensord", "ToDeviced", "CastToTyped", "SelectItemsd",
    "DeleteItemsd", "Identityd",
})  # fmt: skip
_SCALINGS = ("ScaleIntensityRanged", "ScaleIntensityd", "NormalizeIntensityd")
_CROPS = frozenset({"CropForegroundd", "SpatialPadd", "DivisiblePadd", "BorderPadd"})
Floats = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleContract:
    """The input contract of a Bundle; None where neither the Bundle nor an option has a value.

    Attributes:
        channel_names: of the input: those of the user or of the metadata; CT for one channel.
        window_hu: None for inputs other than CT, too.
        activation: `sigmoid` or `softmax`, as the postprocessing names it; an argmax alone is `softmax`.
        label: name of the lesion's class.
        output_names: of the output's channels, as the metadata have them; empty where they do not.
        notices: messages for the user about the import.
    """

    channel_names: tuple[str, ...]
    spacing_mm: Floats | None
    window_hu: Floats | None
    scaled_range: Floats
    patch_shape: Floats | None
    overlap: float
    threshold: float
    activation: str | None
    label: str
    output_names: tuple[str, ...]
    notices: tuple[str, ...]

    @property
    def is_ct(self) -> bool:
        """Return whether the input is CT, which needs a window."""
        return modality_of(self.channel_names) == "CT"


def read_contract_of(
    documents: BundleDocuments,
    *,
    spacing_mm: Floats | None,
    window_hu: Floats | None,
    patch_shape: Floats | None,
    channel_names: tuple[str, ...] = (),
) -> BundleContract:
    """Return the contract from preprocessing, inferer and postprocessing.

    Args:
        channel_names: of the user, for inputs that the metadata do not name as `check` does.
        spacing_mm, window_hu, patch_shape: values of the user, which take precedence over the Bundle's.
    Raises:
        UserInputError: a model card cannot describe the preprocessing, and the user gave no window and spacing.
    """
    names = channel_names or _input_names(documents)
    modality = modality_of(names)
    has_options = spacing_mm is not None and (window_hu is not None or modality != "CT")
    reader = _Reader(documents, has_options=has_options, modality=modality, are_images=are_images(names))
    reader.read_preprocessing()
    inferer = next((c for c in documents.components("inferer") if short_name(c) == "SlidingWindowInferer"), {})
    posts = {short_name(component): component for component in documents.components("postprocessing")}
    activations, discrete = posts.get("Activationsd", {}), posts.get("AsDiscreted", {})
    activation = next((kind for kind in ("softmax", "sigmoid") if activations.get(kind) is True), None)
    return BundleContract(
        channel_names=names,
        spacing_mm=spacing_mm or reader.spacing_mm,
        window_hu=window_hu or reader.window_hu,
        scaled_range=reader.scaled_range,
        patch_shape=patch_shape
        or reader.numbers(inferer.get("roi_size"), 3)
        or reader.numbers(_metadata_patch(documents), 3)
        or reader.flat_patch(_metadata_patch(documents)),
        overlap=reader.number(inferer.get("overlap"), 0.25, lambda x: 0 <= x < 1),
        threshold=reader.number(discrete.get("threshold"), 0.5, lambda x: 0 < x < 1),
        activation=activation or ("softmax" if discrete.get("argmax") is True else None),
        label=_label(documents),
        output_names=_channel_def(documents, "outputs"),
        notices=tuple(reader.notices),
    )


class _Reader:
    def __init__(
        self, documents: BundleDocuments, *, has_options: bool, modality: str = "CT", are_images: bool = False
    ) -> None:
        self.documents, self.has_options, self.modality, self.are_images = documents, has_options, modality, are_images
        self.spacing_mm: Floats | None = None
        self.window_hu: Floats | None = None
        self.scaled_range: Floats = (0.0, 1.0)
        self.notices: list[str] = []

    def read_preprocessing(self) -> None:
        for component in self.documents.components("preprocessing"):
            name = short_name(component)
            if name == "Spacingd":
                self.spacing_mm = self.numbers(component.get("pixdim"), 3)
            elif name == "ScaleIntensityRanged" and self.modality == "CT":
                self._read_window(component)
            elif self._is_own_scaling(name, component):
                continue
            elif name == "Orientationd":
                self._read_orientation(component)
            elif name in _CROPS:
                self.notices.append(f"{name} of the Bundle is ignored: medweave has its own cropping and padding.")
            elif name not in _HARMLESS:
                self._unknown(f"{name} in the preprocessing")
        names = [short_name(component) for component in self.documents.components("preprocessing")]
        if (self.modality == "MR" or self.are_images) and not any(name in _SCALINGS for name in names):
            self._miss_scaling()

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

    def _is_own_scaling(self, name: str, component: Mapping[str, Any]) -> bool:
        """Return whether a transform does what `preprocess` does: z-scores of MR channels, and images from 0 to 1."""
        if name == "NormalizeIntensityd" and self.modality == "MR":
            has_own_statistics = any(component.get(key) is not None for key in ("subtrahend", "divisor"))
            is_plain = component.get("nonzero") in (None, False) and not has_own_statistics
            return is_plain and component.get("channel_wise") is True
        if name == "ScaleIntensityRanged" and self.are_images:
            values = [component.get(key) for key in ("a_min", "a_max", "b_min", "b_max")]
            return values == [0, 255, 0, 1]
        return False

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
            expected=f"at most Orientationd to RAS, Spacingd (mm) and {self._scaling()}",
            do="if the network was trained with these transforms only, set --spacing-mm and --window-hu; "
            "other networks are not supported",
        )

    def _miss_scaling(self) -> None:
        """Refuse a network whose input has other values than `preprocess` gives, unless the user answers for it."""
        if self.has_options:
            self.notices.append(f"the Bundle does not scale its input; preprocess does it like {self._scaling()}.")
            return
        raise UserInputError(
            "the Bundle does not scale its input, but preprocess does.",
            seen="no transform that scales intensities in the preprocessing",
            expected=self._scaling(),
            do="if the network was trained with this scaling, set --spacing-mm; other networks are not supported",
        )

    def _scaling(self) -> str:
        if self.are_images:
            return "ScaleIntensityRanged from 0..255 to 0..1"
        return {"CT": "ScaleIntensityRanged from HU", "MR": "NormalizeIntensityd, channel-wise"}.get(
            self.modality, "no scaling"
        )

    def flat_patch(self, value: Any) -> Floats | None:
        """Return the shape of a 2-D image with its one slice, or None for any other value."""
        sides = self.numbers(value, 2) if isinstance(value, list | tuple) else None
        return (*sides, 1.0) if sides else None

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


def _channel_def(documents: BundleDocuments, side: str) -> tuple[str, ...]:
    """Return the names of the channels in their order; empty unless the keys are 0, 1, 2 and so on."""
    channels = _image(documents, side).get("channel_def")
    named = {str(key): str(name) for key, name in channels.items()} if isinstance(channels, Mapping) else {}
    keys = [str(place) for place in range(len(named))]
    return tuple(named[key] for key in keys) if set(keys) == set(named) else ()


def _input_names(documents: BundleDocuments) -> tuple[str, ...]:
    """Return the names of several input channels, or CT.

    Raises:
        UserInputError: there are several, and the metadata do not name them.
    """
    count, names = _image(documents, "inputs").get("num_channels"), _channel_def(documents, "inputs")
    if count in (None, 1) and len(names) <= 1:
        return CT_CHANNELS
    lower = tuple(name.lower() for name in names)
    if count in (None, len(names)) and len(set(names)) == len(names):
        return lower if lower in IMAGE_CHANNELS else names
    raise UserInputError(
        "the Bundle does not name the channels of its input.",
        seen=f"num_channels {count}, channel_def {', '.join(names) or 'without names'} (configs/metadata.json)",
        expected="a name for each channel",
        do="set --channel-names, as `check --channels` names them",
    )


def _label(documents: BundleDocuments) -> str:
    channels = _image(documents, "outputs").get("channel_def")
    names = [str(name) for name in channels.values()] if isinstance(channels, Mapping) else []
    return names[-1] if names and names[-1] else "lesion"
