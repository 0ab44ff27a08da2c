"""`medweave-step phantom lung` writes what a scanner, a reading room and a challenge would, and our reader reads it back."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pydicom
import pytest
import SimpleITK as sitk

from medweave_core.contracts.cohort import CaseEntry, CohortIndex
from medweave_steps import cli
from medweave_steps.io.cohort.prepared import read_index
from medweave_steps.io.cohort.source import open_source
from medweave_steps.phantom.chest import ChestSpec, generate_chest
from medweave_steps.phantom.patient import Patient
from support.checked import read_truth
from support.validators import dciodvfy_errors

SMALL = ("--grid", "demo")
EIGHT = ("--nodules", "8", "8")


def phantom(folder: Path, *words: str) -> Path:
    report = folder.parent / f"{folder.name}_report.json"
    assert cli.main(["phantom", "lung", "--output", str(folder), "--run-report", str(report), *SMALL, *words]) == 0
    return folder


@functools.cache
def check(cohort: Path) -> CohortIndex:
    index = cohort.parent / f"{cohort.name}_index.json"
    words = [
        "check",
        "--cohort",
        str(cohort),
        "--output",
        str(index),
        "--run-report",
        str(index.with_suffix(".report")),
    ]
    assert cli.main(words) == 0
    return read_index(index)


def entry_of(cohort: Path, series: str) -> CaseEntry:
    """Return the case whose images lie in a folder of this name."""
    (entry,) = (case for case in check(cohort).cases if case.files[0].startswith(f"{series}/"))
    return entry


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three patients with eight nodules each and a held-out one, in both formats."""
    words = ("--cases", "3", "--held-out-cases", "1", "--seed", "3", "--held-out-seed", "4", *EIGHT, "--format", "both")
    return phantom(tmp_path_factory.mktemp("phantom") / "cohort", *words)


@pytest.mark.slow
def test_the_series_read_back_as_the_generated_volume(cohort: Path) -> None:
    index = check(cohort / "dicom")
    assert index.synthetic
    by_case = {entry.case_id: entry for entry in index.cases}
    # The second patient's images are counted from the head; file names are shuffled for all.
    patient = Patient(seed=3, ordinal=2, held_out=False)
    chest = generate_chest(
        ChestSpec(
            seed=patient.chest_seed,
            matrix_size=256,
            in_plane_spacing_mm=(1.4, 1.6),
            slice_spacing_mm=(2.0, 2.5),
            noise_hu=(10.0, 25.0),
            num_nodules=(8, 8),
        )
    )
    from medweave_steps.io.cohort.discovery import case_id_of_series

    entry = by_case[case_id_of_series(patient.uid("series"))]
    np.testing.assert_array_equal(open_source(cohort / "dicom", entry).volume(), chest.hu_KJI)
    truth = read_truth(cohort / "dicom", entry)
    assert truth is not None
    np.testing.assert_array_equal(truth, chest.label_KJI)
    assert entry.grid.spacing_mm == pytest.approx(tuple(reversed(chest.spacing_mm)))


@pytest.mark.slow
def test_dicom_and_msd_hold_the_same_patients(cohort: Path) -> None:
    dicom, msd = check(cohort / "dicom"), check(cohort / "Task06_Lung")
    assert (dicom.layout, msd.layout) == ("dicom", "msd")
    assert len(dicom.cases) == len(msd.cases) == 4
    assert [case.fixed_split for case in msd.cases if case.case_id.startswith("heldout")] == ["test"]
    assert sum(case.fixed_split == "test" for case in dicom.cases) == 1

    def volumes(folder: Path, index: CohortIndex) -> dict[int, float]:
        # The lesion volume identifies the patient across both formats.
        truths = {entry.case_id: read_truth(folder, entry) for entry in index.cases}
        return {
            int(np.count_nonzero(truths[e.case_id])): round(float(np.linalg.det(np.array(e.grid.affine)[:3, :3])), 3)
            for e in index.cases
        }

    ours, theirs = volumes(cohort / "dicom", dicom), volumes(cohort / "Task06_Lung", msd)
    assert ours.keys() == theirs.keys()
    assert [abs(value) for value in ours.values()] == pytest.approx([abs(theirs[key]) for key in ours], rel=1e-3)


