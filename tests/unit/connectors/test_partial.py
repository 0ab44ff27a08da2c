"""A failed job of a scatter: where the step or the file says so, the run delivers what the others made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from medweave.report.command import render
from medweave.report.energy import Model
from medweave_core.runlog.history import read_run
from support.engine import FILE, Run, run, write_workflow

PARTIAL = {"urn:medweave:cwl#Partial": {}}
FAILS = (
    'n=$1; [ "$n" != {bad} ] || {{ echo "medweave-step v: batch $n." >&2; exit 65; }}; '
    "sleep 0.5; mkdir part-$n; echo $n > part-$n/mask"
)


def scatter(folder: Path, *, bad: str, hints: dict[str, Any], partial: str = "marked", then: bool = False) -> Run:
    """Run a scatter of four jobs, of which one fails, and optionally a step that counts the outputs."""
    (folder / "each.sh").write_text(FAILS.format(bad=bad))
    (folder / "count.sh").write_text("echo $# > count.txt")
    tool = {
        "class": "CommandLineTool", "baseCommand": ["sh", str(folder / "each.sh")],
        "inputs": {"n": {"type": "int", "inputBinding": {}}},
        "outputs": {"part": {"type": "Directory", "outputBinding": {"glob": "part-$(inputs.n)"}}},
    }  # fmt: skip
    count = {
        "class": "CommandLineTool", "baseCommand": ["sh", str(folder / "count.sh")],
        "inputs": {"parts": {"type": "Directory[]", "inputBinding": {}}},
        "outputs": {"count": {"type": "File", "outputBinding": {"glob": "count.txt"}}},
    }  # fmt: skip
    steps = {"each": {"run": tool, "in": {"n": "n"}, "scatter": "n", "out": ["part"], "hints": hints}}
    outputs = {"parts": {"type": "Directory[]", "outputSource": "each/part"}}
    if then:
        steps["count"] = {"run": count, "in": {"parts": "each/part"}, "out": ["count"]}
        outputs["count"] = {"type": "File", "outputSource": "count/count"}
    document = {
        "cwlVersion": "v1.2", "class": "Workflow", "requirements": {"ScatterFeatureRequirement": {}},
        "inputs": {"n": "int[]"}, "outputs": outputs, "steps": steps,
    }  # fmt: skip
    setting = f"config: {{partial: {partial}}}"
    file = FILE.replace("type: medweave.scheduler, config: {}", f"type: medweave.scheduler, {setting}")
    write_workflow(folder, {}, job={"n": [0, 1, 2, 3]}, file=file)
    (folder / "tiny.cwl").write_text(json.dumps(document))
    return run(folder)


def delivered(folder: Path) -> list[str]:
    return sorted(path.read_text().strip() for path in (folder / "results").rglob("mask"))


def end_of(ended: Run) -> dict[str, Any]:
    (event,) = ended.of_type("run.ended")
    return dict(event["data"])


@pytest.mark.slow
def test_the_run_delivers_a_part_and_reports_the_rest(tmp_path: Path) -> None:
    ended = scatter(tmp_path, bad="2", hints=PARTIAL)
    assert ended.exit_code == 3, ended.stderr
    assert delivered(tmp_path) == ["0", "1", "3"]
    outputs = json.loads((tmp_path / "stdout.txt").read_text())
    assert [part["basename"] for part in outputs["parts"]] == ["part-0", "part-1", "part-3"]
    end = end_of(ended)
    assert (end["state"], end["left_out"], end["failed"]) == ("partial", ["/each/0.2"], ["/each/0.2"])
    states = {event["job"]: event["data"]["state"] for event in ended.of_type("job.ended")}
    assert sorted(states.values()) == ["completed"] * 3 + ["failed"]
    assert "finished with partial results after" in ended.stderr
    assert "not in its outputs: each.2" in ended.stderr
    assert ended.stderr.count("medweave-step v: batch 2.") == 1
    assert (ended.record / "work").is_dir(), "the files of the failed job remain"
    record = read_run(ended.record)
    assert [job.name for job in record.failures()] == ["/each/0.2"]
    assert "The run finished with partial results." in render(record, None, Model())


@pytest.mark.slow
def test_the_next_step_gets_the_successful_parts(tmp_path: Path) -> None:
    ended = scatter(tmp_path, bad="0", hints=PARTIAL, then=True)
    assert ended.exit_code == 3, ended.stderr
    assert (tmp_path / "results" / "count.txt").read_text() == "3\n"


@pytest.mark.slow
def test_without_a_failure_the_run_is_complete(tmp_path: Path) -> None:
    ended = scatter(tmp_path, bad="9", hints=PARTIAL)
    assert ended.exit_code == 0, ended.stderr
    assert "left_out" not in end_of(ended)
    assert delivered(tmp_path) == ["0", "1", "2", "3"]


@pytest.mark.slow
@pytest.mark.parametrize(("hints", "partial"), [({}, "marked"), (PARTIAL, "none")])
def test_without_the_hint_one_failed_job_ends_the_run(tmp_path: Path, hints: dict[str, Any], partial: str) -> None:
    ended = scatter(tmp_path, bad="2", hints=hints, partial=partial)
    assert ended.exit_code == 1
    assert end_of(ended)["state"] == "failed"
    assert delivered(tmp_path) == []


@pytest.mark.slow
def test_the_file_can_allow_it_for_all_scatters(tmp_path: Path) -> None:
    assert scatter(tmp_path, bad="2", hints={}, partial="all").exit_code == 3


@pytest.mark.slow
def test_a_scatter_without_successful_jobs_fails(tmp_path: Path) -> None:
    ended = scatter(tmp_path, bad='"$n"', hints=PARTIAL)
    assert ended.exit_code == 1, ended.stderr
    assert end_of(ended)["state"] == "failed"
    assert "first cause: each." in ended.stderr


@pytest.mark.slow
def test_a_step_that_is_not_scattered_fails_the_run(tmp_path: Path) -> None:
    write_workflow(tmp_path, {"first": ("exit 65", {"hints": PARTIAL}), "second": "echo done > result.txt"})
    ended = run(tmp_path)
    assert ended.exit_code == 1
    assert end_of(ended)["state"] == "failed"
