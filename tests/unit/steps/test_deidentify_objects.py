"""Other objects than plain CT slices: structured reports, enhanced CT, rare encodings. They stay valid, references lead on."""

from __future__ import annotations

import shutil
from pathlib import Path

import highdicom
import pydicom
import pytest
from pydicom.dataelem import RawDataElement
from pydicom.tag import Tag
from pydicom.uid import DeflatedExplicitVRLittleEndian, ExplicitVRBigEndian

from support.checked import cases_of
from support.dicom_builder import CtSeries
from support.identified import deidentify, identified_series, results, tree, way_back
from support.segmented import Run, series_with
from support.validators import dciodvfy_errors


@pytest.fixture(scope="module")
def delivered(tmp_path_factory: pytest.TempPathFactory, run: Run) -> Path:
    """A scan with the DICOM SEG and the DICOM SR that `segment` made of it."""
    folder = tmp_path_factory.mktemp("delivered") / "cohort"
    series_with().write(folder)
    for name in ("lesions_sr.dcm", "lesion_mask.dcm"):
        shutil.copy(run.case(name), folder / name)
    assert deidentify(folder) == 0
    return folder


def new(folder: Path, name: str) -> Path:
    return folder.parent / "out" / way_back(folder)["files"][name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lesions_sr.dcm", "lesion_mask.dcm", "000.dcm"])
def test_no_new_error(delivered: Path, name: str) -> None:
    before = dciodvfy_errors(delivered / name)
    assert [line for line in dciodvfy_errors(new(delivered, name)) if line not in before] == []


@pytest.mark.slow
def test_a_report_keeps_measurements_and_references(delivered: Path) -> None:
    before, after = (
        highdicom.sr.srread(path) for path in (delivered / "lesions_sr.dcm", new(delivered, "lesions_sr.dcm"))
    )
    uids = way_back(delivered)["uids"]
    groups = [report.content.get_volumetric_roi_measurement_groups() for report in (before, after)]
    assert len(groups[0]) == len(groups[1]) == 2
    for old, clean in zip(*groups, strict=True):
        assert [(m.name.meaning, m.value) for m in clean.get_measurements()] == [
            (m.name.meaning, m.value) for m in old.get_measurements()
        ]
        assert clean.tracking_uid == uids[old.tracking_uid]
        assert clean.tracking_identifier == "REMOVED"
        references = [item.referenced_sop_instance_uid for item in clean.referenced_segment]
        assert references == [uids[item.referenced_sop_instance_uid] for item in old.referenced_segment]
    instances = {pydicom.dcmread(path).SOPInstanceUID for path in (delivered.parent / "out").rglob("*.dcm")}
    evidence = {
        item.ReferencedSOPInstanceUID
        for study in after.CurrentRequestedProcedureEvidenceSequence
        for series in study.ReferencedSeriesSequence
        for item in series.ReferencedSOPSequence
    }
    assert evidence <= instances
    assert "113104" in {item.CodeValue for item in after.DeidentificationMethodCodeSequence}
    assert "Clean Structured Content Option" in results(delivered)["options"]


def test_an_enhanced_ct(tmp_path: Path) -> None:
    folder = tmp_path / "cohort"
    folder.mkdir()
    dataset = CtSeries().enhanced()
    dataset.PerFrameFunctionalGroupsSequence[0].FrameContentSequence = [pydicom.Dataset()]
    dataset.PerFrameFunctionalGroupsSequence[0].FrameContentSequence[0].FrameComments = "seen by Grimshaw"
    pydicom.dcmwrite(folder / "scan.dcm", dataset, enforce_file_format=True)
    assert deidentify(folder) == 0
    (before,), (after,) = cases_of(folder), cases_of(tmp_path / "out")
    assert (after.grid, after.content_sha256) == (before.grid, before.content_sha256)
    assert b"Grimshaw" not in new(folder, "scan.dcm").read_bytes()


@pytest.mark.parametrize(
    "syntax", [DeflatedExplicitVRLittleEndian, ExplicitVRBigEndian], ids=["deflated", "big endian"]
)
def test_rare_encodings(tmp_path: Path, syntax: pydicom.uid.UID) -> None:
    folder = tmp_path / "cohort"
    for path in CtSeries().write(folder):
        dataset = pydicom.dcmread(path)
        dataset.decompress() if dataset.file_meta.TransferSyntaxUID.is_compressed else None
        if syntax == ExplicitVRBigEndian:
            dataset["PixelData"].value = dataset.pixel_array.astype(">i2").tobytes()
        dataset.file_meta.TransferSyntaxUID = syntax
        pydicom.dcmwrite(
            path, dataset, enforce_file_format=True, little_endian=syntax != ExplicitVRBigEndian, implicit_vr=False
        )
    assert deidentify(folder) == 0
    for old, path in way_back(folder)["files"].items():
        before, after = pydicom.dcmread(folder / old), pydicom.dcmread(tmp_path / "out" / path)
        assert after.PixelData == before.PixelData
        assert after.file_meta.TransferSyntaxUID == syntax
        assert (after.pixel_array == before.pixel_array).all()
        assert b"Doe" not in (tmp_path / "out" / path).read_bytes()


def test_a_file_without_preamble_and_meta_header(tmp_path: Path) -> None:
    folder = tmp_path / "cohort"
    for path in CtSeries().write(folder):
        dataset = pydicom.dcmread(path)
        del dataset.file_meta
        dataset.preamble = None
        pydicom.dcmwrite(path, dataset, implicit_vr=True, little_endian=True, enforce_file_format=False)
    assert deidentify(folder) == 0
    (case,) = cases_of(tmp_path / "out")
    assert case.grid == cases_of(folder)[0].grid


def test_text_in_another_character_set(tmp_path: Path) -> None:
    folder = tmp_path / "cohort"
    for path in CtSeries().write(folder):
        dataset = pydicom.dcmread(path)
        dataset.SpecificCharacterSet = "ISO_IR 192"
        dataset.PatientName, dataset.ManufacturerModelName = "Müller-Łódź^Zoë", "für MÜLLER-ŁÓDŹ"
        dataset.save_as(path)
    assert deidentify(folder) == 0
    for path in (tmp_path / "out").rglob("*.dcm"):
        text = path.read_bytes().decode("utf-8", "replace").casefold()
        assert "müller" not in text
        assert "łódź" not in text


def test_values_against_the_standard(tmp_path: Path) -> None:
    folder = tmp_path / "cohort"
    identifying = (
        (0x00080020, "DA", b"Rosamund"), (0x00101010, "AS", b"of Rosamund "), (0x00080008, "CS", b"ORIGINAL\\PRIMARY\\rosamund"),
        (0x00080050, "SH", b"Rosamund" * 10), (0x00180022, "CS", b"scan of Rosamund Quillfeather!"),
        (0x00281050, "DS", b"fifty Rosamund"), (0x00200013, "IS", b"Rosamund"), (0x0020000D, "UI", b"1.2.Rosamund.4"),
        (0x00080090, "PN", b"\xff\xfeRosamund^A^B^C^D^E^F"), (0x00081090, "LO", b"\xe9\xff Rosamund\xff "),
    )  # fmt: skip
    (dataset, *_) = identified_series()
    for number, vr, value in identifying:
        tag = Tag(number)
        dataset._dict[tag] = RawDataElement(tag, vr, len(value), value, 0, False, True)
    folder.mkdir()
    pydicom.dcmwrite(folder / "scan.dcm", dataset, enforce_file_format=True)
    assert b"Rosamund" in (folder / "scan.dcm").read_bytes()
    assert deidentify(folder) == 0
    content = new(folder, "scan.dcm").read_bytes()
    assert b"rosamund" not in content.lower()
    assert pydicom.dcmread(new(folder, "scan.dcm")).PixelData == dataset.PixelData


def test_a_patient_who_comes_later_changes_no_other_file(tmp_path: Path) -> None:
    folder = tmp_path / "cohort"
    CtSeries(key="b", patient="patient-b").write(folder / "b")
    assert deidentify(folder, name="first") == 0
    CtSeries(key="a", patient="patient-a").write(folder / "a")
    assert deidentify(folder, name="second") == 0
    first, second = tree(tmp_path / "first"), tree(tmp_path / "second")
    assert len(second) == 2 * len(first) - 1, "the card is one for all"
    assert first.items() <= second.items()
