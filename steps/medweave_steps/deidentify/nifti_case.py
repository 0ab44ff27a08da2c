"""The NIfTI files of one case: the same voxels with headers without text."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.cohort import Finding
from medweave_core.contracts.volume import CT_CHANNELS, Grid
from medweave_steps.deidentify.burned_in import TextSearch
from medweave_steps.deidentify.deface import AIR_HU
from medweave_steps.deidentify.faces import IDENTIFIABLE, FaceState
from medweave_steps.io.channel_grid import is_same_grid
from medweave_steps.io.cohort.brain_mask import BrainMask, Mask, label_outside, wrong_grid
from medweave_steps.io.findings import FindingError, SeriesName
from medweave_steps.io.nifti.volume import NiftiVolume, open_nifti

# Of its nine levels: three times as fast as the usual sixth, and CT becomes a few percent larger.
_GZIP_LEVEL = 2
_MASK = "mask"


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
    """One case: source paths, relative to the cohort, and new ones, relative to the output.

    Attributes:
        images: one file with all channels, or a file for each of them, in order.
        channels: contrasts of the case; None where the cohort declares none: any number of them.
        face: whether the volume may show one.
        brain_mask: keeps its voxels and removes all others.
        refuse_faces: refuse a volume that may show a face.
    """

    cohort: Path
    output: Path
    name: SeriesName
    images: tuple[tuple[str, str], ...]
    mask: tuple[str, str] | None
    channels: tuple[str, ...] | None
    face: FaceState
    brain_mask: Path | None
    refuse_faces: bool

    def parts(self) -> list[_Part]:
        """Return the files of the case; the mask is the last."""
        if len(self.images) == 1:
            parts = [_Part("volume", self.images[0], self.channels)]
        else:
            pairs = zip(self.channels or (), self.images, strict=True)
            parts = [_Part(f"volume of channel {channel}", pair, (channel,)) for channel, pair in pairs]
        return parts if self.mask is None else [*parts, _Part(_MASK, self.mask, CT_CHANNELS)]


@dataclass(frozen=True, slots=True)
class _Part:
    """One file of a case.

    Attributes:
        role: its name in messages.
        pair: source path and new path.
        channels: contrasts that it must hold; None for any number of them.
    """

    role: str
    pair: tuple[str, str]
    channels: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NiftiDone:
    """The result for one case; with a finding no file was written.

    Attributes:
        resampled: roles of the volumes that are not on the grid of the brain mask.
    """

    name: SeriesName
    face: FaceState
    finding: Finding | None = None
    resampled: tuple[str, ...] = ()


def deidentify_nifti(job: NiftiJob) -> NiftiDone:
    """Write the volumes and the mask of one case.

    Raises:
        OSError: reading or writing failed; it names no file, since a file's name may be a person's.
    """
    written: list[Path] = []
    face = job.face if job.brain_mask is None else "removed"
    resampled = []
    try:
        if job.refuse_faces and face in IDENTIFIABLE:
            raise _may_show_a_face(job.name)
        brain = None if job.brain_mask is None else BrainMask.read(job.brain_mask, job.name)
        opened = [(part, _open(job, part)) for part in job.parts()]
        if brain is not None:
            _check_grids(brain, opened, job.name)
        for part, volume in opened:
            written.append(job.output / part.pair[1])
            written[-1].parent.mkdir(parents=True, exist_ok=True)
            planes = None if brain is None else _PlaneFilter.of(volume, brain, part)
            resampled += [part.role] if planes and planes.is_resampled else []
            _copy(volume, written[-1], part, planes)
    except FindingError as error:
        for path in written:
            path.unlink(missing_ok=True)
        return NiftiDone(name=job.name, face=face, finding=error.finding)
    return NiftiDone(name=job.name, face=face, resampled=tuple(resampled))


def _open(job: NiftiJob, part: _Part) -> NiftiVolume:
    try:
        return open_nifti(job.cohort / part.pair[0], job.name, role=part.role, channels=part.channels)
    except FileNotFoundError:
        raise _missing(job.name, part.role) from None
    except OSError as error:
        raise OSError(error.errno, error.strerror) from None


def _check_grids(brain: BrainMask, opened: Sequence[tuple[_Part, NiftiVolume]], name: SeriesName) -> None:
    """Raise FindingError unless the brain mask is on the grid of a volume, and the mask with labels on that or the first one."""
    grids = [volume.grid for part, volume in opened if part.role != _MASK]
    if not any(_fits(brain, grid) for grid in grids):
        raise wrong_grid(name)
    of_labels = [volume.grid for part, volume in opened if part.role == _MASK]
    if not all(_fits(brain, grid) or is_same_grid(grid, grids[0]) for grid in of_labels):
        raise wrong_grid(name)


def _fits(brain: BrainMask, grid: Grid) -> bool:
    return brain.fits(np.asarray(grid.affine), grid.shape)


def _copy(volume: NiftiVolume, target: Path, part: _Part, planes: _PlaneFilter | None) -> None:
    source, name, role = volume.path, volume.name, part.role
    try:
        with source.open("rb") as probe:
            packed = probe.read(2) == b"\x1f\x8b"
        with cast(BinaryIO, gzip.open(source, "rb") if packed else source.open("rb")) as stream:
            header = _header(stream, volume, name, role)
            search = None if role == _MASK else TextSearch()
            with target.open("wb") as plain:
                if not target.name.endswith(".gz"):
                    _write(stream, plain, header, volume, planes, search)
                else:  # no name and no time in the gzip header: they would be the source's
                    with gzip.GzipFile("", "wb", _GZIP_LEVEL, plain, mtime=0) as deflated:
                        _write(stream, cast(BinaryIO, deflated), header, volume, planes, search)
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
        keep_IJK: True for voxels to keep.
        blank: stored value of removed voxels; None for a mask with labels, which is not changed.
        is_resampled: whether a volume lies on another grid than the brain mask.
    """

    keep_IJK: Mask
    name: SeriesName
    blank: Any
    is_resampled: bool = False

    @classmethod
    def of(cls, volume: NiftiVolume, brain: BrainMask, part: _Part) -> _PlaneFilter:
        """Return the filter of a volume: removed voxels become 0 in MR and PET, air in CT, else the lowest value of the volume.

        Raises:
            FindingError: nothing of the volume lies inside the brain mask.
        """
        keep_IJK, is_on_grid = brain.keep_of_grid(np.asarray(volume.grid.affine), volume.grid.shape)
        if part.role == _MASK:
            return cls(keep_IJK, volume.name, None)
        if not keep_IJK.any():
            raise _outside_brain_mask(volume.name, part.role)
        return cls(keep_IJK, volume.name, _blank(volume, part.channels), not is_on_grid)

    def filtered(self, plane_JI: npt.NDArray[Any], index: int) -> npt.NDArray[Any]:
        keep = self.keep_IJK[:, :, index].T
        if self.blank is not None:
            return np.where(keep, plane_JI, np.array(self.blank, plane_JI.dtype)).astype(plane_JI.dtype)
        if num_outside := int(np.count_nonzero(plane_JI[~keep])):
            raise label_outside(self.name, num_outside)
        return plane_JI


def _blank(volume: NiftiVolume, channels: tuple[str, ...] | None) -> Any:
    """Return the stored value of removed voxels."""
    if channels is None:
        return min(np.nanmin(plane) for plane in volume.planes())
    value = (AIR_HU if channels == CT_CHANNELS else 0.0) - volume.intercept
    stored = value / (volume.slope or 1.0)
    if volume.dtype.kind in "iu":
        limits = np.iinfo(volume.dtype)
        stored = min(max(round(stored), limits.min), limits.max)
    return stored


def _outside_brain_mask(name: SeriesName, role: str) -> FindingError:
    return name.refuse(
        "brain-mask-grid",
        f"the {role} does not overlap the brain mask.",
        seen="no voxel center inside of the mask",
        expected="all channels of a case in one position",
        do="register the channels, or correct the affine of the file, or skip the case with --on-error skip",
    )


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
        expected="every file that dataset.json lists or, of nnU-Net, a file for each label map in labelsTr",
        do="copy or download the data set again",
    )
