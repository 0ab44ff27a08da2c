"""A schedule that watches: which studies are new and quiet, and real firings for a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from medweave.schedule.state import read_state
from medweave.schedule.studies import MOST_TRIES, Study, after, find
from support.schedules import call_schedule, results, write_schedule

SECRET = b"x" * 32
# Writes the contents of all studies in one line, and their names into a file.
COPY = 'find -L "$0" -type f | sort | xargs cat > result.txt; cd "$0" && find -L . > {folder}/names'


class Listed:
    """A source that returns one list after the other."""

    def __init__(self, *looks: Sequence[Study]) -> None:
        self.looks = list(looks)

    def look(self) -> Sequence[Study]:
        return self.looks.pop(0)

    def fetch(self, study: Study, into: Path) -> None:
        raise AssertionError(study)


def study(name: str, content: str = "1", age_s: float | None = None) -> Study:
    return Study(name=name, content=content, age_s=age_s)


def test_a_study_is_quiet_by_its_age_or_if_two_looks_agree() -> None:
    waited: list[float] = []
    first = [study("old", age_s=60.0), study("comes", "1"), study("stays", "1"), study("goes", "1")]
    second = [study("old", age_s=90.0), study("comes", "2"), study("stays", "1"), study("late", "1")]
    search = find(Listed(first, second), {}, quiet_s=30.0, secret=SECRET, wait=waited.append)
    assert sorted(study.name for study in search.new.values()) == ["old", "stays"]
    assert (search.num_coming, waited) == (2, [30.0])


def test_nothing_waits_where_all_are_known_to_be_quiet() -> None:
    search = find(Listed([study("old", age_s=60.0)]), {}, quiet_s=30.0, secret=SECRET, wait=pytest.fail)
    assert len(search.new) == 1


def test_a_completed_study_is_not_new_and_a_failed_one_only_for_some_runs() -> None:
    one = study("one", age_s=60.0)
    key = one.key(SECRET)
    tries: dict[str, int] = {}
    for number in range(MOST_TRIES):
        search = find(Listed([one]), tries, quiet_s=30.0, secret=SECRET)
        assert list(search.new) == [key], number
        tries = after(tries, [key], done=False)
    search = find(Listed([one]), tries, quiet_s=30.0, secret=SECRET)
    assert (dict(search.new), search.num_given_up) == ({}, 1)
    assert not find(Listed([one]), after(tries, [key], done=True), quiet_s=30.0, secret=SECRET).new
    changed = study("one", "2", age_s=60.0)
    assert find(Listed([changed]), tries, quiet_s=30.0, secret=SECRET).new, "a study that has changed is new"


def watching(folder: Path, script: str = COPY, **watch: Any) -> tuple[Path, Path]:
    """Write a schedule that watches a folder; return its file and the folder."""
    source = folder / "source"
    source.mkdir()
    into = folder / "x/schedules/nightly/incoming"
    keys = {"folder": "../source", "quiet": 1} | watch
    return write_schedule(folder / "x", script.format(folder=folder), scans=into, watch=keys), source


def fire(file: Path) -> tuple[int, str]:
    code, _, err = call_schedule("run", file.name, cwd=file.parent)
    return code, err


@pytest.mark.slow
def test_new_studies_of_a_folder_are_run_once_under_pseudonyms(tmp_path: Path) -> None:
    file, source = watching(tmp_path)
    code, err = fire(file)
    assert (code, "skipped: no new study" in err) == (0, True)
    for number, name in enumerate(("DOE^JANE", "ROE^RICHARD"), start=1):
        (source / name / "series").mkdir(parents=True)
        (source / name / "series" / f"{name}.dcm").write_text(f"{number}")
    code, err = fire(file)
    assert (code, "starting a run: 2 new studies" in err) == (0, True)
    assert sorted(results(file.parent)[0].read_text()) == ["1", "2"]
    names = (tmp_path / "names").read_text()
    assert names.count("000001.dcm") == 2
    everything = list((file.parent / "schedules").rglob("*"))
    assert not [path for path in everything if "DOE" in path.name or "ROE" in path.name]
    assert not [path for path in everything if path.is_file() and b"DOE^" in path.read_bytes()]
    assert "DOE" not in err + names
    assert "skipped: no new study" in fire(file)[1]
    (source / "DOE^JANE" / "more.dcm").write_text("3")
    assert "starting a run: 1 new study" in fire(file)[1]
    assert sorted(result.read_text() for result in results(file.parent))[1] in ("13", "31")


@pytest.mark.slow
def test_a_study_whose_run_fails_is_retried_and_then_skipped(tmp_path: Path) -> None:
    file, source = watching(tmp_path, "exit 65")
    (source / "a").mkdir()
    (source / "a" / "1.dcm").write_text("1")
    for _ in range(MOST_TRIES):
        code, err = fire(file)
        assert (code, "starting a run: 1 new study" in err) == (1, True)
    code, err = fire(file)
    assert (code, "no new study (1 skipped after failures)" in err) == (0, True)
    assert list(read_state(file.parent / "schedules/nightly").tries.values()) == [MOST_TRIES]


@pytest.mark.slow
def test_a_job_file_that_does_not_name_the_folder_is_an_error(tmp_path: Path) -> None:
    file, _ = watching(tmp_path)
    job = tmp_path / "x" / "job.yml"
    job.write_text(yaml.safe_dump({"scans": {"class": "Directory", "path": "/elsewhere"}}))
    code, err = fire(file)
    assert code == 65
    assert "schedule.yml:3: watch.into: no input of the job file is this folder" in err
    assert f"path: {tmp_path}/x/schedules/nightly/incoming" in err


def test_files_on_another_file_system_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from medweave.schedule.studies import WatchedFolder
    from medweave_connectors.cache.content import Contents
    from medweave_connectors.cache.database import CacheDatabase

    def refused(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "one.nii.gz").write_text("1")
    (tmp_path / "into").mkdir()
    watched = WatchedFolder(tmp_path / "source", Contents(CacheDatabase(tmp_path / "memo")))
    watched.fetch(watched.look()[0], tmp_path / "into")
    assert (tmp_path / "into" / "000001.nii.gz").read_text() == "1"


def test_a_received_study_with_new_files_stays(tmp_path: Path) -> None:
    from medweave.schedule.studies import ReceivedFolder
    from medweave_connectors.cache.content import Contents
    from medweave_connectors.cache.database import CacheDatabase

    for name in ("done", "grows"):
        (tmp_path / "received" / name).mkdir(parents=True)
        (tmp_path / "received" / name / "1.dcm").write_text("1")
    received = ReceivedFolder(tmp_path / "received", Contents(CacheDatabase(tmp_path / "memo")))
    studies = received.look()
    (tmp_path / "received" / "grows" / "2.dcm").write_text("2")
    received.finish(studies)
    assert [path.name for path in (tmp_path / "received").iterdir()] == ["grows"]
    assert (tmp_path / "received" / "grows" / "2.dcm").exists()
