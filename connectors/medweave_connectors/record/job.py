"""A job of a run: how its command ended, and how that is told."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from medweave_connectors.names import step_of
from medweave_steps.contracts.event import job_label
from medweave_steps.contracts.exit_codes import meaning
from medweave_steps.contracts.progress import duration

JobEnd = Literal["completed", "failed", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutcome:
    """How a job's command ended.

    Attributes:
        exit_code: as a shell tells it (128 + signal number for a death by signal).
        seconds: wall time, s.
        cpu_seconds: user and system time of the command and of the children it waited for, s.
        peak_memory_mib: largest resident set of one process of the command, MiB.
        cause: what went wrong, for the person who started the run; empty after a success.
        message: the part of `cause` that is known to hold no patient data.
        kept_at: where its files lie, for people: a path of this machine, or `deployment:/path`.
        report_folder: a folder on this machine with its run_report.json and report folder, or copies of them.
        site: the site's own facts: its job id, state and nodes, or its pods.
        reused_from: the run that has done the work, where it was not done again.
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


@dataclass(slots=True, kw_only=True)
class JobRecord:
    """A step's execution; the same name again in a retry, with the next attempt."""

    name: str
    deployment: str
    service: str | None
    location: str
    attempt: int = 1
    started: float | None = None
    outcome: CommandOutcome | None = None
    ended: JobEnd | None = None

    @property
    def step(self) -> str:
        """Path of the step: `/segment`."""
        return step_of(self.name)

    @property
    def label(self) -> str:
        """Short name for people and folders: `train`, `segment.3` for the fourth of a scatter."""
        return job_label(self.name)

    def where(self) -> dict[str, str | None]:
        """The fields that every event of the job carries."""
        return {
            "job": self.name,
            "step": self.step,
            "deployment": self.deployment,
            "service": self.service,
            "location": self.location,
        }


def end_text(job: JobRecord, state: JobEnd) -> str:
    """How it ended, for people."""
    outcome = job.outcome
    if outcome is not None and outcome.reused_from and state == "completed":
        return f"not done again: run {outcome.reused_from} did it"
    word = {"completed": "done in", "failed": "FAILED after", "cancelled": "stopped after"}[state]
    seconds = outcome.seconds if outcome else time.monotonic() - job.started if job.started is not None else 0.0
    facts: Sequence[str] = ()
    if outcome is not None and state == "completed" and outcome.peak_memory_mib:
        facts = (f"peak memory {outcome.peak_memory_mib:.0f} MiB",)
    if outcome is not None and state == "failed":
        facts = (why(outcome),)
    return ", ".join((f"{word} {duration(seconds)}", *facts))


def why(outcome: CommandOutcome) -> str:
    """The exit code of a command that failed, with its meaning."""
    return meaning(outcome.exit_code) if outcome.exit_code else "its outputs are not complete"
