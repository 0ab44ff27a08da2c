"""A run of 5,000 jobs: its log is read quickly, and what people see of it stays short."""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from medweave.cli.main_command import main
from medweave.report.timeline import MOST_JOBS, lanes, most_at_once, timeline
from medweave_core.contracts import codec
from medweave_core.contracts.events import Event, event_of
from medweave_core.errors import UserInputError
from medweave_core.runlog.jobs import Job

JOBS, FAILED = 5000, 700
START = "2026-11-23T10:00:00.000+00:00"


def events(number: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the types and data of the events of one job."""
    yield "job.scheduled", {"attempt": 1, "cores": 1, "memory_mib": 256}
    yield "job.started", {"attempt": 1}
    yield "job.lookup", {"attempt": 1, "work": f"{number:064x}", "parts": {"input image": f"{number:016x}"}}
    yield "notice", {"text": f"Slurm job {number}"}
    data: dict[str, Any] = {"attempt": 1, "seconds": 1.0, "cpu_seconds": 0.9, "peak_memory_mib": 100 + number / 100}
    if number == FAILED:
        yield "job.ended", data | {"state": "failed", "exit_code": 65, "message": "the series has a gap"}
    else:
        yield "job.ended", data | {"state": "completed", "exit_code": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the event log of a run of one scattered step, eight jobs at a time."""
    run = tmp_path_factory.mktemp("runs") / "large"
    run.mkdir()
    lines: list[str] = []

    def add(kind: str, at_s: float, job: str | None, data: dict[str, Any]) -> None:
        moment = f"2026-11-23T10:{int(at_s // 60):02d}:{at_s % 60:06.3f}+00:00"
        place = {"deployment": "hpc", "service": None, "location": "login"} if job else {}
        event = {"sequence": len(lines) + 1, "time": moment, "run_id": "large", "type": kind, "job": job}
        event |= {"step": "/segment" if job else None, "deployment": None, "service": None, "location": None} | place
        lines.append(json.dumps(event | {"data": data}) + "\n")

    add("run.started", 0, None, {"workflow": "lung", "deployments": {"hpc": "medweave.slurm"}})
    for number in range(JOBS):
        for kind, data in events(number):
            add(kind, number / 8 + (1 if kind == "job.ended" else 0), f"/segment/0.{number}", data)
    end = {"state": "failed", "seconds": JOBS / 8 + 1, "failed": [f"/segment/0.{FAILED}"]}
    add("run.ended", JOBS / 8 + 1, None, end | {"first_cause": f"/segment/0.{FAILED}"})
    (run / "events.jsonl").write_text("".join(lines), encoding="utf-8")
    return run


def test_the_report_shows_what_to_look_at(folder: Path, tmp_path: Path) -> None:
    assert main(["report", str(folder), "--output", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(page) < 200_000
    for text in ("segment.700", "the series has a gap", "segment.4999", "4,989 more jobs", "4999 of 5000 completed"):
        assert text in page, text
    assert "4,800 more notices" in page


def test_explain_says_the_same_reason_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "segment", "--runs", str(folder.parent)]) == 0
    _, line = capsys.readouterr().out.splitlines()
    assert line.split("  ")[1:] == [
        "5,000 jobs (segment.0, segment.1, segment.2, …, segment.4999)",
        "ran: no earlier run in this folder has this job",
    ]


def test_logs_of_thousands_of_jobs_open_few_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = folder / "work" / "stderr"
    output.mkdir(parents=True)
    for number in range(0, JOBS, 10):
        (output / f"segment.{number}").write_text(f"text of {number}\n", encoding="utf-8")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        assert main(["logs", "segment", "--runs", str(folder.parent)]) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    text = capsys.readouterr().out
    assert text.count("text of ") == JOBS / 10
    assert "== segment.701\nnote: Slurm job 701\ndone in " in text


def test_ps_counts_the_jobs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps", "--json", "--runs", str(folder.parent)]) == 0
    (run,) = json.loads(capsys.readouterr().out)
    assert (run["jobs_done"], run["jobs"], run["cause"]) == (JOBS - 1, JOBS, "segment.700: the series has a gap")


def _job(number: int, begin_s: float, end_s: float) -> Job:
    return Job(
        name=f"/segment/0.{number}", step="/segment", attempt=1, deployment="hpc", service=None, location=None,
        scheduled_s=0, started_s=begin_s, ended_s=end_s, state="completed",
    )  # fmt: skip


def test_a_step_of_many_jobs_is_one_lane_with_their_number_over_time() -> None:
    # Four jobs at a time in the first half, one in the second.
    jobs = [_job(number, number // 4, number // 4 + 1) for number in range(200)]
    jobs += [_job(200 + number, 50 + number, 51 + number) for number in range(50)]
    assert len(jobs) > MOST_JOBS
    (lane,) = lanes(jobs, 100)
    assert (lane.is_crowded, lane.label) == (True, "segment × 250")
    picture = timeline(jobs, 100)
    assert "250 jobs on hpc: at most 4 at once" in picture
    heights = [float(height) for height in re.findall(r"V([\d.]+)H", picture)]
    first, second = heights[60], heights[180]
    base = float(re.findall(r"V([\d.]+)Z", picture)[0])
    assert (base - first) / (base - second) == pytest.approx(4, rel=0.05)


@pytest.mark.parametrize(
    ("spans", "most"), [([], 0), ([(0, 1), (1, 2)], 1), ([(0, 3), (1, 2), (1.5, 4)], 3), ([(0, 0)], 0)]
)
def test_overlapping_jobs_are_counted(spans: list[tuple[float, float]], most: int) -> None:
    assert most_at_once(spans) == most


LINE: dict[str, Any] = {
    "sequence": 1, "time": START, "run_id": "r", "type": "notice", "job": None, "step": None, "deployment": "hpc",
    "service": None, "location": None, "data": {"text": "a"},
}  # fmt: skip


@pytest.mark.parametrize(
    "changed", [{}, {"event_version": 1}, {"job": "/a/0", "step": "/a"}], ids=["usual", "version", "job"]
)
def test_an_event_is_read_as_by_the_schema(changed: dict[str, Any]) -> None:
    data = LINE | changed
    assert event_of(data, where="a line") == codec.from_json(Event, data, where="a line")


@pytest.mark.parametrize(
    "changed",
    [{"sequence": "1"}, {"sequence": True}, {"time": 3}, {"job": 7}, {"data": []}, {"type": "other"}, {"more": 1}],
    ids=lambda changed: next(iter(changed)),
)
def test_a_line_that_is_no_event_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(UserInputError, match="a line"):
        event_of(LINE | changed, where="a line")
