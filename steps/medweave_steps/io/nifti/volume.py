"""One NIfTI volume: its grid, and its planes read in file order without holding the whole."""

from __future__ import annotations

import gzip
import zlib
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.cohort import Finding
from medweave_core.contracts.volume import CT_CHANNELS, Grid
from medweave_steps.io.findings import FindingError, SeriesName, notice
from medweave_steps.io.geometry import FloatArray, affine_rows
from medweave_steps.io.nifti.header import check_fields, compare_forms, read_raw_header
from medweave_steps.runtime.imports import require

AIR_HU = -1024.0
READ_AHEAD = 4
SHEAR_TOLERANCE = 1e-3
SUFFIXES = (".nii", ".nii.gz")
_PLAIN_ROLES = ("volume", "mask")


@dataclass(frozen=True, slots=True, kw_only=True)
class NiftiVolume:
    """Header of a NIfTI file.

    Attributes:
        grid: [i, j, k] as in the file, affine from the sform, else the qform.
        dtype: of the stored values.
        slope, intercept: stored value to value (HU for images).
        offset: byte of the uncompressed file where the voxels begin.
        num_channels: volumes in the file, one after the other.
        background: value for voxels that are not numbers: air in CT, 0 in MR.
        role: its name in messages.
        notices: about unusual but usable properties.
    """

    path: Path
    grid: Grid
    dtype: np.dtype[Any]
    slope: float
    intercept: float
    offset: int
    name: SeriesName
    notices: tuple[Finding, ...]
    num_channels: int = 1
    background: float = AIR_HU
    role: str = "volume"

    def planes(self) -> Generator[npt.NDArray[Any], None, None]:
        """Yield the stored values plane by plane along the third axis, each [i, j]; those of the second channel follow the first's.

        Raises:
            FindingError: the file ends too early or its compression is damaged.
        """
        with _open(self.path) as stream, ThreadPoolExecutor(1, thread_name_prefix="read-nifti") as reader:
            pending: deque[Future[bytes]] = deque()
            size = self.grid.shape[0] * self.grid.shape[1] * self.dtype.itemsize
            try:
                self._skip(stream)
                for _ in range(self.grid.shape[2] * self.num_channels):
                    # One thread: a compressed stream can be read in one order only; it inflates while the caller works.
                    pending.append(reader.submit(stream.read, size))
                    if len(pending) > READ_AHEAD:
                        yield self._plane(pending.popleft().result(), size)
                while pending:
                    yield self._plane(pending.popleft().result(), size)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise self._cut_off(type(error).__name__) from error
            finally:
                reader.shutdown(wait=True, cancel_futures=True)

    def to_hu(self, stored: npt.NDArray[Any], *, padding: float | None = None) -> FloatArray:
        """Convert stored values to HU, or to the scanner's units for MR, float32.

        Args:
            padding: replaces values that are not finite; None for `background`.
        """
        values = stored.astype(np.float32)
        if self.slope != 1:
            values *= np.float32(self.slope)
        if self.intercept != 0:
            values += np.float32(self.intercept)
        if self.dtype.kind == "f":
            values[~np.isfinite(values)] = self.background if padding is None else padding
        return values

    def _skip(self, stream: BinaryIO) -> None:
        left = self.offset
        while left > 0:
            chunk = stream.read(min(left, 1 << 20))
            if not chunk:
                raise self._cut_off("the header only")
            left -= len(chunk)

    def _plane(self, data: bytes, size: int) -> npt.NDArray[Any]:
        if len(data) < size:
            raise self._cut_off("fewer voxels than declared in the header")
        return np.frombuffer(data, dtype=self.dtype).reshape(self.grid.shape[:2], order="F")

    def _cut_off(self, seen: str) -> Exception:
        return self.name.refuse(
            "truncated-file",
            f"the NIfTI file{'' if self.role in _PLAIN_ROLES else f' ({self.role})'} is truncated or corrupt.",
            seen=seen,
            expected=f"{' x '.join(map(str, self.grid.shape))} voxels",
            do="copy or download the file again",
        )


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb"))


def is_nifti(name: str) -> bool:
    """Return True for a file that should be NIfTI; macOS' `._` companions are not."""
    return name.endswith(SUFFIXES) and not name.rpartition("/")[2].startswith(".")


def stem(name: str) -> str:
    """Return the file name without folder and without `.nii` or `.nii.gz`."""
    base = name.rpartition("/")[2]
    return base.removesuffix(".gz").removesuffix(".nii")


