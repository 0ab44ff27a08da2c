"""Bad input and bad luck in `preprocess`: a clear error, the right exit code, and nothing left behind."""

from __future__ import annotations

import dataclasses
import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest

from medweave_core.contracts.cohort import CohortIndex, Finding
from medweave_steps.cli import main
from medweave_steps.io.model.folder import CARD_FILE, write_card
from medweave_steps.preprocess.case import save_array
from support.chest_cohort import index_of, save_index, write_dicom, write_msd
from support.model_folders import tiny_card
from support.processes import names_below, nearly_full_disk

CHILD_ENDS_S = (
    10  # far more than the two seconds that people are promised, so that a busy machine does not fail the test
)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> tuple[Path, CohortIndex]:
    """A sound cohort of four; tests change its index, never its files."""
    folder = tmp_path_factory.mktemp("source") / "cohort"
    return folder, write_msd(folder, 4)


def words_for(cohort: Path, folder: Path, *words: str) -> list[str]:
    paths = {
        "cohort": cohort,
        "cohort-index": index_of(folder),
        "output": folder / "out",
        "run-report": folder / "report.json",
    }
    return ["preprocess", *(word for name, path in paths.items() for word in (f"--{name}", str(path))), *words]


def refused(cohort: Path, folder: Path, capsys, *words: str, code: int) -> str:
    """Run the verb, which must exit with this code and write neither output nor report; return its standard error."""
    assert main(words_for(cohort, folder, "--spacing-mm", "6", "6", "6", *words)) == code
    assert not (folder / "report.json").exists()
    leftovers = [path.name for path in folder.iterdir() if path.name.startswith((".", "out"))]
    assert leftovers == []
    text = capsys.readouterr().err
    assert str(folder) not in text
    return text


def changed(source, folder: Path, **changes) -> Path:
    """Writes the index with changes and returns the cohort."""
    cohort, index = source
    save_index(folder, dataclasses.replace(index, **changes))
    return cohort


@pytest.mark.parametrize(
    "words",
    [
        ("--margin-mm", "-1"),
        ("--margin-mm", "nan"),
        ("--window-hu", "400", "-1000"),
        ("--window-hu", "0", "inf"),
        ("--fractions", "0.5", "0.5", "0.5"),
        ("--fractions", "1", "0", "0"),
        ("--fractions", "1.2", "-0.1", "-0.1"),
        ("--cases-per-batch", "0"),
        ("--split-seed", "-1"),
        ("--spacing-mm", "2", "0", "2"),
        ("--spacing-mm", "2", "-2", "2"),
        ("--spacing-mm", "2", "2", "nan"),
    ],
)
def test_values_that_cannot_be_used(source, tmp_path, capsys, words):
    cohort = changed(source, tmp_path)
    assert main(words_for(cohort, tmp_path, *words)) == 2
    text = capsys.readouterr().err
    assert words[0] in text
    assert "expected:" in text
    assert not (tmp_path / "out").exists()


def test_a_cohort_that_is_no_folder(source, tmp_path, capsys):
    changed(source, tmp_path)
    assert "--cohort" in refused(tmp_path / "none", tmp_path, capsys, code=2)


