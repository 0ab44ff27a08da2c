"""`source_headers.zip`: copied bytes say the same as headers that were read and encoded again."""

from __future__ import annotations

from pathlib import Path

import pydicom
import pytest
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
)

from medweave_steps.io.cohort.source import DicomSource
from medweave_steps.io.dicom.source_headers import copy_headers, read_headers, write_headers
from support.checked import open_only
from support.dicom_builder import CtSeries, write_datasets


def source_in(folder: Path) -> DicomSource:
    source = open_only(folder)
    assert isinstance(source, DicomSource)
    return source


def check_copies(folder: Path) -> list[pydicom.Dataset]:
    """Copies the headers of a cohort, compares them with the encoded ones, and returns them."""
    source = source_in(folder)
    copy_headers(folder.with_name("copied.zip"), source.folder, source.slices)
    write_headers(folder.with_name("encoded.zip"), source.headers())
    copied, encoded = read_headers(folder.with_name("copied.zip")), read_headers(folder.with_name("encoded.zip"))
    assert copied == encoded
    assert [one.file_meta.TransferSyntaxUID for one in copied] == [one.file_meta.TransferSyntaxUID for one in encoded]
    assert [one.file_meta.MediaStorageSOPInstanceUID for one in copied] == [one.SOPInstanceUID for one in copied]
    assert not any("PixelData" in one for one in copied)
    return copied


@pytest.mark.parametrize("syntax", ["explicit", "implicit", "rle", "jpeg2000"])
def test_every_common_syntax(tmp_path, syntax):
    CtSeries().write(tmp_path / "cohort", syntax=syntax)
    copied = check_copies(tmp_path / "cohort")
    expected = ImplicitVRLittleEndian if syntax == "implicit" else ExplicitVRLittleEndian
    assert {one.file_meta.TransferSyntaxUID for one in copied} == {expected}
    assert [str(one.PatientName) for one in copied] == ["Doe^Jane"] * 6


@pytest.mark.parametrize("uid", [ExplicitVRBigEndian, DeflatedExplicitVRLittleEndian])
def test_syntaxes_whose_bytes_cannot_be_copied(tmp_path, uid):
    for index, dataset in enumerate(CtSeries().datasets()):
        dataset.file_meta.TransferSyntaxUID = uid
        if uid == ExplicitVRBigEndian:
            dataset.PixelData = dataset.pixel_array.astype(">i2").tobytes()
        path = tmp_path / "cohort" / f"{index}.dcm"
        path.parent.mkdir(exist_ok=True)
        little = uid != ExplicitVRBigEndian
        pydicom.dcmwrite(path, dataset, enforce_file_format=True, implicit_vr=False, little_endian=little)
    assert len(check_copies(tmp_path / "cohort")) == 6


def test_files_without_a_preamble(tmp_path):
    for path in CtSeries().write(tmp_path / "cohort", syntax="implicit"):
        dataset = pydicom.dcmread(path)
        dataset.preamble = None
        del dataset.file_meta
        pydicom.dcmwrite(path, dataset, implicit_vr=True, little_endian=True)
        assert path.read_bytes()[:2] == b"\x08\x00"
    source = source_in(tmp_path / "cohort")
    copy_headers(tmp_path / "copied.zip", source.folder, source.slices)
    assert [one.SOPInstanceUID for one in read_headers(tmp_path / "copied.zip")] == [
        plane.sop_instance_uid for plane in source.slices
    ]


def test_a_multi_frame_file_is_there_once(tmp_path):
    write_datasets([CtSeries().enhanced(order=[3, 0, 5, 1, 4, 2])], tmp_path / "cohort")
    assert len(check_copies(tmp_path / "cohort")) == 1
