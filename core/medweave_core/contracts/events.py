"""The event log of a run (`runs/<run-id>/events.jsonl`): one JSON object per line, append-only."""

from __future__ import annotations

import functools
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

EventType = Literal[
    "run.started",
    "run.ended",
    "job.scheduled",
    "job.started",
    "job.lookup",
    "job.data",
    "job.progress",
    "job.ended",
    "job.report",
    "job.reaction",
    "transfer.progress",
    "transfer.ended",
    "notice",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened in a run: a line of `events.jsonl`. Later versions add types; they never change what one means.

    Attributes:
        sequence: 1, 2, 3 … within the run.
        time: UTC, ISO 8601 with milliseconds.
        run_id: name of the run's folder.
        type: what happened.
        job: StreamFlow's job name (`/segment/0.3`), None for events of the run.
        step: path of the step (`/segment`).
        deployment, service, location: where, as named in the bindings.
        data: what belongs to the type: `state`, `exit_code`, `seconds`, `peak_memory_mib`, `text` (a progress line), `bytes`;
            of `job.reaction`, what follows from a failed attempt: `failure`, `again`, `after_s`, `memory_mib`, `from_checkpoint`;
            of `job.lookup`, before a command that may have been run before: `work`, its name, `parts`, each by a keyed
            digest, and `reused_from`, the run that did it, or `why` it cannot be reused. `job.ended` then has `reused_from`, too;
            of `job.data`, `inputs` and `outputs` by name, each a list: files and folders with `class`, `bytes` and `sha256` where
            they are known, numbers and fixed words with `value`, other texts with their number of `characters`;
            of `run.ended`, `refused`: it failed for what its file says of a site or a step, before anything was done, and
            `message`: why it ended, where that is the error of no job;
            of `run.started`, `documents`: SHA-256 of the workflow's files, by path from the folder of the workflow.
    """

    sequence: int
    time: str
    run_id: str
    type: EventType
    job: str | None = None
    step: str | None = None
    deployment: str | None = None
    service: str | None = None
    location: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    event_version: Literal[1] = 1


@functools.cache
def step_label(step: str) -> str:
    """Return `segment` for `/segment`, `inner.segment` for a step of a workflow inside."""
    return step.strip("/").replace("/", ".")


@functools.cache
def job_label(job_name: str) -> str:
    """Return the short name for people and folders: `train`, `segment.3` for the fourth job of a scatter."""
    tag = posixpath.basename(job_name).partition(".")[2]
    step = step_label(posixpath.dirname(job_name))
    return f"{step}.{tag}" if tag else step
