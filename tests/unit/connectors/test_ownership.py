"""Names of runs, and the mark of a run's folder in a folder of runs."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from medweave_connectors.host.job_processes import KEY, key_of, kill_of_runs
from medweave_connectors.runlog.run import RunRecord
from medweave_core.errors import UsageError
from medweave_core.runlog import run_ownership
from medweave_core.runlog.run_ownership import (
    RECORD_MARK,
    RunOwner,
    check_run_id,
    claim_folder,
    claim_or_adopt,
    is_generated,
    new_run_id,
    owner_of,
    recorded_owner,
)


@pytest.mark.parametrize("workflow", ["lung", "lung nodules", "../x", "-rf", ".hidden", "é" * 10, "w" * 300, "", "."])
def test_a_generated_id_is_a_plain_name_for_each_workflow(workflow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEDWEAVE_RUN_ID", raising=False)
    run_id = new_run_id(workflow)
    assert check_run_id(run_id, source="test") == run_id
    assert is_generated(run_id)


@pytest.mark.parametrize("run_id", ["a", "x" * 64, "1.5_b-c", "_a"])
def test_plain_names_are_run_ids(run_id: str) -> None:
    assert check_run_id(run_id, source="test") == run_id


def test_a_folder_is_claimed_once(tmp_path: Path) -> None:
    owner = claim_folder(tmp_path / "runs" / "mine")
    assert owner_of(tmp_path / "runs" / "mine", "mine") == owner
    with pytest.raises(UsageError, match="exists already"):
        claim_folder(tmp_path / "runs" / "mine")


@pytest.mark.parametrize("kind", ["folder", "file", "link to nothing"])
def test_a_name_that_is_taken_cannot_be_claimed(tmp_path: Path, kind: str) -> None:
    taken = tmp_path / "mine"
    if kind == "folder":
        taken.mkdir()
    elif kind == "file":
        taken.touch()
    else:
        taken.symlink_to(tmp_path / "nothing")
    with pytest.raises(UsageError, match="exists already"):
        claim_folder(taken)


def test_the_engine_adopts_the_folder_of_medweave_run_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = claim_folder(tmp_path / "mine")
    for token in ("", "0000000000000000"):
        monkeypatch.setenv(run_ownership.TOKEN_VARIABLE, token)
        with pytest.raises(UsageError):
            claim_or_adopt(tmp_path / "mine")
    monkeypatch.setenv(run_ownership.TOKEN_VARIABLE, owner.token)
    assert claim_or_adopt(tmp_path / "mine") == owner
    assert claim_or_adopt(tmp_path / "other").token != owner.token


@pytest.mark.parametrize("text", ["", "other 0123456789abcdef", "mine", "mine $(id)", "\udcff"])
def test_a_mark_of_something_else_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / RECORD_MARK).write_bytes(text.encode(errors="surrogateescape"))
    assert owner_of(tmp_path, "mine") == RunOwner("mine", "")


def test_a_run_of_an_older_version_owns_what_has_a_generated_name(tmp_path: Path) -> None:
    assert RunOwner("lung-20260801-120000-ab12", "").is_certain
    assert not RunOwner("results", "").is_certain
    assert RunOwner("results", "0123456789abcdef").is_certain
    assert recorded_owner(tmp_path, "lung nodules-20260801-120000-ab12").is_certain, "workflows had any name"


@pytest.mark.parametrize("run_id", ["", ".", "..", "../x", "a/b", "/", ".medweave-store", "-rf", "a\nb", "a\0b"])
def test_an_event_log_that_names_another_folder_is_refused(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(UsageError, match="not a valid folder name"):
        recorded_owner(tmp_path, run_id)


def test_two_runs_of_one_name_have_different_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEDWEAVE_RUN_ID", "nightly")
    first, second = RunRecord(tmp_path / "a", "lung"), RunRecord(tmp_path / "b", "lung")
    first.begin()
    second.begin()
    assert first.owner.run_id == second.owner.run_id
    assert first.owner.mark != second.owner.mark
    assert first.owner.process_key != second.owner.process_key


def test_processes_of_another_run_of_the_same_name_are_not_ended(tmp_path: Path) -> None:
    dead, living = (claim_folder(tmp_path / project / "nightly") for project in ("a", "b"))
    started = {
        owner: subprocess.Popen(["sleep", "60"], env={**os.environ, KEY: key_of(owner.process_key)})
        for owner in (dead, living)
    }
    try:
        assert kill_of_runs({dead.process_key}) == 1
        assert started[dead].wait() == -signal.SIGKILL
        assert started[living].poll() is None
    finally:
        for process in started.values():
            process.kill()
            process.wait()
