"""`deidentify` on cohorts of images: photographs and radiographs without names, and what later steps find in the output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw
from pydicom import dcmread

from medweave_core.contracts.cohort import CohortIndex
from medweave_steps.cli import main
from medweave_steps.io.cohort.prepared import open_prepared
from support.dicom_builder import CtSeries, write_datasets
from support.identified import card, deidentify, notices, results, tree, way_back
from support.image_files import check, noise, preprocess, radiograph, save, save_dicom, save_table, skin_cohort

NAME, PATIENT, LESION = "Quillfeather", "HOSP-774411", "LESION-552"
SECRETS = (
    NAME,
    PATIENT,
    LESION,
    "Rosamund",
    "20190304",
    "2019:03:04",
    "words of a column",
    "Mulberry",
    "Doe^Jane",
    "P0,",
)


def exif(orientation: int = 1) -> Image.Exif:
    """Return EXIF data with a name, a date and a place."""
    values = Image.Exif()
    values[0x0112], values[0x9C9F], values[0x010E] = orientation, NAME.encode("utf-16le"), f"{NAME} Rosamund"
    values.get_ifd(0x8769)[0x9003] = "2019:03:04 10:15:00"
    values.get_ifd(0x8825)[1] = "Mulberry"
    return values


def photographs(folder: Path, **card: Any) -> Path:
    """Write four photographs of two patients with metadata; names of files and folders identify the patients."""
    below = folder / f"{NAME} {PATIENT}"
    for number in range(4):
        path = below / f"{NAME}-{number}.jpg"
        save(path, noise(number), quality=95, exif=exif(6 if number == 1 else 1), comment=f"{NAME} 20190304")
        path.write_bytes(path.read_bytes() + f"trailing {NAME}".encode())
    header = "image,patient_id,lesion_id,class,age,sex,words of a column"
    rows = [f"{NAME}-{n},{PATIENT}-{n // 2},{LESION}-{n},{'AB'[n % 2]},{(45, 97)[n // 2]},F,{NAME}" for n in range(4)]
    save_table(folder / f"{NAME}.csv", header, *rows)
    (folder / "cohort_card.json").write_text(json.dumps({"author": NAME, "classes": ["B", "A"], **card}))
    return folder


def outside(folder: Path, *texts: str) -> dict[str, bytes]:
    """Return all that may leave the source: the output with its paths, the report, and printed text."""
    report = (folder.parent / "out.json").read_bytes()
    return {"printed": "".join(texts).encode(), "report": report, **tree(folder.parent / "out")}


def checked(folder: Path) -> CohortIndex:
    code, _, index = check(folder)
    assert code == 0
    assert index is not None
    return index


def summary(index: CohortIndex) -> list[tuple[Any, ...]]:
    """Return what the index says about its images, without their names; patients by the images that they share."""
    patients: dict[str, list[str]] = {}
    for case in index.cases:
        patients.setdefault(case.patient_key, []).append(case.content_sha256)
    return sorted(
        (one.content_sha256, one.classes, one.fixed_split, one.channels, sorted(patients[one.patient_key]))
        for one in index.cases
    )


def with_text(pixels: np.ndarray, color: Any) -> np.ndarray:
    image = Image.fromarray(pixels)
    ImageDraw.Draw(image).text((10, 90), "DOE JANE 1960", fill=color, font_size=24)
    return np.asarray(image)


def test_no_name_leaves_home_with_photographs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = photographs(tmp_path / "cohort")
    inside = b"".join(tree(folder).values()) + NAME.encode()
    assert deidentify(folder) == 0
    index = checked(folder.parent / "out")
    found = outside(folder, *capsys.readouterr(), str(index))
    for name, content in found.items():
        for secret in (*SECRETS, str(tmp_path / "cohort")):
            for form in (secret.encode(), secret.encode("utf-16le")):
                assert form.lower() not in name.encode().lower() + b"\n" + content.lower(), (name, secret)
    assert NAME.encode() in inside
    assert NAME.encode("utf-16le") in inside


def test_photographs_keep_pixels_classes_and_patients(tmp_path: Path) -> None:
    folder = photographs(tmp_path / "cohort")
    before = checked(folder)
    assert deidentify(folder) == 0
    after = checked(folder.parent / "out")
    assert summary(after) == summary(before)
    assert [one.name for one in after.classes] == ["B", "A"]
    assert results(folder)["num_patients"] == 2
    assert results(folder)["actions"] == {"metadata-removed": 3, "turned-upright": 1}
    assert sorted(path.suffix for path in (folder.parent / "out" / "images").iterdir()) == [".jpg"] * 3 + [".png"]
    assert "1 image has an EXIF orientation: written upright as PNG" in notices(folder)
    home = way_back(folder)
    assert {one["patient_id"] for one in home["patients"]} == {f"{PATIENT}-0", f"{PATIENT}-1"}
    assert set(home["files"]) == set(tree(folder)) - {"cohort_card.json"}
    assert set(home["files"].values()) == set(tree(folder.parent / "out")) - {"cohort_card.json"}


def test_photographs_without_patient_keep_those_of_their_lesion(tmp_path: Path) -> None:
    folder = skin_cohort(tmp_path / "cohort", faces="absent")
    rows = [f"image-{n},{'AB'[n % 2]},{['P', '', '', ''][n // 2]},{n // 3}" for n in range(8)]
    save_table(folder / "targets.csv", "image,class,patient_id,lesion_id", *rows)
    before = checked(folder)
    assert deidentify(folder) == 0
    assert summary(checked(folder.parent / "out")) == summary(before)
    assert results(folder)["num_patients"] == len({case.patient_key for case in before.cases}) == 3


def test_the_same_key_and_more_threads_make_the_same_bytes(tmp_path: Path) -> None:
    folder = photographs(tmp_path / "cohort")
    assert deidentify(folder) == 0
    assert deidentify(folder, "--num-threads", "2", name="again") == 0
    assert tree(folder.parent / "again") == tree(folder.parent / "out")


def test_photographs_stay_identified_until_faces_are_declared_absent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = photographs(tmp_path / "cohort")
    assert deidentify(folder) == 0
    assert card(folder)["data_class"] == "identified"
    assert "4 photographs may show a face, a tattoo or another mark" in notices(folder)
    capsys.readouterr()
    assert deidentify(folder, "--require-deidentified", name="refused") == 65
    message = capsys.readouterr().err
    assert "the photograph may show a face, a tattoo or another mark" in message
    assert not (folder.parent / "refused").exists()
    for number, (words, more) in enumerate([(("--faces", "absent"), {}), ((), {"faces": "absent"})]):
        folder = photographs(tmp_path / f"declared-{number}" / "cohort", **more)
        assert deidentify(folder, "--require-deidentified", *words) == 0
        assert (card(folder)["data_class"], card(folder)["faces"]) == ("de-identified", "absent")
        assert "photograph" not in notices(folder)
        stems = {path.stem for path in (folder.parent / "out" / "images").iterdir()}
        assert {case.case_id for case in checked(folder.parent / "out").cases} == stems


def test_characteristics_of_patients_are_kept_on_request(tmp_path: Path) -> None:
    folder = photographs(tmp_path / "cohort")
    assert deidentify(folder) == 0
    assert "table 1 of 1 sorted by path: 3 of 7 columns not written" in notices(folder)
    header, *_ = (folder.parent / "out" / "table-1.csv").read_text().splitlines()
    assert header == "image,patient_id,lesion_id,class"
    assert deidentify(folder, "--retain-patient-characteristics", name="retained") == 0
    header, *rows = (folder.parent / "retained" / "table-1.csv").read_text().splitlines()
    assert header == "image,patient_id,lesion_id,class,age,sex"
    assert sorted(row.split(",", 4)[4] for row in rows) == ["45,F", "45,F", "90,F", "90,F"]


def test_rows_without_image_are_dropped_and_counted(tmp_path: Path) -> None:
    folder = photographs(tmp_path / "cohort")
    with (folder / f"{NAME}.csv").open("a") as table:
        table.write("Doe,P,L,A,50,F,x\n")
    save_table(folder / "other.csv", "image,class", "Doe,A")
    assert deidentify(folder) == 0
    assert "1 of 5 rows not written: they name no image of the output" in notices(folder)
    assert results(folder)["left_aside"] == {"no-image-or-table": 1}


def test_splits_follow_their_photographs(tmp_path: Path) -> None:
    folder = skin_cohort(tmp_path / "cohort", synthetic=True)
    (folder / "splits.json").write_text(json.dumps({"test": ["image-0", "image-1"], "validation": ["image-2"]}))
    before = checked(folder)
    assert deidentify(folder) == 0
    assert summary(checked(folder.parent / "out")) == summary(before)
    folder = photographs(tmp_path / "identified" / "cohort")
    cases = checked(folder).cases
    test = [case.case_id for case in cases if case.patient_key == cases[0].patient_key]
    (folder / "splits.json").write_text(json.dumps({"test": test}))
    before = checked(folder)
    assert {case.fixed_split for case in before.cases} == {"test", None}
    assert deidentify(folder) == 0
    assert summary(checked(folder.parent / "out")) == summary(before)


@pytest.mark.parametrize(
    ("classes", "words"),
    [((f"{PATIENT}-0", "B"), "1 of 2 class names may identify"), (("A" * 65, "B"), "1 of 2 class names may identify")],
)
def test_class_names_that_may_identify_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], classes: tuple[str, str], words: str
) -> None:
    folder = photographs(tmp_path / "cohort")
    (folder / "cohort_card.json").unlink()
    rows = [f"{NAME}-{n},{PATIENT}-{n // 2},{classes[n % 2]}" for n in range(4)]
    save_table(folder / f"{NAME}.csv", "image,patient_id,class", *rows)
    assert deidentify(folder) == 65
    message = capsys.readouterr().err
    assert words in message
    assert classes[0] not in message
    assert deidentify(folder, "--on-error", "skip") == 0
    assert (folder.parent / "out" / "table-1.csv").read_text().splitlines()[0] == "image,patient_id"


def test_text_that_only_one_patient_has_is_no_class_unless_it_is_declared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = photographs(tmp_path / "cohort", classes=["A", "B"])
    rows = [f"{NAME}-{n},{PATIENT}-{n // 2},{['A', 'B', 'A', 'seen with Rosamund'][n]}" for n in range(4)]
    save_table(folder / f"{NAME}.csv", "image,patient_id,label", *rows)
    assert deidentify(folder) == 65
    message = capsys.readouterr().err
    assert "1 of 3 class names may identify a patient" in message
    assert "1 occur with one patient only and are not declared" in message
    assert "Rosamund" not in message
    assert deidentify(folder, "--on-error", "skip") == 0
    assert not any(b"Rosamund" in content for content in outside(folder).values())


def test_rows_that_name_several_images_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = photographs(tmp_path / "cohort")
    save(folder / "second" / f"{NAME}-0.jpg", noise(9))
    assert deidentify(folder) == 65
    message = capsys.readouterr().err
    assert "1 rows name several images" in message
    assert NAME not in message


@pytest.mark.parametrize("color", [(255, 255, 255), (255, 140, 0)])
def test_text_in_photographs_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], color: tuple[int, int, int]
) -> None:
    folder = photographs(tmp_path / "cohort")
    pixels = np.full((160, 240, 3), (205, 160, 130), np.uint8)
    save(folder / f"{NAME}-text.jpg", with_text(pixels, color), quality=92)
    assert deidentify(folder) == 65
    message = capsys.readouterr().err
    assert "the pixels appear to contain burned-in text" in message
    assert NAME not in message
    assert deidentify(folder, "--on-error", "skip") == 0
    assert results(folder)["left_out"] == {"text-in-pixels": 1}
    assert len(results(folder)["left_out"]) == 1
    assert results(folder)["num_cases"] == 4


@pytest.mark.parametrize("color", [0, 255])
def test_text_in_gray_images_is_refused_in_both_polarities(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], color: int
) -> None:
    save(tmp_path / "cohort" / "a.png", with_text(noise(1, (160, 240)) // 2 + 60, color))
    assert deidentify(tmp_path / "cohort") == 65
    assert "burned-in text" in capsys.readouterr().err


def test_a_truncated_photograph_is_refused_and_can_be_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = photographs(tmp_path / "cohort")
    path = folder / f"{NAME} {PATIENT}" / f"{NAME}-3.jpg"
    path.write_bytes(path.read_bytes()[:-400])
    assert deidentify(folder) == 65
    message = capsys.readouterr().err
    assert "the image file is truncated or damaged" in message
    assert NAME not in message
    assert deidentify(folder, "--on-error", "skip") == 0
    assert results(folder)["num_cases"] == 3
    assert len((folder.parent / "out" / "table-1.csv").read_text().splitlines()) == 4


def test_brain_masks_of_photographs_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = photographs(tmp_path / "cohort")
    (tmp_path / "masks").mkdir()
    assert deidentify(folder, "--brain-masks", str(tmp_path / "masks")) == 2
    assert "--brain-masks applies to scans" in capsys.readouterr().err


def radiographs(folder: Path, **values: Any) -> Path:
    """Write three radiographs of two patients, and a table in the format of NIH ChestX-ray14."""
    for key, patient in (("a", 0), ("b", 0), ("c", 1)):
        values = {"BurnedInAnnotation": "NO", **values, "PatientID": f"{PATIENT}-{patient}"}
        dataset = radiograph(key, BodyPartExamined="CHEST", StudyDate="20190304", **values)
        save_dicom(folder / NAME / f"{NAME}_{key}.dcm", dataset)
    rows = [f"{NAME}_{key}.dcm,{text},{PATIENT}-{n},93" for key, text, n in (("a", "Mass|Edema", 0), ("b", "Mass", 0))]
    save_table(
        folder / f"{NAME}.csv", "Image Index,Finding Labels,Patient ID,Patient Age", *rows,
        f"{NAME}_c.dcm,No Finding,{PATIENT}-1,40",
    )  # fmt: skip
    (folder / "cohort_card.json").write_text(json.dumps({"classes": ["Edema", "Mass"]}))
    return folder


@pytest.mark.parametrize("modality", ["CR", "DX", "MG"])
def test_radiographs_keep_pixels_classes_and_patients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], modality: str
) -> None:
    folder = radiographs(tmp_path / "cohort", modality=modality)
    before = checked(folder)
    (folder / "splits.json").write_text(json.dumps({"test": [before.cases[0].case_id]}))
    before = check(folder, "--on-error", "skip")[2]
    capsys.readouterr()
    assert deidentify(folder) == 0
    after = check(folder.parent / "out", "--on-error", "skip")[2]
    assert before is not None
    assert after is not None
    assert summary(after) == summary(before)
    assert card(folder)["data_class"] == "de-identified"
    assert {one.case_id for one in after.cases} == set(way_back_ids(folder))
    for name, content in outside(folder, *capsys.readouterr()).items():
        for secret in SECRETS:
            assert secret.lower().encode() not in name.lower().encode() + b"\n" + content.lower(), (name, secret)


def way_back_ids(folder: Path) -> list[str]:
    report = json.loads((folder.parent / "out.json").read_text())
    return [case["case_id"] for case in report["cases"]]


def test_patients_that_only_the_table_names_stay_together(tmp_path: Path) -> None:
    folder = radiographs(tmp_path / "cohort")
    for path in folder.rglob("*.dcm"):
        dataset = dcmread(path)
        dataset.PatientID = ""
        dataset.save_as(path)
    before = checked(folder)
    assert len({case.patient_key for case in before.cases}) == 2
    assert deidentify(folder) == 0
    assert summary(checked(folder.parent / "out")) == summary(before)
    assert {one["patient_id"] for one in way_back(folder)["patients"]} == {f"{PATIENT}-0", f"{PATIENT}-1"}


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
def test_text_in_radiographs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], photometric: str) -> None:
    folder = radiographs(tmp_path / "cohort")
    shown = with_text(noise(5, (160, 240)) // 2 + 20, 255).astype(np.uint16) * 16
    stored = 4095 - shown if photometric == "MONOCHROME1" else shown
    dataset = radiograph("d", stored=stored, PhotometricInterpretation=photometric, BodyPartExamined="CHEST")
    save_dicom(folder / f"{NAME}.dcm", dataset)
    assert deidentify(folder) == 65
    message = capsys.readouterr().err
    assert "the pixels appear to contain burned-in text" in message
    assert NAME not in message


def test_what_the_header_states_about_burned_in_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = radiographs(tmp_path / "stated" / "cohort")
    assert deidentify(folder) == 0
    assert "BurnedInAnnotation" not in notices(folder)
    folder = radiographs(tmp_path / "unstated" / "cohort", BurnedInAnnotation="")
    assert deidentify(folder) == 0
    assert "3 radiographs do not state whether text is burned in" in notices(folder)
    folder = radiographs(tmp_path / "declared" / "cohort", BurnedInAnnotation="YES")
    assert deidentify(folder) == 65
    assert "the header declares burned-in text" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("part", "modality", "data_class", "notice"),
    [
        ("SKULL", "DX", "identified", "may show a face"),
        (None, "DX", "de-identified", "no body part"),
        (None, "MG", "de-identified", ""),
    ],
)
def test_body_parts_of_radiographs(
    tmp_path: Path, part: str | None, modality: str, data_class: str, notice: str
) -> None:
    more = {} if part is None else {"BodyPartExamined": part}
    save_dicom(tmp_path / "cohort" / "a.dcm", radiograph("a", modality, **more))
    assert deidentify(tmp_path / "cohort") == 0
    assert card(tmp_path / "cohort")["data_class"] == data_class
    assert notice in notices(tmp_path / "cohort")


def test_radiographs_beside_volumes_are_left_aside(tmp_path: Path) -> None:
    folder = tmp_path / "cohort"
    write_datasets(CtSeries().datasets(), folder)
    save_dicom(folder / "x.dcm", radiograph())
    assert deidentify(folder) == 0
    assert results(folder)["left_aside"] == {"other-object": 1}
    assert results(folder)["num_cases"] == 1


def test_codes_of_classes_are_kept_if_their_scheme_is_public(tmp_path: Path) -> None:
    codes = [{"value": "1", "scheme": scheme, "meaning": "St Elsewhere"} for scheme in ("SCT", "99ELSEWHERE")]
    folder = skin_cohort(
        tmp_path / "cohort", classes=[{"name": name, "code": code} for name, code in zip("AB", codes, strict=True)]
    )
    assert deidentify(folder) == 0
    assert [one["code"] for one in card(folder)["classes"]] == [codes[0], None]


def test_an_unusable_list_of_classes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, classes in enumerate(["MEL", ["A", "A"], [NAME * 6]]):
        folder = skin_cohort(tmp_path / str(number) / "cohort", classes=classes)
        assert deidentify(folder) == 65
        message = capsys.readouterr().err
        assert "cohort_card.json is invalid" in message
        assert NAME not in message


def test_photographs_beside_radiographs_are_left_aside(tmp_path: Path) -> None:
    folder = radiographs(tmp_path / "cohort")
    save(folder / "preview.jpg", noise(1))
    assert deidentify(folder) == 0
    assert results(folder)["left_aside"] == {"not-dicom": 1}


@pytest.mark.parametrize("kind", ["skin", "xray"])
def test_later_steps_read_a_de_identified_phantom_as_the_phantom(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cohort"
    words = [
        "--cases",
        "8",
        "--held-out-cases",
        "2",
        "--image-size",
        "32",
        "--run-report",
        str(tmp_path / "phantom.json"),
    ]
    assert main(["phantom", kind, "--output", str(folder), *words]) == 0
    assert deidentify(folder, "--require-deidentified") == 0
    capsys.readouterr()
    before, after = check(folder, "--on-error", "skip")[2], check(folder.parent / "out", "--on-error", "skip")[2]
    assert before is not None
    assert after is not None
    assert summary(after) == summary(before)
    assert (after.classes, after.is_multi_label, after.synthetic) == (before.classes, before.is_multi_label, True)
    assert (after.data_class, len({case.patient_key for case in after.cases})) == ("de-identified", 10)
    output = b"\n".join(name.encode() + content for name, content in outside(folder).items())
    for source in folder.rglob("*.*"):
        assert source.stem.encode() not in output or source.name in {"cohort_card.json", "splits.json"}
    names = {
        cell for table in folder.glob("*.csv") for row in table.read_text().splitlines()[1:] for cell in row.split(",")
    }
    assert not any(name.encode() in output for name in names if name.startswith(("ISIC_", "SKIN_", "HELDOUT_")))


def test_preprocess_reads_a_de_identified_cohort(tmp_path: Path) -> None:
    folder = skin_cohort(tmp_path / "cohort", faces="absent")
    assert deidentify(folder) == 0
    prepared = []
    for cohort in (folder, folder.parent / "out"):
        code, path, _ = preprocess(cohort, "--image-size", "16", "16")
        assert code == 0
        cases = [case for part in path.rglob("cohort.json") for case in open_prepared(part.parent).cases()]
        assert len(cases) == 8
        prepared.append(sorted((case.case.classes, case.volume_CIJK().tobytes()) for case in cases))
    assert prepared[0] == prepared[1]
