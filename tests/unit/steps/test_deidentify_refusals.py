"""Refusals of `deidentify`: the error messages, and no partial output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest
from PIL import Image, ImageDraw
from pydicom.dataset import Dataset

from medweave_steps.cli import main
from medweave_steps.deidentify.dicom_case import read_private
from medweave_steps.deidentify.dicom_cohort import _read
from medweave_steps.runtime.verb import as_step_error
from support.chest_cohort import write_msd
from support.dicom_builder import CtSeries, write_datasets
from support.identified import (
    NAME,
    SECRETS,
    data,
    deidentify,
    identified_series,
    results,
    tree,
    words_of,
    write_identified,
)
from support.processes import interrupted, names_below, nearly_full_disk, started, wait_for_line

Change = Callable[[list[Dataset]], None]


def write_text(datasets: list[Dataset]) -> None:
    """Burns a name into every image, as a workstation does."""
    page = Image.new("1", (datasets[0].Columns, datasets[0].Rows), 0)
    ImageDraw.Draw(page).text((4, 4), NAME, fill=1)
    for dataset in datasets:
        pixels = np.frombuffer(dataset.PixelData, "<i2").reshape(dataset.Rows, dataset.Columns).copy()
        pixels[np.asarray(page)] = 3071
        dataset.PixelData = pixels.tobytes()


def say_burned_in(datasets: list[Dataset]) -> None:
    datasets[2].BurnedInAnnotation = "YES"


def put_overlay_into_pixels(datasets: list[Dataset]) -> None:
    for tag, vr, value in ((0x60020010, "US", 8), (0x60020102, "US", 15)):
        datasets[0].add_new(tag, vr, value)


def use_instance_twice(datasets: list[Dataset]) -> None:
    datasets[1].SOPInstanceUID = datasets[0].SOPInstanceUID


def cut_pixels(datasets: list[Dataset]) -> None:
    datasets[1].PixelData = datasets[1].PixelData[:100]


def mix_patients(datasets: list[Dataset]) -> None:
    datasets[0].PatientID = "another person"


REFUSED = {
    "text-in-pixels": write_text,
    "burned-in-annotation": say_burned_in,
    "overlay-in-pixels": put_overlay_into_pixels,
    "same-instance-twice": use_instance_twice,
    "pixels-not-checked": cut_pixels,
    "mixed-patients": mix_patients,
}


def large_series(key: str) -> list[Dataset]:
    """Room for words."""
    datasets = CtSeries(key=key, patient=f"patient-{key}", shape=(4, 96, 160)).datasets()
    for dataset, named in zip(datasets, identified_series(key), strict=False):
        dataset.PatientName, dataset.InstitutionName = named.PatientName, named.InstitutionName
    return datasets


def cohort_with(folder: Path, change: Change) -> Path:
    """Two series, the first of them changed."""
    bad = large_series("bad")
    change(bad)
    write_datasets(bad, folder / NAME / "1")
    write_datasets(large_series("good"), folder / NAME / "2")
    return folder


def names_nobody(text: str, folder: Path) -> bool:
    uids = [pydicom.dcmread(path, stop_before_pixels=True).SOPInstanceUID for path in folder.rglob("*.dcm")]
    return not any(word.lower() in text.lower() for word in (*SECRETS, *uids, str(folder), "patient-bad"))


@pytest.mark.parametrize("code", REFUSED)
def test_a_bad_series_ends_the_run_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: str
) -> None:
    folder = cohort_with(tmp_path / "cohort", REFUSED[code])
    assert deidentify(folder) == 65
    message = capsys.readouterr().err
    assert "series 1" in message
    assert all(part in message for part in ("seen:", "expected:", "do:"))
    assert names_nobody(message, folder)
    assert [path.name for path in tmp_path.iterdir()] == ["cohort"]


@pytest.mark.parametrize("code", REFUSED)
def test_a_bad_series_is_left_out_on_demand(tmp_path: Path, capsys: pytest.CaptureFixture[str], code: str) -> None:
    folder = cohort_with(tmp_path / "cohort", REFUSED[code])
    assert deidentify(folder, "--on-error", "skip") == 0
    message = capsys.readouterr().err
    assert "skipped: series 1" in message
    assert names_nobody(message + (tmp_path / "out.json").read_text(), folder)
    assert results(folder)["left_out"] == {code: 1}
    assert len(data(tmp_path / "out")) == 4
    assert len({name.split("/")[0] for name in data(tmp_path / "out")}) == 1


def test_all_errors_are_reported_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = cohort_with(tmp_path / "cohort", say_burned_in)
    more = large_series("more")
    write_text(more)
    write_datasets(more, folder / "3")
    assert deidentify(folder) == 65
    message = capsys.readouterr().err
    assert "the cohort has 2 errors" in message
    assert "the header declares burned-in text" in message
    assert "the pixels appear to contain burned-in text" in message


def test_text_in_compressed_pixels_is_seen(tmp_path: Path) -> None:
    datasets = large_series("a")
    write_text(datasets)
    write_datasets(datasets, tmp_path / "cohort", syntax="jpeg2000")
    assert deidentify(tmp_path / "cohort") == 65


def test_secondary_captures_and_other_objects_stay_at_home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "cohort"
    write_datasets(large_series("a"), folder)
    capture, document, page, directory = (large_series(key)[0] for key in "bcde")
    capture.SOPClassUID = "1.2.840.10008.5.1.4.1.1.7"
    document.SOPClassUID = "1.2.840.10008.5.1.4.1.1.104.1"
    page.ImageType = ["DERIVED", "SECONDARY", "SCREEN SAVE"]
    directory.SOPClassUID = "1.2.840.10008.1.3.10"
    for name, dataset in (("b", capture), ("c", document), ("d", page), ("e", directory)):
        write_datasets([dataset], folder, names=[f"{name}.dcm" if name != "e" else "DICOMDIR"])
    assert deidentify(folder) == 0
    assert results(folder)["left_aside"] == {"not-dicom": 1, "other-object": 1, "secondary-capture": 2}
    assert "2 files skipped and not written: secondary-capture." in capsys.readouterr().err
    assert len(data(tmp_path / "out")) == 4


def test_damaged_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_identified(tmp_path / "cohort")
    whole = next(folder.rglob("*.dcm")).read_bytes()
    (folder / f"{NAME}.dcm").write_bytes(whole[:400])
    (folder / f"{NAME}2.dcm").write_bytes(b"nothing of DICOM")
    assert deidentify(folder) == 65
    message = capsys.readouterr().err
    assert message.count("1 of 16 files cannot be read as DICOM") == 2
    assert names_nobody(message, folder / "none")
    assert deidentify(folder, "--on-error", "skip") == 0
    assert results(folder)["left_aside"] == {"not-dicom": 1, "unreadable": 2}


def test_nothing_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cohort").mkdir()
    assert deidentify(tmp_path / "cohort") == 65
    assert "an empty folder" in capsys.readouterr().err
    (tmp_path / "cohort" / f"{NAME}.txt").write_text("words")
    assert deidentify(tmp_path / "cohort") == 65
    message = capsys.readouterr().err
    assert "1 not-dicom" in message
    assert NAME not in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--cohort": "nowhere"}, "--cohort is not an existing folder"),
        ({"--output": "cohort/out"}, "--output and --cohort overlap"),
        ({"--output": "home/out"}, "--home and --output overlap"),
        ({"--home": "out/home"}, "--home and --output overlap"),
        ({"--home": "cohort/home"}, "--home and --cohort overlap"),
        ({"--key": "out/key"}, "--key is inside --output"),
        ({"--key": "cohort/key"}, "--key is inside --cohort"),
        ({"--key": "short"}, "--key is not a valid key file"),
        ({"--output": "full"}, "exists already"),
        ({"--home": "full"}, "exists already"),
    ],
)
def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, str], message: str) -> None:
    CtSeries().write(tmp_path / "cohort")
    (tmp_path / "short").write_bytes(b"1234")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    options = {"--cohort": "cohort", "--output": "out", "--home": "home", "--key": "key"} | change
    words = [word for option, value in options.items() for word in (option, str(tmp_path / value))]
    before = names_below(tmp_path)
    code = main(["deidentify", *words, "--run-report", str(tmp_path / "report.json")])
    assert code == (65 if message.startswith("--key is not") else 2)
    assert message in capsys.readouterr().err
    assert names_below(tmp_path) == before


def test_a_key_that_others_may_read_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    CtSeries().write(tmp_path / "cohort")
    (tmp_path / "key").write_bytes(bytes(range(32)))
    (tmp_path / "key").chmod(0o644)
    assert deidentify(tmp_path / "cohort") == 0
    assert "chmod 600" in capsys.readouterr().err


def test_without_a_key_one_is_made_at_home(tmp_path: Path) -> None:
    folder = tmp_path / "cohort"
    CtSeries().write(folder)
    words = [str(w) for w in ("--cohort", folder, "--output", tmp_path / "out", "--home", tmp_path / "home")]
    assert main(["deidentify", *words, "--run-report", str(tmp_path / "r.json")]) == 0
    key = tmp_path / "home" / "pseudonym.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert deidentify(folder, "--key", str(key), name="again") == 0
    assert tree(tmp_path / "again") == tree(tmp_path / "out")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("splits.json", "{", "splits.json is invalid"),
        ("splits.json", '{"test": "case"}', "lists of case ids"),
        ("splits.json", f'{{"{NAME}": []}}', "a split that is not train"),
        ("splits.json", f'{{"test": ["{NAME}"]}}', "contains cases that are not in the cohort"),
        ("cohort_card.json", "[]", "cohort_card.json is invalid"),
        ("dataset.json", '{"training": [{"image": "../x.nii"}]}', "dataset.json is invalid"),
    ],
)
def test_descriptions_that_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, content: str, message: str
) -> None:
    CtSeries().write(tmp_path / "cohort")
    (tmp_path / "cohort" / file).write_text(content)
    assert deidentify(tmp_path / "cohort") == 65
    error = capsys.readouterr().err
    assert message in error
    assert NAME not in error
    assert not (tmp_path / "out").exists()


def test_bad_nifti_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "cohort"
    write_msd(folder, 3)
    first, second = folder / "imagesTr" / "lung_000.nii.gz", folder / "labelsTr" / "lung_001.nii.gz"
    capsys.readouterr()
    first.write_bytes(first.read_bytes()[:5000])
    second.unlink()
    assert deidentify(folder) == 65
    message = capsys.readouterr().err
    assert "is truncated or corrupt" in message
    assert "the mask is listed in dataset.json but missing" in message
    assert "lung_00" not in message
    assert deidentify(folder, "--on-error", "skip") == 0
    assert results(folder)["left_out"] == {"missing-file": 1, "truncated-file": 1}
    assert len(data(tmp_path / "out")) == 3
    assert len(json.loads((tmp_path / "out" / "dataset.json").read_text())["training"]) == 1


@pytest.mark.parametrize("turned", [False, True], ids=["as shown", "mirrored"])
def test_text_in_a_nifti_volume_is_seen(tmp_path: Path, turned: bool) -> None:
    page = Image.new("1", (160, 96), 0)
    ImageDraw.Draw(page).text((4, 4), NAME, fill=1)
    ink = np.asarray(page).T  # the first axis of a NIfTI volume runs along a line
    values = np.random.default_rng(1).integers(0, 900, (160, 96, 5)).astype("i2")
    values[ink[:, ::-1] if turned else ink] = 1500
    (tmp_path / "cohort").mkdir()
    nibabel.Nifti1Image(values, np.eye(4)).to_filename(tmp_path / "cohort" / "scan.nii")
    assert deidentify(tmp_path / "cohort") == 65


@pytest.mark.slow
def test_an_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "cohort"
    for key in "abcdefgh":
        write_datasets(large_series(key), folder / key)
    blocked = next((folder / "h").iterdir())
    code = "import time, medweave_steps.deidentify.dicom_case as d; look = d._look_at_pixels; n = []\n"
    code += "def slow(*a): n.append(1); len(n) > 6 and time.sleep(60); return look(*a)\nd._look_at_pixels = slow"
    assert blocked.exists()
    (tmp_path / "here").mkdir()
    words = words_of(folder)[:-2]
    process = started(words, folder=tmp_path / "here", before=code)
    wait_for_line(process, "series 1/8")
    ended, message = interrupted(process)
    assert ended == 130
    assert "interrupted" in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cohort", "here"]


def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    folder = write_identified(tmp_path / "cohort")
    (tmp_path / "here").mkdir()
    with nearly_full_disk(tmp_path / "here", 2000) as output:
        code = main(words_of(folder))
    message = output.getvalue()
    assert code == 74, message
    assert names_nobody(message, folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cohort", "here"]


@pytest.mark.parametrize("read", [lambda path: read_private(path), lambda path: _read(path.parent, path.name)])
def test_a_file_that_cannot_be_read_is_not_named(tmp_path: Path, read: Callable[[Path], object]) -> None:
    with pytest.raises(OSError, match="No such file") as caught:
        read(tmp_path / f"scan.{NAME}")
    assert caught.value.filename is None
    assert NAME not in str(as_step_error(caught.value))
