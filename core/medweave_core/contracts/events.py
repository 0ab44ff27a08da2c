"""The event log of a run (`runs/<run-id>/events.jsonl`): one JSON object per line, append-only."""

from __future__ import annotations

import dataclasses
import functools
import posixpath
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from medweave_core.contracts import codec

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
    """One event of a run: a line of `events.jsonl`. Later versions may add types; they never change the meaning of a type.

    Attributes:
        sequence: 1, 2, 3 … within the run.
        time: UTC, ISO 8601 with milliseconds.
        run_id: name of the run's folder.
        type: type of the event.
        job: StreamFlow's job name (`/segment/0.3`), None for events of the run.
        step: path of the step (`/segment`).
        deployment, service, location: place of the job, as named in the bindings.
        data: details by type: `state`, `exit_code`, `seconds`, `peak_memory_mib`, `text` (a progress line), `bytes`.
            `job.reaction` (retry policy after a failed attempt): `failure`, `again`, `after_s`, `memory_mib`, `from_checkpoint`.
            `job.lookup` (cache lookup before a command): `work` is the cache key, `parts` has a keyed digest of each part of it,
            `reused_from` is the run of a cache hit, `why` is the reason why the job is not cacheable. After a cache hit,
            `job.ended` has `reused_from`, too.
            `job.data`: `inputs` and `outputs` by name, each a list: files and folders with `class`, `bytes` and `sha256` if
            known, numbers and enumerated words with `value`, other texts with their number of `characters`.
            `run.ended`: `refused` is true if the run failed before any job because of its site or step settings; `message` is the
            cause if no job failed.
            `run.started`: `documents` has the SHA-256 of the workflow's files, by path from the folder of the workflow.
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


_TYPES = typing.get_args(EventType)
_WRITTEN = {field.name for field in dataclasses.fields(Event)} - {"event_version"}  # keys of a line
_TEXT_OR_NONE = (str, type(None))


def event_of(data: Mapping[str, Any], *, where: str) -> Event:
    """Return the event of a parsed line. A run of 5,000 jobs has 30,000 of them: the usual ones are checked here.

    Raises:
        UserInputError: a key is missing or unknown, or a value has another type.
    """
    if data.keys() == _WRITTEN and (
        type(data["sequence"]) is int
        and type(data["time"]) is str
        and type(data["run_id"]) is str
        and type(data["data"]) is dict
        and data["type"] in _TYPES
        and all(isinstance(data[name], _TEXT_OR_NONE) for name in ("job", "step", "deployment", "service", "location"))
    ):
        return Event(**data)
    return codec.from_json(Event, data, where=where)


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
