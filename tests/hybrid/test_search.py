"""A search scattered over a real Slurm: trials side by side on both nodes, with the weights that this machine gives them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from medweave_core.contracts.search import SearchTable
from medweave_steps.cli import main
from support.cwl_files import WORKFLOWS
from support.searches import table_in, without_time_and_host, write_grid
from support.slurm_runs import go, write
from support.testbed import Sites
from support.training_set import training_set


def search_locally(folder: Path, grid: Path) -> SearchTable:
    """Run the same search on this machine, trial after trial; return its table."""
    assert main(["search", "--part", "plan", "--grid", str(grid), "--output", str(folder / "planned")]) == 0
    results = []
    for path in sorted((folder / "planned").iterdir()):
        results.append(str(folder / path.stem))
        words = ["--trial", str(path), "--training-set", str(folder / "data"), "--output", results[-1]]
        assert main(["search", "--part", "trial", *words]) == 0
    words = ["--grid", str(grid), "--output", str(folder / "all"), "--best-model", str(folder / "best")]
    assert main(["search", "--part", "collect", *words, "--results", *results]) == 0
    return table_in(folder / "all")


def test_trials_run_on_both_nodes_at_once_and_are_the_same_as_here(
    tmp_path: Path, testbed: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the verb writes its report
    training_set(tmp_path / "data")
    grid = write_grid(tmp_path / "grid.json", rates=[0.001, 0.005, 0.02, -1.0])
    write(tmp_path, {}, service={"time": "00:10:00"})
    text = (WORKFLOWS / "search" / "scatter.cwl").read_text()
    (tmp_path / "tiny.cwl").write_text(text.replace("../tools/", f"{WORKFLOWS}/tools/"))
    job = {
        "training_set": {"class": "Directory", "path": "data"},
        "grid": {"class": "File", "path": "grid.json", "format": "http://edamontology.org/format_3464"},
        "memory_mib": 1024,
    }
    (tmp_path / "job.yml").write_text(json.dumps(job))
    ended = go(tmp_path, testbed, 300)
    assert ended.exit_code == 0, ended.stderr
    table = table_in(tmp_path / "results" / "search")
    assert [row.state for row in table.rows] == ["completed", "completed", "completed", "failed"]
    assert {row.host for row in table.rows} == {"n1", "n2"}
    assert table.most_at_once >= 2
    assert without_time_and_host(table) == without_time_and_host(search_locally(tmp_path, grid))
