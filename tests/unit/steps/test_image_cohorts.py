"""`check` and `preprocess` on cohorts of images: from files and tables to a training set, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.model import InputContract
from medweave_steps.cli import main
from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.io.dicom.source_headers import read_headers
from medweave_steps.io.image.raster import read_raster
from medweave_steps.io.model.folder import write_card
from support.image_files import check, noise, preprocess, radiograph, save, save_dicom, save_table, skin_cohort
from support.model_folders import tiny_card


def codes(results: Any) -> dict[str, str]:
    return {finding["code"]: finding["severity"] for finding in results.get("findings", [])}


def refused(cohort: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return what `check` prints when it refuses a cohort; no file name, patient or class cell is in it."""
    code, _, index = check(cohort, *words)
    message = capsys.readouterr().err
    assert (code, index) == (65, None)
    for private in ("Doe", "patient-", ".jpg", ".png", ".dcm", "targets.csv"):
        assert private not in message
    return message


def test_a_cohort_of_photographs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, results, index = check(skin_cohort(tmp_path / "cohort"))
    assert code == 0
    assert index is not None
    assert (index.layout, index.channels, index.is_multi_label) == ("images", ("red", "green", "blue"), False)
    assert index.classes == (ImageClass(name="A"), ImageClass(name="B"))
    first = index.cases[0]
    assert (first.case_id, first.source_format, first.classes, first.grid.shape) == (
        "image-0", "image", ("A",), (24, 20, 1),
    )  # fmt: skip
    assert results["cases_by_class"] == {"A": 4, "B": 4}
    message = capsys.readouterr().err
    assert "check: 8 usable color images of 8 patients, synthetic" in message
    assert "check: 24 x 20 pixels (columns x rows)" in message
    assert "check: 2 classes, one for each case; cases: A 4, B 4" in message
    assert "column 'image' names the image; column 'class': one class for each image" in message


def test_file_names_of_identified_images_are_no_case_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, index = check(skin_cohort(tmp_path / "cohort", synthetic=False))
    assert code == 0
    assert index is not None
    assert all(case.case_id.startswith("case-") for case in index.cases)
    assert "image-" not in capsys.readouterr().err


def test_classes_of_the_card_have_codes_and_an_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = {"value": "1", "scheme": "99TEST", "meaning": "b"}
    folder = skin_cohort(tmp_path / "cohort", classes=[{"name": "B", "code": code}, "A", "C"])
    result, results, index = check(folder)
    assert result == 0
    assert index is not None
    assert [one.name for one in index.classes] == ["B", "A", "C"]
    assert index.classes[0].code is not None
    assert codes(results) == {"class-without-case": "notice"}
    (folder / "cohort_card.json").write_text('{"classes": ["A"]}')
    capsys.readouterr()
    assert "classes that the cohort card does not declare" in refused(folder, capsys)


def test_patients_come_from_another_table_or_the_lesion(tmp_path: Path) -> None:
    folder = skin_cohort(tmp_path / "cohort")
    save_table(folder / "targets.csv", "image,class", *(f"image-{n},{'AB'[n % 2]}" for n in range(8)))
    _, results, index = check(folder)
    assert index is not None
    assert len({case.patient_key for case in index.cases}) == 8
    assert codes(results) == {"no-patient-id": "notice"}
    save_table(folder / "about.csv", "image,lesion_id", *(f"image-{n},L{n // 2}" for n in range(7)))
    _, results, index = check(folder)
    assert index is not None
    assert len({case.patient_key for case in index.cases}) == 5
    assert codes(results) == {"lesions-as-patients": "notice", "no-patient-id": "notice"}
    save_table(
        folder / "about.csv", "image,lesion_id,patient_id", *(f"image-{n},L{n // 2},P{n // 4}" for n in range(8))
    )
    _, results, index = check(folder)
    assert index is not None
    assert len({case.patient_key for case in index.cases}) == 2
    assert codes(results) == {}


def test_lesions_join_images_where_only_some_rows_name_a_patient(tmp_path: Path) -> None:
    folder = skin_cohort(tmp_path / "cohort")
    save_table(folder / "targets.csv", "image,class", *(f"image-{n},{'AB'[n % 2]}" for n in range(8)))
    patients = ["P", "P", "", "", "", "", "", ""]
    lesions = ["1", "2", "2", "3", "3", "4", "5", "6"]
    rows = [f"image-{n},{lesions[n]},{patients[n]}" for n in range(8)]
    save_table(folder / "about.csv", "image,lesion_id,patient_id", *rows)
    _, results, index = check(folder)
    assert index is not None
    keys = [case.patient_key for case in index.cases]
    assert [keys.index(key) for key in keys] == [0, 0, 0, 3, 3, 5, 6, 7]
    assert codes(results) == {"lesions-as-patients": "notice"}


