"""Access to source data for every step: one volume of a cohort, DICOM or NIfTI, as a stream of planes on its own grid."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.cohort import CaseEntry, CohortIndex
from medweave_core.contracts.labels import Label, LabelMerge, declared_or_lesion
from medweave_core.contracts.volume import Grid, Modality
from medweave_steps.io.channel_grid import resample_to_grid
from medweave_steps.io.cohort import ground_truth
from medweave_steps.io.cohort.digest import digest_of_plane, joined_digest
from medweave_steps.io.cohort.discovery import is_scan_plane
from medweave_steps.io.cohort.modalities import modality_of_file
from medweave_steps.io.cohort.nifti_channels import ContentDigest, NiftiChannels, open_channels
from medweave_steps.io.dicom import pixels
from medweave_steps.io.dicom.header import Plane, read_file
from medweave_steps.io.dicom.series import assemble, place_text
from medweave_steps.io.dicom.source_headers import read_source_header
from medweave_steps.io.dicom.suv import planes_in_unit
from medweave_steps.io.findings import FindingError, SeriesName
from medweave_steps.io.geometry import FloatArray, corners_apart_mm

AIR_HU = pixels.AIR_HU
_SAME_GRID_MM = 1e-3


class VolumeSource(Protocol):
    """One volume of a cohort; its array is [slice, row, column] for DICOM (plane axis 0), [i, j, k] for NIfTI (plane axis 2)."""

    @property
    def entry(self) -> CaseEntry:
        """The case in the cohort index."""

    @property
    def grid(self) -> Grid:
        """Shape and affine of the source array."""

    @property
    def plane_axis(self) -> int:
        """Axis along which `planes` iterates."""

    @property
    def resampled_channels(self) -> tuple[str, ...]:
        """Channels that are stored on another grid than the first, and are resampled linearly to it."""

    def planes(
        self,
        *,
        num_workers: int,
        verify: bool = False,
        wanted: Sequence[int] | None = None,
        padding: float | None = None,
    ) -> Iterator[FloatArray]:
        """Yield the planes along `plane_axis`, channel after channel, in order, float32: HU, SUV, or of MR the stored values.

        A few planes are read or decoded ahead.

        Args:
            num_workers: threads for reading, or processes for decompressing.
            verify: after the last plane, compare the whole content with the digest that `check` took.
            wanted: ascending indices of the planes to hand out, None for all; the others are not decoded.
            padding: replaces padding and values that are not finite; None for air (MR, PET: 0).
        Raises:
            UserInputError: a file is cut off or cannot be decoded, or holds something else than `check` saw.
        """

    def volume(self, *, num_workers: int = 1) -> FloatArray:
        """Return the whole array in source order, float32: HU, SUV, or of MR the stored values; the first channel of several."""

    def headers(self) -> list[Any]:
        """Return the DICOM datasets without pixel data in slice order (one for a multi-frame file); [] for NIfTI."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DicomSource:
    """A DICOM series; see `VolumeSource`."""

    entry: CaseEntry
    grid: Grid
    folder: Path
    slices: tuple[Plane, ...]
    modality: Modality = "CT"
    plane_axis: int = 0
    resampled_channels: tuple[str, ...] = ()

    @property
    def padding(self) -> float:
        """Value of voxels without a measurement: air for CT; 0 for MR and PET, no signal and no uptake."""
        return AIR_HU if self.modality == "CT" else 0.0

    def planes(
        self,
        *,
        num_workers: int,
        verify: bool = False,
        wanted: Sequence[int] | None = None,
        padding: float | None = None,
    ) -> Iterator[FloatArray]:
        """See `VolumeSource`."""
        padding_hu = self.padding if padding is None else padding
        name = name_of(self.entry)
        slices = self.slices if wanted is None else [self.slices[index] for index in wanted]
        try:
            planes = pixels.iterate(self.folder, slices, num_workers=num_workers, padding_hu=padding_hu)
            yield from self._verified(planes) if verify else planes
        except pixels.PixelError as error:
            raise pixel_refusal(name, error) from error

    def _verified(self, planes: Iterator[FloatArray]) -> Iterator[FloatArray]:
        """Yield planes while a thread digests the files, which are in the file cache then."""
        ranges = pixels.locate(self.folder, self.slices)
        executor = ThreadPoolExecutor(1, thread_name_prefix="digest")
        try:
            # One task a plane and not one for all, so that an interrupted step does not wait for the rest.
            parts = [executor.submit(self._digest, *pair) for pair in zip(self.slices, ranges, strict=True)]
            yield from planes
            _check_content(self.entry, joined_digest(self.grid, (part.result() for part in parts)))
        finally:
            executor.shutdown(wait=False, cancel_futures=True)

    def _digest(self, plane: Plane, places: pixels.Ranges) -> bytes:
        return digest_of_plane(plane, pixels.stored_bytes(self.folder, plane, places))

    def volume(self, *, num_workers: int = 1, verify: bool = False, padding: float | None = None) -> FloatArray:
        """See `VolumeSource`; `verify` and `padding` as for `planes`."""
        volume = np.empty(self.grid.shape, dtype=np.float32)
        for index, plane in enumerate(self.planes(num_workers=num_workers, verify=verify, padding=padding)):
            volume[index] = plane
        return volume

    def headers(self) -> list[Any]:
        """See `VolumeSource`."""
        return [read_source_header(self.folder / name) for name in dict.fromkeys(s.file for s in self.slices)]


