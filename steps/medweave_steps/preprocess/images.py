"""One 2-D image from its file to the folder of a prepared case: a volume of one slice."""

from __future__ import annotations

import time

import numpy as np

from medweave_core.contracts import codec
from medweave_core.contracts.volume import Grid, VolumeInfo, unit_of
from medweave_steps.io.cohort.images import open_image
from medweave_steps.io.dicom.header import load_pydicom
from medweave_steps.io.dicom.source_headers import write_headers
from medweave_steps.io.geometry import FloatArray, affine_rows
from medweave_steps.io.image.picture import resized
from medweave_steps.preprocess.case import CaseDone, CaseJob, check_files, save_array


def prepare_image(job: CaseJob) -> CaseDone:
    """Read, scale and write one image.

    Raises:
        UserInputError: the image is not the one that `check` saw, or cannot be read; the case is named.
        OSError: the output cannot be written.
    """
    started = time.monotonic()
    entry, size = job.entry, job.settings.image_size
    assert size is not None
    check_files(job.cohort, entry)
    picture = open_image(job.cohort, entry)
    fitted, start = fit(picture.pixels_CRI, *size)
    volume_CIJK = fitted.transpose(0, 2, 1)[..., None]
    save_array(job.folder / "volume.npy", volume_CIJK)
    info = VolumeInfo(
        case_id=entry.case_id,
        source_format=entry.source_format,
        source_grid=entry.grid,
        source_sha256=entry.content_sha256,
        source_axis=(0, 1, 2),
        source_flipped=(False, False, False),
        grid=_grid(entry.grid, size, start),
        crop_start=(-start[0], -start[1], 0),
        window_hu=None,
        unit=unit_of(entry.channels),
        channels=entry.channels,
        body_part=entry.body_part,
    )
    (job.folder / "volume_info.json").write_text(codec.dumps(info), encoding="utf-8")
    if job.for_segment and entry.source_format == "dicom":
        header = load_pydicom().dcmread(job.cohort / entry.files[0], stop_before_pixels=True, force=True)
        write_headers(job.folder / "source_headers.zip", [header])
    return CaseDone(
        case_id=entry.case_id,
        has_label=False,
        num_lesions=0,
        num_label_voxels=0,
        voxels_by_label={},
        figures={
            "seconds": round(time.monotonic() - started, 3),
            "source_shape": list(entry.grid.shape),
            "shape": [*size, 1],
            "num_lesions": 0,
            "padded_pixels": int(np.prod(size) - np.prod(_scaled_size(entry.grid, size))),
        },
        notices=(),
    )


def fit(pixels_CRI: FloatArray, columns: int, rows: int) -> tuple[FloatArray, tuple[int, int]]:
    """Return the whole image as large as it fits, in the middle of a black image of the wanted size.

    The aspect ratio is kept, to a pixel, and nothing is cut off: a finding may lie at the border.

    Returns:
        float32 [channel, row, column]; and the first column and row of the image in it.
    """
    channels, source_rows, source_columns = pixels_CRI.shape
    width, height = _fitted(source_columns, source_rows, columns, rows)
    left, top = (columns - width) // 2, (rows - height) // 2
    canvas = np.zeros((channels, rows, columns), np.float32)
    canvas[:, top : top + height, left : left + width] = resized(pixels_CRI, width, height)
    return canvas, (left, top)


def _fitted(source_columns: int, source_rows: int, columns: int, rows: int) -> tuple[int, int]:
    factor = min(columns / source_columns, rows / source_rows)
    return max(1, min(columns, round(source_columns * factor))), max(1, min(rows, round(source_rows * factor)))


def _scaled_size(source: Grid, size: tuple[int, int]) -> tuple[int, int]:
    return _fitted(source.shape[0], source.shape[1], *size)


def _grid(source: Grid, size: tuple[int, int], start: tuple[int, int]) -> Grid:
    """Return the grid of the prepared image, on which its pixels lie where they are in the source."""
    affine = np.asarray(source.affine)
    steps = [source.shape[axis] / scaled for axis, scaled in enumerate(_scaled_size(source, size))]
    first = [(step - 1) / 2 - step * offset for step, offset in zip(steps, start, strict=True)]
    to_source = np.diag([*steps, 1.0, 1.0])
    to_source[:2, 3] = first
    return Grid(shape=(*size, 1), affine=affine_rows(affine @ to_source))
