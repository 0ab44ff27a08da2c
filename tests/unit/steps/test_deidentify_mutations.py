"""`deidentify` on headers with unusable values: each series is de-identified or refused, none is an internal error."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from pydicom.dataset import Dataset
from pydicom.filebase import DicomBytesIO
from pydicom.filewriter import write_data_element, write_file_meta_info
from pydicom.tag import Tag

from support.checked import open_only
from support.dicom_builder import CtSeries, write_datasets
from support.identified import deidentify, results

TEXTS = [b"", b"abc ", b"1\\2\\3\\4\\5\\6\\7 ", b"1e400 ", b"-1", b"0,5 ", b"\xff\xfe\xc3\x28"]
NUMBERS = [b"", b"\x00\x00", b"\xff\xff", b"\x01", b"\x01\x00\x02\x00\x03\x00"]
KEYWORDS = {
    "SpecificCharacterSet": "CS", "ImageType": "CS", "SOPClassUID": "UI", "SOPInstanceUID": "UI", "StudyInstanceUID": "UI",
    "SeriesInstanceUID": "UI", "Modality": "CS", "PatientID": "LO", "PatientName": "PN", "StudyDate": "DA", "StudyTime": "TM",
    "InstanceNumber": "IS", "ImagePositionPatient": "DS", "ImageOrientationPatient": "DS", "PixelSpacing": "DS",
    "NumberOfFrames": "IS", "PhotometricInterpretation": "CS", "RescaleSlope": "DS", "RescaleIntercept": "DS",
    "BurnedInAnnotation": "CS", "PatientAge": "AS", "IssuerOfPatientID": "LO",
    "SamplesPerPixel": "US", "PlanarConfiguration": "US", "Rows": "US", "Columns": "US", "BitsAllocated": "US",
    "BitsStored": "US", "HighBit": "US", "PixelRepresentation": "US",
}  # fmt: skip


def mutations() -> list[tuple[str, str, bytes]]:
    """Return keyword, VR and value bytes of every mutation; the wrong VRs are those that writers confuse."""
    values = [
        (keyword, vr, value)
        for keyword, vr in KEYWORDS.items()
        for value in (NUMBERS if vr == "US" else TEXTS)
    ]  # fmt: skip
    return values + [
        (keyword, vr, b"12") for keyword in KEYWORDS for vr in ("SQ", "UN", "LO") if vr != KEYWORDS[keyword]
    ]


def write_mutated(path: Path, dataset: Dataset, keyword: str, vr: str, value: bytes) -> None:
    """Write a slice in which one element has another VR and other bytes, which pydicom itself would refuse to write."""
    mutated = Tag(keyword)
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    value += b" " * (len(value) % 2)
    target = DicomBytesIO()
    target.is_implicit_VR, target.is_little_endian = False, True
    for tag in sorted({*dataset.keys(), mutated}):
        if tag == mutated:
            length = struct.pack("<HL", 0, len(value)) if vr in ("SQ", "UN") else struct.pack("<H", len(value))
            target.write(struct.pack("<HH", tag.group, tag.element) + vr.encode() + length + value)
        else:
            write_data_element(target, dataset[tag])
    with path.open("wb") as stream:
        stream.write(bytes(128) + b"DICM")
        write_file_meta_info(stream, dataset.file_meta)
        stream.write(target.getvalue())


@pytest.mark.slow
def test_no_header_is_an_internal_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "cohort"
    folder.mkdir()
    for number, (keyword, vr, value) in enumerate(mutations()):
        series = CtSeries(key=f"{number}", patient=f"p{number}", shape=(2, 12, 14)).datasets()
        for index, dataset in enumerate(series):
            write_mutated(folder / f"{number:03d}-{index}.dcm", dataset, keyword, vr, value)
    exit_code = deidentify(folder, "--on-error", "skip")
    message = capsys.readouterr().err
    assert exit_code == 0, message[-2000:]
    assert results(folder)["num_cases"] > len(mutations()) / 3


def test_slices_of_several_sample_types_and_transfer_syntaxes(tmp_path: Path) -> None:
    datasets = CtSeries(shape=(8, 36, 34)).datasets()
    stored = [dataset.pixel_array for dataset in datasets]
    for dataset, values in zip(datasets[:3], stored, strict=False):
        dataset.BitsAllocated = dataset.BitsStored = 32
        dataset.HighBit, dataset.PixelData = 31, values.astype("<i4").tobytes()
    write_datasets(datasets[:5], tmp_path / "cohort" / "a")
    write_datasets(datasets[5:6], tmp_path / "cohort" / "b", syntax="implicit")
    write_datasets(datasets[6:], tmp_path / "cohort" / "c", syntax="rle")
    assert deidentify(tmp_path / "cohort") == 0
    assert np.array_equal(open_only(tmp_path / "out").volume(), open_only(tmp_path / "cohort").volume())
