"""The state of a run, computed from the events of its log. Pure: this module uses no clock, file or terminal."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from medweave_core.contracts.events import Event, job_label, step_label

WAITS = "waits "  # how the notice of a job begins that waits at its site
RUNS = "runs now"  # in the notice of a job that has waited there, and begins
JobState = Literal["placed", "waiting", "running", "completed", "failed", "cancelled"]
ENDED: tuple[JobState, ...] = ("completed", "failed", "cancelled")


@dataclass(slots=True, kw_only=True)
class JobProgress:
    """The latest attempt of a job. Times are seconds since the run's start.

    Attributes:
        where: `hpc/gpu4`, or the deployment alone.
        state: `placed` until its inputs are there and the site has its command; `waiting` if the site reports a reason.
        reason: why it waits.
        done, total, text: its last progress line; 0 of 0 before the first one, and the text of its last notice.
        message: the job's error message.
        reused_from: the run whose outputs were reused; empty if the job ran.
    """

    name: str
    step: str
    where: str
    attempt: int = 1
    state: JobState = "placed"
    reason: str = ""
    placed_s: float = 0.0
    started_s: float | None = None
    ended_s: float | None = None
    done: int = 0
    total: int = 0
    text: str = ""
    exit_code: int | None = None
    message: str = ""
    reused_from: str = ""

    @property
    def label(self) -> str:
        """Return the short name: `train`, `segment.3` for the fourth of a scatter."""
        return job_label(self.name)

    def seconds(self, now_s: float) -> float:
        """Return the seconds from its start (or placement) to its end, or to now."""
        begin = self.started_s if self.started_s is not None else self.placed_s
        return max((self.ended_s if self.ended_s is not None else now_s) - begin, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A running copy from one deployment to another: bytes sent, bytes in total, and both as text."""

    num_bytes: int
    total_bytes: int
    text: str


@dataclass(slots=True, kw_only=True)
class Moved:
    """Finished copies from one deployment to another by one route: their number, and the bytes sent."""

    copies: int = 0
    num_bytes: int = 0
    reused_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class RunState:
    """The state of a run.

    Attributes:
        planned: labels of the workflow's steps, in order, including those that have not started.
        began: time of the first event, UTC; None before.
        now_s: time of the latest event, s since the start.
        jobs: by name, in the order in which they got a place.
        copies: running copies, by source and destination.
        moved: by source, destination and route.
        notices: the keys are (job or site, text), in order, without repetitions.
        end: completed, partial, failed, cancelled, unknown; None while it is running.
        refused: it failed because of an error in its file, before any job.
        message: why it ended, unless a job's error is the reason.
    """

    planned: Sequence[str] = ()
    run_id: str = ""
    workflow: str = ""
    began: datetime.datetime | None = None
    now_s: float = 0.0
    sequence: int = 0
    jobs: dict[str, JobProgress] = field(default_factory=dict)
    copies: dict[tuple[str, str], Copy] = field(default_factory=dict)
    moved: dict[tuple[str, str, str], Moved] = field(default_factory=dict)
    notices: dict[tuple[str, str], None] = field(default_factory=dict)
    end: str | None = None
    refused: bool = False
    message: str = ""
    seconds: float = 0.0
    first_cause: str | None = None
    left_out: tuple[str, ...] = ()

    def running_jobs(self) -> list[JobProgress]:
        """Return the jobs that have not ended."""
        return [job for job in self.jobs.values() if job.state not in ENDED]

    def failures(self) -> list[JobProgress]:
        """Return the jobs that failed finally, the first cause first."""
        failed = [job for job in self.jobs.values() if job.state == "failed"]
        return sorted(failed, key=lambda job: job.name != self.first_cause)

    def at(self, moment: datetime.datetime) -> float:
        """Return a moment as seconds since the start."""
        return (moment - self.began).total_seconds() if self.began else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProgress:
    """One row of the display: a step at a place."""

    label: str
    where: str
    jobs: tuple[JobProgress, ...]

    def count(self, *states: JobState) -> int:
        """Return the number of its jobs in these states."""
        return sum(job.state in states for job in self.jobs)

    @property
    def state(self) -> JobState | Literal["later"]:
        """Return the most important state of its jobs; `later` before the first has a place."""
        order: tuple[JobState, ...] = ("running", "waiting", "placed", "failed", "cancelled", "completed")
        return next((state for state in order if self.count(state)), "later")

    def seconds(self, now_s: float) -> float:
        """Return the seconds from the start of its first job to the end of its last."""
        begins = [job.started_s if job.started_s is not None else job.placed_s for job in self.jobs]
        ends = [job.ended_s if job.ended_s is not None else now_s for job in self.jobs]
        return max(max(ends) - min(begins), 0.0) if self.jobs else 0.0


