"""Which files of a folder are looked at, and how cases are named."""

from __future__ import annotations

import os
from pathlib import Path

from medweave_steps.io.cohort.discovery import case_id_of_path, case_id_of_series, walk
from support.checked import cases_of
from support.dicom_builder import CtSeries


def test_case_ids_are_stable_and_say_nothing() -> None:
    # SHA-256 of the text, first 8 hex digits: computed once with sha256sum.
    assert case_id_of_series("1.2.840.1") == "case-" + os.popen("printf 1.2.840.1 | sha256sum").read()[:8]
    assert case_id_of_path("images/a.nii.gz") == case_id_of_path("images/a.nii.gz")
    assert case_id_of_path("images/a.nii.gz") != case_id_of_path("images/b.nii.gz")


def test_walk_is_sorted_and_leaves_out_what_is_hidden_or_no_file(tmp_path: Path) -> None:
    for name in ("b/2.dcm", "a/1.dcm", ".hidden/3.dcm", "b/._2.dcm", "c.dcm"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe.dcm")  # reading it would wait forever
    (tmp_path / "broken.dcm").symlink_to(tmp_path / "nowhere")
    assert list(walk(tmp_path)) == ["a/1.dcm", "b/2.dcm", "c.dcm"]


def test_linked_folders_are_followed_once(tmp_path: Path) -> None:
    CtSeries().write(tmp_path / "store/ct")
    (tmp_path / "cohort").mkdir()
    (tmp_path / "cohort/link").symlink_to(tmp_path / "store")
    (tmp_path / "store/loop").symlink_to(tmp_path / "store")
    (case,) = cases_of(tmp_path / "cohort")
    assert len(case.files) == 6
    assert all(file.startswith("link/ct/") for file in case.files)
