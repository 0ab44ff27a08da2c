"""Suggestions for paths that do not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from medweave.project.near_files import gone, near
from medweave.validate.command import validate
from support.small_repository import JOB, write_small_repository


def test_the_nearest_name_is_that_of_the_part_which_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "jobs" / "train.yml").touch()
    assert near(tmp_path / "jobs" / "trian.yml") == (["train.yml"], "write 'train.yml' (closest match)")
    assert near(tmp_path / "job" / "train.yml") == (["jobs", "tests"], "write 'jobs' (closest match)")
    assert near(tmp_path / "results" / "model")[1] == "", "a folder that a run makes is not `tests`"


def test_what_cannot_be_looked_at_is_no_fault_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_small_repository(tmp_path)
    assert gone(tmp_path) == ""
    assert gone(tmp_path / "nothing") == "does not exist"
    text = (tmp_path / JOB).read_text(encoding="utf-8")
    long = "x" * 300  # no file system has such a name
    (tmp_path / JOB).write_text(text.replace("path: scan.nii.gz", f"path: {long}", 1), encoding="utf-8")
    (found,) = validate([tmp_path])[0]
    assert found.rule == "job-file"
    assert found.what == f"'{long}' cannot be read: File name too long."
