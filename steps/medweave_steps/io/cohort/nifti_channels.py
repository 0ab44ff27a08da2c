"""The NIfTI files of one case: one file with all channels, or one file for each channel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.labels import LabelMerge
from medweave_core.contracts.volume import Grid
from medweave_steps.io.channel_grid import covered_share, is_same_grid, resample_to_grid
from medweave_steps.io.cohort.digest import joined_files_digest, nifti_digest, update_nifti
from medweave_steps.io.cohort.ground_truth import read_nifti_mask
from medweave_steps.io.cohort.labels import LabelArray
from medweave_steps.io.findings import FindingError, SeriesName
from medweave_steps.io.geometry import FloatArray
from medweave_steps.io.nifti.volume import NiftiVolume, open_nifti


@dataclass(slots=True)
class ContentDigest:
    """Digest of all files of a case, complete once every plane was read."""

    files: list[str] = field(default_factory=list)

    def hexdigest(self) -> str:
        """Return the digest as `check` stores it."""
        return joined_files_digest(self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class NiftiChannels:
    """The opened files of one case.

    Attributes:
        volumes: one with all channels, or one for each of `channels`.
        channels: names of the contrasts, in order.
    """

    volumes: tuple[NiftiVolume, ...]
    channels: tuple[str, ...]

    @property
    def grid(self) -> Grid:
        """Grid of the case: that of the first channel."""
        return self.volumes[0].grid

    @property
    def resampled(self) -> dict[str, float]:
        """Channels that lie on another grid than the first and are resampled to it, with the share of it that they cover."""
        pairs = zip(self.channels, self.volumes, strict=False)  # one file may hold several channels, on one grid
        return {
            channel: covered_share(volume.grid, self.grid)
            for channel, volume in pairs
            if not is_same_grid(volume.grid, self.grid)
        }

    def planes(
        self, *, digest: ContentDigest | None, wanted: Sequence[int] | None, padding: float | None
    ) -> Iterator[FloatArray]:
        """Yield the planes of the first channel, then of the next, float32 [i, j] on `grid`.

        Args:
            digest: gets the digest of each file once its planes were read; None for no digest.
            wanted: ascending indices of the planes to hand out, None for all.
            padding: replaces values that are not finite; None for the background of the volume.
        Raises:
            FindingError: a file ends too early or its compression is damaged.
        """
        depth = self.grid.shape[2]
        indices = range(depth) if wanted is None else wanted
        selected = set(indices)
        for volume in self.volumes:
            if is_same_grid(volume.grid, self.grid):
                for index, stored in enumerate(_stored_planes(volume, digest)):
                    if index % depth in selected:
                        yield volume.to_hu(stored, padding=padding)
                continue
            values = np.empty(volume.grid.shape, dtype=np.float32, order="F")
            for index, stored in enumerate(_stored_planes(volume, digest)):
                values[:, :, index] = volume.to_hu(stored, padding=padding)
            outside = volume.background if padding is None else padding
            yield from resample_to_grid(values, volume.grid, self.grid, planes=indices, plane_axis=2, outside=outside)


def open_channels(paths: Sequence[Path], name: SeriesName, channels: tuple[str, ...]) -> NiftiChannels:
    """Read the headers of the files of one case.

    Args:
        paths: one file with all channels, or a file for each of them, in order.
    Raises:
        FileNotFoundError: a file is not there.
        FindingError: a header cannot be used (see `open_nifti`), or a channel does not overlap the first one.
    """
    if len(paths) == 1:
        return NiftiChannels(volumes=(open_nifti(paths[0], name, channels=channels),), channels=channels)
    volumes = tuple(
        open_nifti(path, name, role=f"volume of channel {channel}", channels=(channel,))
        for path, channel in zip(paths, channels, strict=True)
    )
    files = NiftiChannels(volumes=volumes, channels=channels)
    for channel, covered in files.resampled.items():
        if covered == 0:
            other = volumes[channels.index(channel)]
            raise _apart(name, channel, channels[0], other.grid, files.grid)
    return files


def read_mask(path: Path, files: NiftiChannels, name: SeriesName, merges: Sequence[LabelMerge]) -> LabelArray:
    """Return the NIfTI label map of a case on the grid of its first channel; see `read_nifti_mask`.

    Raises:
        FindingError: also if the mask lies on the grid of another channel, with the name of that channel.
    """
    try:
        return read_nifti_mask(path, files.grid, name, merges)
    except FindingError as error:
        if error.finding.code != "mask-on-another-grid" or len(files.volumes) == 1:
            raise
        grid = open_nifti(path, name, role="mask").grid
        pairs = zip(files.channels, files.volumes, strict=True)
        channel = next((channel for channel, volume in pairs if is_same_grid(volume.grid, grid)), None)
        if channel is None:
            raise
        raise name.refuse(
            "mask-on-another-grid",
            f"the mask is on the grid of the channel {channel}, not of the first channel.",
            seen=error.seen,
            expected=f"a mask on the grid of {files.channels[0]}",
            do=f"list {channel} first in the rules of --channels",
        ) from error


def _apart(name: SeriesName, channel: str, first_channel: str, grid: Grid, first: Grid) -> FindingError:
    return name.refuse(
        "channels-do-not-overlap",
        f"the channels {channel} and {first_channel} do not overlap.",
        seen=f"{channel} centered at {_center(grid)}, {first_channel} at {_center(first)} (right, anterior, superior)",
        expected="all channels of a case in one frame of reference",
        do="register the channels, or correct the affine of the file, or skip the case with --on-error skip",
    )


def _center(grid: Grid) -> str:
    middle = np.asarray(grid.affine) @ [*((size - 1) / 2 for size in grid.shape), 1]
    return f"{', '.join(f'{value:.0f}' for value in middle[:3])} mm"


def _stored_planes(volume: NiftiVolume, digest: ContentDigest | None) -> Iterator[npt.NDArray[Any]]:
    """Yield all planes of a file as stored; add the digest of the file at its end."""
    of_file = nifti_digest(volume)
    for stored in volume.planes():
        if digest is not None:
            update_nifti(of_file, stored)
        yield stored
    if digest is not None:
        digest.files.append(of_file.hexdigest())
