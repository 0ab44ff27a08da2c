"""Radiographs: DICOM CR, DX and MG images as they are to be seen.

Source: DICOM PS3.3, C.7.6.3 (pixels), C.11.1 and C.11.2 (modality and VOI LUT); the LUTs and windows are applied by pydicom.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import Modality
from medweave_steps.io.dicom.header import SECONDARY_CAPTURE, load_pydicom, looks_like_dicom
from medweave_steps.io.image.picture import ImageError, Picture

NO_WINDOW, DETECTOR_SPACING, NO_SPACING, INVERTED = "no-window", "detector-spacing", "no-pixel-spacing", "monochrome1"
RADIOGRAPHS: tuple[Modality, ...] = ("CR", "DX", "MG")

_FOR_PROCESSING = ("1.2.840.10008.5.1.4.1.1.1.1.1", "1.2.840.10008.5.1.4.1.1.1.2.1")
RADIOGRAPH_CLASSES = (
    "1.2.840.10008.5.1.4.1.1.1", "1.2.840.10008.5.1.4.1.1.1.1", "1.2.840.10008.5.1.4.1.1.1.2",
    "1.2.840.10008.5.1.4.1.1.13.1.3", "1.2.840.10008.5.1.4.1.1.13.1.4", SECONDARY_CAPTURE, *_FOR_PROCESSING,
)  # fmt: skip
_TAGS = [
    "SOPClassUID", "SOPInstanceUID", "Modality", "PatientID", "IssuerOfPatientID", "ViewPosition", "ViewCodeSequence",
    "BodyPartExamined",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RadiographHeader:
    """What `check` needs of a header before it decodes the pixels.

    Attributes:
        file: path relative to the cohort.
        modality: of the image, such as DX; another for an object that is no radiograph; empty if it has none.
        is_radiograph: an image class and a modality of radiographs.
        patient_id, issuer: empty where the header has none.
        view: ViewPosition, else the meaning of the view code; empty if neither is there.
    """

    file: str
    modality: str
    is_radiograph: bool
    instance_uid: str
    patient_id: str
    issuer: str
    view: str


def read_radiograph_header(folder: Path, name: str) -> RadiographHeader | None:
    """Read one header without its pixels; None for a file that is not DICOM.

    Raises:
        ValueError: it is DICOM but its header cannot be read; the text has no value of it.
    """
    with (folder / name).open("rb") as stream:
        if not looks_like_dicom(stream):
            return None
        try:
            dataset = load_pydicom().dcmread(stream, stop_before_pixels=True, specific_tags=_TAGS, force=True)
            view_codes = dataset.get("ViewCodeSequence") or ()
            modality, sop_class = str(dataset.get("Modality") or ""), str(dataset.get("SOPClassUID") or "")
            return RadiographHeader(
                file=name,
                modality=modality,
                is_radiograph=modality in RADIOGRAPHS and sop_class in RADIOGRAPH_CLASSES,
                instance_uid=str(dataset.get("SOPInstanceUID") or ""),
                patient_id=str(dataset.get("PatientID") or "").strip(),
                issuer=str(dataset.get("IssuerOfPatientID") or "").strip(),
                view=_view(dataset, view_codes),
            )
        except Exception as error:  # pydicom raises many kinds for a damaged header; their texts may quote values
            raise ValueError("the header is truncated or violates the DICOM standard") from error


def _view(dataset: Any, view_codes: Any) -> str:
    meaning = str(view_codes[0].get("CodeMeaning") or view_codes[0].get("CodeValue") or "") if view_codes else ""
    return str(dataset.get("ViewPosition") or "").strip().upper() or meaning.strip().lower()


def read_radiograph(path: Path) -> Picture:
    """Decode one radiograph: modality LUT, VOI LUT or the first window, and MONOCHROME1 inverted, so that dense parts are bright.

    Without a window, the values of the image itself, from the lowest to the highest, become 0 to 1. Padding becomes 0.

    Raises:
        ImageError: several frames, color, an image for processing, or pixels that cannot be decoded.
    """
    pydicom = load_pydicom()
    try:
        dataset = pydicom.dcmread(path, force=True)
        _check_kind(dataset)
        stored = dataset.pixel_array
    except ImageError:
        raise
    except Exception as error:  # pydicom and its decoders raise many kinds; their texts may quote values
        raise ImageError(
            "undecodable-pixels", "the pixels cannot be decoded.", seen="a truncated file, or a compression that is not supported",
            expected="a complete image, uncompressed or in a supported transfer syntax",
            do="export the image again, or convert it to Explicit VR Little Endian",
        ) from error  # fmt: skip
    try:
        padding = _padding(dataset, stored)
        values, notes = _displayed(dataset, stored, padding)
    except (ValueError, AttributeError, IndexError, TypeError, KeyError, NotImplementedError) as error:
        raise ImageError(
            "unusable-window", "the window, LUT or padding of the image cannot be used.",
            seen="invalid modality LUT, VOI LUT, window or PixelPaddingValue",
            expected="WindowCenter and WindowWidth, or complete LUT sequences", do="export the image again",
        ) from error  # fmt: skip
    if dataset.PhotometricInterpretation == "MONOCHROME1":
        values, notes = 1 - values, (*notes, INVERTED)
    values[padding] = 0
    spacing, spacing_notes = _spacing(dataset)
    return Picture(
        pixels_CRI=np.asarray(np.clip(values, 0, 1), np.float32)[None],
        channels=(str(dataset.Modality),),
        spacing_mm=spacing,
        notes=(*notes, *spacing_notes),
    )


def _check_kind(dataset: Any) -> None:
    frames = int(dataset.get("NumberOfFrames") or 1)
    if frames > 1:
        raise ImageError(
            "multi-frame", "the image has several frames.", seen=f"{frames} frames", expected="one frame",
            do="remove the file (tomosynthesis and cine series are not read), or export one image for each frame",
        )  # fmt: skip
    if str(dataset.get("SOPClassUID")) in _FOR_PROCESSING or dataset.get("PresentationIntentType") == "FOR PROCESSING":
        raise ImageError(
            "for-processing", "the image is stored for processing, not for presentation.",
            seen="PresentationIntentType FOR PROCESSING", expected="FOR PRESENTATION", do="export the images for presentation",
        )  # fmt: skip
    photometric = str(dataset.get("PhotometricInterpretation") or "")
    if photometric not in ("MONOCHROME1", "MONOCHROME2"):
        raise ImageError(
            "color-pictures", "the radiograph is in color.", seen=photometric or "no PhotometricInterpretation",
            expected="MONOCHROME1 or MONOCHROME2", do="export the original image, or skip it with --on-error skip",
        )  # fmt: skip


def _padding(dataset: Any, stored: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    value = dataset.get("PixelPaddingValue")
    if value is None:
        return np.zeros(stored.shape, np.bool_)
    limit = dataset.get("PixelPaddingRangeLimit", value)
    low, high = sorted((int(value), int(limit)))
    return np.asarray((stored >= low) & (stored <= high), np.bool_)


def _displayed(
    dataset: Any, stored: npt.NDArray[Any], padding: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.float64], tuple[str, ...]]:
    """Return the values from 0 to 1 by the VOI LUT or window of the image, before MONOCHROME1 is inverted."""
    load_pydicom()
    from pydicom.pixels import apply_modality_lut, apply_voi, apply_windowing

    values = np.asarray(apply_modality_lut(stored, dataset), np.float64)
    luts = dataset.get("VOILUTSequence")
    if luts:
        highest = 2 ** int(luts[0].LUTDescriptor[2]) - 1
        return np.asarray(apply_voi(values.astype(np.int64), dataset), np.float64) / highest, ()
    if dataset.get("WindowWidth") is not None and dataset.get("WindowCenter") is not None:
        # The first window of several; the ends of its range are what it gives far outside of it.
        low, high = apply_windowing(np.asarray([-1e12, 1e12]), _sharp(dataset))
        return (np.asarray(apply_windowing(values, dataset), np.float64) - low) / (high - low), ()
    seen = values[~padding]
    low, high = (float(seen.min()), float(seen.max())) if seen.size else (0.0, 1.0)
    return (values - low) / max(high - low, 1e-12), (NO_WINDOW,)


def _sharp(dataset: Any) -> Any:
    """Return the attributes of a window with the function LINEAR_EXACT, which has the same range and overflows nowhere."""
    sharp = copy.copy(dataset)
    sharp.VOILUTFunction = "LINEAR_EXACT"
    return sharp


def _spacing(dataset: Any) -> tuple[tuple[float, float] | None, tuple[str, ...]]:
    """Return the distance of columns and rows, mm; ImagerPixelSpacing is measured at the detector."""
    for keyword, notes in (("PixelSpacing", ()), ("ImagerPixelSpacing", (DETECTOR_SPACING,))):
        values = dataset.get(keyword)
        try:
            rows, columns = (float(value) for value in values)
        except (TypeError, ValueError):  # none, one, or no number
            continue
        if 0 < rows < math.inf and 0 < columns < math.inf:
            return (columns, rows), notes
    return None, (NO_SPACING,)
