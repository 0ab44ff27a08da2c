"""One search in four variants: trial by trial and by Ray, under StreamFlow and under cwltool, by their own commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from medweave_core.contracts.search import SearchTable
from support.both_engines import begin
from support.cwl_files import WORKFLOWS
from support.searches import TINY, TWO_AND_A_WRONG_ONE, parent_of_the_training_with, table_in, without_time_and_host
from support.training_set import training_set

SLOTS = 2
OTHERS = (("scatter", "cwltool"), ("search", "streamflow"), ("search", "cwltool"))
PARTIAL = 3  # exit code of a run that delivered a part
ENDLESS = {"learning-rate": 0.001, "steps": 123456}
"""The trial of the first run whose whole job is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A search that has ended.

    Attributes:
        exit_code: of the engine.
        log: standard error of the engine.
    """

    exit_code: int
    log: str
    table: SearchTable


def outcome_of(own: Path, process: subprocess.Popen[str]) -> Outcome:
    """Wait for the engine's end; return its outputs."""
    _, log = process.communicate(timeout=600)
    assert process.returncode in (0, PARTIAL), log
    assert (own / "out" / "best_model" / "model_card.json").is_file()
    return Outcome(exit_code=process.returncode, log=log, table=table_in(own / "out" / "search"))


def start(folder: Path, workflow: str, engine: str, *, more: list[dict[str, Any]] | None = None) -> Any:
    """Start the engine's command; return the folder where it runs, and its process.

    Args:
        more: trials in addition to the common ones.
    """
    own = folder / f"{workflow}-{engine}"
    own.mkdir()
    cwl = WORKFLOWS / "search" / f"{workflow}.cwl"
    trials = [{"learning-rate": rate, "steps": TINY["steps"]} for rate in TWO_AND_A_WRONG_ONE]
    options = {name: value for name, value in TINY.items() if name != "steps"}
    (own / "grid.json").write_text(json.dumps({"options": options, "trials": [*trials, *(more or [])]}))
    job = {
        "training_set": {"class": "Directory", "path": str(folder / "data")},
        "grid": {"class": "File", "path": str(own / "grid.json"), "format": "http://edamontology.org/format_3464"},
        "memory_mib": 1024,
    }
    (own / "job.json").write_text(json.dumps(job | ({"slots": SLOTS} if workflow == "search" else {})))
    return own, begin(own, cwl, engine, "job.json", "out", log=subprocess.PIPE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search")
    training_set(folder / "data")
    return folder


@pytest.fixture(scope="module")
def scattered(folder: Path) -> Outcome:
    """Return the result of the search by StreamFlow, with a job for each trial; the job of the last trial is killed."""
    own, process = start(folder, "scatter", "streamflow", more=[ENDLESS])
    os.kill(parent_of_the_training_with(f"--steps={ENDLESS['steps']}", process), signal.SIGKILL)
    return outcome_of(own, process)


@pytest.fixture(scope="module")
def others(folder: Path, scattered: Outcome) -> dict[tuple[str, str], Outcome]:
    """Return the results of the other variants, run in parallel because each mostly waits."""
    started = {variant: start(folder, *variant) for variant in OTHERS}
    return {variant: outcome_of(*item) for variant, item in started.items()}


def test_scattered_trials_overlap_in_time_and_a_failed_one_is_a_row(scattered: Outcome) -> None:
    table = scattered.table
    assert [row.state for row in table.rows[:3]] == ["completed", "completed", "failed"]
    assert table.rows[2].cause.startswith("invalid value of --learning-rate. seen: -1.0")
    assert table.most_at_once == SLOTS
    first, second = table.rows[:2]
    assert max(first.started_at, second.started_at) < min(first.ended_at, second.ended_at)
    assert table.best in {row.trial_id for row in table.rows[:2]}


@pytest.mark.parametrize("variant", OTHERS, ids="-".join)
def test_every_search_mode_gives_equal_trials(
    scattered: Outcome, others: dict[tuple[str, str], Outcome], variant: tuple[str, str]
) -> None:
    assert others[variant].exit_code == 0, others[variant].log
    result, expected = others[variant].table, without_time_and_host(scattered.table)
    del expected[scattered.table.rows[3].trial_id]
    assert without_time_and_host(result) == expected
    assert result.best == scattered.table.best
    assert all(row.weights_sha256 for row in result.rows if row.state == "completed")
    assert result.most_at_once == (SLOTS if variant[0] == "search" else 1)  # cwltool does one job after the other


def test_a_trial_whose_whole_job_is_lost_is_a_row_and_the_others_continue(scattered: Outcome) -> None:
    assert scattered.exit_code == PARTIAL, scattered.log
    (line,) = (item for item in scattered.log.splitlines() if "not in its outputs: " in item)
    assert line.endswith(": trial.3"), "the job of the trial that failed has left a row"
    assert len(scattered.table.rows) == 4
    lost = scattered.table.rows[3]
    assert lost.state == "failed"
    assert lost.cause.startswith("no result: the job of this trial failed")
