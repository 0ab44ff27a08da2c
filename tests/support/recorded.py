"""Folders of runs, as the plug-in leaves them: an event log and the reports of steps."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from medweave_core.contracts import codec
from medweave_core.contracts.events import Event
from support.reported import run_report

START = datetime.datetime(2026, 8, 1, 10, 0, tzinfo=datetime.UTC)


class Recorder:
    """A writer of event logs with chosen times."""

    def __init__(self, folder: Path, *, workflow: str = "lung", **facts: Any) -> None:
        self.folder, self.lines = folder, []
        folder.mkdir(parents=True)
        started = {"workflow": workflow, "deployments": {"laptop": "medweave.local", "site-a": "medweave.slurm"}}
        self.event(0, "run.started", **started | {"streamflow_version": "0.2.0rc3"} | facts)

    def event(
        self, at_s: float, kind: str, job: str | None = None, *, deployment: str | None = None, **data: Any
    ) -> None:
        time = (START + datetime.timedelta(seconds=at_s)).isoformat(timespec="milliseconds")
        event = Event(
            sequence=len(self.lines) + 1, time=time, run_id=self.folder.name, type=kind, job=job,
            step=job.rpartition("/")[0] if job else None, deployment=deployment or ("laptop" if job else None),
            service="gpu4" if deployment == "site-a" else None, location="here" if job else None, data=data,
        )  # fmt: skip
        self.lines.append(json.dumps(codec.to_json(event)) + "\n")
        (self.folder / "events.jsonl").write_text("".join(self.lines))

    def job(
        self,
        name: str,
        begin_s: float,
        end_s: float,
        *,
        state: str = "completed",
        deployment: str = "laptop",
        **data: Any,
    ) -> None:
        """Write a job's events from its scheduling to its end, and its run report if it completed."""
        self.event(begin_s, "job.scheduled", name, deployment=deployment, attempt=1, cores=2, memory_mib=1024)
        self.event(begin_s + 0.5, "job.started", name, deployment=deployment, attempt=1)
        if state == "completed":
            self.report(end_s, name, deployment)
        ended = {"exit_code": 0, "seconds": end_s - begin_s - 0.6, "cpu_seconds": 1.25, "peak_memory_mib": 321.4}
        self.event(end_s, "job.ended", name, deployment=deployment, state=state, attempt=1, **ended | data)

    def report(self, at_s: float, name: str, deployment: str, **changes: Any) -> Path:
        step, _, place = name.strip("/").rpartition("/")
        label = f"{step}.{place.partition('.')[2]}" if "." in place else step
        folder = self.folder / "reports" / label
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run_report.json").write_text(codec.dumps(run_report(step.rpartition("/")[2], **changes)))
        files = ["run_report.json"]
        self.event(at_s, "job.report", name, deployment=deployment, folder=f"reports/{label}", files=files)
        return folder

    def end(self, at_s: float, state: str = "completed", **data: Any) -> None:
        self.event(at_s, "run.ended", state=state, seconds=at_s, failed=[], **data)


def completed_run(folder: Path) -> Recorder:
    """Write a run of ten minutes on two deployments, with a scatter of three."""
    run = Recorder(folder)
    run.job("/check/0", 1, 20)
    run.job("/train/0", 21, 400, deployment="site-a")
    for place in range(3):
        run.job(f"/segment/0.{place}", 401 + place, 450 + place * 20)
    run.event(
        402, "notice", "/segment/0.1", deployment="laptop", text="the batch contains no case, so the output is empty"
    )
    run.end(600)
    return run


def failed_run(folder: Path) -> Recorder:
    """Write a run that fails in preprocess with the step's message; another job is canceled."""
    run = Recorder(folder)
    run.job("/check/0", 1, 20)
    run.event(20.5, "job.progress", "/preprocess/0", deployment="laptop", text="case 3/22: case-0000000a")
    message = (
        "medweave-step preprocess: case-0000000b (series 4): a slice is missing.\n"
        "  seen:     positions <12.0> and <16.0> mm\n  expected: 2.0 mm apart\n  do:       copy the series again"
    )
    run.job("/preprocess/0", 21, 30, state="failed", exit_code=65, message=message)
    run.job("/other/0", 21, 31, state="cancelled")
    run.end(32, "failed", first_cause="/preprocess/0")
    return run
