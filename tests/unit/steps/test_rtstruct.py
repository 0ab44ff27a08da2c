"""RT Structure Sets as ground truth: contours land on the slices they were drawn on, and what is not clear is refused."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pydicom
import pytest
from matplotlib.path import Path as Outline
from pydicom.data import get_testdata_file
from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset

from medweave_core.contracts.cohort import Finding
from medweave_steps.check.command import DESCRIPTION
from medweave_steps.io.cohort.source import MaskValues, read_ground_truth
from support.checked import cases_of, check, errors_of, notices_of, only_error, read_truth
from support.dicom_builder import AXIAL, FEET_FIRST_PRONE, CtSeries, rotated, segmentation, uid, write_datasets
from support.mr_pet_builder import MrSeries
from support.structure_sets import DrawnRoi, circle, coordinates, keyhole, rectangle, star, structure_set
from support.validators import dciodvfy_errors

SHAPE = (7, 36, 34)
STAR, RING = star((17.2, 15.7), 11.4), (circle((16.4, 17.1), 12.3), circle((15.9, 16.6), 5.2))
SQUARE = rectangle((4.6, 6.6), (9.4, 12.4))


def enclosed(*polygons: np.ndarray) -> np.ndarray:
    """Return the voxels inside an odd number of simple polygons, as matplotlib finds them."""
    rows, columns = np.indices(SHAPE[1:])
    centers = np.stack((rows.ravel(), columns.ravel()), axis=1).astype(float)
    inside = [Outline(polygon).contains_points(centers).reshape(SHAPE[1:]) for polygon in polygons]
    return np.logical_xor.reduce(inside)


def moved(polygon: np.ndarray, *, rows: float = 0, columns: float = 0) -> np.ndarray:
    return polygon + np.asarray((rows, columns))


def on_slices(planes: Mapping[int, np.ndarray]) -> np.ndarray:
    mask = np.zeros(SHAPE, dtype=np.uint8)
    for index, plane in planes.items():
        mask[index] = plane
    return mask


def nodule(*contours: tuple[float, np.ndarray], kind: str = "CLOSED_PLANAR") -> dict[int, DrawnRoi]:
    return {1: DrawnRoi(name="nodule", contours=contours, kind=kind)}


def write(
    folder: Path, series: CtSeries, rois: Mapping[int, DrawnRoi] | Dataset, *, syntax: str = "explicit"
) -> Dataset:
    dataset = rois if isinstance(rois, Dataset) else structure_set(series, rois)
    series.write(folder / "ct", names=[f"{'dbfaecg'[i]}.dcm" for i in range(SHAPE[0])])
    write_datasets([dataset], folder / "rt", syntax=syntax)
    return dataset


def truth(folder: Path) -> np.ndarray:
    (case,) = cases_of(folder)
    mask = read_truth(folder, case)
    assert mask is not None
    assert mask.dtype == np.uint8
    return mask


def every_label(folder: Path) -> np.ndarray:
    index = check(folder).index
    assert [finding for finding in index.findings if finding.severity == "error"] == []
    mask = read_ground_truth(folder, index.cases[0], MaskValues.of(index))
    assert mask is not None
    return mask


@pytest.mark.parametrize("syntax", ["implicit", "explicit"])
@pytest.mark.parametrize("orientation", [AXIAL, FEET_FIRST_PRONE, rotated((1, 2, 3), 20), rotated((0, 0, 1), 12)])
def test_contours_land_on_their_slices(tmp_path: Path, orientation: tuple[float, ...], syntax: str) -> None:
    series = CtSeries(shape=SHAPE, orientation=orientation)
    contours = ((2, STAR), (3, RING[0]), (3, RING[1]), (4, keyhole(*RING)))
    write(tmp_path, series, nodule(*contours), syntax=syntax)
    mask = truth(tmp_path)
    np.testing.assert_array_equal(mask[:4], on_slices({2: enclosed(STAR), 3: enclosed(*RING)})[:4])
    np.testing.assert_array_equal(mask[5:], 0)
    np.testing.assert_array_equal(mask[4], enclosed(*RING))  # no center lies on the channel


def test_the_file_that_the_tests_write_is_valid(tmp_path: Path) -> None:
    write(tmp_path, CtSeries(shape=SHAPE), nodule((2, STAR)))
    assert dciodvfy_errors(tmp_path / "rt" / "000.dcm") == []


def test_contours_of_the_type_xor_are_read_alike(tmp_path: Path) -> None:
    write(tmp_path, CtSeries(shape=SHAPE), nodule((3, RING[0]), (3, RING[1]), kind="CLOSEDPLANAR_XOR"))
    np.testing.assert_array_equal(truth(tmp_path), on_slices({3: enclosed(*RING)}))


def test_contours_of_enhanced_ct(tmp_path: Path) -> None:
    series = CtSeries(shape=SHAPE)
    order = [3, 1, 2, 0, 6, 5, 4]
    enhanced = series.enhanced(order=order)
    dataset = structure_set(series, nodule((2, STAR), (5, SQUARE)))
    for contour, index in zip(dataset.ROIContourSequence[0].ContourSequence, (2, 5), strict=True):
        image = contour.ContourImageSequence[0]
        image.ReferencedSOPInstanceUID = enhanced.SOPInstanceUID
        image.ReferencedFrameNumber = order.index(index) + 1
    series_item = (
        dataset.ReferencedFrameOfReferenceSequence[0].RTReferencedStudySequence[0].RTReferencedSeriesSequence[0]
    )
    series_item.ContourImageSequence = series_item.ContourImageSequence[:1]
    series_item.ContourImageSequence[0].ReferencedSOPInstanceUID = enhanced.SOPInstanceUID
    write_datasets([enhanced, dataset], tmp_path)
    expected = on_slices({2: enclosed(STAR), 5: enclosed(SQUARE)})
    np.testing.assert_array_equal(truth(tmp_path), expected)
    for contour in dataset.ROIContourSequence[0].ContourSequence:
        del contour.ContourImageSequence[0].ReferencedFrameNumber  # only the position identifies the slice
    write_datasets([enhanced, dataset], tmp_path)
    np.testing.assert_array_equal(truth(tmp_path), expected)


def test_a_file_without_references_from_contours_to_images(tmp_path: Path) -> None:
    dataset = structure_set(CtSeries(shape=SHAPE), nodule((2, STAR)))
    del dataset.ROIContourSequence[0].ContourSequence[0].ContourImageSequence
    write(tmp_path, CtSeries(shape=SHAPE), dataset)
    np.testing.assert_array_equal(truth(tmp_path), on_slices({2: enclosed(STAR)}))


def test_a_file_that_names_its_series_only_by_the_images_of_its_contours(tmp_path: Path) -> None:
    dataset = structure_set(CtSeries(shape=SHAPE), nodule((2, STAR)))
    del dataset.ReferencedFrameOfReferenceSequence
    write(tmp_path, CtSeries(shape=SHAPE), dataset)
    np.testing.assert_array_equal(truth(tmp_path), on_slices({2: enclosed(STAR)}))


def test_numbers_and_names_of_rois_are_values_and_names_of_labels(tmp_path: Path) -> None:
    rois = {
        7: DrawnRoi(name="mass", contours=[(2, moved(SQUARE, columns=8))]),
        2: DrawnRoi(name="nodule", contours=[(2, SQUARE)]),
        3: DrawnRoi(name="planned"),
    }
    write(tmp_path, CtSeries(shape=SHAPE), rois)
    np.testing.assert_array_equal(
        every_label(tmp_path), on_slices({2: 2 * enclosed(SQUARE) + 7 * enclosed(moved(SQUARE, columns=8))})
    )
    assert [label.text for label in check(tmp_path).index.labels] == ["2 (nodule)", "7 (mass)"]
    checked = check(tmp_path, merge=("2,7:lesion",))
    assert [(label.value, label.name) for label in checked.index.labels] == [(2, "lesion")]
    assert checked.examined[0].num_label_voxels == 2 * 5 * 6


def cohort_of(folder: Path, *names: Mapping[int, str]) -> None:
    """Write a patient for each mapping of ROI numbers to names."""
    for patient, rois in enumerate(names):
        series = CtSeries(shape=SHAPE, key=f"p{patient}", patient=f"p{patient}")
        drawn = {n: DrawnRoi(name=text, contours=[(n, SQUARE)]) for n, text in rois.items()}
        write(folder / str(patient), series, drawn)


def test_numbers_that_change_their_meaning_between_patients_are_refused(tmp_path: Path) -> None:
    cohort_of(tmp_path, {1: "GTV", 2: "heart", 3: "lung"}, {1: "Heart", 2: "GTV", 3: "lung"})
    finding = only_error(tmp_path)
    assert (finding.code, finding.seen) == ("label-numbers-differ", "'gtv' is 1 and 2, 'heart' is 1 and 2")
    index = check(tmp_path, merge=("1,2:structure",)).index
    assert [label.text for label in index.labels] == ["1 (structure)", "3 (lung)"]
    assert not any(finding.severity == "error" for finding in index.findings)


def test_other_spellings_of_a_name_are_a_notice(tmp_path: Path) -> None:
    cohort_of(tmp_path, {1: "GTV", 2: "lung"}, {1: "GTV-1", 2: "lung"})
    assert errors_of(tmp_path) == []
    assert notices_of(tmp_path)["labels-differ"].seen == "'GTV', 'GTV-1'"


def test_structures_of_one_name_are_no_contradiction(tmp_path: Path) -> None:
    cohort_of(tmp_path, {1: "nodule"}, {1: "nodule", 2: "nodule"})
    assert errors_of(tmp_path) == []


def test_rois_that_touch_do_not_overlap(tmp_path: Path) -> None:
    middle = 12.5  # no voxel center lies on the common path
    rois = {
        1: DrawnRoi(name="left", contours=[(2, rectangle((4.5, 4.5), (9.5, middle)))]),
        2: DrawnRoi(name="right", contours=[(2, rectangle((4.5, middle), (9.5, 20.5)))]),
    }
    write(tmp_path, CtSeries(shape=SHAPE), rois)
    mask = every_label(tmp_path)
    assert [int((mask == value).sum()) for value in (1, 2)] == [5 * 8, 5 * 8]


def test_rois_that_overlap_are_refused_with_the_merges_that_help(tmp_path: Path) -> None:
    rois = {
        1: DrawnRoi(name="GTV", contours=[(2, SQUARE)]),
        4: DrawnRoi(name="body", contours=[(2, rectangle((1.6, 1.6), (30.4, 30.4)))]),
    }
    write(tmp_path, CtSeries(shape=SHAPE), rois)
    finding = only_error(tmp_path)
    assert (finding.code, finding.seen) == ("overlapping-segments", "ROIs 1 (GTV) and 4 (body) in 30 voxels")
    assert "--merge-labels 1,4:NAME" in finding.do
    assert "--merge-labels 0,4:background" in finding.do
    (case,) = check(tmp_path, merge=("0,4:background",)).index.cases
    mask = read_truth(tmp_path, case, merge=("0,4:background",))
    np.testing.assert_array_equal(mask, on_slices({2: enclosed(SQUARE)}))
    (case,) = check(tmp_path, merge=("1,4:all",)).index.cases
    merged = read_truth(tmp_path, case, merge=("1,4:all",))
    assert merged is not None
    assert merged.sum() == 29 * 29


def test_slices_between_contours_are_not_filled_and_reported(tmp_path: Path) -> None:
    write(tmp_path, CtSeries(shape=SHAPE), nodule((1, SQUARE), (4, SQUARE), (5, SQUARE)))
    inside = enclosed(SQUARE)
    np.testing.assert_array_equal(truth(tmp_path), on_slices({1: inside, 4: inside, 5: inside}))
    assert notices_of(tmp_path)["slices-without-contour"].seen == "ROI 1 (nodule): 2 slices"


def test_contours_that_cross_are_reported(tmp_path: Path) -> None:
    other = moved(SQUARE, rows=3, columns=4)
    write(tmp_path, CtSeries(shape=SHAPE), nodule((2, SQUARE), (2, other)))
    np.testing.assert_array_equal(truth(tmp_path), on_slices({2: enclosed(SQUARE, other)}))
    common = int((enclosed(SQUARE) & enclosed(other)).sum())
    assert notices_of(tmp_path)["crossing-contours"].seen == f"ROI 1 (nodule): {common} voxels"


def test_an_roi_without_contours_is_reported(tmp_path: Path) -> None:
    rois = {**nodule((2, STAR)), 3: DrawnRoi(name="planned")}
    write(tmp_path, CtSeries(shape=SHAPE), rois)
    assert truth(tmp_path).any()
    assert notices_of(tmp_path)["roi-without-contours"].seen == "3 (planned)"
    assert "crossing-contours" not in notices_of(tmp_path)


def test_only_rois_without_contours_are_a_case_without_lesions(tmp_path: Path) -> None:
    write(tmp_path, CtSeries(shape=SHAPE), {3: DrawnRoi(name="planned")})
    assert not truth(tmp_path).any()
    assert {"empty-mask", "roi-without-contours"} <= notices_of(tmp_path).keys()


def test_a_structure_set_of_a_planning_system(tmp_path: Path) -> None:
    path = Path(get_testdata_file("rtstruct.dcm"))  # the surface of a water phantom, and two isocenters
    contours = pydicom.dcmread(path, force=True)
    series = CtSeries(shape=(4, 32, 42), spacing_mm=(10, 10, 10), origin=(-205, -155, -210))
    frame = contours.ReferencedFrameOfReferenceSequence[0]
    images = series.datasets()
    for image in images:
        image.SeriesInstanceUID = frame.RTReferencedStudySequence[0].RTReferencedSeriesSequence[0].SeriesInstanceUID
        image.FrameOfReferenceUID = frame.FrameOfReferenceUID
    write_datasets(images, tmp_path / "ct")
    shutil.copy(path, tmp_path / "rtstruct.dcm")
    assert only_error(tmp_path).seen == "ROI 2 (Isocenter 1): 1 POINT; ROI 3 (Isocenter 2): 1 POINT"
    merge = ("0,2,3:background",)
    checked = check(tmp_path, merge=merge)
    assert [label.text for label in checked.index.labels] == ["1 (patient)"]
    expected = np.zeros(series.shape, dtype=np.uint8)
    expected[1:, 1:-1, 1:-1] = 1  # 400 x 300 mm around the origin
    np.testing.assert_array_equal(read_truth(tmp_path, checked.index.cases[0], merge=merge), expected)


def test_each_structure_set_goes_to_its_series(tmp_path: Path) -> None:
    first, second = CtSeries(shape=SHAPE), CtSeries(key="b", shape=SHAPE, patient="patient-b")
    first.write(tmp_path / "1")
    second.write(tmp_path / "2")
    sets = [structure_set(second, nodule((2, SQUARE))), structure_set(first, nodule((3, STAR)))]
    write_datasets(sets, tmp_path / "rt")
    masks = {case.files[0][:1]: read_truth(tmp_path, case) for case in cases_of(tmp_path)}
    np.testing.assert_array_equal(masks["1"], on_slices({3: enclosed(STAR)}))
    np.testing.assert_array_equal(masks["2"], on_slices({2: enclosed(SQUARE)}))


def test_a_structure_set_of_an_mr_study_is_drawn_on_one_of_its_channels(tmp_path: Path) -> None:
    first = MrSeries(key="t2", patient="p", shape=SHAPE)
    second = MrSeries(key="t1", patient="p", shape=SHAPE, echo_time_ms=10.0, description="t1")
    for series in (first, second):
        series.write(tmp_path / series.key)
    write_datasets([structure_set(second, nodule((2, STAR)))], tmp_path / "rt")
    rules = [{"name": "T2w", "echo_time_ms": [80, 120]}, {"name": "T1w", "echo_time_ms": [5, 20]}]
    (case,) = check(tmp_path, channels=rules).index.cases
    assert case.channels == ("T2w", "T1w")
    np.testing.assert_array_equal(read_truth(tmp_path, case), on_slices({2: enclosed(STAR)}))


def test_a_structure_set_of_no_series_here(tmp_path: Path) -> None:
    CtSeries(shape=SHAPE).write(tmp_path / "ct")
    write_datasets([structure_set(CtSeries(key="elsewhere", shape=SHAPE), nodule((2, STAR)))], tmp_path / "rt")
    assert cases_of(tmp_path)[0].ground_truth is None
    assert (
        "1 DICOM mask (SEG or RTSTRUCT) references no CT series of the cohort"
        in notices_of(tmp_path)["orphan-mask"].what
    )


def test_a_structure_set_beside_a_segmentation(tmp_path: Path) -> None:
    series = CtSeries(shape=SHAPE)
    write(tmp_path, series, nodule((2, STAR)))
    write_datasets([segmentation(series.datasets(), on_slices({2: enclosed(STAR)}))], tmp_path / "seg")
    finding = only_error(tmp_path)
    assert (finding.code, finding.seen) == ("several-masks", "2 masks")


def test_check_says_that_structure_sets_are_read() -> None:
    assert "RTSTRUCT" in DESCRIPTION


def referenced_series(dataset: Dataset) -> Dataset:
    return dataset.ReferencedFrameOfReferenceSequence[0].RTReferencedStudySequence[0].RTReferencedSeriesSequence[0]


def of_other_images(dataset: Dataset) -> None:
    for number, image in enumerate(referenced_series(dataset).ContourImageSequence):
        image.ReferencedSOPInstanceUID = uid("elsewhere", number)


def of_a_missing_image(dataset: Dataset) -> None:
    first_contour(dataset).ContourImageSequence[0].ReferencedSOPInstanceUID = uid("elsewhere")


def of_another_slice(dataset: Dataset) -> None:
    images = referenced_series(dataset).ContourImageSequence
    first_contour(dataset).ContourImageSequence[0].ReferencedSOPInstanceUID = images[4].ReferencedSOPInstanceUID


def of_another_frame(dataset: Dataset) -> None:
    dataset.StructureSetROISequence[0].ReferencedFrameOfReferenceUID = uid("another frame")


def of_another_frame_in_its_list_only(dataset: Dataset) -> None:
    del dataset.StructureSetROISequence[0].ReferencedFrameOfReferenceUID
    dataset.ReferencedFrameOfReferenceSequence[0].FrameOfReferenceUID = uid("another frame")


def first_contour(dataset: Dataset) -> Dataset:
    return dataset.ROIContourSequence[0].ContourSequence[0]


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (of_other_images, "7 referenced images, none of them in the series"),
        (of_a_missing_image, "an image missing in the series"),
        (of_another_slice, "references one image but has the position of another"),
        (of_another_frame, "a frame of reference that the series does not have"),
        (of_another_frame_in_its_list_only, "a frame of reference that the series does not have"),
    ],
)
def test_a_structure_set_drawn_on_another_series(tmp_path: Path, change: Callable[[Dataset], None], seen: str) -> None:
    dataset = structure_set(CtSeries(shape=SHAPE), nodule((2, STAR)))
    change(dataset)
    write(tmp_path, CtSeries(shape=SHAPE), dataset)
    assert seen in refused(tmp_path, "mask-on-another-grid").seen


def refused(folder: Path, code: str) -> Finding:
    finding = only_error(folder)
    assert finding.code == code
    assert finding.case_id is not None
    assert "(series 1)" in finding.what
    assert finding.do
    return finding


def oblique() -> tuple[np.ndarray, np.ndarray]:
    return np.linspace(2, 4, len(STAR)), STAR


@pytest.mark.parametrize(
    ("contour", "seen"),
    [
        ((2.5, STAR), "a contour at slice 2.50 of the series grid, between two slices"),
        ((2.15, STAR), "a contour at slice 2.15 of the series grid, between two slices"),
        ((7, STAR), "a contour at slice 7 of the series grid"),
        ((-1, STAR), "a contour at slice -1 of the series grid"),
        ((2, moved(STAR, columns=12)), "a contour point at row"),
        ((2, moved(STAR, rows=-8)), "a contour point at row"),
        (oblique(), "a contour from slice 2.00 to 4.00 of the series grid"),
    ],
)
def test_a_contour_off_the_slices(tmp_path: Path, contour: tuple[float, np.ndarray], seen: str) -> None:
    series = CtSeries(shape=SHAPE)
    dataset = structure_set(series, nodule((2, STAR)))
    item = first_contour(dataset)
    del item.ContourImageSequence
    item.ContourData = coordinates(series, *contour)
    write(tmp_path, series, dataset)
    finding = refused(tmp_path, "mask-on-another-grid")
    assert finding.seen.startswith(f"ROI 1 (nodule): {seen}")
    assert "--merge-labels 0,1:background" in finding.do


def test_a_contour_up_to_the_border_of_the_image_is_accepted(tmp_path: Path) -> None:
    write(tmp_path, CtSeries(shape=SHAPE), nodule((2, rectangle((-0.5, -0.5), (35.5, 33.5)))))
    assert truth(tmp_path)[2].all()


@pytest.mark.parametrize("kind", ["OPEN_PLANAR", "OPEN_NONPLANAR", "POINT", ""])
def test_open_contours(tmp_path: Path, kind: str) -> None:
    rois = {**nodule((2, SQUARE)), 5: DrawnRoi(name="isocenter", contours=[(2, STAR[:1]), (3, STAR[:1])], kind=kind)}
    write(tmp_path, CtSeries(shape=SHAPE), rois)
    finding = refused(tmp_path, "open-contour")
    assert finding.seen == f"ROI 5 (isocenter): 2 {kind or 'unknown'}"
    merge = ("0,5:background",)
    assert f"--merge-labels {merge[0]}" in finding.do
    (case,) = check(tmp_path, merge=merge).index.cases
    np.testing.assert_array_equal(read_truth(tmp_path, case, merge=merge), on_slices({2: enclosed(SQUARE)}))


def with_data(*values: str, points: int | None = None) -> Callable[[Dataset], None]:
    def change(dataset: Dataset) -> None:
        item = first_contour(dataset)
        content = "\\".join(values).encode()
        content += b" " * (len(content) % 2)
        tag = pydicom.tag.Tag("ContourData")
        item._dict[tag] = RawDataElement(tag, "DS", len(content), content, 0, False, True)
        item.NumberOfContourPoints = len(values) // 3 if points is None else points

    return change


def described_twice(dataset: Dataset) -> None:
    dataset.StructureSetROISequence.append(copy.deepcopy(dataset.StructureSetROISequence[0]))


def drawn_twice(dataset: Dataset) -> None:
    dataset.ROIContourSequence.append(copy.deepcopy(dataset.ROIContourSequence[0]))


def contour_twice(dataset: Dataset) -> None:
    dataset.ROIContourSequence[0].ContourSequence.append(copy.deepcopy(first_contour(dataset)))


def reference_without_uid(dataset: Dataset) -> None:
    del first_contour(dataset).ContourImageSequence[0].ReferencedSOPInstanceUID


def undescribed(dataset: Dataset) -> None:
    dataset.ROIContourSequence[0].ReferencedROINumber = 9


@pytest.mark.parametrize(
    ("change", "code", "seen"),
    [
        (with_data(*"123456"), "open-contour", "ROI 1 (nodule): 2 points"),
        (with_data(), "open-contour", "ROI 1 (nodule): 0 points"),
        (with_data(*"1234567891"), "unreadable-mask", "with 10 coordinates, not triplets"),
        (with_data(*"12345678", ""), "unreadable-mask", "a coordinate that is not a finite number"),
        (with_data(*"12345678", "nan"), "unreadable-mask", "a coordinate that is not a finite number"),
        (with_data(*"12345678", "inf"), "unreadable-mask", "a coordinate that is not a finite number"),
        (with_data(*"12345678", "x"), "unreadable-mask", "a coordinate that is not a finite number"),
        (with_data(*"123456789", points=12), "unreadable-mask", "with 3 of 12 points"),
        (described_twice, "unreadable-mask", "StructureSetROISequence with ROI 1 more than once"),
        (drawn_twice, "unreadable-mask", "ROIContourSequence with ROI 1 more than once"),
        (contour_twice, "unreadable-mask", "the same contour of ROI 1 (nodule) twice"),
        (reference_without_uid, "unreadable-mask", "an unusable header (AttributeError)"),
        (undescribed, "unreadable-mask", "contours of ROI 9, which StructureSetROISequence does not describe"),
    ],
)
def test_damaged_structure_sets(tmp_path: Path, change: Callable[[Dataset], None], code: str, seen: str) -> None:
    dataset = structure_set(CtSeries(shape=SHAPE), nodule((2, STAR)))
    change(dataset)
    write(tmp_path, CtSeries(shape=SHAPE), dataset)
    assert seen in refused(tmp_path, code).seen


def test_a_structure_set_without_an_roi(tmp_path: Path) -> None:
    write(tmp_path, CtSeries(shape=SHAPE), structure_set(CtSeries(shape=SHAPE), {}))
    refused(tmp_path, "no-roi")


@pytest.mark.parametrize("number", [0, 256, 1000])
def test_an_roi_number_that_is_no_label_value(tmp_path: Path, number: int) -> None:
    write(tmp_path, CtSeries(shape=SHAPE), {number: DrawnRoi(name="nodule", contours=[(2, STAR)])})
    assert refused(tmp_path, "labels-outside-declared-set").seen == f"ROINumber {number}"


def test_a_structure_set_that_is_cut_off(tmp_path: Path) -> None:
    write(tmp_path, CtSeries(shape=SHAPE), nodule((2, STAR)))
    path = tmp_path / "rt" / "000.dcm"
    path.write_bytes(path.read_bytes()[:-500])
    assert only_error(tmp_path).code == "unreadable-file"


def test_several_series_of_the_cohort_in_one_structure_set(tmp_path: Path) -> None:
    first, second = CtSeries(shape=SHAPE), CtSeries(key="b", shape=SHAPE)
    dataset = structure_set(first, nodule((2, STAR)))
    study = dataset.ReferencedFrameOfReferenceSequence[0].RTReferencedStudySequence[0]
    study.RTReferencedSeriesSequence.append(referenced_series(structure_set(second, nodule((2, STAR)))))
    first.write(tmp_path / "1")
    second.write(tmp_path / "2")
    write_datasets([dataset], tmp_path / "rt")
    assert {finding.code for finding in errors_of(tmp_path)} >= {"ambiguous-mask"}
