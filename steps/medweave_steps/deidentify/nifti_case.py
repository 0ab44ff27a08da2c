"""One NIfTI file: the same voxels with a header without text."""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from medweave_core.contracts.cohort import Finding
from medweave_core.contracts.volume import CT_CHANNELS
from medweave_steps.deidentify.burned_in import TextSearch
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
    """

    cohort: Path
    output: Path
    name: SeriesName
    image: tuple[str, str]
    mask: tuple[str, str] | None
    channels: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NiftiDone:
    """The result for one case; with a finding no file was written."""

    name: SeriesName
    finding: Finding | None = None


def deidentify_nifti(job: NiftiJob) -> NiftiDone:
    """Write one volume and its mask.

    Raises:
        OSError: reading or writing failed; it names no file, since a file's name may be a person's.
    """
    written: list[Path] = []
    try:
        for role, pair in (("volume", job.image), ("mask", job.mask)):
            if pair is not None:
                written.append(job.output / pair[1])
                written[-1].parent.mkdir(parents=True, exist_ok=True)
                channels = job.channels if role == "volume" else CT_CHANNELS
                _copy(job.cohort / pair[0], written[-1], job.name, role, channels)
    except FindingError as error:
        for path in written:
            path.unlink(missing_ok=True)
        return NiftiDone(name=job.name, finding=error.finding)
    return NiftiDone(name=job.name)


def _copy(source: Path, target: Path, name: SeriesName, role: str, channels: tuple[str, ...] | None) -> None:
    try:
        volume = open_nifti(source, name, role=role, channels=channels)
        with source.open("rb") as probe:
            packed = probe.read(2) == b"\x1f\x8b"
        with cast(BinaryIO, gzip.open(source, "rb") if packed else source.open("rb")) as stream:
            header = _header(stream, volume, name, role)
            search = TextSearch() if role == "volume" else None
            with target.open("wb") as plain:
                if not target.name.endswith(".gz"):
                    _write(stream, plain, header, volume, name, search)
                else:  # no name and no time in the gzip header: they would be the source's
                    with gzip.GzipFile("", "wb", _GZIP_LEVEL, plain, mtime=0) as deflated:
                        _write(stream, cast(BinaryIO, deflated), header, volume, name, search)
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
    source: BinaryIO, target: BinaryIO, header: bytes, volume: NiftiVolume, name: SeriesName, search: TextSearch | None
) -> None:
    """Write header and voxels of every channel, and nothing that may follow them."""
    target.write(header)
    rows, columns, planes = volume.grid.shape
    size = rows * columns * volume.dtype.itemsize
    for index in range(planes * volume.num_channels):
        data = source.read(size)
        if len(data) < size:
            raise EOFError
        target.write(data)
        if search is not None:
            plane = np.frombuffer(data, volume.dtype).reshape((columns, rows))  # the first axis runs along a line
            search.add(plane, kind=f"channel {index // planes}")


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
