"""A job of a run: the outcome of its command, and its message."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from medweave_core.contracts.events import job_label
from medweave_core.contracts.progress import duration
from medweave_core.errors import describe_exit_code
from medweave_core.runlog.engine_names import step_of

JobEnd = Literal["completed", "failed", "cancelled"]
OUTPUTS_MISSING = (
    "The command finished, but an output of its tool is missing or of another type: see the engine's message."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutcome:
    """Outcome of a job's command.

    Attributes:
        exit_code: as a shell reports it (128 + signal number after a signal).
        seconds: wall time, s.
        cpu_seconds: user and system time of the command and of the children it waited for, s.
        peak_memory_mib: largest resident set of one process of the command, MiB.
        cause: what went wrong, for the person who started the run; empty after a success.
        message: the part of `cause` that is known to hold no patient data.
        kept_at: where its files are, for the user: a local path, or `deployment:/path`.
        report_folder: a folder on this machine with its run_report.json and report folder, or copies of them.
        site: facts of the site: its job id, state and nodes, or its pods.
        reused_from: the run that produced the outputs, for a cache hit.
    """

    exit_code: int
    seconds: float
    cpu_seconds: float | None = None
    peak_memory_mib: float | None = None
    cause: str = ""
    message: str = ""
    kept_at: str = ""
    report_folder: Path | None = None
    site: Mapping[str, Any] = field(default_factory=dict)
    reused_from: str = ""

    def event_data(self) -> dict[str, Any]:
        """Return the outcome as the event `job.ended` has it."""
        data: dict[str, Any] = {
            "exit_code": self.exit_code,
            "seconds": round(self.seconds, 3),
            "cpu_seconds": self.cpu_seconds,
            "peak_memory_mib": self.peak_memory_mib,
        }
        if self.reused_from:
            data["reused_from"] = self.reused_from
        if self.site:
            data["site"] = dict(self.site)
        return data


@dataclass(slots=True, kw_only=True)
class JobRecord:
    """Execution of a step; a retry has the same name and the next attempt.

    Attributes:
        error: why the engine or a connector failed the job, for the person who started the run; empty for no such error.
        error_message: the part of `error` that is known to hold no patient data.
    """

    name: str
    deployment: str
    service: str | None
    location: str
    attempt: int = 1
    started: float | None = None
    outcome: CommandOutcome | None = None
    ended: JobEnd | None = None
    error: str = ""
    error_message: str = ""

    @property
    def step(self) -> str:
        """Return the path of the step: `/segment`."""
        return step_of(self.name)

    @property
    def label(self) -> str:
        """Return the short name for the user and folders: `train`, `segment.3` for the fourth of a scatter."""
        return job_label(self.name)

    @property
    def cause(self) -> str:
        """Return the cause from the command's output, or the error of the engine or connector; may be empty."""
        return (self.outcome.cause if self.outcome is not None else "") or self.error

    @property
    def message(self) -> str:
        """Return the part of `cause` that is known to contain no patient data."""
        if self.outcome is not None and (self.outcome.cause or self.outcome.message):
            return self.outcome.message
        return self.error_message

    @property
    def why(self) -> str:
        """Return in short how it failed: the exit code of its command with its meaning, if that is not 0."""
        if self.outcome is None:
            return "no exit code"
        return describe_exit_code(self.outcome.exit_code) if self.outcome.exit_code else "its outputs are not complete"

    def where(self) -> dict[str, str | None]:
        """Return the fields of every event of the job."""
        return {
            "job": self.name,
            "step": self.step,
            "deployment": self.deployment,
            "service": self.service,
            "location": self.location,
        }


def end_text(job: JobRecord, state: JobEnd) -> str:
    """Return how the job ended, for the user."""
    outcome = job.outcome
    if outcome is not None and outcome.reused_from and state == "completed":
        return f"cache hit: outputs of run {outcome.reused_from}"
    word = {"completed": "done in", "failed": "FAILED after", "cancelled": "stopped after"}[state]
    seconds = outcome.seconds if outcome else time.monotonic() - job.started if job.started is not None else 0.0
    facts: Sequence[str] = ()
    if outcome is not None and state == "completed" and outcome.peak_memory_mib:
        facts = (f"peak memory {outcome.peak_memory_mib:.0f} MiB",)
    if state == "failed":
        facts = (job.why,)
    return ", ".join((f"{word} {duration(seconds)}", *facts))


def first_cause(job: JobRecord) -> list[str]:
    """Return the lines that say why a run failed: of the job that failed first."""
    lines = [f"medweave: first cause: {job.label} on {job.deployment}, {job.why}", job.cause or OUTPUTS_MISSING]
    if job.outcome is not None and job.outcome.kept_at:
        lines.append(f"medweave: its files are in {job.outcome.kept_at}")
    return lines