def open_nifti(
    path: Path, name: SeriesName, *, role: str = "volume", channels: Sequence[str] | None = CT_CHANNELS
) -> NiftiVolume:
    """Read the header of a NIfTI file.

    Args:
        role: its name in messages ("volume", "mask", "volume of channel T2w").
        channels: contrasts that the file must hold; several are the fourth axis. None: any number of them.
    Raises:
        FileNotFoundError: it is not there.
        FindingError: it is not NIfTI, not three-dimensional, has other channels, its affine is sheared or singular, or fields of
            its header contradict each other.
    """
    nibabel = require("nibabel", extra="dicom")
    path.stat()  # a file that is not there is no damaged file
    findings: list[Finding] = []
    try:
        raw = read_raw_header(_open, path)
        if raw is None:
            raise _not_nifti(name, role)
        findings += check_fields(raw, name, role)
        image = nibabel.load(path)
        header, proxy = image.header, image.dataobj
        shape = tuple(int(n) for n in image.shape)
        affine = np.asarray(image.affine, dtype=np.float64)
        dtype, slope, intercept, offset = proxy.dtype, proxy.slope, proxy.inter, proxy.offset
        codes = int(header["sform_code"]), int(header["qform_code"])
    except FindingError:
        raise
    except Exception as error:  # nibabel raises many kinds for a damaged header
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise _not_nifti(name, role) from error
    while len(shape) > 3 and shape[-1] == 1:
        shape = shape[:-1]
    num_channels = shape[3] if len(shape) == 4 and channels is None else len(channels or CT_CHANNELS)
    if channels is None:
        shape = shape[:3] if len(shape) == 4 else shape
    elif num_channels > 1:
        shape = _one_channel(shape, channels, name)
    if len(shape) != 3 or min(shape) < 2 or np.dtype(dtype).kind not in "iuf":
        raise name.refuse(
            "not-a-3d-volume",
            f"the {role} is not a three-dimensional numeric volume.",
            seen=f"{' x '.join(map(str, shape))} voxels of type {np.dtype(dtype)}",
            expected="three axes with at least two voxels each, integers or floats",
            do="store each volume in one NIfTI file",
        )
    _check_affine(affine, name, role)
    findings += compare_forms(raw, affine, shape, name, role)
    grid = Grid(shape=(shape[0], shape[1], shape[2]), affine=affine_rows(affine))
    notices = (*findings, *(() if any(codes) else (_unoriented(name),)))
    return NiftiVolume(
        path=path, grid=grid, dtype=np.dtype(dtype), slope=float(slope), intercept=float(intercept),
        offset=int(offset), name=name, notices=notices, num_channels=num_channels,
        background=AIR_HU if tuple(channels or ()) == CT_CHANNELS else 0.0, role=role,
    )  # fmt: skip


def _one_channel(shape: tuple[int, ...], channels: Sequence[str], name: SeriesName) -> tuple[int, ...]:
    if len(shape) != 4 or shape[3] != len(channels):
        raise name.refuse(
            "wrong-channels",
            "the volume does not contain the contrasts that the data set declares.",
            seen=f"{' x '.join(map(str, shape))} voxels",
            expected=f"a fourth axis of {len(channels)}: {', '.join(channels)}",
            do="store all contrasts in one file, on one grid, or correct 'modality' in dataset.json",
        )
    return shape[:3]


def _not_nifti(name: SeriesName, role: str) -> FindingError:
    return name.refuse(
        "not-nifti",
        f"the {role} cannot be read as NIfTI.",
        seen="a corrupt header, or another format with the suffix .nii or .nii.gz",
        expected="a NIfTI-1 or NIfTI-2 file",
        do="copy or download the file again",
    )


def _unoriented(name: SeriesName) -> Finding:
    return notice(
        "no-orientation",
        f"{name}: the NIfTI header has no orientation; the voxel order is assumed to be "
        "right to left, back to front, feet to head.",
        seen="sform_code and qform_code 0",
        case_id=name.case_id,
    )


def _check_affine(affine: npt.NDArray[np.float64], name: SeriesName, role: str) -> None:
    columns = affine[:3, :3]
    lengths = np.linalg.norm(columns, axis=0)
    if not np.isfinite(affine).all() or lengths.min() <= 0 or abs(np.linalg.det(columns / lengths)) < 0.5:
        raise name.refuse(
            "bad-affine",
            f"the affine of the {role} is unusable.",
            seen=f"voxel sizes {' x '.join(f'{x:.3g}' for x in lengths)}",
            expected="three independent axes, sizes above 0 mm",
            do="write the file again from its source",
        )
    cosines = (columns / lengths).T @ (columns / lengths) - np.eye(3)
    if np.abs(cosines).max() > SHEAR_TOLERANCE:
        raise name.refuse(
            "sheared-affine",
            f"the axes of the {role} are not perpendicular (possibly an uncorrected gantry tilt).",
            seen=f"cosine {np.abs(cosines).max():.4f} between two axes",
            expected=f"below {SHEAR_TOLERANCE}",
            do="resample the volume to perpendicular axes (for instance with dcm2niix)",
        )
