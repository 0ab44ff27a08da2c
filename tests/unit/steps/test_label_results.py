"""Results of a label: the body part, DICOM objects, the report and the de-identified card take their terms from it."""

from __future__ import annotations

import json
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest

from medweave_core.contracts import codec
from medweave_core.contracts.body_parts import contradiction, known_body_part, procedure_of, regions_of, scans_of
from medweave_core.contracts.labels import LUNG_NODULE, CodedTerm, Label
from medweave_core.contracts.segmentations import Segmentations
from medweave_steps.cli import main
from medweave_steps.deidentify.describe import write_card
from medweave_steps.io.cohort.labels import parse_labels
from support.checked import check, notices_of
from support.dicom_builder import CtSeries, write_datasets
from support.labels import RIGHT_KIDNEY_TUMOR, SPLEEN
from support.openvino_models import write_tiny_model
from support.prepared_builder import prepare
from support.reported import evaluated
from support.segmented import CASE, Run, scan_of, segment, series_with
from support.validators import dciodvfy_errors

# --- the body part


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CHEST", "CHEST"), ("chest ", "CHEST"), ("Thorax", "CHEST"), ("HEAD_NECK", "HEADNECK"), ("LUNG", "LUNG"), ("", None),
        ("Doe^Jane", None), ("KOPF DOE", None),
    ],
)  # fmt: skip
def test_only_defined_terms_are_body_parts(text: str, expected: str | None) -> None:
    assert known_body_part(text) == expected


@pytest.mark.parametrize(
    ("body_part", "label", "has_lungs", "seen"),
    [
        ("CHEST", LUNG_NODULE, True, ""), ("HEAD", LUNG_NODULE, True, "body part HEAD"), (None, LUNG_NODULE, None, ""),
        (None, LUNG_NODULE, False, "no lungs in the voxels"), ("CHESTABDPELVIS", SPLEEN, False, ""),
        ("WHOLEBODY", LUNG_NODULE, True, ""),
        ("BRAIN", SPLEEN, None, "body part BRAIN"), ("CHEST", Label(value=1, name="nodule"), False, ""),
        ("SHOULDER", LUNG_NODULE, None, ""), ("ABDOMEN", LUNG_NODULE, True, ""), ("NECK", LUNG_NODULE, True, ""),
        ("ABDOMEN", LUNG_NODULE, False, "body part ABDOMEN"), ("ABDOMEN", LUNG_NODULE, None, "body part ABDOMEN"),
        ("PELVIS", LUNG_NODULE, True, "body part PELVIS"), ("LIVER", Label(value=1, name="nodule"), True, ""),
    ],
)  # fmt: skip
def test_a_contradiction_needs_two_known_regions(
    body_part: str | None, label: Label, has_lungs: bool | None, seen: str
) -> None:
    assert contradiction(body_part, [label], has_lungs=has_lungs)[0] == seen


def test_codes_of_the_table_are_those_of_the_standard() -> None:
    from pydicom.sr._concepts_dict import concepts

    from medweave_core.contracts.body_parts import PARTS_BY_CODE

    known = {code: meaning for names in concepts["SCT"].values() for code, (meaning, _) in names.items()}
    absent = {code for code in PARTS_BY_CODE if code not in known}
    # Retired or without a context group in DICOM: thorax, abdomen, pelvis, and the sides of lung and kidney.
    assert absent <= {"51185008", "113345001", "12921003", "3341006", "44029006", "9846003", "18639004"}
    assert all(
        word in known[code] for code, word in (("39607008", "Lung"), ("12738006", "Brain"), ("10200004", "Liver"))
    )
    assert regions_of("LIVER") == {"abdomen"}
    assert (procedure_of(LUNG_NODULE).value, procedure_of(SPLEEN).value) == ("169069000", "25045-6")
    assert (scans_of(LUNG_NODULE, "CT"), scans_of(Label(value=1, name="x"), "CT")) == ("chest CT", "CT")


def with_body_part(folder: Path, part: str = "", code: tuple[str, str] | None = None) -> Path:
    series = CtSeries()
    datasets = series.datasets()
    for dataset in datasets:
        dataset.BodyPartExamined = part
        if code is not None:
            region = pydicom.Dataset()
            region.CodeValue, region.CodingSchemeDesignator, region.CodeMeaning = *code, "Doe^Jane"
            dataset.AnatomicRegionSequence = [region]
    write_datasets(datasets, folder)
    return folder