def test_rows_without_image_and_images_without_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = skin_cohort(tmp_path / "cohort")
    rows = [f"image-{n},{'AB'[n % 2]}" for n in range(1, 8)]
    save_table(folder / "targets.csv", "image,class", *rows, "Doe,A", "Doe-2,B")
    message = refused(folder, capsys)
    assert "2 of 9 rows of the table of targets name no file" in message
    assert "row 9, 10 (the header is row 1)" in message
    assert "1 of 8 images have no row in the table of targets" in message
    code, results, index = check(folder, "--on-error", "skip")
    assert code == 0
    assert index is not None
    assert [case.case_id for case in index.cases if case.classes is None] == ["image-0"]
    assert codes(results)["rows-without-case"] == codes(results)["cases-without-row"] == "notice"


def test_a_row_that_contradicts_another_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = skin_cohort(tmp_path / "cohort")
    with (folder / "targets.csv").open("a") as table:
        table.write("image-0,A,P0\nimage-0.jpg,B,P0\n")
    message = refused(folder, capsys)
    assert "give other classes to a case that has some already" in message
    assert "row 11" in message


def test_a_row_that_names_two_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = skin_cohort(tmp_path / "cohort")
    save(folder / "more" / "image-0.jpg", noise(77))
    assert "rows of the table of targets name several files" in refused(folder, capsys)


def test_the_row_of_a_missing_file_gives_no_patient_to_a_file_of_the_same_name_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / "cohort"
    for number in (1, 2):
        save(folder / f"p{number}" / "view.jpg", noise(number))
    save(folder / "p2" / "other.jpg", noise(5))
    rows = ["p1/view.jpg,A,P1", "p2/view.jpg,B,P2", "p2/other.jpg,B,P2", "p3/other.jpg,B,P3"]
    save_table(folder / "targets.csv", "path,class,patient_id", *rows)
    code, results, index = check(folder, "--on-error", "skip")
    assert (code, codes(results)) == (0, {"rows-without-case": "notice"})
    assert index is not None
    assert len({case.patient_key for case in index.cases}) == 2


def test_several_tables_of_targets_need_a_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = skin_cohort(tmp_path / "cohort")
    lines = ["image,x,y", *(f"image-{n},{n % 2},{(n + 1) % 2}" for n in range(8))]
    other = save_table(folder / "more.csv", *lines)
    message = refused(folder, capsys)
    assert "file 9 (one-hot), file 10 (class column)" in message
    assert "name the table with --targets" in message
    code, _, index = check(folder, "--targets", str(other))
    assert code == 0
    assert index is not None
    assert [one.name for one in index.classes] == ["x", "y"]
    assert len({case.patient_key for case in index.cases}) == 8


def test_images_without_table_have_no_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = skin_cohort(tmp_path / "cohort")
    (folder / "targets.csv").unlink()
    code, results, index = check(folder)
    assert code == 0
    assert index is not None
    assert (index.classes, index.cases[0].classes) == ((), None)
    assert codes(results)["no-targets"] == "notice"
    capsys.readouterr()
    assert preprocess(folder)[0] == 65
    assert "no case of the cohort has a class" in capsys.readouterr().err
    assert preprocess(folder, "--purpose", "inference")[0] == 0


@pytest.mark.parametrize(("majority", "minority"), [("color", "gray"), ("gray", "color")])
def test_gray_among_color_and_color_among_gray_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], majority: str, minority: str
) -> None:
    folder = skin_cohort(tmp_path / "cohort")
    for number in range(8):
        kind = minority if number == 3 else majority
        save(folder / "images" / f"image-{number}.jpg", noise(number, (20, 24, 3) if kind == "color" else (20, 24)))
    words = {"color": "in color (RGB)", "gray": "gray (JPEG or PNG)"}
    message = refused(folder, capsys)
    assert (
        f"image-3 (image 4): the image is {words[minority]}, other images of the cohort are {words[majority]}"
        in message
    )
    code, _, index = check(folder, "--on-error", "skip")
    assert code == 0
    assert index is not None
    assert "image-3" not in [case.case_id for case in index.cases]


