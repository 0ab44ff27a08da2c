"""The quick header reader says what pydicom says, or leaves the file to pydicom."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pydicom
import pydicom.data
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence

from medweave_steps.io.dicom import header
from medweave_steps.io.dicom.fast_header import quick_header
from support.dicom_builder import FEET_FIRST_PRONE, CtSeries, write_datasets


def by_pydicom(path: Path) -> object:
    """What the whole parser makes of a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(header, "_read_quickly", lambda *_: None)
        return by_either(path)


def by_either(path: Path) -> object:
    """What steps see: the quick reader first."""
    try:
        return header.read_file(path.parent, path.name)
    except ValueError:
        return "cannot be read"


def is_quick(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return quick_header(descriptor) is not None
    finally:
        os.close(descriptor)


def one_slice(folder: Path, *, syntax: str = "explicit", series: CtSeries | None = None, **attributes) -> Path:
    """One CT file with attributes set, or removed where the value is None."""
    dataset = (series or CtSeries()).datasets()[2]
    for keyword, value in attributes.items():
        if value is None:
            delattr(dataset, keyword)
        else:
            setattr(dataset, keyword, value)
    (path,) = write_datasets([dataset], folder, syntax=syntax)
    return path


@pytest.mark.parametrize("syntax", ["explicit", "implicit", "rle", "jpeg2000"])
@pytest.mark.parametrize(
    "series",
    [
        CtSeries(),
        CtSeries(orientation=FEET_FIRST_PRONE, signed=False, bits_stored=12, intercepts=-1000.0, slopes=0.5),
        CtSeries(padding=-2000),
        CtSeries(signed=False, padding=63000, padding_limit=64000),
    ],
)
def test_plain_slices(tmp_path, syntax, series):
    path = one_slice(tmp_path, syntax=syntax, series=series)
    assert is_quick(path)
    assert by_either(path) == by_pydicom(path)


ODD = {
    "empty values": (
        {"ImageType": "", "RescaleType": "", "PatientID": "", "PixelSpacing": "", "RescaleSlope": ""},
        True,
    ),
    "one image type": ({"ImageType": "ORIGINAL"}, True),
    "missing values": ({"ImageType": None, "PixelSpacing": None, "RescaleSlope": None, "PatientID": None}, True),
    "spaces": ({"PatientID": "  id 1  ", "ImageType": ["ORIGINAL ", " PRIMARY"], "RescaleSlope": " 1.5 "}, True),
    "umlaut": ({"SpecificCharacterSet": "ISO_IR 100", "PatientID": "M\u00fcller"}, False),
    "one frame": ({"NumberOfFrames": "1"}, True),
    "no series": ({"SeriesInstanceUID": None}, True),
    "look-up table": ({"ModalityLUTSequence": Sequence([Dataset()])}, False),
    "two spacings missing": ({"PixelSpacing": "0.7"}, True),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("syntax", ["explicit", "implicit"])
def test_odd_values(tmp_path, name, syntax):
    attributes, quick = ODD[name]
    path = one_slice(tmp_path, syntax=syntax, **attributes)
    assert is_quick(path) == quick
    assert by_either(path) == by_pydicom(path)


@pytest.mark.parametrize("undefined", [True, False])
@pytest.mark.parametrize("syntax", ["explicit", "implicit"])
def test_nested_sequences_are_stepped_over(tmp_path, syntax, undefined):
    inner = Dataset()
    inner.ReferencedSOPInstanceUID = "1.2.3"
    inner.Rows, inner.PatientID = 7, "inner"  # must not be taken for the image's own
    outer = Dataset()
    outer.ReferencedStudySequence = Sequence([inner, Dataset()])
    outer.is_undefined_length_sequence_item = undefined
    attributes = {
        "ReferencedPerformedProcedureStepSequence": Sequence([outer, outer]),
        "ProcedureCodeSequence": Sequence(),
    }
    dataset = CtSeries().datasets()[0]
    for keyword, value in attributes.items():
        setattr(dataset, keyword, value)
        dataset[keyword].is_undefined_length = undefined
    outer["ReferencedStudySequence"].is_undefined_length = undefined
    (path,) = write_datasets([dataset], tmp_path, syntax=syntax)
    assert is_quick(path)
    assert by_either(path) == by_pydicom(path)
    assert by_either(path).patient_id == "patient-a"


def test_multi_frame_images_are_left_to_pydicom(tmp_path):
    (path,) = write_datasets([CtSeries().enhanced()], tmp_path)
    assert not is_quick(path)
    assert len(by_either(path).planes) == 6


def test_files_that_come_with_pydicom():
    """Many makers, syntaxes and kinds of damage."""
    paths = sorted((Path(pydicom.data.__file__).parent / "test_files").glob("*.dcm"))
    assert len(paths) > 20
    assert sum(map(is_quick, paths)) >= 5
    for path in paths:
        assert by_either(path) == by_pydicom(path), path.name


@pytest.mark.slow
def test_a_header_cut_off_anywhere(tmp_path):
    whole = one_slice(tmp_path / "whole").read_bytes()
    pixels = whole.index(struct.pack("<HH2sHL", 0x7FE0, 0x0010, b"OW", 0, 36 * 34 * 2))
    path = tmp_path / "cut.dcm"
    for length in (*range(0, pixels + 12, 7), pixels, pixels + 11, pixels + 12, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert is_quick(path) == (length >= pixels + 12)
        assert by_either(path) == by_pydicom(path)


@pytest.mark.slow
@given(places=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4))
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_never_raises(tmp_path, places):
    data = bytearray(one_slice(tmp_path / "whole").read_bytes()[:2200])
    for share, value in places:
        data[int(share * (len(data) - 1))] = value
    path = tmp_path / "damaged.dcm"
    path.write_bytes(data)
    is_quick(path)


def test_endless_nesting_is_left_to_pydicom(tmp_path):
    path = one_slice(tmp_path)
    data = path.read_bytes()
    place = data.index(struct.pack("<HH2s", 0x0010, 0x0010, b"PN"))
    opening = struct.pack("<HH2sHLHHL", 0x0008, 0x1110, b"SQ", 0, 0xFFFFFFFF, 0xFFFE, 0xE000, 0xFFFFFFFF)
    path.write_bytes(data[:place] + opening * 1400 + data[place:])
    assert not is_quick(path)


def test_a_file_without_preamble(tmp_path):
    path = one_slice(tmp_path, syntax="implicit")
    dataset = pydicom.dcmread(path)
    dataset.preamble = None
    del dataset.file_meta
    pydicom.dcmwrite(path, dataset, implicit_vr=True, little_endian=True)
    assert not is_quick(path)
    assert by_either(path).modality == "CT"
