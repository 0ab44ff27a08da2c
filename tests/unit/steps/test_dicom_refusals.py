"""Series that are not one regular volume are refused; the message has the position of the error and no private data."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset

from medweave_core.contracts.cohort import Finding
from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.discovery import case_id_of_series
from medweave_steps.io.cohort.source import open_source
from support.checked import check, errors_of, only_error
from support.dicom_builder import CtSeries, uid, write_datasets

SERIES = CtSeries(shape=(8, 36, 34), origin=(-100.0, -90.0, -300.0))
CASE_ID = case_id_of_series(uid("a", "series"))


def text_of(finding: Finding) -> str:
    return "\n".join((finding.what, finding.seen, finding.expected, finding.do))


def refused(folder: Path, datasets: list[Dataset], code: str, **options: object) -> str:
    """The text of the only error, which names the case, its ordinal and nothing private."""
    write_datasets(datasets, folder, **options)  # type: ignore[arg-type]
    finding = only_error(folder)
    assert finding.code == code
    assert finding.case_id == CASE_ID
    text = text_of(finding)
    assert f"{CASE_ID} (series 1)" in text
    assert all((finding.seen, finding.expected, finding.do))
    assert_nothing_private(text, folder)
    return text


def assert_nothing_private(text: str, folder: Path) -> None:
    assert "Doe" not in text
    assert "patient-a" not in text
    assert str(folder) not in text
    assert not re.search(r"\.dcm", text)
    assert not re.search(r"\d+\.\d+\.\d{5,}", text), "a UID"


def test_missing_slice(tmp_path: Path) -> None:
    text = refused(tmp_path, [d for i, d in enumerate(SERIES.datasets()) if i != 3], "missing-slice")
    assert "1 slice is missing" in text
    assert "-296.00 and -292.00 mm" in text
    assert "every 2.00 mm" in text


def test_missing_slices_at_two_places(tmp_path: Path) -> None:
    text = refused(tmp_path, [d for i, d in enumerate(SERIES.datasets()) if i not in (2, 4, 5)], "missing-slice")
    assert "3 slices are missing" in text
    assert "-298.00 and -294.00 mm, between -294.00 and -288.00 mm" in text


def test_duplicate_slice(tmp_path: Path) -> None:
    datasets = SERIES.datasets()
    double = SERIES.datasets()[2]
    double.SOPInstanceUID = "2.25.5"
    assert "-296.00 mm" in refused(tmp_path, [*datasets, double], "duplicate-slice")


def test_the_same_slice_under_another_uid(tmp_path: Path) -> None:
    again = SERIES.datasets()[0]
    again.SOPInstanceUID = "2.25.61"
    assert "-300.00 mm" in refused(tmp_path, [*SERIES.datasets(), again], "duplicate-slice")


def test_two_phases_in_one_series(tmp_path: Path) -> None:
    second = SERIES.datasets()
    for number, dataset in enumerate(second):
        dataset.SOPInstanceUID = f"2.25.6{number}"
    text = refused(tmp_path, SERIES.datasets() + second, "two-series-mixed")
    assert "every position has 2 slices" in text


@pytest.mark.parametrize("shift_mm", [0.6, -0.5, 1.0])
def test_one_slice_out_of_step(tmp_path: Path, shift_mm: float) -> None:
    datasets = SERIES.datasets()
    datasets[4].ImagePositionPatient[2] += shift_mm
    text = refused(tmp_path, datasets, "non-uniform-spacing")
    assert f"{2 + shift_mm:.2f} mm between -294.00 and {-292 + shift_mm:.2f} mm" in text


def test_spacing_that_drifts(tmp_path: Path) -> None:
    datasets = CtSeries(shape=(30, 36, 34)).datasets()
    for index, dataset in enumerate(datasets):
        dataset.ImagePositionPatient[2] = -300 + index * 2 + 0.0015 * index**2
    assert "drifts" in refused(tmp_path, datasets, "non-uniform-spacing")


def test_positions_rounded_to_hundredths_are_no_error(tmp_path: Path) -> None:
    datasets = CtSeries(shape=(30, 36, 34)).datasets()
    for index, dataset in enumerate(datasets):
        dataset.ImagePositionPatient[2] = f"{-300 + index * 0.625:.2f}"
    write_datasets(datasets, tmp_path)
    (case,) = check(tmp_path).index.cases
    assert case.grid.spacing_mm[0] == pytest.approx(0.625, abs=1e-3)


def test_mixed_frames_of_reference(tmp_path: Path) -> None:
    datasets = SERIES.datasets()
    for dataset in datasets[5:]:
        dataset.FrameOfReferenceUID = "2.25.8"
    assert "-290.00 to -286.00 mm (3 slices)" in refused(tmp_path, datasets, "mixed-frames-of-reference")


def test_mixed_frames_of_reference_of_a_coronal_series(tmp_path: Path) -> None:
    # Along its own normal, as in every other message: the third coordinate is the same in all of its slices.
    datasets = CtSeries(shape=(8, 36, 34), orientation=(1, 0, 0, 0, 0, -1), origin=SERIES.origin).datasets()
    for dataset in datasets[5:]:
        dataset.FrameOfReferenceUID = "2.25.8"
    text = refused(tmp_path, datasets, "mixed-frames-of-reference")
    assert "-90.00 to -82.00 mm (5 slices); -80.00 to -76.00 mm (3 slices)" in text


def test_mixed_orientations(tmp_path: Path) -> None:
    datasets = SERIES.datasets()
    datasets[3].ImageOrientationPatient = [1, 0, 0, 0, 0.9998, 0.02]
    assert "1 of 8 slices" in refused(tmp_path, datasets, "mixed-orientations")


def test_mixed_sizes(tmp_path: Path) -> None:
    other = CtSeries(shape=(8, 40, 34)).datasets()
    assert "4 slices of 40 x 34 pixels" in refused(tmp_path, SERIES.datasets()[:4] + other[4:], "mixed-sizes")


def test_mixed_pixel_spacings(tmp_path: Path) -> None:
    datasets = SERIES.datasets()
    datasets[2].PixelSpacing = [0.9, 0.9]
    assert "0.9000 x 0.9000 mm" in refused(tmp_path, datasets, "mixed-pixel-spacings")


def test_mixed_patients(tmp_path: Path) -> None:
    datasets = SERIES.datasets()
    datasets[2].PatientID = "patient-b"
    refused(tmp_path, datasets, "mixed-patients")


def test_tilted_gantry(tmp_path: Path) -> None:
    datasets = SERIES.datasets()
    for index, dataset in enumerate(datasets):
        dataset.ImagePositionPatient[1] += index * 2 * np.tan(np.radians(12))
    assert "12.0 degrees" in refused(tmp_path, datasets, "gantry-tilt")


def test_a_slice_next_to_the_others(tmp_path: Path) -> None:
    datasets = SERIES.datasets()
    datasets[4].ImagePositionPatient[0] += 5
    assert "-292.00 mm is 5.00 mm off the line" in refused(tmp_path, datasets, "slices-not-in-line")


@pytest.mark.parametrize("keyword", ["ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing"])
def test_no_geometry(tmp_path: Path, keyword: str) -> None:
    datasets = SERIES.datasets()
    delattr(datasets[1], keyword)
    text = refused(tmp_path, datasets, "no-geometry")
    assert "1 of 8 slices" in text
    assert keyword in text


def test_orientation_that_is_none(tmp_path: Path) -> None:
    datasets = SERIES.datasets()
    for dataset in datasets:
        dataset.ImageOrientationPatient = [1, 0, 0, 1, 0, 0]
    refused(tmp_path, datasets, "bad-orientation")


def test_no_rescale(tmp_path: Path) -> None:
    datasets = SERIES.datasets()
    del datasets[0].RescaleSlope
    refused(tmp_path, datasets, "no-rescale")


def test_values_that_are_no_hu(tmp_path: Path) -> None:
    datasets = SERIES.datasets()
    for dataset in datasets:
        dataset.RescaleType = "MGML"
    assert "MGML" in refused(tmp_path, datasets, "not-hu")


def test_no_pixel_data(tmp_path: Path) -> None:
    datasets = SERIES.datasets()
    del datasets[6].PixelData
    assert "the slice at -288.00 mm" in refused(tmp_path, datasets, "no-pixel-data")


def cut(path: Path, keep: float) -> None:
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])


@pytest.mark.parametrize("syntax", ["explicit", "implicit", "rle", "jpeg2000"])
def test_truncated_file(tmp_path: Path, syntax: str) -> None:
    paths = SERIES.write(tmp_path, syntax=syntax)
    cut(paths[6], 0.85)
    finding = only_error(tmp_path)
    assert finding.code == "truncated-file"
    assert "the slice at -288.00 mm" in finding.what
    assert_nothing_private(text_of(finding), tmp_path)


def test_file_cut_off_inside_its_header(tmp_path: Path) -> None:
    paths = SERIES.write(tmp_path)
    data = paths[2].read_bytes()
    paths[2].write_bytes(data[: data.index(uid("a", "series").encode()) - 20])
    codes = {finding.code for finding in errors_of(tmp_path)}
    assert codes == {"unreadable-file", "missing-slice"}
    assert "number 3 of" in next(f.seen for f in errors_of(tmp_path) if f.code == "unreadable-file")


def test_file_cut_off_before_its_position(tmp_path: Path) -> None:
    paths = SERIES.write(tmp_path)
    data = paths[2].read_bytes()
    paths[2].write_bytes(data[: data.index(b"-100.0000")])
    finding = only_error(tmp_path)
    assert finding.code == "truncated-file"
    assert "1 of 8 slices" in finding.what


def test_empty_file_with_a_dicom_name(tmp_path: Path) -> None:
    SERIES.write(tmp_path)
    (tmp_path / "zz.dcm").write_bytes(b"")
    assert only_error(tmp_path).code == "unreadable-file"


def test_damaged_code_stream(tmp_path: Path) -> None:
    paths = SERIES.write(tmp_path, syntax="jpeg2000")
    data = bytearray(paths[4].read_bytes())
    start = data.index(b"\xff\x4f\xff\x51")
    data[start : start + 60] = bytes(60)
    paths[4].write_bytes(data)
    finding = only_error(tmp_path)  # the middle slice is decoded as a sample
    assert finding.code == "undecodable-pixels"
    assert "JPEG 2000" in finding.seen


def test_a_slice_that_check_did_not_decode(tmp_path: Path) -> None:
    paths = SERIES.write(tmp_path, syntax="jpeg2000")
    (case,) = check(tmp_path).index.cases
    data = bytearray(paths[1].read_bytes())
    start = data.index(b"\xff\x4f\xff\x51")
    data[start : start + 60] = bytes(60)
    paths[1].write_bytes(data)
    with pytest.raises(UserInputError, match=r"the slice at -298\.00 mm") as caught:
        open_source(tmp_path, case).volume()
    assert_nothing_private(str(caught.value), tmp_path)


@pytest.mark.parametrize(
    ("syntax", "words", "help_text"),
    [
        (pydicom.uid.JPEGLosslessSV1, "JPEG Lossless, Non-Hierarchical", "pylibjpeg-libjpeg"),
        (pydicom.uid.MPEG2MPML, "MPEG2", "convert the series"),
        ("1.2.840.99999.1", "private or unknown", "convert the series"),
    ],
)
def test_unsupported_transfer_syntax(tmp_path: Path, syntax: str, words: str, help_text: str) -> None:
    if syntax == pydicom.uid.JPEGLosslessSV1 and pydicom.pixels.get_decoder(syntax).is_available:
        syntax, words, help_text = pydicom.uid.MPEG2MPML, "MPEG2", "convert the series"
    paths = SERIES.write(tmp_path, syntax="jpeg2000")
    for path in paths:
        dataset = pydicom.dcmread(path)
        dataset.file_meta.TransferSyntaxUID = pydicom.uid.UID(syntax)
        dataset.save_as(path, implicit_vr=False, little_endian=True)
    finding = only_error(tmp_path)
    assert finding.code == "unsupported-transfer-syntax"
    assert words in finding.seen
    assert help_text in finding.do
    assert "Explicit VR Little Endian" in finding.do


def test_wrong_modality(tmp_path: Path) -> None:
    datasets = SERIES.datasets()
    for dataset in datasets:
        dataset.Modality, dataset.SOPClassUID = "NM", pydicom.uid.NuclearMedicineImageStorage
    write_datasets(datasets, tmp_path)
    finding = only_error(tmp_path)
    assert finding.code == "wrong-modality"
    assert "NM" in finding.seen
    assert "CT" in finding.expected


def test_another_modality_of_the_same_study_is_left_aside(tmp_path: Path) -> None:
    SERIES.write(tmp_path / "ct")
    other = CtSeries(key="pet", patient=SERIES.patient).datasets()
    for dataset in other:
        dataset.Modality, dataset.SOPClassUID = "PT", pydicom.uid.PositronEmissionTomographyImageStorage
    write_datasets(other, tmp_path / "pt")
    assert errors_of(tmp_path) == []
    assert len(check(tmp_path).index.cases) == 1


def drop(folder: Path) -> None:
    next(iter(sorted(folder.glob("*.dcm")))).unlink()


def shift(folder: Path) -> None:
    for path in folder.glob("*.dcm"):
        dataset = pydicom.dcmread(path)
        dataset.ImagePositionPatient[0] += 3
        dataset.save_as(path)


@pytest.mark.parametrize("change", [drop, shift])
def test_a_cohort_that_changed_after_check(tmp_path: Path, change: Callable[[Path], None]) -> None:
    SERIES.write(tmp_path)
    (case,) = check(tmp_path).index.cases
    change(tmp_path)
    with pytest.raises(UserInputError, match="has changed since `check` ran") as caught:
        open_source(tmp_path, case)
    assert_nothing_private(str(caught.value), tmp_path)
