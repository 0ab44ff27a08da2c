"""Files that share a SOPInstanceUID: copies are left aside, two versions of one slice are an error."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from support.checked import cases_of, check, errors_of, notices_of
from support.dicom_builder import CtSeries, segmentation, write_datasets
from support.identified import deidentify


@pytest.fixture
def cohort(tmp_path: Path) -> Path:
    """A series with its segmentation."""
    series = CtSeries()
    series.write(tmp_path / "cohort" / "a")
    values = np.zeros(series.shape, np.uint8)
    values[2, 3:6, 3:6] = 1
    write_datasets([segmentation(series.datasets(), values)], tmp_path / "cohort" / "a" / "seg")
    return tmp_path / "cohort"


@pytest.mark.slow
def test_a_copied_folder_is_left_aside_and_counted(cohort):
    shutil.copytree(cohort / "a", cohort / "copy")
    assert notices_of(cohort)["copies"].what == "7 DICOM files are copies of another file and ignored."
    (case,) = cases_of(cohort)
    assert len(case.files) == 6
    assert case.ground_truth == "a/seg/000.dcm"


def test_one_copied_slice_is_left_aside(cohort):
    shutil.copy(cohort / "a" / "002.dcm", cohort / "Doe copy")
    assert notices_of(cohort)["copies"].what == "1 DICOM file is a copy of another file and ignored."
    assert len(cases_of(cohort)) == 1


def test_another_content_under_the_same_uid_is_an_error(cohort):
    data = bytearray((cohort / "a" / "002.dcm").read_bytes())
    data[-1] ^= 1
    (cohort / "z.dcm").write_bytes(bytes(data))
    (error,) = errors_of(cohort)
    assert error.code == "same-uid"
    assert error.seen == "number 3, 8 of the files sorted by path"
    assert check(cohort, skip=True).index.cases == ()


def test_deidentify_leaves_copies_aside(cohort):
    shutil.copytree(cohort / "a", cohort / "copy")
    assert deidentify(cohort) == 0
    assert sum(path.is_file() for path in (cohort.parent / "out").rglob("*.dcm")) == 7