@pytest.mark.parametrize(
    ("part", "code", "expected"),
    [
        ("CHEST", None, "CHEST"), ("Doe Jane", None, None), ("CHEST", ("12738006", "SCT"), "BRAIN"),
        ("", ("T-28000", "SRT"), "LUNG"), ("HEAD", ("L1", "99LOCAL"), "HEAD"),
    ],
)  # fmt: skip
def test_check_keeps_the_body_part_as_a_term_of_the_standard(
    tmp_path: Path, part: str, code: tuple[str, str] | None, expected: str | None
) -> None:
    (case,) = check(with_body_part(tmp_path, part, code)).index.cases
    assert case.body_part == expected


def test_check_reports_a_body_part_that_differs_from_the_labels(tmp_path: Path) -> None:
    folder = with_body_part(tmp_path / "cohort", "HEAD")
    (folder / "cohort_card.json").write_text(json.dumps({"labels": codec.to_json([LUNG_NODULE])}))
    finding = notices_of(folder)["body-part-differs"]
    assert (finding.seen, finding.case_id is not None) == ("body part HEAD", True)
    (folder / "cohort_card.json").write_text(json.dumps({"labels": {"1": "nodule"}}))
    assert "body-part-differs" not in notices_of(folder)


# --- what segment writes


def segmented(folder: Path, card: dict[str, object], info: dict[str, object] | None = None) -> Run:
    """Segments one DICOM series with two balls, with a card and a volume_info.json that are changed."""
    write_tiny_model(folder / "model", **card)
    batch = prepare(folder / "batch", [scan_of(series_with())])
    path = batch / "cases" / CASE / "volume_info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | (info or {})))
    run = segment(folder, folder / "model", batch)
    assert run.exit_code == 0
    return run


@pytest.mark.parametrize("label", [SPLEEN, RIGHT_KIDNEY_TUMOR], ids=["spleen", "kidney"])
def test_seg_and_sr_of_another_organ_come_from_the_card(tmp_path: Path, label: Label) -> None:
    run = segmented(tmp_path, {"labels": (label,), "name": "other"})
    seg, report = (pydicom.dcmread(run.case(name)) for name in ("lesion_mask.dcm", "lesions_sr.dcm"))
    (segment_item,) = seg.SegmentSequence
    assert label.type is not None
    assert segment_item.SegmentedPropertyTypeCodeSequence[0].CodeValue == label.type.value
    (region,) = segment_item.AnatomicRegionSequence
    assert region.CodeMeaning == label.anatomy.meaning
    assert ("AnatomicRegionModifierSequence" in region) == (label.laterality is not None)
    titles = {
        "spleen": ("SPLEEN", "Spleen (research use only)"),
        "tumor": ("RIGHT_KIDNEY_TUM", "Right kidney tumors (research use only)"),
    }
    assert (seg.ContentLabel, seg.SeriesDescription) == titles[label.name]
    text = report.to_json()
    for word in ("ung", "odule", "hest"):
        assert word not in text
        assert word not in seg.to_json()
    assert "CT unspecified body region" in text
    assert dciodvfy_errors(run.case("lesion_mask.dcm")) == []
    assert dciodvfy_errors(run.case("lesions_sr.dcm")) == []
    mask = np.asarray(nibabel.load(run.case("lesion_mask.nii.gz")).dataobj)
    assert np.unique(mask).tolist() == [0, label.value]


@pytest.mark.parametrize("name", ["Läsion 'groß'", "病変", "a" * 200, "tumor\\mass\n2"])
def test_any_name_of_a_label_gives_valid_objects(tmp_path: Path, name: str) -> None:
    label = Label(value=1, name=name, category=SPLEEN.category, type=SPLEEN.type, anatomy=SPLEEN.anatomy)
    run = segmented(tmp_path, {"labels": (label,)})
    assert dciodvfy_errors(run.case("lesion_mask.dcm")) == []
    assert dciodvfy_errors(run.case("lesions_sr.dcm")) == []


