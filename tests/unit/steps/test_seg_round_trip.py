"""DICOM SEG of every kind, written by highdicom: medweave reads the voxels that highdicom and SimpleITK read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import highdicom as hd
import numpy as np
import pytest
import SimpleITK
from pydicom.dataset import Dataset

from medweave_steps.io.cohort.discovery import discover_dicom
from medweave_steps.io.cohort.ground_truth import FRACTION, read_dicom_segmentation
from medweave_steps.io.dicom.header import described_segments, read_file
from medweave_steps.io.dicom.series import assemble
from medweave_steps.io.findings import FindingError, SeriesName
from support.dicom_builder import AXIAL, CtSeries, rotated, segmentation, write_datasets

SHAPE = (7, 36, 34)
KINDS = {
    "BINARY": {"kind": "BINARY"},
    "PROBABILITY": {"kind": "FRACTIONAL", "fractional_type": "PROBABILITY"},
    "OCCUPANCY": {"kind": "FRACTIONAL", "fractional_type": "OCCUPANCY"},
    "LABELMAP": {"kind": "LABELMAP"},
}
NAMES = ("tumor", "edema", "necrosis")


def three_labels() -> np.ndarray:
    """Return a mask with the labels 1, 2, 3 in different, sparse slices."""
    mask = np.zeros(SHAPE, dtype=np.uint8)
    mask[1:3, 3:6, 4:9] = 1
    mask[2, 20:30, 10:12] = 2
    mask[5, 2:31, 2:31] = 3
    mask[5, 10:20, 10:20] = 1
    return mask


def read(folder: Path, series: CtSeries, seg: Dataset) -> np.ndarray:
    """Write a series and a segmentation; return the segmentation as medweave reads it."""
    paths = series.write(folder / "ct")
    (path,) = write_datasets([seg], folder / "seg")
    name = SeriesName(case_id="case-1", ordinal=1)
    files = [read_file(folder, str(one.relative_to(folder))) for one in paths]
    volume = assemble([file.planes[0] for file in files if file is not None], name)
    return read_dicom_segmentation(path, volume.planes, volume.grid, name)


def renumbered(seg: Dataset, numbers: tuple[int, ...]) -> None:
    """Give the segments 1, 2, … of a BINARY or FRACTIONAL segmentation other numbers."""
    for segment in seg.SegmentSequence:
        segment.SegmentNumber = numbers[segment.SegmentNumber - 1]
    for group in seg.PerFrameFunctionalGroupsSequence:
        item = group.SegmentIdentificationSequence[0]
        item.ReferencedSegmentNumber = numbers[item.ReferencedSegmentNumber - 1]


def as_highdicom_reads(path: Path, series: CtSeries) -> np.ndarray:
    """Return label values on the grid of the series; slices without a frame are 0."""
    seg = hd.seg.segread(path)
    volume = seg.get_volume(combine_segments=True, relabel=False, skip_overlap_checks=False)
    index = np.linalg.inv(series.affine_lps()) @ volume.affine
    labels = np.zeros(SHAPE, dtype=np.uint8)
    for place in range(volume.array.shape[0]):
        target, row, column = (index @ (place, 0, 0, 1))[:3].round(4)
        assert (row, column) == (0, 0)
        assert target == round(target)
        labels[int(target)] = volume.array[place]
    return labels


def as_simpleitk_reads(path: Path, seg: Dataset, series: CtSeries) -> np.ndarray:
    """Return label values on the grid of the series: the frames of SimpleITK, at the positions of the header."""
    frames = SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(str(path)))
    to_index = np.linalg.inv(series.affine_lps())
    labels = np.zeros(SHAPE, dtype=np.uint8)
    for frame, group in zip(frames, seg.PerFrameFunctionalGroupsSequence, strict=True):
        position = (*map(float, group.PlanePositionSequence[0].ImagePositionPatient), 1)
        index = round(float((to_index @ position)[0]))
        number = int(group.SegmentIdentificationSequence[0].ReferencedSegmentNumber)
        labels[index][frame > 127] = number
    return labels


@pytest.mark.parametrize("orientation", [AXIAL, rotated((1, 2, 3), 20)], ids=["axial", "oblique"])
@pytest.mark.parametrize("kind", KINDS)
def test_several_segments_as_others_read_them(tmp_path: Path, kind: str, orientation: tuple[float, ...]) -> None:
    series, mask = CtSeries(shape=SHAPE, orientation=orientation), three_labels()
    seg = segmentation(series.datasets(), mask, labels=NAMES, **KINDS[kind])
    assert seg.NumberOfFrames < SHAPE[0]
    ours, path = read(tmp_path, series, seg), tmp_path / "seg" / "000.dcm"
    np.testing.assert_array_equal(ours, mask)
    if seg.SegmentationType != "FRACTIONAL":  # highdicom does not apply a threshold
        np.testing.assert_array_equal(ours, as_highdicom_reads(path, series))
    if seg.SegmentationType != "LABELMAP":  # SimpleITK does not know the SOP class
        np.testing.assert_array_equal(ours, as_simpleitk_reads(path, seg, series))


@pytest.mark.parametrize("kind", ["BINARY", "PROBABILITY", "OCCUPANCY"])
def test_numbers_that_leave_some_out(tmp_path: Path, kind: str) -> None:
    series, mask = CtSeries(shape=SHAPE), three_labels()
    seg = segmentation(series.datasets(), mask, labels=NAMES, **KINDS[kind])
    renumbered(seg, (7, 3, 200))
    expected = np.asarray([0, 7, 3, 200], dtype=np.uint8)[mask]
    ours = read(tmp_path, series, seg)
    np.testing.assert_array_equal(ours, expected)
    np.testing.assert_array_equal(ours, as_simpleitk_reads(tmp_path / "seg" / "000.dcm", seg, series))
    (found,) = discover_dicom(tmp_path, ["seg/000.dcm", *(f"ct/{i:03d}.dcm" for i in range(SHAPE[0]))]).series
    assert found.masks[0].segments == ((7, "tumor"), (3, "edema"), (200, "necrosis"))


@pytest.mark.parametrize("kind", ["PROBABILITY", "OCCUPANCY"])
@pytest.mark.parametrize("highest", [1, 100, 255])
def test_a_voxel_belongs_from_one_half_on(tmp_path: Path, kind: str, highest: int) -> None:
    series = CtSeries(shape=SHAPE)
    shares = np.linspace(0, 1, SHAPE[1] * SHAPE[2]).reshape(SHAPE[1:])
    fractions = np.zeros(SHAPE, dtype=np.float32)
    fractions[3] = shares
    options = {"max_fractional_value": highest, "fractional_type": kind}
    seg = segmentation(series.datasets(), three_labels() > 0, kind="FRACTIONAL", keep_empty=True, **options)
    stored = np.rint(fractions * highest).astype(np.uint8)
    seg.PixelData = stored.tobytes()
    ours = read(tmp_path, series, seg)
    order = [
        round(float(g.PlanePositionSequence[0].ImagePositionPatient[2])) for g in seg.PerFrameFunctionalGroupsSequence
    ]
    assert order[3] == round(float(series.position(3)[2]))
    assert FRACTION == 0.5
    np.testing.assert_array_equal(ours[3], stored[3] / highest >= 0.5)
    assert not np.delete(ours, 3, axis=0).any()


def test_the_background_of_a_label_map_is_its_padding_value(tmp_path: Path) -> None:
    series, mask = CtSeries(shape=SHAPE), three_labels()
    seg = segmentation(series.datasets(), mask, kind="LABELMAP", labels=NAMES)
    stored = seg.pixel_array.copy()
    stored[stored == 0] = 9
    seg.PixelData, seg.PixelPaddingValue = stored.astype(np.uint8).tobytes(), 9
    for segment in seg.SegmentSequence:
        segment.SegmentNumber = segment.SegmentNumber or 9
    assert described_segments(seg) == ((1, "tumor"), (2, "edema"), (3, "necrosis"))
    np.testing.assert_array_equal(read(tmp_path, series, seg), mask)


def no_highest(seg: Dataset) -> None:
    del seg.MaximumFractionalValue


def other_kind(seg: Dataset) -> None:
    seg.SegmentationType = "SURFACE"


def tiled(seg: Dataset) -> None:
    del seg.PerFrameFunctionalGroupsSequence
    seg.DimensionOrganizationType = "TILED_FULL"


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (no_highest, "a FRACTIONAL segmentation without MaximumFractionalValue"),
        (other_kind, "a SegmentationType (0062,0001) other than BINARY, FRACTIONAL and LABELMAP"),
        (tiled, "3 frames, but the positions of 0"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, change: Callable[[Dataset], None], seen: str) -> None:
    series = CtSeries(shape=SHAPE)
    seg = segmentation(series.datasets(), three_labels() > 0, kind="FRACTIONAL")
    seg.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.1"
    change(seg)
    with pytest.raises(FindingError) as caught:
        read(tmp_path, series, seg)
    assert caught.value.finding.code == "unreadable-mask"
    assert seen in caught.value.finding.seen
