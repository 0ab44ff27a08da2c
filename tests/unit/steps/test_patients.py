"""Patients by PatientID and issuer: in `check`, for the split, and in `deidentify`, for pseudonyms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from medweave_steps.io.cohort.patients import issuers_by_patient_id, joined_issuer, without_absent_issuers
from support.checked import check
from support.dicom_builder import CtSeries, write_datasets
from support.identified import deidentify, results

ISSUERS = issuers_by_patient_id([("P1", ""), ("P1", "A"), ("P2", "A"), ("P2", "B"), ("P3", ""), ("", "A")])


@pytest.mark.parametrize(
    ("patient", "issuer"),
    [(("P1", ""), "A"), (("P1", "A"), "A"), (("P2", "B"), "B"), (("P2", ""), None), (("P3", ""), ""), (("P4", ""), "")],
)
def test_the_issuer_under_which_a_patient_counts(patient: tuple[str, str], issuer: str | None) -> None:
    assert joined_issuer(*patient, ISSUERS) == issuer


def test_an_absent_issuer_is_no_other_patient() -> None:
    assert without_absent_issuers([("P1", ""), ("P1", "A"), ("P2", "")]) == {("P1", "A"), ("P2", "")}
    assert without_absent_issuers([("P1", "A"), ("P1", "B")]) == {("P1", "A"), ("P1", "B")}


def cohort(folder: Path, *issuers: str, is_one_study: bool = False) -> Path:
    """Write a series of the patient P1 for each issuer; empty for a series without one."""
    for number, issuer in enumerate(issuers):
        datasets = CtSeries(key=f"s{number}", patient="P1", shape=(3, 36, 34)).datasets()
        for dataset in datasets:
            if issuer:
                dataset.IssuerOfPatientID = issuer
            dataset.StudyInstanceUID = "1.2.3" if is_one_study else f"1.2.3.{number}"
        write_datasets(datasets, folder / f"{number}")
    return folder


@pytest.mark.parametrize(
    ("issuers", "num_patients", "codes"),
    [
        (["A", "B"], 2, []),
        (["A", "A "], 1, []),
        (["", ""], 1, []),
        (["", "A"], 1, ["issuer-joined"]),
        (["A", "", "B"], 2, ["ambiguous-issuer"]),
    ],
)
def test_patients_of_a_cohort(tmp_path: Path, issuers: list[str], num_patients: int, codes: list[str]) -> None:
    folder = cohort(tmp_path / "cohort", *issuers)
    index = check(folder, skip=True).index
    assert len({case.patient_key for case in index.cases}) == num_patients
    assert [finding.code for finding in index.findings if finding.case_id] == codes
    assert deidentify(folder, "--on-error", "skip") == 0
    assert results(folder)["num_patients"] == num_patients
    assert list(results(folder)["left_out"]) == [code for code in codes if code.startswith("ambiguous")]


def test_slices_with_and_without_issuer_are_one_series(tmp_path: Path) -> None:
    datasets = CtSeries(patient="P1").datasets()
    for dataset in datasets[::2]:
        dataset.IssuerOfPatientID = "A"
    write_datasets(datasets, tmp_path)
    (case,) = check(tmp_path).index.cases
    assert len(case.files) == 6


def test_a_patient_in_two_splits_is_found_without_an_issuer(tmp_path: Path) -> None:
    folder = cohort(tmp_path, "", "A")
    first, second = (case.case_id for case in check(folder).index.cases)
    (folder / "splits.json").write_text(json.dumps({"train": [first], "test": [second]}))
    assert "patient-in-two-splits" in {finding.code for finding in check(folder).index.findings}


def test_two_issuers_in_one_study_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = cohort(tmp_path / "cohort", "A", "B", is_one_study=True)
    assert deidentify(folder) == 65
    message = capsys.readouterr().err
    assert "or issuer (0010,0021) under one StudyInstanceUID" in message
    assert "P1" not in message
