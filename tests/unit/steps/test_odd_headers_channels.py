"""No header of MR or PET ends `check` with an internal error, concerns another case, or shows its values."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from medweave_steps.io.cohort.source import open_source
from support.checked import check
from support.mr_pet_builder import MrSeries, PetSeries
from support.odd_headers import changes, write_changed

SMALL = {"shape": (4, 34, 34)}
ANY_MR = {"name": "MR", "echo_time_ms": [0, 1e9]}


def series(kind: str, key: str) -> MrSeries:
    if kind == "pet":
        return PetSeries(key=key, patient=key, slopes=2.0, **SMALL)
    return MrSeries(key=key, patient=key, attributes={"InversionTime": 2300, "ContrastBolusAgent": "x"}, **SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pet", "mr", "enhanced"])
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_changed_headers_concern_their_own_case_only(kind: str, data: st.DataObject) -> None:
    odd = series(kind, "odd")
    datasets = [odd.enhanced_mr()] if kind == "enhanced" else odd.datasets()
    applied = data.draw(st.lists(changes(datasets[0]), min_size=1, max_size=2), label="changes")
    targets = data.draw(st.sampled_from([range(4), [1], [0, 3]]), label="files") if len(datasets) > 1 else [0]
    rules: list[dict[str, Any]] = [{"name": "PET", "modality": "PT"}] if kind == "pet" else [ANY_MR]
    work = Path(tempfile.mkdtemp())
    try:
        series(kind, "good").write(work / "good")
        write_changed(work / "odd", datasets, applied, targets, syntax="explicit", flips=[])
        index = check(work, skip=True, channels=rules).index
        assert any(case.files[0].startswith("good") for case in index.cases)
        assert not any("Doe" in finding.what + finding.seen for finding in index.findings)
        for case in index.cases:
            assert len(list(open_source(work, case).planes(num_workers=1, verify=True))) == case.grid.shape[0]
    finally:
        shutil.rmtree(work)