@dataclass(frozen=True, slots=True, kw_only=True)
class NiftiSource:
    """A NIfTI volume of one file, or of one file for each channel; see `VolumeSource`."""

    entry: CaseEntry
    files: NiftiChannels
    plane_axis: int = 2

    @property
    def grid(self) -> Grid:
        """See `VolumeSource`."""
        return self.files.grid

    @property
    def resampled_channels(self) -> tuple[str, ...]:
        """See `VolumeSource`."""
        return tuple(self.files.resampled)

    def planes(
        self,
        *,
        num_workers: int,
        verify: bool = False,
        wanted: Sequence[int] | None = None,
        padding: float | None = None,
    ) -> Iterator[FloatArray]:
        """See `VolumeSource`, channel after channel; one thread inflates ahead, since a gzip stream has one order."""
        digest = ContentDigest() if verify else None
        yield from self.files.planes(digest=digest, wanted=wanted, padding=padding)
        if digest is not None:
            _check_content(self.entry, digest.hexdigest())

    def volume(self, *, num_workers: int = 1) -> FloatArray:
        """See `VolumeSource`."""
        volume = np.empty(self.grid.shape, dtype=np.float32, order="F")
        for index, plane in zip(range(self.grid.shape[2]), self.planes(num_workers=num_workers), strict=False):
            volume[:, :, index] = plane
        return volume

    def headers(self) -> list[Any]:
        """See `VolumeSource`."""
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiSeriesSource:
    """Several DICOM series, one for each channel, on the grid of the first; see `VolumeSource`.

    Attributes:
        sources: one for each channel, on their own grids.
    """

    entry: CaseEntry
    sources: tuple[DicomSource, ...]
    plane_axis: int = 0

    @property
    def grid(self) -> Grid:
        """See `VolumeSource`."""
        return self.sources[0].grid

    @property
    def resampled_channels(self) -> tuple[str, ...]:
        """See `VolumeSource`."""
        return tuple(one.name for one in self.entry.series if one.is_resampled)

    def planes(
        self,
        *,
        num_workers: int,
        verify: bool = False,
        wanted: Sequence[int] | None = None,
        padding: float | None = None,
    ) -> Iterator[FloatArray]:
        """See `VolumeSource`; a channel on another grid is read whole and resampled linearly."""
        for source, series in zip(self.sources, self.entry.series, strict=True):
            if not series.is_resampled:
                yield from source.planes(num_workers=num_workers, verify=verify, wanted=wanted, padding=padding)
                continue
            volume = source.volume(num_workers=num_workers, verify=verify, padding=padding)
            outside = source.padding if padding is None else padding
            indices = range(self.grid.shape[0]) if wanted is None else wanted
            yield from resample_to_grid(volume, source.grid, self.grid, planes=indices, plane_axis=0, outside=outside)

    def volume(self, *, num_workers: int = 1) -> FloatArray:
        """See `VolumeSource`."""
        return self.sources[0].volume(num_workers=num_workers)

    def headers(self) -> list[Any]:
        """See `VolumeSource`: those of the first channel."""
        return self.sources[0].headers()


def pixel_refusal(name: SeriesName, error: pixels.PixelError) -> FindingError:
    """Return the error about one plane's pixels, with the case and the place of the slice."""
    where = "a slice" if error.plane is None else place_text(error.plane)
    what = f"{where}: {error.what}"
    return name.refuse(error.code, what, seen=error.seen, expected=error.expected, do=error.do)


def _check_content(entry: CaseEntry, digest: str) -> None:
    if digest != entry.content_sha256:
        raise name_of(entry).changed("different voxels under the same file names")


def name_of(entry: CaseEntry) -> SeriesName:
    """Return the name of a case in messages."""
    return SeriesName(case_id=entry.case_id, ordinal=entry.series_ordinal)


