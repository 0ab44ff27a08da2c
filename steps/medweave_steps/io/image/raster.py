"""Photographs: JPEG and PNG files as they are to be seen."""

from __future__ import annotations

import warnings
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import COLOR_CHANNELS, GRAY_CHANNELS
from medweave_steps.io.image.picture import ImageError, Picture
from medweave_steps.runtime.imports import require

SUFFIXES = (".jpg", ".jpeg", ".png")
ROTATED, GRAY_IN_COLOR, OPAQUE_ALPHA, SIXTEEN_BITS = "exif-orientation", "gray-in-color", "opaque-alpha", "sixteen-bits"

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_ORIENTATION = 0x0112  # EXIF tag; 1 is upright
_CONVERT = "convert the image to 8-bit RGB or gray, or skip it with --on-error skip"


def is_raster(name: str) -> bool:
    """Return whether a file is named as a JPEG or PNG image."""
    return PurePosixPath(name.lower()).suffix in SUFFIXES


def read_raster(path: Path) -> Picture:
    """Decode a JPEG or PNG file.

    The orientation that EXIF states is applied. An image with three equal channels is gray. 16-bit gray keeps its full range.

    Raises:
        ImageError: no such image, cut off, transparent, CMYK, or color of 16 bits.
        OSError: the file cannot be opened.
    """
    image = require("PIL.Image", extra="check")
    operations = require("PIL.ImageOps", extra="check")
    unidentified = require("PIL", extra="check").UnidentifiedImageError
    with path.open("rb") as stream:
        _refuse_deep_color(stream.read(26))
        stream.seek(0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # before the file is opened: Pillow reads EXIF data then
                with image.open(stream, formats=("JPEG", "PNG")) as opened:
                    opened.load()
                    rotated = opened.getexif().get(_ORIENTATION, 1) in range(2, 9)
                    upright = operations.exif_transpose(opened) if rotated else opened.copy()
        except unidentified as error:
            raise ImageError(
                "unreadable-file", "the file is no JPEG or PNG image.", seen="other content than its name says",
                expected="a complete JPEG or PNG file", do="copy or export the image again, or remove the file",
            ) from error  # fmt: skip
        except image.DecompressionBombError as error:
            raise ImageError(
                "image-too-large", "the image is too large.", seen=f"more than {2 * image.MAX_IMAGE_PIXELS} pixels",
                expected="a photograph or a radiograph", do="reduce the image, or remove the file",
            ) from error  # fmt: skip
        except (OSError, SyntaxError, ValueError) as error:  # Pillow raises all three for damaged data
            raise ImageError(
                "truncated-file", "the image file is truncated or damaged.", seen="a file that ends inside its pixel data, or "
                "pixel data that cannot be decoded", expected="a complete file", do="copy or export the image again",
            ) from error  # fmt: skip
    return _picture(upright, (ROTATED,) if rotated else ())


def _refuse_deep_color(head: bytes) -> None:
    """Refuse PNG files of 16 bits that Pillow would reduce to 8 bits: color, and gray with alpha."""
    if head[:8] == PNG_SIGNATURE and len(head) == 26 and head[24] == 16 and head[25] != 0:
        raise ImageError(
            "unsupported-pixels", "the PNG image has channels of 16 bits in color or with transparency.",
            seen="16 bits per channel", expected="8 bits per channel, or 16-bit gray", do=_CONVERT,
        )  # fmt: skip


def _picture(image: Any, notes: tuple[str, ...]) -> Picture:
    if image.mode in ("P", "PA") or "transparency" in image.info:
        image = image.convert("RGBA" if image.mode == "PA" or "transparency" in image.info else "RGB")
    if image.mode in ("LA", "RGBA"):
        if image.getchannel("A").getextrema() != (255, 255):
            raise ImageError(
                "transparent-image", "the image has transparent pixels.", seen="an alpha channel below 255",
                expected="an image without transparency", do=_CONVERT,
            )  # fmt: skip
        image = image.convert("L" if image.mode == "LA" else "RGB")
        notes = (*notes, OPAQUE_ALPHA)
    if image.mode == "1":
        image = image.convert("L")
    if image.mode == "L":
        return Picture(pixels_CRI=_scaled(np.asarray(image), 255)[None], channels=GRAY_CHANNELS, notes=notes)
    if image.mode.startswith("I"):  # I;16, and I in older versions of Pillow
        gray = _scaled(np.asarray(image), 65535)[None]
        return Picture(pixels_CRI=gray, channels=GRAY_CHANNELS, notes=(*notes, SIXTEEN_BITS))
    if image.mode == "RGB":
        pixels = np.asarray(image).transpose(2, 0, 1)
        if (pixels[0] == pixels[1]).all() and (pixels[0] == pixels[2]).all():
            notes = (*notes, GRAY_IN_COLOR)
            return Picture(pixels_CRI=_scaled(pixels[:1], 255), channels=GRAY_CHANNELS, notes=notes)
        return Picture(pixels_CRI=_scaled(pixels, 255), channels=COLOR_CHANNELS, notes=notes)
    raise ImageError(
        "unsupported-pixels", "the colors of the image are not RGB or gray.", seen=f"mode {image.mode}",
        expected="RGB or gray", do=_CONVERT,
    )  # fmt: skip


def _scaled(values: npt.NDArray[Any], highest: int) -> npt.NDArray[np.float32]:
    planes = values.astype(np.float32, order="C")  # one channel after the other, as all that follows reads them
    return np.asarray(planes / np.float32(highest), np.float32)
