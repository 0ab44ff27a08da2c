"""A DICOM segmentation lands on the slices it was drawn on, whatever its kind; one from elsewhere is refused."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset

from medweave_core.contracts.cohort import Finding
from medweave_core.contracts.labels import Label
from medweave_steps.check.cohort import Checked
from medweave_steps.io.cohort.source import MaskValues, read_ground_truth
from support.checked import cases_of, check, errors_of, notices_of, only_error, read_truth
from support.dicom_builder import AXIAL, FEET_FIRST_PRONE, CtSeries, rotated, segmentation, write_datasets

SHAPE = (7, 36, 34)


def two_lesions() -> np.ndarray:
    mask = np.zeros(SHAPE, dtype=np.uint8)
    mask[1:3, 3:6, 4:9] = 1
    mask[5, 20:30, 10:12] = 1
    return mask


def write(folder: Path, series: CtSeries, seg: Dataset, *, syntax: str = "explicit") -> None:
    series.write(folder / "ct", syntax=syntax, names=[f"{'dbfaecg'[i]}.dcm" for i in range(SHAPE[0])])
    write_datasets([seg], folder / "seg")


def truth(folder: Path) -> np.ndarray:
    (case,) = cases_of(folder)
    mask = read_truth(folder, case)
    assert mask is not None
    assert mask.dtype == np.uint8
    return mask


@pytest.mark.parametrize("kind", ["BINARY", "FRACTIONAL", "LABELMAP"])
@pytest.mark.parametrize("orientation", [AXIAL, FEET_FIRST_PRONE, rotated((1, 2, 3), 20)])
@pytest.mark.parametrize("keep_empty", [False, True])
def test_every_kind_lands_on_its_slices(
    tmp_path: Path, kind: str, orientation: tuple[float, ...], keep_empty: bool
) -> None:
    series = CtSeries(shape=SHAPE, orientation=orientation)
    seg = segmentation(series.datasets(), two_lesions(), kind=kind, keep_empty=keep_empty)
    write(tmp_path, series, seg, syntax="jpeg2000")
    np.testing.assert_array_equal(truth(tmp_path), two_lesions())


def test_frames_are_placed_by_geometry_not_by_their_order(tmp_path: Path) -> None:
    series = CtSeries(shape=SHAPE)
    write(tmp_path, series, segmentation(series.datasets()[::-1], two_lesions()[::-1]))
    np.testing.assert_array_equal(truth(tmp_path), two_lesions())


@pytest.mark.parametrize("lacking", ["PlanePositionSequence", "DerivationImageSequence"])
def test_position_or_source_image_alone_is_enough(tmp_path: Path, lacking: str) -> None:
    series = CtSeries(shape=SHAPE)
    seg = segmentation(series.datasets(), two_lesions())
    for group in seg.PerFrameFunctionalGroupsSequence:
        delattr(group, lacking)
    write(tmp_path, series, seg)
    np.testing.assert_array_equal(truth(tmp_path), two_lesions())


@pytest.mark.parametrize("kind", ["BINARY", "LABELMAP"])
def test_segments_become_labels(tmp_path: Path, kind: str) -> None:
    mask = two_lesions()
    mask[5] *= 2
    mask[2, 30:33, 30:33] = 2
    series = CtSeries(shape=SHAPE)
    write(tmp_path, series, segmentation(series.datasets(), mask, kind=kind, labels=("nodule", "mass")))
    assert errors_of(tmp_path) == []
    labelled = check(tmp_path).index
    assert labelled.labels == (Label(value=1, name="nodule"), Label(value=2, name="mass"))
    kept = read_ground_truth(tmp_path, labelled.cases[0], MaskValues.of(labelled))
    np.testing.assert_array_equal(kept, mask)
    merge = ("1,2:lesion",)
    checked = check(tmp_path, merge=merge)
    assert checked.index.labels == (Label(value=1, name="lesion"),)
    assert checked.examined[0].labels_found == (1,)
    merged = read_truth(tmp_path, checked.index.cases[0], merge=merge)
    np.testing.assert_array_equal(merged, (mask > 0).astype(np.uint8))


def test_rows_that_do_not_fill_a_byte(tmp_path: Path) -> None:
    shape = (7, 33, 35)  # 1155 bits a frame
    mask = np.random.default_rng(0).integers(0, 2, shape).astype(np.uint8)
    series = CtSeries(shape=shape)
    write(tmp_path, series, segmentation(series.datasets(), mask))
    np.testing.assert_array_equal(truth(tmp_path), mask)


@pytest.mark.parametrize("syntax", [pydicom.uid.RLELossless, pydicom.uid.JPEG2000Lossless, pydicom.uid.JPEGLSLossless])
def test_compressed_segmentation(tmp_path: Path, syntax: pydicom.uid.UID) -> None:
    series = CtSeries(shape=SHAPE)
    seg = segmentation(series.datasets(), two_lesions(), kind="LABELMAP", transfer_syntax_uid=syntax)
    assert seg.file_meta.TransferSyntaxUID == syntax
    series.write(tmp_path / "ct")
    pydicom.dcmwrite(tmp_path / "seg.dcm", seg)
    np.testing.assert_array_equal(truth(tmp_path), two_lesions())


def test_fractions_of_one_half_and_more_belong(tmp_path: Path) -> None:
    fractions = np.zeros(SHAPE, dtype=np.float32)  # the middle slice: highdicom may write the frames from either end
    fractions[3, 3, :3] = 0.4, 0.5, 0.9
    series = CtSeries(shape=SHAPE)
    seg = segmentation(series.datasets(), two_lesions(), kind="FRACTIONAL", keep_empty=True)
    seg.MaximumFractionalValue = 200
    seg.PixelData = np.round(fractions * 200).astype(np.uint8).tobytes()
    write(tmp_path, series, seg)
    expected = np.zeros(SHAPE, dtype=np.uint8)
    expected[3, 3, 1:3] = 1
    np.testing.assert_array_equal(truth(tmp_path), expected)


def test_segmentation_of_enhanced_ct(tmp_path: Path) -> None:
    series = CtSeries(shape=SHAPE)
    order = [3, 1, 2, 0, 6, 5, 4]
    enhanced = series.enhanced(order=order)
    seg = segmentation(series.datasets(), two_lesions())
    for group in seg.PerFrameFunctionalGroupsSequence:
        source = group.DerivationImageSequence[0].SourceImageSequence[0]
        index = [d.SOPInstanceUID for d in series.datasets()].index(source.ReferencedSOPInstanceUID)
        source.ReferencedSOPInstanceUID = enhanced.SOPInstanceUID
        source.ReferencedFrameNumber = order.index(index) + 1
        del group.PlanePositionSequence
    write_datasets([enhanced, seg], tmp_path)
    np.testing.assert_array_equal(truth(tmp_path), two_lesions())


def test_each_segmentation_goes_to_its_series(tmp_path: Path) -> None:
    first, second = CtSeries(shape=SHAPE), CtSeries(key="b", shape=SHAPE, patient="patient-b")
    other = np.roll(two_lesions(), 1, axis=2)
    write(tmp_path / "1", first, segmentation(second.datasets(), other))
    write(tmp_path / "2", second, segmentation(first.datasets(), two_lesions()))
    masks = {case.files[0][:1]: read_truth(tmp_path, case) for case in cases_of(tmp_path)}
    np.testing.assert_array_equal(masks["1"], two_lesions())
    np.testing.assert_array_equal(masks["2"], other)


def test_a_case_without_mask(tmp_path: Path) -> None:
    CtSeries().write(tmp_path)
    (case,) = cases_of(tmp_path)
    assert case.ground_truth is None
    assert read_truth(tmp_path, case) is None


def test_empty_mask_is_a_case_without_lesions_and_is_said(tmp_path: Path) -> None:
    series = CtSeries(shape=SHAPE)
    write(tmp_path, series, segmentation(series.datasets(), np.zeros(SHAPE, np.uint8), keep_empty=True))
    assert not truth(tmp_path).any()
    assert "without lesions" in notices_of(tmp_path)["empty-mask"].what


def test_segmentation_of_no_series_here(tmp_path: Path) -> None:
    CtSeries().write(tmp_path / "ct")
    other = CtSeries(key="elsewhere", shape=SHAPE)
    write_datasets([segmentation(other.datasets(), two_lesions())], tmp_path / "seg")
    assert cases_of(tmp_path)[0].ground_truth is None
    assert "orphan-mask" in notices_of(tmp_path)


def refused(folder: Path, series: CtSeries, seg: Dataset, code: str = "mask-on-another-grid") -> Finding:
    write(folder, series, seg)
    finding = only_error(folder)
    assert finding.code == code
    assert finding.case_id is not None
    assert "(series 1)" in finding.what
    return finding


@pytest.mark.slow
def test_mask_with_other_rows(tmp_path: Path) -> None:
    series, larger = CtSeries(shape=SHAPE), CtSeries(shape=(7, 40, 34))
    mask = np.zeros((7, 40, 34), np.uint8)
    mask[2, 3, 3] = 1
    assert "40 x 34 pixels" in refused(tmp_path, series, segmentation(larger.datasets(), mask)).seen


@pytest.mark.parametrize(
    ("axis", "shift_mm", "seen"), [(0, 4.0, "column 5.00"), (1, 0.35, "row 0.50"), (2, 1.0, "slice 5.50")]
)
def test_mask_next_to_its_series(tmp_path: Path, axis: int, shift_mm: float, seen: str) -> None:
    series = CtSeries(shape=SHAPE)
    seg = segmentation(series.datasets(), two_lesions())
    for group in seg.PerFrameFunctionalGroupsSequence:
        group.PlanePositionSequence[0].ImagePositionPatient[axis] += shift_mm
        del group.DerivationImageSequence
    assert seen in refused(tmp_path, series, seg).seen


def test_mask_of_a_series_whose_positions_drift_sideways(tmp_path: Path) -> None:
    series = CtSeries(shape=SHAPE)
    datasets = series.datasets()
    for index, dataset in enumerate(datasets):
        dataset.ImagePositionPatient[0] += 0.16 * index / (len(datasets) - 1)
    write_datasets(datasets, tmp_path / "ct")
    write_datasets([segmentation(datasets, two_lesions())], tmp_path / "seg")
    assert cases_of(tmp_path)[0].ground_truth is not None


def test_mask_that_names_one_image_and_lies_on_another(tmp_path: Path) -> None:
    series = CtSeries(shape=SHAPE)
    seg = segmentation(series.datasets(), two_lesions())
    first = seg.PerFrameFunctionalGroupsSequence[0]
    first.PlanePositionSequence[0].ImagePositionPatient[2] += series.spacing_mm[0]
    refused(tmp_path, series, seg)


def test_mask_with_other_pixel_spacing(tmp_path: Path) -> None:
    series = CtSeries(shape=SHAPE)
    seg = segmentation(series.datasets(), two_lesions())
    seg.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0].PixelSpacing = [0.75, 0.8]
    assert "0.7500 x 0.8000 mm" in refused(tmp_path, series, seg).seen


def test_mask_with_other_orientation(tmp_path: Path) -> None:
    series = CtSeries(shape=SHAPE)
    seg = segmentation(series.datasets(), two_lesions())
    seg.SharedFunctionalGroupsSequence[0].PlaneOrientationSequence[0].ImageOrientationPatient = [1, 0, 0, 0, -1, 0]
    assert "rotated" in refused(tmp_path, series, seg).seen


def test_mask_drawn_on_a_slice_that_is_missing_at_the_end(tmp_path: Path) -> None:
    # No gap shows in the series itself: only the mask knows that there was one more slice.
    series = CtSeries(shape=SHAPE)
    mask = np.ones(SHAPE, np.uint8)
    write_datasets(series.datasets()[:-1], tmp_path / "ct")
    write_datasets([segmentation(series.datasets(), mask)], tmp_path / "seg")
    assert only_error(tmp_path).code == "mask-on-another-grid"


def test_two_segmentations_of_one_series(tmp_path: Path) -> None:
    series = CtSeries(shape=SHAPE)
    seg = segmentation(series.datasets(), two_lesions())
    again = copy.deepcopy(seg)
    again.SOPInstanceUID = "2.25.3"
    write(tmp_path, series, seg)
    write_datasets([again], tmp_path / "again")
    assert only_error(tmp_path).code == "several-masks"


def test_segmentation_that_is_cut_off(tmp_path: Path) -> None:
    series = CtSeries(shape=SHAPE)
    write(tmp_path, series, segmentation(series.datasets(), two_lesions(), kind="FRACTIONAL"))
    path = tmp_path / "seg" / "000.dcm"
    path.write_bytes(path.read_bytes()[:-1500])
    assert only_error(tmp_path).code == "unreadable-mask"


@pytest.mark.parametrize("kind", ["BINARY", "FRACTIONAL", "LABELMAP"])
def test_an_undescribed_segment_fails_that_case_only(tmp_path: Path, kind: str) -> None:
    for key in ("good", "odd"):
        series = CtSeries(shape=SHAPE, key=key, patient=key)
        seg = segmentation(series.datasets(), two_lesions(), kind=kind)
        if key == "odd":
            seg.SegmentSequence[-1].SegmentNumber = 2
            seg.SOPInstanceUID = seg.file_meta.MediaStorageSOPInstanceUID = "2.25.3"
        write(tmp_path / key, series, seg)
    error = only_error(tmp_path)
    assert error.code == "unreadable-mask"
    assert error.seen == "segment 1 is used, but the SegmentSequence describes only 2"
    index = check(tmp_path, skip=True).index
    assert [label.value for label in index.labels] == [1]
    assert len(index.cases) == 1


def test_labels_that_the_cohort_card_does_not_declare(tmp_path: Path) -> None:
    mask = two_lesions()
    mask[5] *= 2
    series = CtSeries(shape=SHAPE)
    write(tmp_path, series, segmentation(series.datasets(), mask, labels=("nodule", "mass")))
    (tmp_path / "cohort_card.json").write_text('{"labels": {"0": "background", "1": "nodule"}}')
    (finding,) = errors_of(tmp_path)
    assert finding.code == "labels-outside-declared-set"
    assert "label 2 (20 voxels)" in finding.seen
    assert "1 (nodule)" in finding.expected


def lesion_counts(checked: Checked) -> list[int | None]:
    return [examined.num_lesions for examined in checked.examined]


def test_lesions_are_counted_over_corners(tmp_path: Path) -> None:
    mask = np.zeros(SHAPE, np.uint8)
    mask[1, 1, 1] = mask[2, 2, 2] = mask[4, 4, 4] = 1  # the first two touch at a corner
    series = CtSeries(shape=SHAPE)
    write(tmp_path, series, segmentation(series.datasets(), mask))
    assert lesion_counts(check(tmp_path)) == [2]
