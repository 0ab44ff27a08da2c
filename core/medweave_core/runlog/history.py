"""A run from its event log: what ran where and when, and how it ended. Reads files."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from medweave_core.contracts import codec
from medweave_core.contracts.events import Event, EventType, event_of
from medweave_core.contracts.report import RunReport
from medweave_core.errors import StepError, UserInputError
from medweave_core.runlog.jobs import UNFINISHED, Job, end_queue_wait, note_queue_state
from medweave_core.untrusted_text import load_json

LOG_FILE = "events.jsonl"
REPORT_FILE = "run_report.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """Transfers from one deployment to another by one route, all verified on arrival.

    Attributes:
        source, destination: deployments.
        num_copies: transfers; a folder is one.
        num_files, num_bytes: sent files and bytes.
        reused_bytes: bytes that were at the destination already.
        wire_bytes: encoded bytes that were sent; `num_bytes` if unknown.
        seconds: sum of their times, s; transfers may overlap.
        reasons: why they went by that route, each once.
    """

    source: str
    destination: str
    route: str
    reasons: tuple[str, ...] = ()
    num_copies: int = 0
    num_files: int = 0
    num_bytes: int = 0
    reused_bytes: int = 0
    wire_bytes: int = 0
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class Run:
    """One run.

    Attributes:
        state: completed, partial, failed, cancelled, unknown, or unfinished where the log has no end.
        seconds: wall time, s; up to the last event where the log has no end.
        facts: data of the event `run.started`.
        transfers: per pair of deployments and route, in the order of the first one.
        notices: (job's label, text), in order, without repetitions.
        first_cause: name of the job whose failure came first.
        message: why it ended, where that is the error of no job.
    """

    run_id: str
    folder: Path
    workflow: str
    started: datetime.datetime
    state: str
    seconds: float
    facts: typing.Mapping[str, Any]
    jobs: tuple[Job, ...]
    transfers: tuple[Transfers, ...]
    notices: tuple[tuple[str, str], ...]
    first_cause: str | None
    signal_number: int | None
    message: str = ""

    def failures(self) -> list[Job]:
        """Return the jobs whose last attempt failed, the first cause first."""
        last = {job.name: job for job in self.jobs}
        failed = [job for job in last.values() if job.state == "failed"]
        return sorted(failed, key=lambda job: (job.name != self.first_cause, job.ended_s or 0.0))


def _nearest(folder: Path) -> str:
    """Return a suggestion for a folder that is not a run: a sibling, or a run in runs/."""
    from medweave_core.documents.closest_match import closest

    runs = [log.parent for parent in (folder.parent, Path("runs")) for log in parent.glob(f"[!.]*/{LOG_FILE}")]
    paths = {run.name: str(run) for run in runs}
    near = closest(folder.name, list(paths))
    return next((near.replace(f"'{name}'", f"'{path}'") for name, path in paths.items() if f"'{name}'" in near), "")


def read_run(folder: Path) -> Run:
    """Read the folder of a run.

    A last line that is cut off (the machine went down) is left out, and so are events of types that this version does not
    know: a later version may have written the log.

    Raises:
        UserInputError: there is no log, it holds no event, or a line in its middle is no event.
    """
    path = folder / LOG_FILE
    if not path.is_file():
        raise UserInputError(
            "this folder is not a run.",
            seen=f"no {LOG_FILE} in {folder}",
            expected=f"a run folder, with {LOG_FILE} and reports/",
            do=_nearest(folder) or "name a folder runs/<run-id>",
        )
    events = read_log(path)
    if not events or events[0].type != "run.started":
        raise UserInputError(
            f"the event log of {folder.name} has no start of the run.",
            seen=f"{len(events)} events, the first of type {events[0].type if events else 'none'}",
            expected="run.started",
            do="check that the log was copied completely",
        )
    try:
        return build_run(events, folder)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise UserInputError(
            f"the event log of {folder.name} is damaged.",
            seen=f"data of an unexpected type ({type(error).__name__})",
            expected="events of the schema `medweave schema event`",
            do="copy the log again; medweave never edits an event log",
        ) from error


def read_runs(folder: Path) -> list[Run]:
    """Return the readable runs of a folder of runs, sorted by folder name; runs with a damaged log are left out."""
    runs = []
    for log in sorted(folder.glob(f"*/{LOG_FILE}")):
        with contextlib.suppress(StepError, OSError):
            runs.append(read_run(log.parent))
    return runs


def read_log(path: Path) -> list[Event]:
    """Return the events of a log, in order.

    Raises:
        UserInputError: a line in its middle is no event, or it is no text.
    """
    return read_events(path.read_bytes().decode(errors="replace"), path)


def read_events(text: str, path: Path | None = None) -> list[Event]:
    """Return the events in the text of a log, in order; see `read_log`."""
    known = set(typing.get_args(EventType))
    lines = text.split("\n")
    events = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            data = load_json(line)
            if data["type"] in known:
                events.append(event_of(data, where=f"line {number} of the event log"))
        except (ValueError, TypeError, KeyError) as error:
            if number == len(lines):  # a whole line ends with a line feed, so this one was cut off
                break
            from medweave_core.documents.line_numbers import shown

            raise UserInputError(
                f"{f'{shown(path)}:{number}: ' if path else ''}the event log is damaged.",
                seen=f"line {number} is not an event: {line[:60]}",
                expected="one JSON object per line",
                do="copy the log again; medweave never edits an event log",
            ) from error
    return sorted(events, key=lambda event: event.sequence)


def build_run(events: Sequence[Event], folder: Path) -> Run:
    """Return the run of some events.

    Args:
        events: of one run, the first being its start.
        folder: of the run; reports are read from it where the log names them.
    """
    start = _time(events[0])
    jobs = _jobs(events, start, folder)
    end = next((event for event in reversed(events) if event.type == "run.ended"), None)
    facts = events[0].data
    data = end.data if end else {}
    for job in jobs:
        job.report = _read_report(job)
    return Run(
        run_id=events[0].run_id,
        folder=folder,
        workflow=str(facts.get("workflow", "run")),
        started=start,
        state=str(data.get("state", "unknown")) if end else UNFINISHED,
        seconds=float(data.get("seconds", (_time(events[-1]) - start).total_seconds())),
        facts=facts,
        jobs=tuple(jobs),
        transfers=_transfers(events),
        notices=_notices(events, jobs),
        first_cause=data.get("first_cause"),
        signal_number=data.get("signal"),
        message=str(data.get("message", "")),
    )


def _jobs(events: Iterable[Event], start: datetime.datetime, folder: Path) -> list[Job]:
    jobs: dict[tuple[str, int], Job] = {}
    latest: dict[str, Job] = {}
    for event in events:
        if event.job is None or event.step is None:
            continue
        at = (_time(event) - start).total_seconds()
        attempt = int(event.data.get("attempt", latest[event.job].attempt if event.job in latest else 1))
        job = jobs.get((event.job, attempt))
        if job is None:
            job = jobs[event.job, attempt] = latest[event.job] = Job(
                name=event.job, step=event.step, attempt=attempt, deployment=event.deployment or "?",
                service=event.service, location=event.location, scheduled_s=at,
            )  # fmt: skip
        _apply(job, event, at)
        if event.type == "job.report":
            job.folder = _inside(folder, str(event.data.get("folder", "")))
    return list(jobs.values())


def _apply(job: Job, event: Event, at: float) -> None:
    data = event.data
    if event.type == "job.scheduled":
        job.requested = {key: value for key, value in data.items() if key != "attempt"}
    elif event.type == "job.started":
        job.started_s = job.handed_s = at
    elif event.type == "notice":
        note_queue_state(job, str(data.get("text", "")), at)
    elif event.type == "job.lookup":
        job.work, job.parts, job.not_reusable = (
            str(data.get("work", "")),
            data.get("parts", {}),
            str(data.get("why", "")),
        )
        job.reused_from = str(data.get("reused_from", ""))
    elif event.type == "job.data":
        job.inputs, job.outputs = data.get("inputs", {}), data.get("outputs", {})
    elif event.type == "job.progress":
        job.progress = str(data.get("text", ""))
    elif event.type == "job.ended":
        job.ended_s, job.state = at, str(data.get("state", "unknown"))
        job.exit_code, job.message = data.get("exit_code"), str(data.get("message", ""))
        job.seconds, job.cpu_seconds = data.get("seconds"), data.get("cpu_seconds")
        job.peak_memory_mib, job.site = data.get("peak_memory_mib"), data.get("site", {})
        end_queue_wait(job, at)


def _transfers(events: Iterable[Event]) -> tuple[Transfers, ...]:
    by_route: dict[tuple[str, str, str], Transfers] = {}
    for event in events:
        if event.type != "transfer.ended":
            continue
        data, source, route = event.data, str(event.data.get("from", "?")), str(event.data.get("route", "?"))
        key = (source, event.deployment or "?", route)
        so_far = by_route.get(key) or Transfers(source=key[0], destination=key[1], route=key[2])
        by_route[key] = dataclasses.replace(
            so_far,
            reasons=tuple(dict.fromkeys([*so_far.reasons, *filter(None, [str(data.get("reason", ""))])])),
            num_copies=so_far.num_copies + 1,
            num_files=so_far.num_files + int(data.get("files", 0)),
            num_bytes=so_far.num_bytes + int(data.get("bytes", 0)),
            reused_bytes=so_far.reused_bytes + int(data.get("reused_bytes", 0)),
            wire_bytes=so_far.wire_bytes + int(data.get("wire_bytes", data.get("bytes", 0))),
            seconds=so_far.seconds + float(data.get("seconds", 0.0)),
        )
    return tuple(by_route.values())


def _notices(events: Iterable[Event], jobs: Sequence[Job]) -> tuple[tuple[str, str], ...]:
    labels = {job.name: job.label for job in jobs}
    notice_events = [event for event in events if event.type in ("notice", "job.reaction")]
    from_events = [
        (labels.get(event.job or "", event.deployment or "run"), str(event.data.get("text", "")))
        for event in notice_events
    ]
    from_reports = [(job.label, text) for job in jobs if job.report for text in job.report.notices]
    return tuple(dict.fromkeys([*from_events, *from_reports]))


def _time(event: Event) -> datetime.datetime:
    return datetime.datetime.fromisoformat(event.time)


def _inside(folder: Path, name: str) -> Path | None:
    pure = PurePosixPath(name)
    return None if pure.is_absolute() or ".." in pure.parts or not name else folder / pure


def _read_report(job: Job) -> RunReport | None:
    """Return the run report of a job; None if it is missing or cannot be read, which must not fail a report of the run."""
    if job.folder is None:
        return None
    try:
        data = load_json((job.folder / REPORT_FILE).read_bytes())
        return codec.from_json(RunReport, data, where=f"the run report of {job.label}")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, StepError):
        return None