def test_a_card_without_codes_gives_nifti_and_table_with_a_notice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = segmented(tmp_path, {"labels": (Label(value=1, name="spleen"),), "task": "spleen"})
    assert sorted(path.name for path in run.case().iterdir()) == ["lesion_mask.nii.gz", "lesions.csv"]
    notice = "no DICOM SEG and SR: the label 1 (spleen) of the model card has no DICOM codes"
    assert notice in capsys.readouterr().err
    assert any(notice in text for text in json.loads(run.report.read_text())["notices"])


@pytest.mark.parametrize(
    ("info", "seen"), [({"body_part": "HEAD"}, "body part HEAD"), ({"has_lungs": False}, "no lungs in the voxels")]
)
def test_a_case_of_another_body_part_gets_no_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], info: dict[str, object], seen: str
) -> None:
    run = segmented(tmp_path, {}, info)
    assert sorted(path.name for path in run.case().iterdir()) == ["lesion_mask.nii.gz", "lesions.csv"]
    record = codec.from_json(Segmentations, json.loads((run.output / "segmentations.json").read_text()), where="test")
    (finding,) = record.cases[0].findings
    assert (finding.code, finding.seen, finding.expected) == ("body-part-differs", seen, "Lung")
    report = json.loads(run.report.read_text())
    assert report["cases"][0]["findings"][0]["code"] == "body-part-differs"
    assert any(seen in text for text in report["notices"])
    assert seen in capsys.readouterr().err


@pytest.mark.parametrize("body_part", ["CHEST", "ABDOMEN"])
def test_a_known_body_part_that_fits_changes_nothing(tmp_path: Path, body_part: str) -> None:
    run = segmented(tmp_path, {}, {"body_part": body_part, "has_lungs": True})
    assert run.case("lesion_mask.dcm").is_file()
    assert json.loads(run.report.read_text())["notices"] == []


def test_a_card_with_several_labels_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny_model(tmp_path / "model", labels=(LUNG_NODULE, RIGHT_KIDNEY_TUMOR))
    batch = prepare(tmp_path / "batch", [scan_of(series_with())])
    assert segment(tmp_path, tmp_path / "model", batch).exit_code == 65
    assert "1 (nodule), 3 (tumor)" in capsys.readouterr().err


# --- report and deidentify


@pytest.mark.slow
def test_the_report_takes_title_and_window_from_the_label_and_shows_findings(tmp_path: Path) -> None:
    _, options = evaluated(tmp_path)
    finding = {
        "what": "case-1: another part.",
        "seen": "body part HEAD",
        "expected": "Lung",
        "code": "body-part-differs",
    }
    path = tmp_path / "reports/segment/run_report.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"cases": [{"case_id": "case-1", "findings": [finding]}]})
    )
    words = ["report", *options, "--output"]
    assert main([*words, str(tmp_path / "lung")]) == 0
    page = (tmp_path / "lung/fragment.html").read_text()
    assert json.loads((tmp_path / "lung/summary.json").read_text())["title"] == "Lung nodule segmentation in chest CT"
    for text in (
        "Lung window (level −600 HU, width 1500 HU)",
        "nodule (value 1; Nodule, Lung)",
        "Seen: body part HEAD",
    ):
        assert text in page
    for path in tmp_path.glob("batches/*/cohort.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"labels": {"0": "background", "1": "spleen"}}))
    assert main([*words, str(tmp_path / "spleen")]) == 0
    page = (tmp_path / "spleen/fragment.html").read_text()
    assert json.loads((tmp_path / "spleen/summary.json").read_text())["title"] == "Spleen segmentation in CT"
    assert "Window from −1000 to 400 HU" in page
    assert "ung window" not in page
    assert "spleen (value 1; without DICOM codes)" in page


def test_deidentify_keeps_label_codes_of_public_schemes(tmp_path: Path) -> None:
    local = CodedTerm(value="X1", scheme="99HOSPITAL", meaning="Ward 4")
    labels = [SPLEEN, Label(value=2, name="b", type=local, anatomy=SPLEEN.anatomy)]
    (tmp_path / "cohort_card.json").write_text(json.dumps({"labels": codec.to_json(labels)}))
    (tmp_path / "out").mkdir()
    write_card(tmp_path, tmp_path / "out", data_class="de-identified", is_synthetic=False, faces="auto")
    retained = json.loads((tmp_path / "out/cohort_card.json").read_text())["labels"]
    assert parse_labels(retained, where="test") == (SPLEEN, Label(value=2, name="b", anatomy=SPLEEN.anatomy))