def test_a_truncated_jpeg_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = skin_cohort(tmp_path / "cohort")
    path = folder / "images" / "image-2.jpg"
    path.write_bytes(path.read_bytes()[:-200])
    assert "image-2 (image 3): the image file is truncated" in refused(folder, capsys)


def test_16_bit_images_are_read_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = skin_cohort(tmp_path / "cohort", "AB")
    for number in range(2):
        (folder / "images" / f"image-{number}.jpg").unlink()
        save(folder / "images" / f"image-{number}.png", noise(number, (20, 24)).astype(np.uint16) * 257)
    code, results, index = check(folder)
    assert code == 0
    assert index is not None
    assert index.channels == ("gray",)
    assert codes(results) == {"sixteen-bits": "notice"}
    assert "2 images are 16-bit gray; values from 0 to 65535 become 0 to 1" in capsys.readouterr().err


def test_the_same_image_twice_is_one_patient_and_an_error_across_splits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = skin_cohort(tmp_path / "cohort")
    same = (folder / "images" / "image-0.jpg").read_bytes()
    (folder / "images" / "image-6.jpg").write_bytes(same)
    code, results, index = check(folder)
    assert code == 0
    assert index is not None
    assert len({case.patient_key for case in index.cases}) == 7
    assert codes(results) == {"same-scan-twice": "notice"}
    assert "image-0 and image-6 have identical pixels; they count as one patient" in capsys.readouterr().err
    (folder / "splits.json").write_text('{"train": ["image-0"], "test": ["image-6"]}')
    assert "the same scan is in 2 splits" in refused(folder, capsys)


def test_a_compressed_copy_of_another_patient_is_a_notice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = skin_cohort(tmp_path / "cohort")
    large = noise(0, (60, 72, 3))
    save(folder / "images" / "image-0.jpg", large, quality=95)
    save(folder / "images" / "image-6.jpg", large, quality=70)
    code, results, _ = check(folder)
    assert code == 0
    assert codes(results) == {"near-copies": "notice"}
    assert "1 pair of images of different patients may be copies" in capsys.readouterr().err


def test_a_class_only_in_the_test_split_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = skin_cohort(tmp_path / "cohort", "ABABABAC")
    (folder / "splits.json").write_text('{"test": ["image-7"]}')
    message = refused(folder, capsys)
    assert "classes of the test or validation split have no training case" in message
    assert "C: 1 in test" in message


def test_the_only_image_of_a_class_is_for_training(tmp_path: Path) -> None:
    folder = skin_cohort(tmp_path / "cohort", "ABABABAC")
    for seed in range(6):
        code, output, _ = preprocess(folder, "--split-seed", str(seed), "--fractions", "0.5", "0.25", "0.25")
        assert code == 0
        classes = [case.case.classes for case in open_prepared(output / "training_set").cases("train")]
        assert classes.count(("C",)) == 1
        output.rename(output.with_name(f"prepared-{seed}"))


def test_more_classes_than_training_patients_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = skin_cohort(tmp_path / "cohort", "ABCDEFGH")
    code, output, _ = preprocess(folder, "--fractions", "0.5", "0.25", "0.25")
    assert code == 65
    assert "classes of the cohort have no training case" in capsys.readouterr().err
    assert not output.exists()


def test_a_training_set_of_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = skin_cohort(tmp_path / "cohort")
    (folder / "splits.json").write_text('{"test": ["image-6", "image-7"]}')
    code, output, results = preprocess(folder, "--image-size", "12", "12")
    assert code == 0
    training = open_prepared(output / "training_set")
    assert [one.name for one in training.cohort.classes] == ["A", "B"]
    assert {case.case.case_id for case in training.cases()} == {f"image-{n}" for n in range(6)}
    for case in training.cases():
        volume = case.volume_CIJK()
        assert (volume.shape, volume.dtype) == ((3, 12, 12, 1), np.float32)
        assert (case.case.has_label, case.case.classes) == (True, (("A", "B")[int(case.case.case_id[-1]) % 2],))
        # 24 x 20 pixels become 12 x 10 in the middle; J is the row.
        assert (volume[:, :, [0, -1]] == 0).all()
        source = read_raster(folder / "images" / f"{case.case.case_id}.jpg").pixels_CRI
        halved = source.reshape(3, 10, 2, 12, 2).mean((2, 4))
        assert np.abs(volume[:, :, 1:-1, 0].transpose(0, 2, 1) - halved).mean() < 0.03
        info = case.info()
        assert (info.unit, info.crop_start, info.source_format) == ("1", (0, -1, 0), "image")
        # The first voxel of the image covers the first 2 x 2 source pixels, whose middle is at 0.5.
        np.testing.assert_allclose(np.asarray(info.grid.affine) @ [0, 1, 0, 1], [0.5, 0.5, 0, 1])
    assert (results["image_size"], results["cases_per_split"]["test"]) == ([12, 12], 2)
    assert (
        "8 of 8 images have another aspect ratio than --image-size: they were padded with black"
        in capsys.readouterr().err
    )
    batch = open_prepared(output / "inference_batches/batch-000")
    assert [case.case.classes for case in batch.cases()] == [("A",), ("B",)]


