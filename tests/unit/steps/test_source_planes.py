"""A source hands out the planes that are wanted, and verifies all of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.source import VolumeSource, open_source
from support.checked import cases_of
from support.chest_cohort import write_msd
from support.dicom_builder import CtSeries, write_datasets

WANTED = [0, 2, 5]


def source_of(kind: str, folder: Path) -> VolumeSource:
    if kind == "nifti":
        write_msd(folder, 1, shape=(40, 32, 8), spacing=(10.0, 10.0, 30.0))
    elif kind == "enhanced":
        write_datasets([CtSeries(shape=(8, 36, 34)).enhanced(order=[5, 0, 3, 1, 7, 4, 2, 6])], folder)
    else:
        CtSeries(shape=(8, 36, 34)).write(folder, syntax=kind)
    return open_source(folder, cases_of(folder)[0])


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("kind", ["explicit", "rle", "jpeg2000", "enhanced", "nifti"])
def test_wanted_planes_are_those_of_the_whole(tmp_path, kind, verify):
    source = source_of(kind, tmp_path / "cohort")
    whole = list(source.planes(num_workers=2, verify=verify))
    some = list(source.planes(num_workers=2, verify=verify, wanted=WANTED))
    assert len(whole) == source.grid.shape[source.plane_axis] == 8
    np.testing.assert_array_equal(some, [whole[index] for index in WANTED])
    assert list(source.planes(num_workers=2, verify=verify, wanted=[])) == []


@pytest.mark.parametrize("wanted", [None, WANTED])
@pytest.mark.parametrize("kind", ["explicit", "jpeg2000", "enhanced", "nifti"])
def test_a_changed_scan_is_refused_once_it_was_read(tmp_path, kind, wanted):
    source = source_of(kind, tmp_path / "cohort")
    entry = dataclasses.replace(source.entry, content_sha256="0" * 64)
    changed = dataclasses.replace(source, entry=entry)
    assert len(list(changed.planes(num_workers=2, wanted=wanted))) == len(wanted or range(8))
    with pytest.raises(UserInputError) as caught:
        list(changed.planes(num_workers=2, verify=True, wanted=wanted))
    assert entry.case_id in caught.value.what
    assert "different voxels" in caught.value.seen


@pytest.mark.parametrize("kind", ["explicit", "nifti"])
def test_a_reader_that_stops_early_leaves_no_thread(tmp_path, kind):
    import threading
    import time

    source = source_of(kind, tmp_path / "cohort")
    before = threading.active_count()
    planes = source.planes(num_workers=2, verify=True)
    next(planes)
    planes.close()
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before
