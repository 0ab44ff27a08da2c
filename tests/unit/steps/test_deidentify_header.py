"""The profile, attribute by attribute, at the top of a header and nested in it."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pydicom
import pytest
from pydicom.datadict import dictionary_has_tag, dictionary_VR
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.sequence import Sequence as DicomSequence

import medweave_steps.deidentify
from medweave_steps.deidentify.header import HeaderCleaner
from medweave_steps.deidentify.identifiers import Identifiers, identifiers_of
from medweave_steps.deidentify.profile import STRUCTURED, rules, text_kept
from medweave_steps.deidentify.pseudonyms import Pseudonyms

TABLE = Path(medweave_steps.deidentify.__file__).with_name("basic_profile.csv")
ROWS = [
    row
    for row in csv.DictReader(TABLE.read_text().splitlines())
    if dictionary_has_tag(int(row["tag"], 16)) and row["tag"] > "0008"  # lower groups are no part of an object
]
TEXT = ("AE", "AS", "CS", "LO", "LT", "PN", "SH", "ST", "UC", "UT")
SECRET = "SECRETWORDS"
IDENTIFYING: dict[str, Any] = {
    **dict.fromkeys(TEXT, SECRET), "AS": "071Y", "UR": f"http://{SECRET}.test", "UI": "1.2.33.4455.66", "DA": "20190304",
    "DT": "20190304101500", "TM": "101500", "DS": "4711.25", "IS": "471125", "US": 47112, "UL": 4711250, "SS": 4711, "SL": 471125,
    "FD": 4711.25, "FL": 4711.25, **dict.fromkeys(("OB", "OW", "OF", "OD", "OL", "OV", "UN"), SECRET.encode() + b"!"),
}  # fmt: skip


def cleaner(*, retain: bool = False) -> HeaderCleaner:
    return HeaderCleaner(
        pseudonyms=Pseudonyms(bytes(range(32))),
        pseudonym="patient-1",
        shift_days=-1000,
        retain_patient_characteristics=retain,
    )


def identifying_value(tag: int) -> Any:
    """Return a value that identifies a person, in the VR of an attribute."""
    vr = dictionary_VR(tag).split(" or ")[0]
    if vr != "SQ":
        return IDENTIFYING[vr]
    code = Dataset()
    code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = SECRET[:8], "99" + SECRET, SECRET
    other = Dataset()
    other.PatientName, other.TextValue, other.StudyDate = f"{SECRET}^A", SECRET, "20190304"
    other.ReferencedSOPInstanceUID = "1.2.33.4455.66"
    return DicomSequence([code, other])


def header(tag: int) -> Dataset:
    dataset = Dataset()
    dataset.add_new(tag, dictionary_VR(tag).split(" or ")[0], identifying_value(tag))
    return dataset


def as_bytes(dataset: Dataset) -> bytes:
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.1"
    buffer = io.BytesIO()
    pydicom.dcmwrite(buffer, dataset, enforce_file_format=False)
    return buffer.getvalue()


@pytest.mark.parametrize("nested", [False, True], ids=["top", "nested"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["keyword"])
def test_nothing_of_an_attribute_of_the_profile_is_left(row: dict[str, str], nested: bool) -> None:
    tag = int(row["tag"], 16)
    inner = dataset = header(tag)
    if nested:
        dataset = Dataset()
        dataset.ReferencedSeriesSequence = DicomSequence([inner])
    cleaning = cleaner()
    if row["keyword"] == "ROIName":  # stays (Clean Descriptors Option) unless it has a word of the header
        cleaning.identifiers = Identifiers([SECRET])
    cleaning.clean(dataset)
    rule, vr = rules(False)[tag], dictionary_VR(tag)
    action = rule.action if vr in ("DA", "DT", "TM") or rule.action != "date" else rule.otherwise
    assert (tag in inner) == (action != "remove")
    result = as_bytes(dataset)
    for secret in (SECRET.encode(), b"1.2.33.4455.66", b"20190304", b"071Y", b"4711"):
        assert secret not in result, row
    if action in ("dummy", "uid") and vr != "SQ":
        assert not inner[tag].is_empty
        assert inner[tag].value != identifying_value(tag)
    if action == "date" and vr in ("DA", "DT"):
        assert inner[tag].value.startswith("20160607")
    if action == "date" and vr == "TM":
        assert inner[tag].value == "101500"


def test_text_that_the_table_does_not_name_stays_only_if_it_is_about_machines() -> None:
    short = [
        tag
        for tag, (vr, *_) in pydicom.datadict.DicomDictionary.items()
        if vr in (*TEXT, "UR", "DA", "DT") and tag not in rules(False) and tag not in text_kept() and tag > 0x0008FFFF
    ]
    assert len(short) > 300
    for tag in short:
        dataset = header(tag)
        if dictionary_VR(tag) == "CS":
            dataset[tag].value = SECRET.lower()  # in capitals it could be a word of the standard
        cleaner().clean(dataset)
        result = as_bytes(dataset)
        if tag != 0x00180015:  # where "Chest" is usual, and only known names are looked for
            assert SECRET.encode() not in result.upper().replace(b"REMOVED", b""), hex(tag)
        assert b"20190304" not in result


def test_what_text_stays() -> None:
    known = {pydicom.datadict.keyword_for_tag(tag) for tag in text_kept()}
    assert {"CodeMeaning", "ConvolutionKernel", "SegmentLabel", "SoftwareVersions"} <= known
    assert not text_kept() & set(rules(False))


def test_every_row_has_a_rule_and_the_options_differ_where_they_should() -> None:
    plain, retained = rules(False), rules(True)
    assert {int(row["tag"], 16) for row in ROWS} <= set(plain)
    changed = {tag for tag in plain if plain[tag] != retained[tag]}
    assert changed == {
        int(row["tag"], 16) for row in csv.DictReader(TABLE.read_text().splitlines()) if row["patient_characteristics"] == "K"
    }  # fmt: skip


def test_private_unknown_overlays_and_group_lengths_go() -> None:
    dataset = Dataset()
    dataset.Modality = "CT"
    dataset.private_block(0x0029, "VENDOR", create=True).add_new(1, "LO", SECRET)
    for tag, vr, value in (
        (0x00091001, "UN", b"x"), (0x0018FFF1, "LO", SECRET), (0x60000010, "US", 8), (0x601E3000, "OB", b"ab"),
        (0x50003000, "OB", b"ab"), (0x00080000, "UL", 4), (0x00282000, "OB", b"an ICC profile"),
    ):  # fmt: skip
        dataset.add_new(tag, vr, value)
    worker = cleaner()
    worker.clean(dataset)
    assert [element.keyword for element in dataset] == ["Modality"]
    assert worker.actions == {"private-removed": 3, "unknown-removed": 1, "overlay-removed": 3, "removed": 2}


def test_a_name_where_the_standard_has_a_number() -> None:
    dataset = Dataset()
    dataset.add_new(0x00280010, "LO", SECRET)  # Rows
    dataset.add_new(0x00180060, "OB", SECRET.encode() + b"!")  # KVP
    dataset._dict[pydicom.tag.Tag(0x00181210)] = pydicom.dataelem.RawDataElement(
        pydicom.tag.Tag(0x00181210), "UN", 12, SECRET.encode() + b"!", 0, False, True
    )
    raw = pydicom.dataelem.RawDataElement(pydicom.tag.Tag(0x00180050), "DS", 12, SECRET.encode() + b"!", 0, False, True)
    dataset._dict[raw.tag] = raw
    worker = cleaner()
    name = Dataset()
    name.PatientName = f"{SECRET}^A"
    worker.identifiers = identifiers_of(name)
    worker.clean(dataset)
    assert SECRET.encode() not in as_bytes(dataset)
    assert "Rows" not in dataset
    assert "KVP" not in dataset
    assert "SliceThickness" not in dataset


def test_words_of_the_patient_are_found_where_text_may_stay() -> None:
    dataset = Dataset()
    dataset.PatientName, dataset.PatientID = "Gina^Quillfeather", "4711-A"
    dataset.ImageType = ["ORIGINAL", "PRIMARY", "AXIAL", "OF GINA"]
    dataset.BodyPartExamined, dataset.ScanOptions, dataset.SpecificCharacterSet = (
        "gina",
        ["HELIX", "a name"],
        "ISO_IR 100",
    )
    dataset.ManufacturerModelName = "Scanner of QUILLFEATHER"
    dataset.SoftwareVersions = "for 4711-a"
    dataset.ConvolutionKernel = "original"  # holds "gina", and not as a word
    worker = cleaner()
    worker.identifiers = identifiers_of(dataset)
    worker.clean(dataset)
    assert (dataset.ManufacturerModelName, dataset.SoftwareVersions) == ("REMOVED", "REMOVED")
    assert dataset.ConvolutionKernel == "original"
    assert list(dataset.ImageType) == ["ORIGINAL", "PRIMARY", "AXIAL", "REMOVED"]
    assert (dataset.BodyPartExamined, dataset.ScanOptions) == ("REMOVED", ["HELIX", "REMOVED"])
    assert dataset.SpecificCharacterSet == "ISO_IR 100"
    assert (str(dataset.PatientName), dataset.PatientID) == ("patient-1", "patient-1")


def test_structured_content_keeps_codes_numbers_and_references() -> None:
    dataset, text, code, image, person = (Dataset() for _ in range(5))
    for item, kind in ((text, "TEXT"), (code, "CODE"), (image, "IMAGE"), (person, "PNAME")):
        item.ValueType, item.RelationshipType = kind, "CONTAINS"
    text.TextValue, person.PersonName = f"seen by {SECRET}", f"{SECRET}^A"
    public, local = Dataset(), Dataset()
    public.CodeValue, public.CodingSchemeDesignator, public.CodeMeaning = "27925004", "SCT", "Nodule"
    local.CodeValue, local.CodingSchemeDesignator, local.CodeMeaning = SECRET[:8], "99HOSP", SECRET
    code.ConceptNameCodeSequence, code.ConceptCodeSequence = DicomSequence([public]), DicomSequence([local])
    reference = Dataset()
    reference.ReferencedSOPClassUID, reference.ReferencedSOPInstanceUID = "1.2.840.10008.5.1.4.1.1.2", "1.2.3"
    image.ReferencedSOPSequence = DicomSequence([reference])
    dataset.ContentSequence = DicomSequence([text, code, image, person])
    worker = cleaner()
    worker.clean(dataset)
    assert STRUCTURED in worker.options
    assert SECRET.encode()[:8] not in as_bytes(dataset)
    stored = code.ConceptNameCodeSequence[0]
    assert (stored.CodeValue, stored.CodeMeaning) == ("27925004", "Nodule")
    replaced = code.ConceptCodeSequence[0]
    assert (replaced.CodingSchemeDesignator, replaced.CodeMeaning) == ("99MEDWEAVE", "REMOVED")
    assert text.TextValue == "REMOVED"
    assert image.ReferencedSOPSequence[0].ReferencedSOPInstanceUID == worker.uids["1.2.3"]
    assert image.ReferencedSOPSequence[0].ReferencedSOPClassUID == "1.2.840.10008.5.1.4.1.1.2"


@pytest.mark.parametrize(
    ("age", "message"), [("071Y", "071Y"), ("089Y", "089Y"), ("093Y", "090Y"), ("011M", "011M"), ("old", None)]
)
def test_patient_characteristics_stay_on_demand(age: str, message: str | None) -> None:
    dataset = Dataset()
    dataset.PatientSex, dataset.PatientSize, dataset.PatientBirthDate = "F", "1.7", "19480217"
    dataset.add_new(0x00101010, "AS", age)
    cleaner(retain=True).clean(dataset)
    assert (dataset.PatientSex, dataset.PatientSize) == ("F", 1.7)
    assert not dataset.PatientBirthDate
    assert (dataset.PatientAge or None) == message


def test_a_date_that_is_none_does_not_pass() -> None:
    dataset = Dataset()
    for keyword in ("StudyDate", "SeriesDate", "StudyTime", "AcquisitionDateTime", "DateOfGainCalibration"):
        dataset.add_new(keyword, dictionary_VR(keyword), SECRET)
    cleaner().clean(dataset)
    assert SECRET.encode() not in as_bytes(dataset)
    assert dataset.StudyDate in ("", None)
    assert dataset.SeriesDate == "19000101"  # some object needs a value there


def test_dates_that_patients_share_do_not_give_the_shift_away() -> None:
    dataset = Dataset()
    dataset.DateOfLastCalibration, dataset.ContextGroupVersion = "20190304", "20190304"
    cleaner().clean(dataset)
    assert "DateOfLastCalibration" not in dataset
    assert dataset.ContextGroupVersion == "19000101000000"
