"""One search in four ways: trial by trial and by Ray, under StreamFlow and under cwltool, by their own commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from medweave_steps.contracts.search import SearchTable
from support.both_engines import begin
from support.cwl_files import WORKFLOWS
from support.searches import TINY, parent_of_the_training_with, same_for_all_ways, table_in, write_grid
from support.training_set import training_set

SLOTS = 2
OTHERS = (("scatter", "cwltool"), ("search", "streamflow"), ("search", "cwltool"))
PARTIAL = 3  # exit code of a run that delivered a part


def table_of(own: Path, process: subprocess.Popen[str]) -> SearchTable:
    """Waits for the engine's end; the table of the search."""
    _, told = process.communicate(timeout=600)
    assert process.returncode == 0, told
    assert (own / "out" / "best_model" / "model_card.json").is_file()
    return table_in(own / "out" / "search")


def start(folder: Path, workflow: str, engine: str) -> tuple[Path, subprocess.Popen[str]]:
    """The engine's command and the folder where it runs."""
    own = folder / f"{workflow}-{engine}"
    own.mkdir()
    cwl = WORKFLOWS / "search" / f"{workflow}.cwl"
    job = {
        "training_set": {"class": "Directory", "path": str(folder / "data")},
        "grid": {"class": "File", "path": str(folder / "grid.json"), "format": "http://edamontology.org/format_3464"},
        "memory_mib": 1024,
    }
    (own / "job.json").write_text(json.dumps(job | ({"slots": SLOTS} if workflow == "search" else {})))
    return own, begin(own, cwl, engine, "job.json", "out", log=subprocess.PIPE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search")
    training_set(folder / "data")
    write_grid(folder / "grid.json")
    return folder


@pytest.fixture(scope="module")
def scattered(folder: Path) -> SearchTable:
    return table_of(*start(folder, "scatter", "streamflow"))


@pytest.fixture(scope="module")
def others(folder: Path, scattered: SearchTable) -> dict[tuple[str, str], SearchTable]:
    """All at once: each waits much."""
    started = {way: start(folder, *way) for way in OTHERS}
    return {way: table_of(*each) for way, each in started.items()}


def test_scattered_trials_overlap_in_time_and_a_failed_one_is_a_row(scattered: SearchTable) -> None:
    assert [row.state for row in scattered.rows] == ["completed", "completed", "failed"]
    assert scattered.rows[2].cause.startswith("--learning-rate cannot be used. seen: -1.0")
    assert scattered.most_at_once == SLOTS
    first, second = scattered.rows[:2]
    assert max(first.started_at, second.started_at) < min(first.ended_at, second.ended_at)
    assert scattered.best in {row.trial_id for row in scattered.rows[:2]}


@pytest.mark.parametrize("way", OTHERS, ids="-".join)
def test_every_way_gives_the_same_trial_by_trial(
    scattered: SearchTable, others: dict[tuple[str, str], SearchTable], way: tuple[str, str]
) -> None:
    found = others[way]
    assert same_for_all_ways(found) == same_for_all_ways(scattered)
    assert found.best == scattered.best
    assert all(row.weights_sha256 for row in found.rows if row.state == "completed")
    assert found.most_at_once == (SLOTS if way[0] == "search" else 1)  # cwltool does one job after the other


def test_a_trial_whose_whole_job_is_lost_is_a_row_and_the_others_go_on(tmp_path: Path) -> None:
    training_set(tmp_path / "data")
    trials = [{"steps": 60}, {"steps": 123456}]
    grid = {"options": {name: value for name, value in TINY.items() if name != "steps"}, "trials": trials}
    (tmp_path / "grid.json").write_text(json.dumps(grid))
    own, process = start(tmp_path, "scatter", "streamflow")
    os.kill(parent_of_the_training_with("--steps=123456", process), signal.SIGKILL)
    _, told = process.communicate(timeout=600)
    assert process.returncode == PARTIAL, told
    assert "not in its outputs: trial.1" in told
    table = table_in(own / "out" / "search")
    assert [row.state for row in table.rows] == ["completed", "failed"]
    assert table.rows[1].cause.startswith("no result: the job that trained it failed")
    assert table.best == table.rows[0].trial_id
