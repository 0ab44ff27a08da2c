"""No patient and no scan may be trained on and tested on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medweave_core.contracts.cohort import Finding
from medweave_steps.io.cohort.discovery import case_id_of_series
from support.checked import cases_of, check, errors_of, notices_of, only_error
from support.dicom_builder import CtSeries, uid


def case_id(key: str) -> str:
    return case_id_of_series(uid(key, "series"))


def write(folder: Path, splits: Any = None, **patients: str) -> None:
    """Return one series per keyword, of the patient in its value."""
    for key, patient in patients.items():
        CtSeries(key=key, patient=patient).write(folder / key)
    if splits is not None:
        (folder / "splits.json").write_text(json.dumps(splits))


def code_of(folder: Path) -> tuple[str, Finding]:
    finding = only_error(folder)
    assert finding.do
    return finding.code, finding


def test_splits_are_taken_over(tmp_path: Path) -> None:
    write(tmp_path, {"train": [case_id("a")], "test": [case_id("c")]}, a="1", b="2", c="3")
    assert {case.case_id: case.fixed_split for case in cases_of(tmp_path)} == {
        case_id("a"): "train", case_id("b"): None, case_id("c"): "test",
    }  # fmt: skip


def test_one_patient_in_two_splits(tmp_path: Path) -> None:
    write(tmp_path, {"train": [case_id("a")], "test": [case_id("b")]}, a="1", b="1", c="2")
    code, finding = code_of(tmp_path)
    assert code == "patient-in-two-splits"
    assert case_id("a") in finding.seen
    assert case_id("b") in finding.seen
    assert "test, train" in finding.seen


def test_one_patient_in_one_split_twice(tmp_path: Path) -> None:
    write(tmp_path, {"test": [case_id("a"), case_id("b")]}, a="1", b="1", c="2")
    assert errors_of(tmp_path) == []


def test_equal_patient_ids_of_two_issuers_are_two_patients(tmp_path: Path) -> None:
    from support.dicom_builder import write_datasets

    for key, issuer in (("a", "a hospital"), ("b", "another hospital")):
        datasets = CtSeries(key=key, patient="1").datasets()
        for dataset in datasets:
            dataset.IssuerOfPatientID = issuer
        write_datasets(datasets, tmp_path / key)
    assert len({case.patient_key for case in cases_of(tmp_path)}) == 2


def test_one_case_in_two_splits(tmp_path: Path) -> None:
    write(tmp_path, {"train": [case_id("a")], "test": [case_id("a")]}, a="1", b="2")
    assert code_of(tmp_path)[0] == "case-in-two-splits"


@pytest.mark.parametrize(
    ("splits", "seen"),
    [
        ({"test": ["case-00000000"]}, "case-00000000"),
        ({"holdout": []}, "holdout"),
        (["a"], "not an object"),
        ({"test": [1]}, "not text"),
    ],
)
def test_splits_that_cannot_be_used(tmp_path: Path, splits: Any, seen: str) -> None:
    write(tmp_path, splits, a="1", b="2")
    code, finding = code_of(tmp_path)
    assert code == "splits-file"
    assert seen in finding.seen


def twice(folder: Path, splits: Any = None) -> None:
    """One scan under two patients, as a copy with new UIDs."""
    stored = CtSeries(key="a").stored
    CtSeries(key="a", patient="1", stored=stored).write(folder / "a")
    CtSeries(key="b", patient="2", stored=stored).write(folder / "b")
    CtSeries(key="c", patient="2").write(folder / "c")
    if splits is not None:
        (folder / "splits.json").write_text(json.dumps(splits))


def test_the_same_scan_twice_counts_as_one_patient(tmp_path: Path) -> None:
    twice(tmp_path)
    assert case_id("a") in notices_of(tmp_path)["same-scan-twice"].what
    keys = {case.case_id: case.patient_key for case in cases_of(tmp_path)}
    assert keys[case_id("a")] == keys[case_id("b")] == keys[case_id("c")]


def test_the_same_scan_in_two_splits(tmp_path: Path) -> None:
    twice(tmp_path, {"train": [case_id("a")], "test": [case_id("b")]})
    assert code_of(tmp_path)[0] == "scan-in-two-splits"


def test_a_patient_joined_by_a_scan_leaks_too(tmp_path: Path) -> None:
    twice(tmp_path, {"train": [case_id("a")], "test": [case_id("c")]})
    assert code_of(tmp_path)[0] == "patient-in-two-splits"


def test_series_without_patient(tmp_path: Path) -> None:
    write(tmp_path, a="", b="")
    assert "no-patient-id" in notices_of(tmp_path)
    assert len({case.patient_key for case in cases_of(tmp_path)}) == 2


def test_one_patient_for_all_is_said(tmp_path: Path) -> None:
    write(tmp_path, a="anonymous", b="anonymous")
    assert "cannot be split by patient" in notices_of(tmp_path)["one-patient"].what


def test_patient_keys_do_not_show_the_patient(tmp_path: Path) -> None:
    write(tmp_path, a="patient-a")
    (case,) = check(tmp_path).index.cases
    assert len(case.patient_key) == 16
    assert np.frombuffer(bytes.fromhex(case.patient_key), np.uint8).size == 8
    assert "patient" not in case.patient_key
