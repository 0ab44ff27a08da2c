"""No header ends a verb with an internal error, or any other case than its own."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from medweave_steps.io.discovery import case_id_of_series
from support.dicom_builder import uid
from support.odd_headers import changes, run_verbs, small_series, write_changed

GOOD, ODD = small_series("good"), small_series("odd")
FLIPS = st.just([]) | st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=3)
GOOD_CASE = case_id_of_series(uid("good", "series"))


def assert_only_the_odd_case_suffers(data: st.DataObject, model: Path, *, is_enhanced: bool, syntax: str) -> None:
    datasets = [ODD.enhanced()] if is_enhanced else ODD.datasets()
    applied = data.draw(st.lists(changes(datasets[0]), min_size=0, max_size=2), label="changes")
    targets = data.draw(st.sampled_from([range(4), [1], [0, 3]]), label="files")
    flips = data.draw(FLIPS, label="overwritten bytes")
    work = Path(tempfile.mkdtemp())
    try:
        GOOD.write(work / "cohort" / "good")
        targets = targets if len(datasets) > 1 else [0]
        write_changed(work / "cohort" / "odd", datasets, applied, targets, syntax=syntax, flips=flips)
        ends = run_verbs(work / "cohort", work, model, options=("--on-error", "skip"))
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
def test_changed_headers_of_single_frame_images(model: Path, syntax: str, data: st.DataObject) -> None:
    assert_only_the_odd_case_suffers(data, model, is_enhanced=False, syntax=syntax)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_changed_headers_of_a_multi_frame_image(model: Path, data: st.DataObject) -> None:
    assert_only_the_odd_case_suffers(data, model, is_enhanced=True, syntax="explicit")