def test_an_output_that_exists(source, tmp_path, capsys):
    cohort = changed(source, tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep")
    assert main(words_for(cohort, tmp_path)) == 2
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_no_index(source, tmp_path, capsys):
    assert "cohort_index.json" in refused(source[0], tmp_path, capsys, code=65)


def test_an_index_of_another_kind(source, tmp_path, capsys):
    index_of(tmp_path).write_text('{"cases": 3}')
    assert "cohort_index.json" in refused(source[0], tmp_path, capsys, code=65)


def test_an_index_with_errors(source, tmp_path, capsys):
    findings = (
        Finding(severity="error", code="missing-slice", what="case-1: a slice is missing.", seen="a gap at 3 mm"),
    )
    text = refused(changed(source, tmp_path, findings=findings), tmp_path, capsys, code=65)
    assert "a slice is missing" in text
    assert "--on-error skip" in text


def test_notices_in_the_index_stop_nothing(source, tmp_path):
    findings = (Finding(severity="notice", code="secondary-capture", what="1 secondary picture left aside."),)
    cohort = changed(source, tmp_path, findings=findings)
    assert main(words_for(cohort, tmp_path, "--spacing-mm", "8", "8", "8")) == 0


def test_an_index_without_cases(source, tmp_path, capsys):
    assert "contains no case" in refused(changed(source, tmp_path, cases=()), tmp_path, capsys, code=65)


def test_missing_files_are_reported_by_case(source, tmp_path, capsys):
    cases = list(source[1].cases)
    cases[2] = dataclasses.replace(cases[2], files=("imagesTr/gone.nii.gz",))
    text = refused(changed(source, tmp_path, cases=tuple(cases)), tmp_path, capsys, code=65)
    assert "lung_002" in text
    assert "1 of 2 files missing" in text
    assert "gone" not in text


def test_a_missing_mask_is_reported_too(source, tmp_path, capsys):
    cases = (dataclasses.replace(source[1].cases[0], ground_truth="labelsTr/gone.nii.gz"), *source[1].cases[1:])
    assert "lung_000" in refused(changed(source, tmp_path, cases=cases), tmp_path, capsys, code=65)


def test_another_volume_under_the_same_name(source, tmp_path, capsys):
    """The index says another grid than the file has: the cohort was changed after the check."""
    entry = source[1].cases[1]
    grid = dataclasses.replace(entry.grid, shape=(80, 64, 51))
    cases = (source[1].cases[0], dataclasses.replace(entry, grid=grid), *source[1].cases[2:])
    text = refused(changed(source, tmp_path, cases=cases), tmp_path, capsys, code=65)
    assert "lung_001" in text
    assert "run check again" in text


@pytest.mark.slow
def test_a_removed_slice(tmp_path, capsys):
    write_dicom(tmp_path / "cohort", 1)
    index_of(tmp_path / "cohort").rename(index_of(tmp_path))
    (tmp_path / "cohort" / "series-0000" / "010.dcm").unlink()
    text = refused(tmp_path / "cohort", tmp_path, capsys, "--purpose", "inference", code=65)
    assert "1 of 51 files missing" in text


def test_a_slice_cut_off_after_the_check(tmp_path, capsys):
    write_dicom(tmp_path / "cohort", 1)
    index_of(tmp_path / "cohort").rename(index_of(tmp_path))
    path = tmp_path / "cohort" / "series-0000" / "010.dcm"
    path.write_bytes(path.read_bytes()[:3000])
    text = refused(tmp_path / "cohort", tmp_path, capsys, "--purpose", "inference", code=65)
    assert "case-" in text
    assert "truncated" in text


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dicom", "jpeg2000", "nifti"])
def test_other_voxels_under_the_same_names(tmp_path, capsys, kind):
    """Same geometry, other content: the cohort is not the one that was checked and that the model card would name."""
    cohort = tmp_path / "cohort"
    if kind == "nifti":
        write_msd(cohort, 3)
        one, other = (cohort / "imagesTr" / f"lung_00{i}.nii.gz" for i in (1, 2))
        content, affine = nibabel.load(other).get_fdata(), nibabel.load(one).affine
        nibabel.Nifti1Image(content.astype(np.int16), affine).to_filename(one)
    else:
        write_dicom(cohort, 1, syntax="explicit" if kind == "dicom" else kind)
        path = cohort / "series-0000" / "010.dcm"
        dataset = pydicom.dcmread(path)
        other = dataset.pixel_array.copy()
        other[30, 40] += 1
        dataset.set_pixel_data(other, "MONOCHROME2", 16, generate_instance_uid=False)
        if kind != "dicom":
            dataset.compress(pydicom.uid.JPEG2000Lossless, generate_instance_uid=False)
        dataset.save_as(path)
    index_of(cohort).rename(index_of(tmp_path))
    text = refused(cohort, tmp_path, capsys, "--purpose", "inference", code=65)
    assert "different voxels under the same file names" in text
    assert ("lung_001" if kind == "nifti" else "case-") in text


@pytest.mark.parametrize("number", [1, 2])
def test_too_few_patients(source, tmp_path, capsys, number):
    text = refused(changed(source, tmp_path, cases=source[1].cases[:number]), tmp_path, capsys, code=65)
    assert "too few patients" in text
    assert "--purpose inference" in text


def test_one_patient_in_two_splits(source, tmp_path, capsys):
    cases = [
        dataclasses.replace(entry, patient_key="same", fixed_split=split)
        for entry, split in zip(source[1].cases, ("train", "test", None, None), strict=True)
    ]
    text = refused(changed(source, tmp_path, cases=tuple(cases)), tmp_path, capsys, code=65)
    assert "same patient is in two splits" in text


def test_nothing_to_train_on(source, tmp_path, capsys):
    cases = tuple(dataclasses.replace(entry, ground_truth=None) for entry in source[1].cases)
    text = refused(changed(source, tmp_path, cases=cases), tmp_path, capsys, code=65)
    assert "training is not possible" in text
    assert main(words_for(source[0], tmp_path, "--spacing-mm", "8", "8", "8", "--purpose", "inference")) == 0


def test_cases_without_a_mask_are_left_out_with_a_notice(source, tmp_path, capsys):
    cases = (dataclasses.replace(source[1].cases[0], ground_truth=None), *source[1].cases[1:])
    cohort = changed(source, tmp_path, cases=cases)
    assert main(words_for(cohort, tmp_path, "--spacing-mm", "8", "8", "8")) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["results"]["num_cases"] == 3
    assert any("1 case has no ground truth" in text for text in report["notices"])


def model_with(folder: Path, **changes) -> Path:
    """A model folder whose card's input contract is changed."""
    (folder / "model").mkdir()
    card = tiny_card()
    write_card(folder / "model", dataclasses.replace(card, input=dataclasses.replace(card.input, **changes)))
    return folder / "model"


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({"orientation": "LPS"}, "orientation"),
        ({"modality": "PT"}, "modality"),
        ({"unit": "raw"}, "unit"),
        ({"channels": 2}, "channels 2"),
        ({"spacing_mm": (0.0, 1.0, 1.0)}, "spacing_mm 0 1 1"),
        ({"window_hu": (400.0, -1000.0)}, "window_hu 400 -1000"),
    ],
)
def test_a_model_that_takes_another_input(source, tmp_path, capsys, changes, seen):
    cohort = changed(source, tmp_path)
    model = model_with(tmp_path, **changes)
    words = words_for(cohort, tmp_path, "--purpose", "inference", "--segmentation-model", str(model))
    assert main(words) == 65
    assert seen in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_no_model(source, tmp_path, capsys):
    cohort = changed(source, tmp_path)
    assert main(words_for(cohort, tmp_path, "--segmentation-model", str(tmp_path))) == 65
    assert CARD_FILE in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--spacing-mm", "3", "3", "3"), ("--window-hu", "-900", "300"), ("--crop", "none")])