@pytest.mark.slow
def test_an_independent_reader_sees_the_same_geometry(cohort: Path) -> None:
    folder = cohort / "dicom" / "series-0001"
    reader = sitk.ImageSeriesReader()
    reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(folder)))
    image = reader.Execute()
    nifti = sitk.ReadImage(str(cohort / "Task06_Lung" / "imagesTr" / "lung_001.nii.gz"))
    np.testing.assert_allclose(image.GetSpacing(), nifti.GetSpacing(), atol=1e-3)
    np.testing.assert_allclose(image.GetOrigin(), nifti.GetOrigin(), atol=1e-2)
    np.testing.assert_array_equal(sitk.GetArrayFromImage(image), sitk.GetArrayFromImage(nifti))


@pytest.mark.slow
def test_what_is_written_is_valid_dicom(cohort: Path) -> None:
    image = sorted((cohort / "dicom" / "series-0001").iterdir())[0]
    assert dciodvfy_errors(image) == []
    assert dciodvfy_errors(cohort / "dicom" / "ground-truth" / "series-0001.dcm") == []


@pytest.mark.slow
def test_every_third_scanner_pads_outside_its_circle(cohort: Path) -> None:
    folder = cohort / "dicom"
    image = pydicom.dcmread(sorted((folder / "series-0003").iterdir())[0])
    padding = image.PixelPaddingValue
    assert int(image.pixel_array[0, 0]) == padding < 0
    entry = entry_of(folder, "series-0003")
    assert open_source(folder, entry).volume().min() >= -1024


@pytest.mark.slow
@pytest.mark.parametrize("syntax", ["rle", "jpeg2000"])
def test_lossless_encodings_hold_the_same_voxels(cohort: Path, tmp_path: Path, syntax: str) -> None:
    plain = cohort / "dicom"
    packed = phantom(tmp_path / syntax, "--cases", "1", "--seed", "3", *EIGHT, "--transfer-syntax", syntax)
    one, other = (entry_of(folder, "series-0001") for folder in (plain, packed))
    sizes = [sum(path.stat().st_size for path in (folder / "series-0001").iterdir()) for folder in (packed, plain)]
    assert sizes[0] / sizes[1] < 0.9
    np.testing.assert_array_equal(open_source(plain, one).volume(), open_source(packed, other).volume())


@pytest.mark.slow
def test_the_same_seed_writes_the_same_bytes_and_another_seed_other_patients(cohort: Path, tmp_path: Path) -> None:
    # Of the first patient; test_phantom_processes.py compares whole cohorts.
    again, other = (phantom(tmp_path / seed, "--cases", "1", "--seed", seed, *EIGHT) for seed in ("3", "5"))
    contents = [
        {p.relative_to(f): p.read_bytes() for p in f.rglob("*") if "series-0001" in str(p) and p.is_file()}
        for f in (cohort / "dicom", again, other)
    ]
    assert contents[0] == contents[1] != {}
    assert contents[0] != contents[2]
    assert len({Patient(seed=s, ordinal=o, held_out=False).chest_seed for s in (3, 5) for o in range(50)}) == 100


@pytest.mark.slow
def test_the_report_counts_nodules_without_naming_patients(cohort: Path) -> None:
    text = (cohort.parent / "cohort_report.json").read_text()
    report = json.loads(text)
    assert report["results"]["nodules"] == sum(case["num_nodules"] for case in report["cases"])
    assert "PHANTOM-" not in text
    assert "2.25." not in text


@pytest.mark.parametrize(
    "words",
    [
        ("--cases", "0"),
        ("--cases", "-1"),
        ("--nodules", "5", "4"),
        ("--held-out-cases", "2", "--seed", "5", "--held-out-seed", "5"),
    ],
)
def test_numbers_that_cannot_be_used_are_usage_errors(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert cli.main(["phantom", "lung", "--output", str(tmp_path / "out"), *words]) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_held_out_patients_keep_their_number_of_nodules(cohort: Path) -> None:
    cases = json.loads((cohort.parent / "cohort_report.json").read_text())["cases"]
    assert [case["num_nodules"] for case in cases if not case["held_out"]] == [8, 8, 8]
    (held_out,) = (case["num_nodules"] for case in cases if case["held_out"])
    assert 2 <= held_out <= 6


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    assert cli.main(["phantom", "lung", "--output", str(tmp_path), "--cases", "1"]) == 2
    assert (tmp_path / "precious").read_text() == "x"
