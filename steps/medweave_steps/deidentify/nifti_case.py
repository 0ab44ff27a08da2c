"""One NIfTI file: the same voxels with a header without text."""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.cohort import Finding
from medweave_core.contracts.volume import CT_CHANNELS
from medweave_steps.deidentify.brain_mask import BrainMask, label_outside, wrong_grid
from medweave_steps.deidentify.burned_in import TextSearch
from medweave_steps.deidentify.deface import AIR_HU
from medweave_steps.deidentify.faces import IDENTIFIABLE, FaceState
from medweave_steps.io.findings import FindingError, SeriesName
from medweave_steps.io.nifti.volume import NiftiVolume, open_nifti

# Of its nine levels: three times as fast as the usual sixth, and CT becomes a few percent larger.
_GZIP_LEVEL = 2


@dataclass(frozen=True, slots=True)
class _Form:
    """The layout of a header (nifti1.h, nifti2.h of the NIfTI Data Format Working Group).

    Attributes:
        words: offset and length of the fields that hold text, or that no reader uses.
        offset: where vox_offset lies, and its struct code.
    """

    size: int
    magic: tuple[int, bytes]
    words: tuple[tuple[int, int], ...]
    offset: tuple[int, str]


_FORMS = (
    _Form(
        # data_type, db_name, extents, session_error and regular; glmax and glmin; descrip; aux_file; intent_name.
        size=348, magic=(344, b"n+1\0"), words=((4, 35), (140, 8), (148, 80), (228, 24), (328, 16)), offset=(108, "f"),
    ),
    _Form(
        # descrip; aux_file; intent_name; unused_str.
        size=540, magic=(4, b"n+2\0\r\n\x1a\n"), words=((240, 80), (320, 24), (508, 16), (525, 15)), offset=(168, "q"),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NiftiJob:
    """One volume and its mask: source paths, relative to the cohort, and new ones, relative to the output.

    Attributes:
        channels: contrasts that the volume must hold; None where the cohort declares none: any number of them.
        face: whether the volume may show one.
        brain_mask: keeps its voxels and removes all others.
        refuse_faces: refuse a volume that may show a face.
    """

    cohort: Path
    output: Path
    name: SeriesName
    image: tuple[str, str]
    mask: tuple[str, str] | None
    channels: tuple[str, ...] | None = None
    face: FaceState = "unknown"
    brain_mask: Path | None = None
    refuse_faces: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NiftiDone:
    """The result for one case; with a finding no file was written."""

    name: SeriesName
    face: FaceState
    finding: Finding | None = None


def deidentify_nifti(job: NiftiJob) -> NiftiDone:
    """Write one volume and its mask.

    Raises:
        OSError: reading or writing failed; it names no file, since a file's name may be a person's.
    """
    written: list[Path] = []
    face = job.face if job.brain_mask is None else "removed"
    try:
        if job.refuse_faces and face in IDENTIFIABLE:
            raise _may_show_a_face(job.name)
        brain = None if job.brain_mask is None else BrainMask.read(job.brain_mask, str(job.name))
        for role, pair in (("volume", job.image), ("mask", job.mask)):
            if pair is not None:
                written.append(job.output / pair[1])
                written[-1].parent.mkdir(parents=True, exist_ok=True)
                channels = job.channels if role == "volume" else CT_CHANNELS
                _copy(job.cohort / pair[0], written[-1], job.name, role, channels, brain)
    except FindingError as error:
        for path in written:
            path.unlink(missing_ok=True)
        return NiftiDone(name=job.name, face=face, finding=error.finding)
    return NiftiDone(name=job.name, face=face)


def _copy(
    source: Path, target: Path, name: SeriesName, role: str, channels: tuple[str, ...] | None, brain: BrainMask | None
) -> None:
    try:
        volume = open_nifti(source, name, role=role, channels=channels)
        planes = None if brain is None else _PlaneFilter.of(volume, brain, role, channels)
        with source.open("rb") as probe:
            packed = probe.read(2) == b"\x1f\x8b"
        with cast(BinaryIO, gzip.open(source, "rb") if packed else source.open("rb")) as stream:
            header = _header(stream, volume, name, role)
            search = TextSearch() if role == "volume" else None
            with target.open("wb") as plain:
                if not target.name.endswith(".gz"):
                    _write(stream, plain, header, volume, planes, search)
                else:  # no name and no time in the gzip header: they would be the source's
                    with gzip.GzipFile("", "wb", _GZIP_LEVEL, plain, mtime=0) as deflated:
                        _write(stream, cast(BinaryIO, deflated), header, volume, planes, search)
    except FileNotFoundError:
        raise _missing(name, role) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _cut_off(name, role) from error
    except OSError as error:
        raise OSError(error.errno, error.strerror) from None
    if search is not None and search.finish():
        raise name.refuse(
            "text-in-pixels",
            "the slices appear to contain burned-in text.",
            seen="a row of small flat shapes of similar height",
            expected="volumes without text",
            do="review the volume: blank the text, remove the volume from the cohort, or skip it with --on-error skip",
        )


def _header(stream: BinaryIO, volume: NiftiVolume, name: SeriesName, role: str) -> bytes:
    """Return the cleared header, marked as without extensions; the stream is then at the first voxel."""
    start = stream.read(4)
    for form in _FORMS:
        for order in "<>":
            if start == struct.pack(f"{order}i", form.size):
                header = bytearray(start + stream.read(form.size - 4))
                place, magic = form.magic
                if len(header) < form.size or header[place : place + len(magic)] != magic:
                    break
                for offset, length in form.words:
                    header[offset : offset + length] = bytes(length)
                struct.pack_into(f"{order}{form.offset[1]}", header, form.offset[0], form.size + 4)
                stream.read(max(0, volume.offset - form.size))  # extensions: free text
                return bytes(header) + bytes(4)
    raise name.refuse(
        "not-nifti",
        f"the {role} is not a single-file NIfTI with header and voxels.",
        seen="another format, or a header with the voxels in a separate file",
        expected="NIfTI-1 or NIfTI-2 in one file (.nii or .nii.gz)",
        do="convert it to single-file NIfTI",
    )


def _write(
    source: BinaryIO,
    target: BinaryIO,
    header: bytes,
    volume: NiftiVolume,
    planes: _PlaneFilter | None,
    search: TextSearch | None,
) -> None:
    """Write header and voxels of every channel, and nothing that may follow them."""
    target.write(header)
    rows, columns, num_planes = volume.grid.shape
    size = rows * columns * volume.dtype.itemsize
    for index in range(num_planes * volume.num_channels):
        data = source.read(size)
        if len(data) < size:
            raise EOFError
        plane = np.frombuffer(data, volume.dtype).reshape((columns, rows))  # the first axis runs along a line
        target.write(data if planes is None else planes.filtered(plane, index % num_planes).tobytes())
        if search is not None:
            search.add(plane, kind=f"channel {index // num_planes}")


@dataclass(frozen=True, slots=True)
class _PlaneFilter:
    """Removes the voxels outside of the brain from a volume; refuses labelled voxels there in a mask.

    Attributes:
        blank: stored value of removed voxels; None for a mask with labels, which is not changed.
    """

    brain: BrainMask
    name: SeriesName
    blank: Any

    @classmethod
    def of(cls, volume: NiftiVolume, brain: BrainMask, role: str, channels: tuple[str, ...] | None) -> _PlaneFilter:
        """Return the filter of a volume: removed voxels become 0 in MR and PET, air in CT, else the lowest value of the volume."""
        if not brain.fits(np.asarray(volume.grid.affine), volume.grid.shape):
            raise wrong_grid(str(volume.name))
        if role == "mask":
            return cls(brain, volume.name, None)
        if channels is None:
            return cls(brain, volume.name, min(np.nanmin(plane) for plane in volume.planes()))
        value = (AIR_HU if channels == CT_CHANNELS else 0.0) - volume.intercept
        stored = value / (volume.slope or 1.0)
        if volume.dtype.kind in "iu":
            limits = np.iinfo(volume.dtype)
            stored = min(max(round(stored), limits.min), limits.max)
        return cls(brain, volume.name, stored)

    def filtered(self, plane_JI: npt.NDArray[Any], index: int) -> npt.NDArray[Any]:
        keep = self.brain.brain_IJK[:, :, index].T
        if self.blank is not None:
            return np.where(keep, plane_JI, np.array(self.blank, plane_JI.dtype)).astype(plane_JI.dtype)
        if num_outside := int(np.count_nonzero(plane_JI[~keep])):
            raise label_outside(str(self.name), num_outside)
        return plane_JI


def _may_show_a_face(name: SeriesName) -> FindingError:
    return name.refuse(
        "face",
        "the volume may show a face.",
        seen="a scan of the head, or MR or PET without a declaration, and no brain mask",
        expected="volumes without faces, because this run must write de-identified data",
        do="give masks with --brain-masks, declare --faces absent if no face is visible, or skip with --on-error skip",
    )


def _cut_off(name: SeriesName, role: str) -> FindingError:
    return name.refuse(
        "truncated-file",
        f"the NIfTI file of the {role} is truncated or corrupt.",
        seen="fewer voxels than declared in the header",
        expected="a complete file",
        do="copy or download the file again",
    )


def _missing(name: SeriesName, role: str) -> FindingError:
    return name.refuse(
        "missing-file",
        f"the {role} is listed in dataset.json but missing.",
        seen="no such file",
        expected="every file that dataset.json lists",
        do="copy or download the data set again",
    )
