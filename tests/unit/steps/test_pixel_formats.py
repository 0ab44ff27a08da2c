"""Pixels are read by the format of their file, or refused by name; both readers and the decoding processes agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pydicom
import pytest

from medweave_steps.io.dicom import header
from support.checked import cases_of, only_error, open_only
from support.dicom_builder import CtSeries, write_datasets

STORED = np.random.default_rng(5).integers(0, 4096, (6, 36, 34))


@pytest.fixture(params=["fast reader", "pydicom"])
def _reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "pydicom":
        monkeypatch.setattr(header, "_read_quickly", lambda *_: None)


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize("syntax", ["explicit", "implicit", "rle"])
@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize(("high_bit", "shift"), [(11, 0), (13, 2), (15, 4)])
def test_high_bit(tmp_path: Path, syntax: str, num_workers: int, high_bit: int, shift: int) -> None:
    series = CtSeries(stored=STORED, signed=False, bits_stored=12)
    datasets = series.datasets()
    noise = np.random.default_rng(6).integers(0, 1 << shift, STORED.shape) if shift else 0
    for dataset, plane in zip(datasets, (STORED << shift) | noise, strict=True):
        dataset.HighBit = high_bit
        dataset.PixelData = plane.astype("<u2").tobytes()  # lower bits hold an overlay
    write_datasets(datasets, tmp_path, syntax=syntax)
    source = open_only(tmp_path)
    np.testing.assert_array_equal(np.stack(list(source.planes(num_workers=num_workers))), series.hu())


def test_high_bit_of_signed_values(tmp_path: Path) -> None:
    series = CtSeries(stored=STORED - 2048, bits_stored=12, intercepts=0.0)
    datasets = series.datasets()
    for dataset, plane in zip(datasets, STORED - 2048, strict=True):
        dataset.HighBit, dataset.PixelData = 15, (plane << 4).astype("<i2").tobytes()
    write_datasets(datasets, tmp_path)
    np.testing.assert_array_equal(open_only(tmp_path).volume(), series.hu())


@pytest.mark.parametrize("syntax", ["jpeg2000", "jpegls"])
def test_high_bit_of_a_code_stream_is_refused(tmp_path: Path, syntax: str) -> None:
    for path in CtSeries(stored=STORED, signed=False, bits_stored=12).write(tmp_path, syntax=syntax):
        dataset = pydicom.dcmread(path)
        dataset.HighBit = 15
        dataset.save_as(path)
    assert only_error(tmp_path).code == "unsupported-pixels"


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize(
    ("keyword", "value"), [("HighBit", 3), ("HighBit", 16), ("BitsStored", 17), ("BitsAllocated", 12)]
)
def test_bits_that_contradict_each_other(tmp_path: Path, keyword: str, value: int) -> None:
    datasets = CtSeries(stored=STORED, signed=False, bits_stored=12).datasets()
    for dataset in datasets:
        setattr(dataset, keyword, value)
    write_datasets(datasets, tmp_path)
    assert only_error(tmp_path).code in ("unsupported-pixels", "unusable-header", "pixels-disagree")


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize(("allocated", "stored", "dtype"), [(8, 8, "<u1"), (32, 32, "<i4"), (32, 12, "<u4")])
def test_cells_of_8_and_32_bits(tmp_path: Path, allocated: int, stored: int, dtype: str) -> None:
    values = STORED % 256 if allocated == 8 else STORED
    series = CtSeries(stored=values, signed=dtype[1] == "i", bits_stored=stored)
    datasets = series.datasets()
    for dataset, plane in zip(datasets, values, strict=True):
        dataset.BitsAllocated, dataset.PixelData = allocated, plane.astype(dtype).tobytes()
    write_datasets(datasets, tmp_path)
    np.testing.assert_array_equal(open_only(tmp_path).volume(), series.hu())


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize("syntax", ["explicit", "implicit", "rle", "jpeg2000"])
def test_formats_that_differ_between_slices(tmp_path: Path, syntax: str) -> None:
    parts = [
        CtSeries(stored=STORED, signed=False, bits_stored=12, slopes=2.0),
        CtSeries(stored=STORED - 2048, signed=True, bits_stored=16, intercepts=0.0),
        CtSeries(stored=STORED, signed=False, bits_stored=16, slopes=0.5, padding=7),
    ]
    chosen = [parts[index % 3].datasets()[index] for index in range(6)]
    write_datasets(chosen, tmp_path, syntax=syntax)
    expected = np.stack([parts[index % 3].hu()[index] for index in range(6)])
    np.testing.assert_array_equal(open_only(tmp_path).volume(), expected)


def test_padding_below_an_overlay(tmp_path: Path) -> None:
    series = CtSeries(stored=STORED, signed=False, bits_stored=12, padding=63)
    series.stored = STORED.copy()
    series.stored[:, :3] = 63
    datasets = series.datasets()
    for dataset, plane in zip(datasets, series.stored, strict=True):
        dataset.PixelData = (plane | 0x8000).astype("<u2").tobytes()
    write_datasets(datasets, tmp_path)
    np.testing.assert_array_equal(open_only(tmp_path).volume(), series.hu())


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize(("keyword", "value"), [("Rows", 35), ("Columns", 33), ("Rows", 18)])
@pytest.mark.parametrize("syntax", ["explicit", "deflated"])
def test_a_size_smaller_than_the_pixels(tmp_path: Path, keyword: str, value: int, syntax: str) -> None:
    datasets = CtSeries().datasets()
    for index, dataset in enumerate(datasets):
        setattr(dataset, keyword, value)
        if syntax == "deflated":
            dataset.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
            pydicom.dcmwrite(tmp_path / f"{index}.dcm", dataset, enforce_file_format=True)
    if syntax == "explicit":
        write_datasets(datasets, tmp_path)
    assert only_error(tmp_path).code == "pixels-disagree"


def test_a_deflated_file_with_too_few_pixels(tmp_path: Path) -> None:
    for index, dataset in enumerate(CtSeries().datasets()):
        dataset.Rows = 37
        dataset.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
        pydicom.dcmwrite(tmp_path / f"{index}.dcm", dataset, enforce_file_format=True)
    assert only_error(tmp_path).code == "truncated-file"


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize("keyword", ["PixelRepresentation", "BitsAllocated", "Rows", "Columns"])
def test_attributes_without_which_pixels_mean_nothing(tmp_path: Path, keyword: str) -> None:
    datasets = CtSeries().datasets()
    for dataset in datasets:
        delattr(dataset, keyword)
    write_datasets(datasets, tmp_path)
    error = only_error(tmp_path)
    assert error.code == "unusable-header"
    assert keyword in error.seen


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize(
    "spacing", [["0", "0.8"], ["-0.7", "0.8"], ["nan", "0.8"], ["1e30", "0.8"], ["0.7"], ["60", "0.8"]]
)
def test_pixel_spacing_that_cannot_be(tmp_path: Path, spacing: list[str]) -> None:
    datasets = CtSeries().datasets()
    for dataset in datasets:
        dataset.PixelSpacing = spacing
    write_datasets(datasets, tmp_path)
    assert only_error(tmp_path).code in ("no-geometry", "unusable-geometry")


@pytest.mark.parametrize("position", [["nan", "0", "0"], ["0", "0"], ["1e20", "0", "0"], ["inf", "0", "0"]])
def test_positions_that_cannot_be(tmp_path: Path, position: list[str]) -> None:
    datasets = CtSeries().datasets()
    datasets[2].ImagePositionPatient = position
    write_datasets(datasets, tmp_path)
    assert only_error(tmp_path).code == "no-geometry"


def test_slices_a_mile_apart(tmp_path: Path) -> None:
    CtSeries(spacing_mm=(1600.0, 0.7, 0.8)).write(tmp_path)
    assert only_error(tmp_path).code == "unusable-geometry"


def test_values_that_no_step_needs(tmp_path: Path) -> None:
    datasets = CtSeries().datasets()
    for dataset in datasets:
        dataset.AcquisitionNumber, dataset.AcquisitionTime = "", "ten o'clock"
        dataset.add_new("KVP", "LO", "high")
    write_datasets(datasets, tmp_path)
    assert len(cases_of(tmp_path)) == 1