def test_the_image_size_is_that_of_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contract = InputContract(
        spacing_mm=(1.0, 1.0, 1.0), window_hu=None, patch_shape=(16, 24, 1), patch_multiple=1, crop="none", modality="XC",
        unit="1", channels=3, channel_names=("red", "green", "blue"),
    )  # fmt: skip
    model = tmp_path / "model"
    model.mkdir()
    write_card(model, tiny_card(input=contract))
    words = ("--segmentation-model", str(model), "--purpose", "inference")
    folder = skin_cohort(tmp_path / "cohort")
    code, output, results = preprocess(folder, *words)
    assert (code, results["image_size"]) == (0, [16, 24])
    assert open_prepared(output / "inference_batches/batch-000").cases()[0].volume_CIJK().shape == (3, 16, 24, 1)
    capsys.readouterr()
    assert preprocess(folder, *words, "--image-size", "64", "64")[0] == 2
    assert "--image-size contradicts the model card" in capsys.readouterr().err
    gray = skin_cohort(tmp_path / "gray")
    for number in range(8):
        save(gray / "images" / f"image-{number}.jpg", noise(number, (20, 24)))
    assert preprocess(gray, *words)[0] == 65
    assert "channels 3" in capsys.readouterr().err


def test_an_image_that_changed_since_check_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = skin_cohort(tmp_path / "cohort")
    assert check(folder)[0] == 0
    save(folder / "images" / "image-0.jpg", noise(55))
    out = tmp_path / "cohort-out"
    words = ("--cohort", str(folder), "--cohort-index", str(out / "cohort_index.json"), "--output", str(out / "x"))
    assert main(["preprocess", *words, "--run-report", str(out / "r.json")]) == 65
    assert "the cohort has changed since `check` ran" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("--spacing-mm", "1", "1", "1"), ("--window-hu", "0", "1"), ("--crop", "none"), ("--margin-mm", "3"),
        ("--spacing-rule", "nnunet"), ("--image-size", "4", "64"),
    ],
)  # fmt: skip
def test_options_of_volumes_are_refused_for_images(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert preprocess(skin_cohort(tmp_path / "cohort"), *words)[0] == 2


def test_labels_are_refused_for_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(skin_cohort(tmp_path / "cohort"), "--labels", "lung-nodule")[0] == 2
    assert "apply to volumes, and the cohort has images" in capsys.readouterr().err


def xray_cohort(folder: Path, modality: str = "DX", views: str = "PA PA PA PA PA PA") -> Path:
    """Write six radiographs of five patients, and their findings in the format of NIH ChestX-ray14."""
    rows = ["Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position"]
    for number, view in enumerate(views.split()):
        patient = f"patient-{min(number, 4)}"
        dataset = radiograph(str(number), modality, PatientID=patient, ViewPosition=view)
        save_dicom(folder / "images" / f"{number}.dcm", dataset)
        labels = ["No Finding", "Mass", "Edema|Mass"][number % 3]
        rows.append(f"{number}.png,{labels},0,{patient},60,F,{view}")
    save_table(folder / "Data_Entry.csv", *rows)
    return folder


@pytest.mark.parametrize("modality", ["CR", "DX", "MG"])
def test_a_cohort_of_radiographs(tmp_path: Path, capsys: pytest.CaptureFixture[str], modality: str) -> None:
    folder = xray_cohort(tmp_path / "cohort", modality)
    code, results, index = check(folder)
    assert code == 0
    assert index is not None
    assert (index.channels, index.is_multi_label) == ((modality,), True)
    assert [one.name for one in index.classes] == ["Edema", "Mass"]
    assert len({case.patient_key for case in index.cases}) == 5
    assert sorted(case.classes or () for case in index.cases) == [
        (),
        (),
        ("Edema", "Mass"),
        ("Edema", "Mass"),
        ("Mass",),
        ("Mass",),
    ]
    assert codes(results) == {}
    message = capsys.readouterr().err
    assert f"6 usable {modality} images of 5 patients" in message
    assert "none of them 2" in message
    assert "patient-" not in message


def test_a_batch_of_radiographs_has_their_headers(tmp_path: Path) -> None:
    code, output, _ = preprocess(xray_cohort(tmp_path / "cohort"), "--purpose", "inference")
    assert code == 0
    for case in open_prepared(output / "inference_batches/batch-000").cases():
        assert case.volume_CIJK().shape == (1, 64, 64, 1)
        (header,) = read_headers(case.folder / "source_headers.zip")
        assert header.Modality == "DX"
        assert "PixelData" not in header


def test_mammograms_of_several_views_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(xray_cohort(tmp_path / "mg", "MG", "CC MLO CC MLO CC CC"), capsys)
    assert "the mammograms of the cohort have several views" in message
    assert "4 x CC, 2 x MLO" in message
    code, results, _ = check(xray_cohort(tmp_path / "dx", "DX", "PA AP PA AP PA PA"))
    assert (code, codes(results)) == (0, {"several-views": "notice"})


def test_a_view_that_is_free_text_is_in_no_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, results, _ = check(xray_cohort(tmp_path / "dx", "DX", "PA PA DOE^JANE PA PA PA"))
    assert (code, codes(results)) == (0, {"several-views": "notice"})
    message = capsys.readouterr().err
    assert "5 x PA, 1 x another view" in message
    assert "DOE" not in message


def test_radiographs_of_several_kinds_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = xray_cohort(tmp_path / "cohort")
    save_dicom(folder / "images" / "0.dcm", radiograph("0", "CR", PatientID="patient-0"))
    assert "the image is CR (DICOM), other images of the cohort are DX (DICOM)" in refused(folder, capsys)


def test_a_dicom_file_that_cannot_be_read_and_a_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = xray_cohort(tmp_path / "cohort")
    (folder / "images" / "copy.dcm").write_bytes((folder / "images" / "0.dcm").read_bytes())
    code, results, index = check(folder)
    assert (code, codes(results)) == (0, {"copies": "notice"})
    assert index is not None
    assert len(index.cases) == 6
    (folder / "images" / "bad.dcm").write_bytes(b"no DICOM")
    assert "1 of 9 files is not readable as DICOM" in refused(folder, capsys)


def test_two_radiographs_with_one_uid_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = xray_cohort(tmp_path / "cohort")
    save_dicom(folder / "images" / "other.dcm", radiograph("0", PatientID="patient-9"))
    assert "two files have the same SOPInstanceUID but different contents" in refused(folder, capsys)


def test_a_missing_issuer_is_that_of_the_same_patient_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "cohort"
    for number, issuer in enumerate(("X", None, "X")):
        more = {} if issuer is None else {"IssuerOfPatientID": issuer}
        save_dicom(folder / f"{number}.dcm", radiograph(str(number), PatientID="patient-1", **more))
    code, _, index = check(folder)
    assert code == 0
    assert index is not None
    assert len({case.patient_key for case in index.cases}) == 1
    save_dicom(folder / "3.dcm", radiograph("3", PatientID="patient-1", IssuerOfPatientID="Y"))
    assert "a PatientID without issuer" in refused(folder, capsys)


def test_phantoms_become_training_sets(tmp_path: Path) -> None:
    for kind, channels in (("skin", ("red", "green", "blue")), ("xray", ("DX",))):
        folder = tmp_path / kind
        words = ("--output", str(folder), "--cases", "32", "--held-out-cases", "8", "--image-size", "32")
        assert main(["phantom", kind, *words, "--run-report", str(tmp_path / "r.json")]) == 0
        code, output, results = preprocess(folder)
        assert code == 0
        cohort = open_prepared(output / "training_set").cohort
        assert (cohort.channels, cohort.synthetic, cohort.is_multi_label) == (channels, True, kind == "xray")
        assert len(cohort.classes) == {"skin": 8, "xray": 5}[kind]
        assert results["patients_per_split"]["test"] == 8
        held_out = json.loads((folder / "splits.json").read_text())["test"]
        assert results["cases_per_split"]["test"] == len(held_out)
