"""F20: one PatientID with and without its issuer is one patient."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cases.chest import chest_hu, ct_series, save_series
from support.checked import check
from support.identified import deidentify, results

SERIES = {"a": ("1.2.826.0.1.31", ""), "b": ("1.2.826.0.1.32", "HOSPITAL")}


@pytest.mark.case("twice", expected="issuer: one patient, and a notice that says so")
def test_a_patient_id_with_and_without_issuer(tmp_path: Path, seen: Callable[[object], None]) -> None:
    hu = chest_hu()
    for number, (name, (series_uid, issuer)) in enumerate(SERIES.items()):
        datasets = ct_series(np.roll(hu, 3 * number, 1), series_uid=series_uid)
        for dataset in datasets:
            dataset.IssuerOfPatientID = issuer
        save_series(tmp_path / "cohort" / name, datasets)
    index = check(tmp_path / "cohort").index
    num_patients = len({case.patient_key for case in index.cases})
    seen(f"{num_patients} patients of {len(index.cases)} series")
    assert (num_patients, len(index.cases)) == (1, 2)
    assert [finding.code for finding in index.findings if finding.case_id] == ["issuer-joined"]
    assert deidentify(tmp_path / "cohort") == 0
    assert results(tmp_path / "cohort")["num_patients"] == 1
    assert len({case.patient_key for case in check(tmp_path / "out").index.cases}) == 1