def test_options_that_contradict_the_model(source, tmp_path, capsys, words):
    cohort = changed(source, tmp_path)
    model = model_with(tmp_path)
    assert main(words_for(cohort, tmp_path, "--segmentation-model", str(model), *words)) == 2
    text = capsys.readouterr().err
    assert "contradicts" in text
    assert words[0] in text


def test_fractions_are_not_ignored_in_silence(source, tmp_path, capsys):
    cohort = changed(source, tmp_path)
    words = ("--purpose", "inference", "--spacing-mm", "8", "8", "8", "--fractions", "0.6", "0.2", "0.2")
    assert main(words_for(cohort, tmp_path, *words)) == 0
    assert "--fractions has no effect" in capsys.readouterr().err


# A full disk.


def test_a_full_device_is_reported_by_its_errno():
    with pytest.raises(OSError) as caught:  # noqa: PT011
        save_array(Path("/dev/full"), np.zeros((64, 64, 64), dtype=np.float32))
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_a_disk_that_takes_no_more(source, tmp_path, threads):
    """A limit on file size simulates a full disk: the same writes fail with the same error class."""
    cohort = changed(source, tmp_path)
    (tmp_path / "here").mkdir()
    words = words_for(cohort, tmp_path, "--spacing-mm", "3", "3", "3", "--num-threads", str(threads))
    with nearly_full_disk(tmp_path / "here", 200_000) as output:
        code = main(words)
    message = output.getvalue()
    assert code == 74, message
    assert "could not be read or written" in message
    assert "Traceback" not in message
    assert multiprocessing.active_children() == []
    assert names_below(tmp_path) == []


