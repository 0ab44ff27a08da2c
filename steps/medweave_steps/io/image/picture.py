"""One decoded 2-D image, with the digests that find copies of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import Grid
from medweave_steps.io.findings import FindingError, SeriesName
from medweave_steps.io.geometry import FloatArray, affine_rows
from medweave_steps.runtime.imports import require

HASH_SIDE = 12
HASH_STEP = 0.02  # smaller differences are noise of the compression, as on a black border
NEAR_BITS = 4
"""Images whose perceptual hashes differ in at most this number of 288 bits are reported as likely copies: on synthetic photographs
and X-rays, different patients differ in 9 bits or more, and copies that were reduced and compressed mostly in 4 or fewer."""

_WORD = np.dtype(np.uint64)


class ImageError(Exception):
    """An image that cannot be used; has the parts of a finding, without the file's name."""

    def __init__(self, code: str, what: str, *, seen: str, expected: str, do: str) -> None:
        super().__init__(what)
        self.code, self.what, self.seen, self.expected, self.do = code, what, seen, expected, do

    def named(self, name: SeriesName) -> FindingError:
        """Return the error about the image of this name."""
        return name.refuse(self.code, self.what, seen=self.seen, expected=self.expected, do=self.do)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One decoded image.

    Attributes:
        pixels_CRI: float32 [channel, row, column], from 0 (black) to 1 (white).
        channels: red, green and blue; gray; or the modality of a radiograph.
        spacing_mm: distance of the columns and of the rows; None if it is not known.
        notes: what the reader did, as codes that `check` counts.
    """

    pixels_CRI: FloatArray
    channels: tuple[str, ...]
    spacing_mm: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()

    @property
    def grid(self) -> Grid:
        """Return columns x rows x 1 voxels; pixels count as 1 mm where their size is not known."""
        _, rows, columns = self.pixels_CRI.shape
        i, j = self.spacing_mm or (1.0, 1.0)
        return Grid(shape=(columns, rows, 1), affine=affine_rows(np.diag([i, j, 1.0, 1.0])))

    def digest(self) -> str:
        """Return the SHA-256 over channels, size and pixels: equal for one image in two files of different metadata."""
        digest = hashlib.sha256(f"{' '.join(self.channels)} {self.pixels_CRI.shape}".encode())
        digest.update(np.ascontiguousarray(self.pixels_CRI).data)
        return digest.hexdigest()


def resized(pixels_CRI: FloatArray, columns: int, rows: int) -> FloatArray:
    """Return the image with another size, float32 [channel, row, column]; bilinear, with antialiasing where it becomes smaller."""
    image = require("PIL.Image", extra="preprocess")
    if pixels_CRI.shape[1:] == (rows, columns):
        return pixels_CRI
    filtered = [
        np.asarray(image.fromarray(np.ascontiguousarray(channel)).resize((columns, rows), image.Resampling.BILINEAR))
        for channel in pixels_CRI
    ]
    return np.stack(filtered).astype(np.float32, copy=False)


def perceptual_hash(picture: Picture) -> npt.NDArray[np.uint8]:
    """Return 288 bits that hardly change if an image is compressed or resized: uint8 [36].

    Each bit says whether a cell of a coarse 13 x 13 image is brighter than its neighbor (difference hash): half of the bits along
    the rows, half along the columns.
    """
    gray = picture.pixels_CRI.mean(axis=0, dtype=np.float32)[None]
    coarse = resized(gray, HASH_SIDE + 1, HASH_SIDE + 1)[0]
    across = coarse[:-1, 1:] - coarse[:-1, :-1] > HASH_STEP
    down = coarse[1:, :-1] - coarse[:-1, :-1] > HASH_STEP
    return np.packbits(np.concatenate([across.ravel(), down.ravel()]))


def near_pairs(hashes: npt.NDArray[np.uint8]) -> list[tuple[int, int]]:
    """Return the pairs of images whose hashes, uint8 [image, 36], differ in at most `NEAR_BITS` bits, in order."""
    count, size = hashes.shape
    padded = np.pad(hashes, ((0, 0), (0, -size % _WORD.itemsize)))
    words = np.ascontiguousarray(padded.view(_WORD).T)  # [word, image]
    pairs = []
    for first in range(count - 1):
        bits = np.bitwise_count(words[:, first + 1 :] ^ words[:, first, None]).sum(axis=0, dtype=np.uint16)
        pairs += [(first, first + 1 + int(other)) for other in np.flatnonzero(bits <= NEAR_BITS)]
    return pairs
