"""`check` refuses CT whose values are not Hounsfield units, whichever reader reads the header."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pydicom.dataset import Dataset

from medweave_core.errors import UserInputError
from medweave_steps.check.hounsfield import check_range
from medweave_steps.io.dicom import header
from medweave_steps.io.findings import SeriesName
from support.checked import cases_of, notices_of, only_error
from support.dicom_builder import CtSeries, write_datasets

SERIES = CtSeries(shape=(4, 36, 34))


@pytest.fixture(params=["fast reader", "pydicom"])
def _reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "pydicom":
        monkeypatch.setattr(header, "_read_quickly", lambda *_: None)


def written(folder: Path, change: Callable[[Dataset], None], *, is_enhanced: bool = False) -> Path:
    datasets = [SERIES.enhanced()] if is_enhanced else SERIES.datasets()
    for dataset in datasets:
        change(dataset)
    write_datasets(datasets, folder)
    return folder


def units(value: str) -> Dataset:
    code = Dataset()
    code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = value, "UCUM", "unit"
    return code


def real_world(value: str, *, slope: float = 1.0, intercept: float = -1024.0) -> Dataset:
    item = Dataset()
    item.MeasurementUnitsCodeSequence = [units(value)]
    item.RealWorldValueSlope, item.RealWorldValueIntercept = slope, intercept
    return item


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize("kind", ["US", "OD", "MGML", "Z_EFF", "ED", "EDW", "HU_MOD", "PCT", "us"])
def test_another_rescale_type(tmp_path: Path, kind: str) -> None:
    error = only_error(written(tmp_path, lambda dataset: setattr(dataset, "RescaleType", kind)))
    assert (error.code, error.seen) == ("not-hu", f"RescaleType {kind.upper()}")


def test_free_text_in_the_rescale_type_is_not_quoted(tmp_path: Path) -> None:
    error = only_error(written(tmp_path, lambda dataset: setattr(dataset, "RescaleType", "Doe^Jane")))
    assert error.code == "not-hu"
    assert "jane" not in error.seen.lower()


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize("kind", ["HU", "", None, "hu", "Hounsfield Units"])
def test_hounsfield_units_by_any_spelling(tmp_path: Path, kind: str | None) -> None:
    def change(dataset: Dataset) -> None:
        dataset.RescaleType = kind
        if kind is None:
            del dataset.RescaleType

    assert len(cases_of(written(tmp_path, change))) == 1


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize(
    "words",
    [
        ["DERIVED", "PRIMARY", "PERFUSION", "NONE"],
        ["DERIVED", "SECONDARY", "AXIAL", "RCBF"],
        ["DERIVED", "PRIMARY", "AXIAL", "Z_EFF"],
        ["ORIGINAL", "PRIMARY", "AXIAL", "EFF_ATOMIC_NUM"],
        ["DERIVED", "PRIMARY", "AXIAL", "IODINE"],
        ["DERIVED", "PRIMARY", "AXIAL", "CALCIUM"],
        ["DERIVED", "PRIMARY", "AXIAL", "MAT_SPECIFIC"],
        ["ORIGINAL", "PRIMARY", "AXIAL", "ELECTRON_DENSITY"],
        ["DERIVED", "PRIMARY", "VOLUME", "SUBTRACTION"],
        ["", "", "AXIAL", "MTT"],
    ],
)
def test_a_map_by_its_image_type(tmp_path: Path, words: list[str]) -> None:
    error = only_error(written(tmp_path, lambda dataset: setattr(dataset, "ImageType", words)))
    assert error.code == "not-hu"
    assert "ImageType" in error.seen


@pytest.mark.parametrize(
    "words",
    [
        ["ORIGINAL", "PRIMARY", "AXIAL", "PERFUSION"],  # source images of a perfusion scan
        ["ORIGINAL", "PRIMARY", "AXIAL", "CALCIUM SCORE"],
        ["ORIGINAL", "PRIMARY", "STRESS", "NONE"],  # acquired under stress
        ["DERIVED", "SECONDARY", "MPR"],
        ["DERIVED", "PRIMARY", "AXIAL", "CT_SOM5 SPI"],
        ["ORIGINAL"],
        None,
    ],
)
def test_image_types_with_hounsfield_units(tmp_path: Path, words: list[str] | None) -> None:
    def change(dataset: Dataset) -> None:
        dataset.ImageType = words
        if words is None:
            del dataset.ImageType

    assert len(cases_of(written(tmp_path, change))) == 1


def test_virtual_monoenergetic_images_are_reported(tmp_path: Path) -> None:
    words = ["DERIVED", "PRIMARY", "AXIAL", "VMI"]
    assert "virtual-image" in notices_of(written(tmp_path, lambda dataset: setattr(dataset, "ImageType", words)))


def test_a_multi_energy_acquisition_must_state_its_rescale_type(tmp_path: Path) -> None:
    def change(dataset: Dataset) -> None:
        dataset.MultienergyCTAcquisition = "YES"
        del dataset.RescaleType

    assert "multi-energy" in only_error(written(tmp_path, change)).seen


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize(
    ("item", "code"),
    [
        (real_world("ml/(100.ml)/s"), "not-hu"),
        (real_world("1"), "not-hu"),
        (real_world("[hnsf'U]", slope=2.0), "not-hu"),
        (Dataset(), "not-hu"),
        (real_world("[hnsf'U]"), ""),
        (real_world("hnsf'U"), ""),
    ],
)
@pytest.mark.parametrize("is_enhanced", [False, True])
def test_real_world_values(tmp_path: Path, item: Dataset, code: str, is_enhanced: bool) -> None:
    def change(dataset: Dataset) -> None:
        holder = dataset.SharedFunctionalGroupsSequence[0] if is_enhanced else dataset
        holder.RealWorldValueMappingSequence = [item]

    folder = written(tmp_path, change, is_enhanced=is_enhanced)
    if code:
        assert only_error(folder).code == code
    else:
        assert len(cases_of(folder)) == 1


@pytest.mark.usefixtures("_reader")
def test_measurement_units_of_the_image(tmp_path: Path) -> None:
    folder = written(tmp_path, lambda dataset: setattr(dataset, "MeasurementUnitsCodeSequence", [units("mg/mL")]))
    assert only_error(folder).code == "not-hu"


def test_rescale_type_of_a_frame(tmp_path: Path) -> None:
    def change(dataset: Dataset) -> None:
        group = dataset.PerFrameFunctionalGroupsSequence[2]
        group.PixelValueTransformationSequence[0].RescaleType = "US"

    assert only_error(written(tmp_path, change, is_enhanced=True)).seen == "RescaleType US"


def test_frame_type_of_a_frame(tmp_path: Path) -> None:
    words = ["DERIVED", "PRIMARY", "PERFUSION", "QUANTITY"]
    frame_type = Dataset()
    frame_type.FrameType = words

    def change(dataset: Dataset) -> None:
        dataset.PerFrameFunctionalGroupsSequence[1].CTImageFrameTypeSequence = [frame_type]

    assert "PERFUSION" in only_error(written(tmp_path, change, is_enhanced=True)).seen


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize(
    ("keyword", "value", "code"),
    [
        ("RescaleSlope", "0", "no-rescale"), ("RescaleSlope", "", "no-rescale"), ("RescaleSlope", "nan", "no-rescale"),
        ("RescaleSlope", "1e30", "no-rescale"), ("RescaleSlope", "5000", "not-hu"), ("RescaleIntercept", "1e8", "not-hu"),
        ("RescaleIntercept", "-inf", "no-rescale"),
    ],
)  # fmt: skip
def test_rescaling_that_no_scanner_writes(tmp_path: Path, keyword: str, value: str, code: str) -> None:
    assert only_error(written(tmp_path, lambda dataset: setattr(dataset, keyword, value))).code == code


def test_look_up_table(tmp_path: Path) -> None:
    def change(dataset: Dataset) -> None:
        dataset.ModalityLUTSequence = [Dataset()]

    assert "Modality LUT" in only_error(written(tmp_path, change)).seen


@pytest.mark.parametrize(("share", "is_refused"), [(0.3, False), (0.6, True)])
@pytest.mark.parametrize("value", [-32768.0, 64000.0, np.nan])
def test_values_outside_anything_in_hounsfield_units(share: float, is_refused: bool, value: float) -> None:
    plane = np.zeros(1000, np.float32)
    plane[: int(share * 1000)] = value
    name = SeriesName(case_id="case-00000000", ordinal=1)
    if is_refused:
        with pytest.raises(UserInputError, match="not in Hounsfield units"):
            check_range(plane, name)
    else:
        check_range(plane, name)