def steps(state: RunState) -> list[StepProgress]:
    """Return the rows, in the order of the workflow; a step of a nested workflow has the place of its outer step."""
    jobs_by_row: dict[tuple[str, str], list[JobProgress]] = {}
    for job in state.jobs.values():
        jobs_by_row.setdefault((step_label(job.step), job.where), []).append(job)
    begun = {label for label, _ in jobs_by_row}
    rows = [StepProgress(label=label, where=where, jobs=tuple(jobs)) for (label, where), jobs in jobs_by_row.items()]
    rows += [StepProgress(label=label, where="", jobs=()) for label in state.planned if label not in begun]
    place = {label: number for number, label in enumerate(state.planned)}
    return sorted(rows, key=lambda row: place.get(row.label, place.get(row.label.partition(".")[0], -1)))


def fold(state: RunState, event: Event) -> RunState:
    """Return the same state with one more event. Unknown types, and data of unexpected types, change nothing."""
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, OverflowError):
        _fold(state, event)
    return state


def _fold(state: RunState, event: Event) -> None:
    if state.began is None:
        state.began, state.run_id = datetime.datetime.fromisoformat(event.time), event.run_id
    state.now_s = max(state.at(datetime.datetime.fromisoformat(event.time)), state.now_s)
    state.sequence = event.sequence
    if event.job is not None and event.step is not None:
        _fold_job(state, event)
    elif event.type.startswith("transfer."):
        _fold_transfer(state, event)
    if event.type in ("notice", "job.reaction"):
        job = state.jobs.get(event.job or "")
        notice = (job.label if job else event.deployment or "run", str(event.data.get("text", "")))
        state.notices.setdefault(notice)
    elif event.type == "run.started":
        state.workflow = str(event.data.get("workflow", ""))
    elif event.type == "run.ended":
        _fold_end(state, event.data)


def _fold_end(state: RunState, data: Any) -> None:
    state.end = str(data.get("state", "unknown"))
    state.refused, state.message = bool(data.get("refused", False)), str(data.get("message", ""))
    state.seconds = float(data.get("seconds", state.now_s))
    state.first_cause, state.left_out = data.get("first_cause"), tuple(data.get("left_out", ()))
    state.copies.clear()


def _fold_job(state: RunState, event: Event) -> None:
    assert event.job is not None
    assert event.step is not None
    data, job = event.data, state.jobs.get(event.job)
    if job is None or event.type == "job.scheduled":
        where = f"{event.deployment}/{event.service}" if event.service else event.deployment or "?"
        attempt = int(data.get("attempt", 1))
        job = state.jobs[event.job] = JobProgress(
            name=event.job, step=event.step, where=where, attempt=attempt, placed_s=state.now_s
        )
    if event.type == "job.started":
        job.state, job.started_s = "running", state.now_s
    elif event.type == "job.progress":
        job.state, job.reason, job.text = "running", "", str(data.get("text", ""))
        job.done, job.total = int(data.get("done", 0)), int(data.get("total", 0))
    elif event.type == "notice" and job.state not in ENDED:
        waits = str(data.get("text", "")).startswith(WAITS)
        if job.state == "waiting" and not waits and RUNS in str(data.get("text", "")):
            job.started_s = state.now_s  # the engine calls it started when it is handed to its site
        job.reason = str(data["text"]) if waits else ""
        job.state = "waiting" if waits else "running" if job.started_s is not None else job.state
        if not waits and not job.total:  # before the first progress event, show the site's notice, such as the job id
            job.text = str(data.get("text", ""))
    elif event.type == "job.ended":
        end = data.get("state")
        job.state = end if end in ENDED else "failed"
        job.ended_s, job.reason, job.text = state.now_s, "", job.text if job.total else ""
        job.exit_code, job.message = data.get("exit_code"), str(data.get("message", ""))
        job.reused_from = str(data.get("reused_from", ""))
        queue_s = data.get("site", {}).get("queue_seconds")
        if isinstance(queue_s, int | float) and job.started_s is not None:
            began = min(job.placed_s + queue_s, job.ended_s - float(data.get("seconds") or 0.0))
            job.started_s = max(job.started_s, began)


def _fold_transfer(state: RunState, event: Event) -> None:
    data, destination = event.data, event.deployment or "?"
    source, num_bytes = str(data.get("from", "?")), int(data.get("bytes", 0))
    if event.type == "transfer.progress":
        total = int(data.get("total_bytes", 0))
        state.copies[source, destination] = Copy(num_bytes=num_bytes, total_bytes=total, text=str(data.get("text", "")))
        return
    state.copies.pop((source, destination), None)
    moved = state.moved.setdefault((source, destination, str(data.get("route", "?"))), Moved())
    moved.copies += 1
    moved.num_bytes += num_bytes
    moved.reused_bytes += int(data.get("reused_bytes", 0))
