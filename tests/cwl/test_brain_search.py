"""DistMIS' two modes as two jobs of one workflow, each by `streamflow run`: a process for each trial, and two for each."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from medweave_core.contracts import codec
from medweave_core.contracts.progress import duration
from medweave_core.contracts.search import SearchGrid, SearchTable
from medweave_steps.search.grid import trials_of
from medweave_steps.train.config import TrainConfig
from support.both_engines import begin
from support.brain_cohort import PREPARED_SHAPE, SPACING_MM, write_brains
from support.cwl_files import WORKFLOWS
from support.searches import table_in

FOLDER = WORKFLOWS / "brain-tumour-segmentation"
JSON = "http://edamontology.org/format_3464"


def grid_of(path: Path) -> SearchGrid:
    return codec.from_json(SearchGrid, json.loads(path.read_text()), where="a grid")


@pytest.mark.parametrize("mode", ["experiment", "data"])
def test_the_grid_of_the_paper_has_32_trials_in_its_order(mode: str) -> None:
    trials = trials_of(grid_of(FOLDER / "jobs" / f"{mode}-parallel-grid.json"))
    assert len({trial.trial_id for trial in trials}) == len(trials) == 32
    assert list(trials[0].varied) == ["learning-rate", "norm", "beta2", "amsgrad"]
    assert trials[1].varied == {"learning-rate": 0.0001, "norm": "batch", "beta2": 0.99, "amsgrad": False}
    for trial in trials:
        options = {name.replace("-", "_"): value for name, value in trial.options.items()}
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
        config = (
            TrainConfig(training_set=Path("a"), output=Path("b"), **values)
            .for_all_ranks()
            .for_cases(338, num_channels=4)
        )
        ranks = 8 if mode == "data" else 1
        assert (config.ranks, config.batch_size) == (ranks, 2 * ranks)
        assert config.learning_rate == pytest.approx(trial.varied["learning-rate"] * ranks), (
            "(a) multiplies, (b) does not"
        )
        assert config.steps == 250 * -(-338 // (2 * ranks))


def job_of(folder: Path, name: str, options: dict[str, Any], **inputs: Any) -> Path:
    """Write a grid of two trials with these options, and its job file; return the job file."""
    shape = list(PREPARED_SHAPE)
    common = {
        "network": "distmis-as-described", "epochs": 2, "batch-size": 2, "patch-shape": shape, "window-shape": shape,
        "schedule": "constant", "dice": "sample", "cross-entropy-weight": 0, "seed": 0, "precision": "float32",
    }  # fmt: skip
    grid = {"options": common | options, "product": {"norm": ["batch", "group"]}}
    (folder / f"{name}-grid.json").write_text(json.dumps(grid))
    job = {
        "cohort": {"class": "Directory", "path": str(folder / "cohort")},
        "grid": {"class": "File", "path": str(folder / f"{name}-grid.json"), "format": JSON},
        "spacing_mm": [SPACING_MM] * 3,
        "memory_mib": 1024,
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(job | inputs))
    return path


def run(folder: Path, job: str) -> Path:
    """Run a job of the workflow by `streamflow run`; return its outputs."""
    with (folder / f"{job}.log").open("w") as log:
        process = begin(folder, FOLDER / "search.cwl", "streamflow", f"{job}.json", f"by-{job}", log=log)
    assert process.wait(600) == 0, (folder / f"{job}.log").read_text()
    return folder / f"by-{job}"


def searched(folder: Path) -> SearchTable:
    return table_in(folder / "search")


def table_under(page: str, heading: str) -> dict[str, list[str]]:
    """Return the rows of the table below a heading, as the texts of their cells by the first of them."""
    below = page.partition(f">{heading}</h2>")[2].partition("</section>")[0]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", below, re.DOTALL)]
    return {cells[0]: cells[1:] for cells in rows}


@pytest.mark.pipeline
def test_both_modes_are_jobs_of_one_workflow_with_one_table(tmp_path: Path) -> None:
    names = write_brains(tmp_path / "cohort", 5)
    (tmp_path / "cohort" / "splits.json").write_text(json.dumps({"test": names[:1]}), encoding="utf-8")
    job_of(tmp_path, "alone", {})
    by_two = {"strategy": "ddp", "ranks": 2, "scale-by-ranks": True}
    (report,) = run(tmp_path, "alone").glob("run_report*.json")
    earlier = {"class": "File", "path": str(report), "format": JSON}
    job_of(tmp_path, "spread", by_two, ranks_per_trial=2, earlier_reports=[earlier])
    run(tmp_path, "spread")

    alone, spread = (searched(tmp_path / f"by-{job}") for job in ("alone", "spread"))
    assert [(row.state, row.ranks) for row in alone.rows] == [("completed", 1)] * 2
    assert [(row.state, row.ranks) for row in spread.rows] == [("completed", 2)] * 2
    assert spread.most_at_once == 1, "one trial after another"
    page = (tmp_path / "by-spread" / "report" / "fragment.html").read_text()
    for heading in (
        "Measured, grid data parallel",
        "Measured, grid experiment parallel",
        "Modeled, grid data parallel",
    ):
        assert heading in page
    assert "The grid has 2 trials" in page

    # The cells of both modes are what these two runs measured.
    rows = table_under(page, "Ranks, time and speed-up")
    headings = re.findall(r'<th scope="colgroup"[^>]*>(.*?)</th>', page)
    one = sum(row.seconds for row in alone.rows)
    for heading, table, ranks in (("data", spread, 2), ("experiment", alone, alone.most_at_once)):
        place = 2 * headings.index(f"Measured, grid {heading} parallel")
        speed_up = one / table.seconds
        message = [duration(table.seconds), f"{speed_up:.2f} ({speed_up / ranks:.2f})"]
        assert rows[str(ranks)][place : place + 2] == message

    # Each trial of both searches with its start and its end.
    for row in (*alone.rows, *spread.rows):
        started, ended = (at.removesuffix("+00:00").replace("T", " ") for at in (row.started_at, row.ended_at))
        assert f'<td class="num">{started}</td><td class="num">{ended}</td>' in page
