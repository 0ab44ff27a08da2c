"""DICOM files of a series, as bytes. A series has hundreds of images whose headers differ in four elements."""

from __future__ import annotations

import io
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from medweave_steps.runtime.imports import require

TransferSyntax = Literal["explicit", "rle", "jpeg2000"]

_SYNTAXES = {
    "explicit": "1.2.840.10008.1.2.1",
    "rle": "1.2.840.10008.1.2.5",
    "jpeg2000": "1.2.840.10008.1.2.4.90",
}
_PREAMBLE = bytes(128) + b"DICM"


class SeriesEncoder:
    """An encoder for images, with the bytes of pydicom's `save_as`; elements that the images share are encoded once."""

    def __init__(self, shared: Any) -> None:
        """Encode the elements that all images have, given as a pydicom Dataset; `image` returns datasets with them."""
        self._shared = {int(tag): (element, _encoded(element)) for tag, element in shared.items()}
        self._elements = dict(shared.items())

    def image(self) -> Any:
        """Return a new dataset with the shared elements. None of their values may be changed: all images would have the new one."""
        return require("pydicom", extra="phantom").Dataset(dict(self._elements))

    def file(self, image: Any) -> bytes:
        """Return the whole file, explicit little endian.

        Args:
            image: from `image`, with `file_meta`; its elements besides the shared ones are encoded again.
        """
        writer = require("pydicom.filewriter", extra="phantom")
        meta = _buffer()
        writer.write_file_meta_info(meta, image.file_meta, enforce_standard=True)
        parts = [_PREAMBLE, meta.getvalue()]
        for tag, element in sorted(((int(tag), element) for tag, element in image.items()), key=lambda pair: pair[0]):
            known = self._shared.get(tag)
            parts.append(known[1] if known is not None and known[0] is element else _encoded(element))
        return b"".join(parts)


def set_pixels(image: Any, stored_JI: npt.NDArray[np.int16], syntax: TransferSyntax) -> None:
    """Set the pixels of an image and the file meta header that names their encoding.

    Args:
        image: pydicom Dataset with SOPClassUID, SOPInstanceUID and the attributes of the pixels.
        stored_JI: stored values, of 16 bits.
    """
    pydicom = require("pydicom", extra="phantom")
    image.PixelData = stored_JI.astype("<i2").tobytes()
    image["PixelData"].VR = "OW"
    image.file_meta = pydicom.dataset.FileMetaDataset()
    image.file_meta.MediaStorageSOPClassUID = image.SOPClassUID
    image.file_meta.MediaStorageSOPInstanceUID = image.SOPInstanceUID
    image.file_meta.TransferSyntaxUID = _SYNTAXES["explicit"]
    if syntax != "explicit":
        image.compress(_SYNTAXES[syntax], generate_instance_uid=False)


def file_of(dataset: Any) -> bytes:
    """Return the bytes of a DICOM file as pydicom writes it; in memory, because pydicom's errors hide a full disk."""
    buffer = io.BytesIO()
    dataset.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()


def _encoded(element: Any) -> bytes:
    buffer = _buffer()
    require("pydicom.filewriter", extra="phantom").write_data_element(buffer, element)
    encoded: bytes = buffer.getvalue()
    return encoded


def _buffer() -> Any:
    buffer = require("pydicom.filebase", extra="phantom").DicomBytesIO()
    buffer.is_little_endian, buffer.is_implicit_VR = True, False
    return buffer
