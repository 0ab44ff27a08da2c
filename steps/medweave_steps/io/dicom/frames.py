"""The frames of an image object: which of them are slices of the scan. All steps use this one rule.

A single-frame object has one frame. An object of several frames must have one item of functional groups for each frame.
Localizers, projections and color pictures do not count; `check` reports their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from medweave_steps.io.dicom.values import HeaderValues

# Third and later values of ImageType or FrameType of pictures that are not slices of the scan.
_NOT_A_SLICE = frozenset(
    (
        "LOCALIZER", "SCOUT", "MIP", "MAX_IP", "MIN_IP", "MINIP", "MAXIMUM", "MINIMUM", "PROJECTION IMAGE", "VOLREN", "VRT",
        "SCREEN SAVE",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame: its attributes are in its functional groups, in the shared ones, or at the top level of the dataset."""

    values: HeaderValues
    number: int
    shared: Any
    own: Any

    def holder(self, keyword: str, sequence: str) -> Any:
        """Return the dataset or sequence item that has an attribute of this frame; the top level where none has it."""
        for group in (self.own, self.shared):
            items = [] if group is None else self.values.items(sequence, group)
            if items and keyword in items[0]:
                return items[0]
        return self.values.dataset

    def text(self, keyword: str, sequence: str) -> str:
        """Return an attribute as text; see `HeaderValues.text`."""
        return self.values.text(keyword, self.holder(keyword, sequence))

    def number_of(self, keyword: str, sequence: str) -> float | None:
        """Return an attribute as a number; see `HeaderValues.number`."""
        return self.values.number(keyword, self.holder(keyword, sequence))

    def items(self, sequence: str) -> list[Any]:
        """Return the items of a sequence of this frame, or of the first level that has it."""
        levels = [self.values.items(sequence, group) for group in (self.own, self.shared) if group is not None]
        return next((items for items in levels if items), self.values.items(sequence))

    @property
    def position_lps(self) -> tuple[float, ...] | None:
        """Center of the first pixel, mm; None where the header lacks a usable one."""
        keyword = "ImagePositionPatient"
        return self.values.numbers(keyword, 3, self.holder(keyword, "PlanePositionSequence"))

    @property
    def orientation(self) -> tuple[float, ...] | None:
        """Direction cosines of a row and of a column, LPS; None where the header lacks usable ones."""
        keyword = "ImageOrientationPatient"
        return self.values.numbers(keyword, 6, self.holder(keyword, "PlaneOrientationSequence"))

    @property
    def pixel_spacing_mm(self) -> tuple[float, ...] | None:
        """Distance between rows and between columns; None where the header lacks usable ones."""
        return self.values.numbers("PixelSpacing", 2, self.holder("PixelSpacing", "PixelMeasuresSequence"))

    @property
    def frame_type(self) -> tuple[str, ...]:
        """Values of FrameType, or of ImageType where the frame has none."""
        for sequence in ("CTImageFrameTypeSequence", "MRImageFrameTypeSequence"):
            words = self.values.words("FrameType", self.holder("FrameType", sequence))
            if words:
                return words
        return self.values.words("ImageType")


class FrameCountError(Exception):
    """The functional groups of an object do not agree with its number of frames; the text states both numbers."""


def frames_of(values: HeaderValues) -> list[Frame]:
    """Return all frames of an image object, in the order of its pixels.

    Raises:
        FrameCountError: NumberOfFrames is unusable, or differs from the number of per-frame functional groups.
    """
    number = values.integer("NumberOfFrames")
    groups = values.items("PerFrameFunctionalGroupsSequence")
    shared = next(iter(values.items("SharedFunctionalGroupsSequence")), None)
    if "NumberOfFrames" in values.unusable or (number is not None and number < 1):
        raise FrameCountError("a NumberOfFrames (0028,0008) that is not a positive integer")
    num_frames = 1 if number is None else number
    if num_frames == 1 and not groups:
        return [Frame(values, 0, shared, None)]
    if len(groups) != num_frames:
        raise FrameCountError(f"{len(groups)} items in the per-frame functional groups for {num_frames} frames")
    return [Frame(values, index, shared, group) for index, group in enumerate(groups)]


def is_multi_frame(dataset: Any) -> bool:
    """Return True for an object with per-frame functional groups."""
    return bool(HeaderValues(dataset).items("PerFrameFunctionalGroupsSequence"))


def has_colors(num_samples: int, photometric: str) -> bool:
    """Return whether stored values are colors (RGB and others) or numbers of a palette, which are not HU."""
    return num_samples != 1 or photometric not in ("", "MONOCHROME1", "MONOCHROME2")


def is_slice(frame_type: Sequence[str], num_samples: int, photometric: str) -> bool:
    """Return True for a slice of the scan; False for a localizer, a projection or a color picture."""
    words = {part for word in frame_type for part in (word.upper(), *word.upper().split())}  # "CSA MIP" is a projection
    return not words & _NOT_A_SLICE and not has_colors(num_samples, photometric)


def slices_of(dataset: Any) -> list[Frame]:
    """Return the frames of a dataset that are slices of the scan.

    Raises:
        FrameCountError: see `frames_of`.
    """
    values = HeaderValues(dataset)
    num_samples = values.integer("SamplesPerPixel") or 1
    photometric = values.text("PhotometricInterpretation")
    return [frame for frame in frames_of(values) if is_slice(frame.frame_type, num_samples, photometric)]
