"""One run: its folder, its event log, its jobs, and how it ended."""

from __future__ import annotations

import contextlib
import os
import posixpath
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from medweave_connectors.host import command_log
from medweave_connectors.runlog import console
from medweave_connectors.runlog.event_log import EventLog
from medweave_connectors.runlog.job import CommandOutcome, JobEnd, JobRecord, end_text, first_cause
from medweave_connectors.runlog.job_output_files import LiveText
from medweave_connectors.runlog.reports import copy_report
from medweave_connectors.runlog.values import without_guessable
from medweave_core.contracts.progress import duration
from medweave_core.errors import StorageError
from medweave_core.runlog import run_ownership
from medweave_core.runlog.engine_names import step_of
from medweave_core.runlog.run_folder import EVENTS, STDERR, WORK

PartialMode = Literal["marked", "all", "none"]
RunEnd = Literal["completed", "partial", "failed", "cancelled", "unknown"]


class RunRecord:
    """Turns calls of the engine into events, lines for the user, and a final state.

    Nothing is written before `begin`: StreamFlow builds its context also to validate or to list.
    """

    def __init__(self, runs: Path, workflow: str) -> None:
        self.workflow = workflow
        self.run_id = run_ownership.new_run_id(workflow)
        self.folder = runs / self.run_id
        self.jobs: dict[str, JobRecord] = {}
        self.signal_number: int | None = None
        self.engine_verdict: Literal["completed", "failed"] | None = None
        self.aborted = False
        self.refused = False  # aborted for what the file says, before anything was done
        self.error = ""  # why the run ended, where that is the error of no job
        self.storage_error: StorageError | None = None  # the first one: a file of the run could not be written
        self.first_failure: JobRecord | None = None
        self.partial: PartialMode = "marked"  # scattered steps that may lose jobs; `marked`: those whose hint says so
        self.left_out: list[str] = []
        self.documents: dict[str, str] = {}  # the workflow's: SHA-256 by path from its folder
        self._made: set[str] = set()
        self._end_run: Callable[[StorageError], None] = lambda error: None
        self._after_end: Callable[[], None] = lambda: None
        self._owner: run_ownership.RunOwner | None = None
        self._log: EventLog | None = None
        self._live = LiveText(self.work / STDERR)
        self._clock = 0.0

    @property
    def work(self) -> Path:
        """Return the run's scratch on this machine."""
        return self.folder / WORK

    @property
    def owner(self) -> run_ownership.RunOwner:
        """Return the owner of the run's folders, once it has begun."""
        assert self._owner is not None, "the run has not begun"
        return self._owner

    @property
    def running(self) -> bool:
        """Return True between `begin` and `finish`."""
        return self._log is not None

    @property
    def has_done_anything(self) -> bool:
        """Return True once a job has completed that was not a cache hit."""
        ends = [(job.ended, job.outcome) for job in self.jobs.values()]
        return any(end == "completed" and not (outcome and outcome.reused_from) for end, outcome in ends)

    @property
    def keeps_work(self) -> bool:
        """Return False if the scratch is removed: after a success (outputs were copied out), unless the user keeps it."""
        return self._verdict() != "completed" or bool(os.environ.get("MEDWEAVE_KEEP_WORK"))

    def begin(self, **facts: Any) -> None:
        """Create the folder and the log; a second call does nothing.

        Raises:
            UsageError: the folder exists, and neither this run nor `medweave run` has created it for this run.
        """
        if self._log is None:
            self._clock = time.monotonic()
            self._owner = run_ownership.claim_or_adopt(self.folder)
            self._log = EventLog(self.folder / EVENTS, self.run_id)
            command_log.open_log(self.folder)
            self.work.mkdir(mode=0o700, exist_ok=True)  # patient data of running steps, private to the owner
            self._write("run.started", data={"workflow": self.workflow, **facts})
            console.say(f"medweave: run {self.run_id}, folder {short_path(self.folder)}")

    def on_storage_failure(self, end_run: Callable[[StorageError], None]) -> None:
        """Call `end_run` when a file of the run cannot be written (`storage_failed`); without it the run continues."""
        self._end_run = end_run

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call this at the end of `finish`, when the scratch is gone."""
        self._after_end = callback

    def job_scheduled(
        self, name: str, *, deployment: str, service: str | None, location: str, **resources: float
    ) -> None:
        """Record the location that the scheduler chose for the job."""
        earlier = self.jobs.get(name)
        job = JobRecord(
            name=name,
            deployment=deployment,
            service=service,
            location=location,
            attempt=earlier.attempt + 1 if earlier else 1,
        )
        self.jobs[name] = job
        self._append("job.scheduled", job, {"attempt": job.attempt, **resources})

    def job_started(self, name: str) -> None:
        """Record that the engine runs the job's command."""
        job = self.jobs.get(name)
        if job is not None and job.started is None:
            job.started = time.monotonic()
            self._append("job.started", job, {"attempt": job.attempt})

    def job_looked_up(
        self,
        name: str,
        *,
        work: str = "",
        parts: Mapping[str, str] | None = None,
        reused_from: str = "",
        why: str = "",
    ) -> None:
        """Record the cache lookup before the command.

        Args:
            work: the cache key, a keyed digest.
            parts: parts of the key: name to a keyed digest.
            reused_from: the run of the cache hit; empty for a miss.
            why: why the job cannot be cached.
        """
        if (job := self.jobs.get(name)) is not None:
            facts = {"work": work, "parts": dict(parts or {}), "reused_from": reused_from, "why": why}
            self._append(
                "job.lookup", job, {"attempt": job.attempt} | {key: fact for key, fact in facts.items() if fact}
            )

    def job_data(
        self, name: str, *, inputs: Mapping[str, list[dict[str, Any]]], outputs: Mapping[str, list[dict[str, Any]]]
    ) -> None:
        """Record a job's inputs and outputs by content (see `engine.steps.provenance`); a failed job has no outputs."""
        self._made.update(item["sha256"] for items in outputs.values() for item in items if "sha256" in item)
        if (job := self.jobs.get(name)) is not None:
            shown = without_guessable(inputs, self._made)
            self._append("job.data", job, {"attempt": job.attempt, "inputs": shown, "outputs": outputs})

    def job_progress(self, name: str, figures: Mapping[str, Any]) -> None:
        """Record the figures of a progress line, as `output.parse_progress` returns them."""
        console.say_about(self._called(name), figures["text"])
        if (job := self.jobs.get(name)) is not None:
            self._append("job.progress", job, figures)

    def job_notice(self, name: str, text: str) -> None:
        """Show and record a notice of a step."""
        console.say_about(self._called(name), f"note: {text}")
        if (job := self.jobs.get(name)) is not None:
            self._append("notice", job, {"text": text})

    def job_line(self, name: str, line: str) -> None:
        """Take a line of standard error that is neither progress nor a notice."""
        if (job := self.jobs.get(name)) is not None:
            self._live.add(job.label, line)

    def deployment_notice(self, deployment: str, text: str) -> None:
        """Show and record a notice of a deployment."""
        console.say(f"medweave: {deployment}: {text}")
        self._write("notice", deployment=deployment, data={"text": text})

    def job_error(self, name: str, cause: str, message: str) -> None:
        """Record why the engine or a connector fails the job, which the outcome of its command may not include.

        Args:
            cause: for the user who started the run.
            message: the part of it that is known to contain no patient data.
        """
        if (job := self.jobs.get(name)) is not None:
            job.error, job.error_message = cause, message

    def storage_failed(self, error: StorageError) -> None:
        """End the run because a file of it could not be written on the driver's machine; the first error counts."""
        if self.storage_error is None:
            self.storage_error, self.error = error, self.error or str(error)
            console.say(f"medweave: the run ends: {error}")
            self._end_run(error)

    def command_ended(self, name: str, outcome: CommandOutcome) -> None:
        """Record the end of the command; the job succeeds only once its outputs were collected."""
        job = self.jobs.get(name)
        if job is not None:
            job.outcome = outcome
            self._live.end(job.label)

    def job_ended(self, name: str, state: JobEnd) -> None:
        """Record the final state of a job's attempt; only the first call for an attempt counts."""
        job = self.jobs.get(name)
        if job is None:
            return
        if state == "failed" and self.storage_error is not None:
            state = "cancelled"  # the driver's disk failed, not the job
        if state == "failed" and self.first_failure is None:
            self.first_failure = job
        if job.ended is not None:
            return
        job.ended = state
        if state == "completed":
            self._keep_report(job)
        data: dict[str, Any] = {"state": state, "attempt": job.attempt}
        if job.outcome is not None:
            data |= job.outcome.event_data()
        if state != "completed" and (message := job.message):  # a success code of the tool has a message too
            data["message"] = message
        self._append("job.ended", job, data)
        console.say_about(job.label, end_text(job, state))

    def transfer_progress(
        self, *, source: str, destination: str, num_bytes: int, total_bytes: int, rate: float, text: str
    ) -> None:
        """Show and record the progress of a long transfer.

        Args:
            num_bytes, total_bytes: bytes sent, and in total.
            rate: recent bytes/s.
            text: the same for the user.
        """
        console.say_about(destination, f"copy from {source}: {text}")
        data = {"from": source, "bytes": num_bytes, "total_bytes": total_bytes, "rate": round(rate), "text": text}
        self._write("transfer.progress", deployment=destination, data=data)

    def transfer_ended(
        self,
        *,
        source: str,
        destination: str,
        location: str,
        route: str,
        reason: str,
        num_bytes: int,
        num_files: int,
        reused_bytes: int,
        wire_bytes: int | None,
        seconds: float,
        again_bytes: int = 0,
    ) -> None:
        """Record a verified transfer between two deployments, without paths: they may identify patients.

        Args:
            route, reason: the route of the transfer, and why it was chosen.
            num_bytes, num_files: sent data.
            reused_bytes: already present at the destination.
            again_bytes: sent more than once after a lost connection.
            wire_bytes: sent bytes after encoding; None if not counted.
        """
        data = {"from": source, "route": route, "reason": reason, "bytes": num_bytes, "files": num_files}
        data |= {"reused_bytes": reused_bytes, "again_bytes": again_bytes, "seconds": round(seconds, 3)}
        data |= {} if wire_bytes is None else {"wire_bytes": wire_bytes}
        self._write("transfer.ended", deployment=destination, location=location, data=data)

    def job_recovering(self, name: str) -> None:
        """Record a failed attempt that the engine will retry."""
        failure = self.first_failure
        self.job_ended(name, "failed")
        if (job := self.jobs.get(name)) is not None and job.cause:
            console.say(job.cause)
        self.first_failure = failure  # a job with a retry is not a cause yet

    def job_reaction(self, name: str, text: str, *, show: bool, **facts: Any) -> None:
        """Record the retry policy's decision about a failed attempt.

        Args:
            show: print the sentence too.
            facts: for the event.
        """
        job = self.jobs.get(name)
        if show:
            console.say_about(self._called(name), f"note: {text}")
        if job is not None:
            self._append("job.reaction", job, {"attempt": job.attempt, **facts, "text": text})

    def job_again(self, name: str, **resources: float) -> None:
        """Record another attempt at the same location."""
        if job := self.jobs.get(name):
            self.job_scheduled(name, deployment=job.deployment, service=job.service, location=job.location, **resources)

    def leave_out(self, name: str) -> bool:
        """Exclude a failed job from the final state. Return False if the run is being ended, or has no such job."""
        job = self.jobs.get(name)
        if job is None or job.ended != "failed" or self.signal_number is not None or self.aborted:
            return False
        self.left_out.append(name)
        self.job_notice(name, "the other jobs continue; the outputs will lack the results of this job")
        return True

    def finish(self) -> RunEnd | None:
        """Write the run's end, from the states of its jobs and the engine's verdict. Return None if the run never began."""
        if self._log is None:
            return None
        for job in self.jobs.values():
            if job.ended is None and self._verdict() != "completed":
                self.job_ended(job.name, "cancelled")
        state = self._verdict()
        failed = sorted(job.name for job in self.jobs.values() if job.ended == "failed")
        data: dict[str, Any] = {"state": state, "seconds": round(time.monotonic() - self._clock, 3), "failed": failed}
        if self.left_out:
            data["left_out"] = sorted(self.left_out)
        if self.first_failure is not None:
            data["first_cause"] = self.first_failure.name
        if self.refused and state == "failed":
            data["refused"] = True
        if self.signal_number is not None:
            data["signal"] = self.signal_number
        if self.error:
            data["message"] = self.error
        self._write("run.ended", data=data)
        self._close_log()
        self._print_end(state, data["seconds"])
        if not self.keeps_work:
            shutil.rmtree(self.work, ignore_errors=True)
        self._after_end()
        return state

    def _called(self, name: str) -> str:
        return self.jobs[name].label if name in self.jobs else posixpath.basename(step_of(name))

    def _verdict(self) -> RunEnd:
        if self.signal_number is not None:
            return "cancelled"
        ends = {job.ended for job in self.jobs.values() if job.name not in self.left_out}
        if "failed" in ends or self.engine_verdict == "failed" or self._steps_without_part():
            return "failed"
        if self.engine_verdict == "completed" and ends <= {"completed"}:
            return "partial" if self.left_out else "completed"
        return "unknown"

    def _steps_without_part(self) -> set[str]:
        """Return the steps whose jobs have all failed: their outputs would be empty."""
        good = {job.step for job in self.jobs.values() if job.ended == "completed"}
        return {self.jobs[name].step for name in self.left_out} - good

    def _print_end(self, state: RunEnd, seconds: float) -> None:
        word = "finished with partial results" if state == "partial" else state
        console.say(f"medweave: run {self.run_id} {word} after {duration(seconds)}")
        if state == "partial":
            labels = ", ".join(sorted(self.jobs[name].label for name in self.left_out))
            console.say(f"medweave: not in its outputs: {labels}")
        if state in ("failed", "partial") and self.first_failure is not None:
            for line in first_cause(self.first_failure):
                console.say(line)

    def _keep_report(self, job: JobRecord) -> None:
        source = job.outcome.report_folder if job.outcome else None
        target = self.folder / "reports" / job.label
        if source is not None and (names := copy_report(source, target)):
            self._append("job.report", job, {"folder": target.relative_to(self.folder).as_posix(), "files": names})

    def _append(self, event_type: Any, job: JobRecord, data: Mapping[str, Any]) -> None:
        self._write(event_type, **job.where(), data=data)

    def _write(self, event_type: Any, **fields: Any) -> None:
        """Append an event. A full disk ends the run, and fails no job."""
        if self._log is not None:
            try:
                self._log.append(event_type, **fields)
            except StorageError as error:
                self.storage_failed(error)

    def _close_log(self) -> None:
        assert self._log is not None
        with contextlib.suppress(OSError):  # its lines are written; only the sync failed
            self._log.close()
        command_log.close_log()
        self._log = None


def short_path(path: Path) -> str:
    """Return the path for the user: relative to the current directory if it is below."""
    with contextlib.suppress(ValueError):
        return path.relative_to(Path.cwd()).as_posix()
    return path.as_posix()
