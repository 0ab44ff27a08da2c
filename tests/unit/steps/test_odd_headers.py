"""No header ends a verb with an internal error, or any other case than its own."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from pydicom.dataset import Dataset

from medweave_steps.io.cohort.discovery import case_id_of_series
from support.dicom_builder import segmentation, uid
from support.odd_headers import Change, changes, run_check, run_verbs, set_raw, small_series, write_changed

GOOD, ODD = small_series("good"), small_series("odd")
FLIPS = st.just([]) | st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=3)
GOOD_CASE = case_id_of_series(uid("good", "series"))


def assert_only_the_odd_case_suffers(
    data: st.DataObject, model_without_anatomy: Path, *, is_enhanced: bool, syntax: str
) -> None:
    datasets = [ODD.enhanced()] if is_enhanced else ODD.datasets()
    applied = data.draw(st.lists(changes(datasets[0]), min_size=0, max_size=2), label="changes")
    targets = data.draw(st.sampled_from([range(4), [1], [0, 3]]), label="files")
    flips = data.draw(FLIPS, label="overwritten bytes")
    work = Path(tempfile.mkdtemp())
    try:
        GOOD.write(work / "cohort" / "good")
        targets = targets if len(datasets) > 1 else [0]
        write_changed(work / "cohort" / "odd", datasets, applied, targets, syntax=syntax, flips=flips)
        ends = run_verbs(work / "cohort", work, model_without_anatomy, options=("--on-error", "skip"))
        note(f"{ends.codes}\n{ends.text}")
        assert ends.codes == dict.fromkeys(("check", "preprocess", "segment", "deidentify"), 0)
        assert "Traceback" not in ends.text
        assert "Warning" not in ends.text
        assert (work / "segmented" / GOOD_CASE / "lesion_mask.dcm").is_file()
    finally:
        shutil.rmtree(work)


@pytest.mark.slow
@pytest.mark.parametrize("syntax", ["explicit", "implicit", "rle"])
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_changed_headers_of_single_frame_images(model_without_anatomy: Path, syntax: str, data: st.DataObject) -> None:
    assert_only_the_odd_case_suffers(data, model_without_anatomy, is_enhanced=False, syntax=syntax)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_changed_headers_of_a_multi_frame_image(model_without_anatomy: Path, data: st.DataObject) -> None:
    assert_only_the_odd_case_suffers(data, model_without_anatomy, is_enhanced=True, syntax="explicit")


def segmentation_of_good() -> Dataset:
    mask = np.zeros(GOOD.shape, np.uint8)
    mask[1:3, 4:9, 4:9] = 1
    return segmentation(GOOD.datasets(), mask)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_changed_headers_of_a_segmentation(data: st.DataObject) -> None:
    truth = segmentation_of_good()
    applied = data.draw(st.lists(changes(truth), min_size=1, max_size=2), label="changes")
    work = Path(tempfile.mkdtemp())
    try:
        ODD.write(work / "cohort" / "odd")
        GOOD.write(work / "cohort" / "good")
        write_changed(work / "cohort" / "truth", [truth], applied, [0], syntax="explicit")
        ends = run_check(work / "cohort", work, options=("--on-error", "skip"))
        note(ends.text)
        assert ends.codes == {"check": 0}
        assert "Traceback" not in ends.text
    finally:
        shutil.rmtree(work)


def damage(path: Path) -> None:
    """Overwrite the beginning of a JPEG 2000 code stream."""
    content = bytearray(path.read_bytes())
    start = content.index(b"\xff\x4f\xff\x51")
    content[start : start + 60] = bytes(60)
    path.write_bytes(content)


def test_an_undecodable_slice_ends_its_own_case_only(tmp_path: Path, model_without_anatomy: Path) -> None:
    GOOD.write(tmp_path / "cohort" / "good")
    damage(ODD.write(tmp_path / "cohort" / "odd", syntax="jpeg2000")[0])  # check decodes the middle slice
    ends = run_verbs(tmp_path / "cohort", tmp_path, model_without_anatomy)
    assert [ends.codes[verb] for verb in ("check", "preprocess", "segment")] == [0, 0, 0]
    assert "skipped: case-" in ends.text
    assert json.loads((tmp_path / "preprocess.json").read_text())["results"]["num_failed_cases"] == 1
    assert [path.name for path in (tmp_path / "segmented").iterdir() if path.is_dir()] == [GOOD_CASE]


def test_a_batch_of_undecodable_cases_is_refused(tmp_path: Path, model_without_anatomy: Path) -> None:
    damage(ODD.write(tmp_path / "cohort", syntax="jpeg2000")[0])
    ends = run_verbs(tmp_path / "cohort", tmp_path, model_without_anatomy)
    assert ends.codes["preprocess"] == 65
    assert "cannot be decoded" in ends.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keyword", "vr", "value"),
    [
        ("SliceThickness", "SQ", b"US"), ("SpecificCharacterSet", "SQ", bytes(8)), ("StudyDate", "UL", b" "),
        ("PatientSex", "FD", b"x"), ("PatientAge", "OB", b"\xff"), ("InstanceNumber", "DS", b"1.5"), ("KVP", "SQ", b"\x00"),
    ],
)  # fmt: skip
def test_damaged_values_that_dicom_results_copy(
    tmp_path: Path, model_without_anatomy: Path, keyword: str, vr: str, value: bytes
) -> None:
    change = Change((), keyword, "", lambda holder: set_raw(holder, keyword, vr, value))
    write_changed(tmp_path / "cohort", ODD.datasets(), [change], range(4), syntax="explicit")
    ends = run_verbs(tmp_path / "cohort", tmp_path, model_without_anatomy, options=("--on-error", "skip"))
    assert set(ends.codes.values()) <= {0, 65}, ends.text
    assert "Traceback" not in ends.text
