"""What runs and schedules of commit 4c21a2f left on disk, read by today's commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from medweave_core.documents.yaml_documents import read_mapping
from support.formats import cluster_at, count, events_of, good, medweave, restored, run_of

pytestmark = pytest.mark.slow


@pytest.fixture
def root() -> Iterator[Path]:
    with restored() as folder:
        yield folder


def ids(runs: Path) -> list[str]:
    return sorted(log.parent.name for log in runs.glob("[!.]*/events.jsonl"))


def new_run(runs: Path, old: str) -> Path:
    (name,) = set(ids(runs)) - {old}
    return runs / name


def reused(run: Path) -> dict[str, str]:
    """Return for each job that ended the run whose outputs it got; empty for none."""
    ended = [event for event in events_of(run) if event["type"] == "job.ended"]
    return {event["step"]: event["data"].get("reused_from", "") for event in ended}


def links(runs: Path) -> dict[str, str]:
    return {path.name: str(path.readlink()) for path in (runs / ".home").iterdir() if path.is_symlink()}


def test_cache_of_this_machine_serves_the_outputs(root: Path) -> None:
    project, runs = root / "local", root / "local" / "bound" / "runs"
    (old,) = ids(runs)
    before = count("copy"), count("mark")
    good(medweave(project, "run", "--file", "bound/streamflow.yml", "--outdir", "delivered"))
    assert (count("copy"), count("mark")) == before
    assert reused(new_run(runs, old)) == {"/copy": old, "/mark": old}
    assert (project / "delivered" / "result.txt").read_text() == "one\nred\n"
    (step_report,) = json.loads(good(medweave(project, "explain", "mark", "--runs", runs, "--json")))
    assert (step_report["reused_from"], step_report["compared_with"]) == (old, old)


def test_store_and_cache_index_of_a_site_serve_the_outputs(root: Path) -> None:
    site = root / "site"
    old = run_of(site / "runs").name
    before = count("copy"), count("mark"), (site / "slurm" / "submitted").read_text()
    with cluster_at(site):
        good(medweave(site, "run", "--outdir", "delivered"))
    assert (count("copy"), count("mark"), (site / "slurm" / "submitted").read_text()) == before
    assert reused(new_run(site / "runs", old)) == {"/copy": old, "/mark": old}
    assert (site / "delivered" / "result.txt").read_text() == "one\nred\n"


def test_job_of_the_journal_is_re_attached(root: Path) -> None:
    folder = root / "journal"
    old = run_of(folder / "runs")
    before = (folder / "slurm" / "submitted").read_text()
    with cluster_at(folder):
        ended = medweave(folder, "run", "--resume", old, "--outdir", "delivered")
    good(ended)
    assert "re-attached to Slurm job 100 of an earlier driver" in ended.stderr
    assert ((folder / "slurm" / "submitted").read_text(), count("wait")) == (before, 1)
    assert (folder / "delivered" / "result.txt").read_text() == "one\n"


def test_failed_run_is_resumed(root: Path) -> None:
    project = root / "local"
    old = run_of(project / "runs")
    assert (old / "streamflow.yml").is_file(), "the file that `medweave run WORKFLOW --site` bound"
    before = count("copy"), count("mark")
    good(medweave(project, "run", "--resume", old, "--outdir", "delivered"))
    assert (count("copy"), count("mark")) == (before[0], before[1] + 1)
    assert reused(new_run(project / "runs", old.name)) == {"/copy": old.name, "/mark": ""}


def test_schedule_state_means_that_an_unchanged_input_is_skipped(root: Path) -> None:
    folder = root / "schedule"
    old = run_of(folder / "schedules" / "nightly" / "runs").name
    ended = medweave(folder, "schedule", "run", "schedule.yml")
    good(ended)
    assert f"skipped: nothing has changed since run {old}" in ended.stderr
    (folder / "scans" / "two").write_text("2")
    ended = medweave(folder, "schedule", "run", "schedule.yml")
    good(ended)
    assert f"starting a run: input scans changed since run {old}" in ended.stderr


def test_key_and_links_of_pseudonyms_are_extended(root: Path) -> None:
    project, runs = root / "local", root / "local" / "bound" / "runs"
    key, old = (runs / ".home" / "key").read_bytes(), links(runs)
    (project / "other.txt").write_text("two\n")
    job = project / "workflows" / "tiny" / "jobs" / "demo-tiny.yml"
    for name in ("other.txt", "data.txt"):
        document = json.loads(job.read_text())
        document["data"]["path"] = f"../../../{name}"
        job.write_text(json.dumps(document))
        good(medweave(project, "run", "--file", "bound/streamflow.yml", "--outdir", f"delivered-{name}"))
        assert len(links(runs)) == 2, "data.txt has its old pseudonym"
    assert old.items() < links(runs).items()
    assert (runs / ".home" / "key").read_bytes() == key


@pytest.mark.parametrize(
    ("runs", "state"), [("local/bound/runs", "completed"), ("local/runs", "failed"), ("journal/runs", "driver gone")]
)
def test_event_log_is_listed(root: Path, runs: str, state: str) -> None:
    (row,) = json.loads(good(medweave(root, "ps", "--runs", runs, "--json")))
    assert (row["run"], row["state"]) == (run_of(root / runs).name, state)


def test_event_log_explains_why_a_step_ran(root: Path) -> None:
    (step_report,) = json.loads(good(medweave(root, "explain", "mark", "--runs", "local/runs", "--json")))
    assert (step_report["state"], step_report["reused_from"], step_report["why"]) == (
        "failed", "", "ran: no earlier run in this folder has this job",
    )  # fmt: skip


def test_logs_of_a_failed_step_are_printed(root: Path) -> None:
    assert "exit code 3" in good(medweave(root, "logs", "mark", "--runs", "local/runs"))


def test_report_of_a_run_is_made(root: Path, tmp_path: Path) -> None:
    run = run_of(root / "local" / "bound" / "runs")
    good(medweave(root, "report", run, "--output", tmp_path / "report.html"))
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert run.name in text
    report: dict[str, Any] = json.loads((run / "reports" / "copy" / "run_report.json").read_text())
    assert report["versions"]["nibabel"] in text


def test_run_is_exported_as_a_crate(root: Path, tmp_path: Path) -> None:
    run = run_of(root / "local" / "bound" / "runs")
    good(medweave(root, "export", "--crate", tmp_path / "crate", run))
    assert run.name in (tmp_path / "crate" / "ro-crate-metadata.json").read_text()


def test_run_is_cleaned(root: Path) -> None:
    run = run_of(root / "local" / "runs")
    good(medweave(root / "local", "clean", run))
    assert (run / "events.jsonl").is_file()
    assert not (run / "work").exists()


def test_job_of_a_killed_driver_is_cleaned_at_its_site(root: Path) -> None:
    folder = root / "journal"
    run = run_of(folder / "runs")
    with cluster_at(folder):
        good(medweave(folder, "clean", run))
    assert not (folder / "site" / run.name).exists()


def test_bound_file_and_site_file_are_valid(root: Path) -> None:
    project = root / "local"
    good(medweave(project, "validate", "bound/streamflow.yml", "deployments/sites/here.yml", "workflows/tiny/tiny.cwl"))
    good(medweave(project, "bind", "workflows/tiny/tiny.cwl", "--site", "here", "--output", "bound/new.yml"))
    old, new = (read_mapping(project / "bound" / name, "bound file") for name in ("streamflow.yml", "new.yml"))
    assert new == old, "only comments differ"


def test_site_file_and_earlier_runs_are_planned_with(root: Path) -> None:
    words = ("plan", "workflows/tiny/tiny.cwl", "--site", "here", "--format", "json")
    plan = json.loads(good(medweave(root / "local", *words)))
    assert [(step["step"], step["deployment"]) for step in plan["steps"]] == [("/copy", "desk"), ("/mark", "desk")]
    copy = plan["steps"][0]
    assert copy["reuse"]["from_runs"] == [run_of(root / "local" / "runs").name]
    assert copy["job_seconds"]["num_runs"] == 1