# Ctrl-C, SIGTERM, and worse.


def started(source, folder: Path, *, threads: int) -> subprocess.Popen:
    """A run of two hundred cases that has finished one of them, in its own process group."""
    many = [
        dataclasses.replace(entry, case_id=f"case-{i:04d}", patient_key=str(i))
        for i in range(200)
        for entry in source[1].cases[:1]
    ]
    cohort = changed(source, folder, cases=tuple(many))
    options = ("--purpose", "inference", "--spacing-mm", "2.5", "2.5", "2.5", "--num-threads", str(threads))
    words = words_for(cohort, folder, *options)
    child = subprocess.Popen(
        [sys.executable, "-m", "medweave_steps", *words], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert child.stderr is not None
    assert "case 1/200" in child.stderr.readline()
    return child


def processes_of_group(group: int) -> list[int]:
    """Living processes of a process group, zombies left out."""
    result = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                result.append(int(entry.name))
    return result


def gone(group: int) -> bool:
    """Waits until no process of the group lives."""
    deadline = time.monotonic() + CHILD_ENDS_S
    while processes_of_group(group) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not processes_of_group(group)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "whole_group", "threads"),
    [(signal.SIGINT, True, 1), (signal.SIGINT, True, 2), (signal.SIGINT, False, 2), (signal.SIGTERM, False, 2)],
)
def test_interrupted(source, tmp_path, number, whole_group, threads):
    """Ctrl-C in a terminal reaches the whole group; a scheduler may signal the parent alone."""
    child = started(source, tmp_path, threads=threads)
    assert len(processes_of_group(child.pid)) == (1 if threads == 1 else 3)
    (os.killpg if whole_group else os.kill)(child.pid, number)
    _, text = child.communicate(timeout=CHILD_ENDS_S)
    assert child.returncode == 128 + number
    assert "interrupted" in text
    assert "Traceback" not in text
    assert gone(child.pid)
    assert [path for path in tmp_path.iterdir() if path != index_of(tmp_path)] == []


@pytest.mark.slow
def test_workers_end_with_a_parent_that_was_killed(source, tmp_path):
    child = started(source, tmp_path, threads=2)
    child.kill()
    child.communicate(timeout=CHILD_ENDS_S)
    assert gone(child.pid)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_worker_that_was_killed_is_a_passing_fault(source, tmp_path):
    """As the kernel does when memory runs out."""
    child = started(source, tmp_path, threads=2)
    worker = max(set(processes_of_group(child.pid)) - {child.pid})
    os.kill(worker, signal.SIGKILL)
    _, text = child.communicate(timeout=CHILD_ENDS_S)
    assert child.returncode == 75
    assert "insufficient memory" in text
    assert gone(child.pid)
    assert [path for path in tmp_path.iterdir() if path != index_of(tmp_path)] == []