def open_source(cohort: Path, entry: CaseEntry) -> VolumeSource:
    """Open one volume of a cohort; read headers only.

    Args:
        cohort: the folder that `check` was given.
        entry: one case of its index.
    Raises:
        UserInputError: a file is missing or no longer what `check` saw.
    """
    name = name_of(entry)
    source: VolumeSource
    try:
        if entry.source_format == "nifti":
            files = open_channels([cohort / file for file in entry.files], name, entry.channels)
            source = NiftiSource(entry=entry, files=files)
        elif entry.series:
            source = _open_channels(cohort, entry, name)
        else:
            source = _open_dicom(cohort, entry, name)
    except FileNotFoundError as error:
        raise name.changed("a file of the case is missing") from error
    seen, expected = np.asarray(source.grid.affine), np.asarray(entry.grid.affine)
    if source.grid.shape != entry.grid.shape or np.abs(seen - expected).max() > _SAME_GRID_MM:
        raise name.changed("another grid")
    return source


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskValues:
    """The values of the reference masks of a cohort, as its index lists them.

    Attributes:
        labels: foreground labels, after merging.
        merges: values that count as one label.
        ignore_value: value of voxels without annotation; None if there are none.
    """

    labels: tuple[Label, ...]
    merges: tuple[LabelMerge, ...] = ()
    ignore_value: int | None = None

    @staticmethod
    def of(index: CohortIndex) -> MaskValues:
        """Return the values of a cohort; one label named `lesion` if it declares none."""
        return MaskValues(labels=declared_or_lesion(index.labels), merges=index.merges, ignore_value=index.ignore_value)

    @property
    def allowed(self) -> tuple[int, ...]:
        """Values that a mask may hold besides 0, after merging."""
        values = tuple(label.value for label in self.labels)
        return values if self.ignore_value is None else (*values, self.ignore_value)


def read_ground_truth(cohort: Path, entry: CaseEntry, values: MaskValues) -> npt.NDArray[np.uint8] | None:
    """Return the reference mask of a case with its values merged, or None where it has none.

    Returns:
        uint8 in source order, of the shape of `entry.grid`: 0 or a value of `values.allowed`.
    Raises:
        UserInputError: the mask lies on another grid, names images that the series lacks, is cut off, or holds other labels.
    """
    if entry.ground_truth is None:
        return None
    name, merges = name_of(entry), values.merges
    path = cohort / entry.ground_truth
    if not path.is_file():
        raise name.changed("the mask of the case is missing")
    if entry.source_format == "nifti":
        mask = ground_truth.read_nifti_mask(path, entry.grid, name, merges)
    else:
        source = _annotated_series(open_source(cohort, entry), entry)
        mask = ground_truth.read_dicom_mask(path, source.slices, source.grid, name, merges)
    unknown = set(np.flatnonzero(np.bincount(mask[mask > 0], minlength=1)).tolist()) - set(values.allowed)
    if unknown:
        raise name.changed(f"a mask with values {', '.join(map(str, sorted(unknown)))} that no label has")
    return mask


def _annotated_series(source: VolumeSource, entry: CaseEntry) -> DicomSource:
    """Return the series that the reference mask of a case was drawn on; its grid is that of the case."""
    if isinstance(source, MultiSeriesSource):
        return next(
            (one for one, series in zip(source.sources, entry.series, strict=True) if series.has_ground_truth),
            source.sources[0],
        )
    assert isinstance(source, DicomSource)
    return source


def reference_series(source: VolumeSource) -> DicomSource | None:
    """Return the DICOM series that results refer to: the first channel; None for NIfTI."""
    if isinstance(source, MultiSeriesSource):
        return source.sources[0]
    return source if isinstance(source, DicomSource) else None


def _open_channels(cohort: Path, entry: CaseEntry, name: SeriesName) -> MultiSeriesSource:
    channels = [
        dataclasses.replace(
            entry,
            series_ordinal=one.ordinal,
            files=one.files,
            grid=one.grid,
            content_sha256=one.content_sha256,
            channels=(one.name,),
            series=(),
        )
        for one in entry.series
    ]
    sources = tuple(_open_dicom(cohort, channel, name_of(channel)) for channel in channels)
    for source, one in zip(sources, entry.series, strict=True):
        if source.grid.shape != one.grid.shape or corners_apart_mm(source.grid, one.grid) > _SAME_GRID_MM:
            raise name.changed(f"another grid of {one.name}")
    return MultiSeriesSource(entry=entry, sources=sources)


def _open_dicom(cohort: Path, entry: CaseEntry, name: SeriesName) -> DicomSource:
    planes: list[Plane] = []
    modality: Modality = "CT"
    for file in entry.files:
        try:
            header = read_file(cohort, file)
        except ValueError as error:
            raise name.changed("a file that cannot be read") from error
        if header is None:
            raise name.changed("a file that is not DICOM")
        if header.defect is not None:
            raise name.changed("a file with a different header")
        planes += [plane for plane in header.planes if is_scan_plane(plane)]
        modality = modality_of_file(header) or modality
    if not planes:
        raise name.changed("no image")
    in_unit, _ = planes_in_unit(cohort, planes, modality, name)
    volume = assemble(in_unit, name)
    return DicomSource(entry=entry, grid=volume.grid, folder=cohort, slices=volume.planes, modality=modality)
