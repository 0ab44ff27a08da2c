"""What this run has submitted, on this machine's disk before Slurm knows of it: a driver that comes after a crash finds it.

One file per run, `work/slurm-jobs.jsonl`, which only its owner can read; it goes with the run's scratch after a success.
No streamflow in here.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from medweave_connectors.record import whole_lines
from medweave_connectors.record.event_log import came_to_its_end, driver_lives
from medweave_connectors.record.run import EVENTS, WORK

FILE = f"{WORK}/slurm-jobs.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job that was given to Slurm, or was about to be.

    Attributes:
        key: in the job's comment.
        run_id: of the run that wrote this down; not the one in the key where it has taken the job over.
        job: the engine's name of the job.
        deployment, service: where.
        fingerprint: what is computed (`takeover.fingerprint`).
        folder: of the job's own files, at the site.
        outputs: where its output folder lies, or will have been moved to; the first that exists is it.
        inputs: what its command reads, at the site.
        job_id: Slurm's, once it was known.
    """

    key: str
    run_id: str
    job: str
    deployment: str
    service: str
    fingerprint: str
    folder: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    job_id: str = ""


class Journal:
    """The journal of a run that goes on."""

    def __init__(self, run_folder: Path) -> None:
        self._file = os.open(run_folder / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._alone = threading.Lock()  # jobs are submitted side by side, each from a thread

    def write(self, submission: Submission) -> None:
        """Writes down what is known of a submission; on the disk when this returns.

        Raises:
            StorageError: the disk is full; nothing may be submitted then.
        """
        line = (json.dumps(asdict(submission), separators=(",", ":")) + "\n").encode()
        with self._alone:
            whole_lines.append(
                self._file,
                line,
                otherwise="the journal of Slurm jobs could not be written; nothing was submitted.",
                on_disk=True,
            )


_journals: dict[Path, Journal] = {}


def of(run_folder: Path) -> Journal:
    """The journal of this process's run; the same for all its deployments."""
    if run_folder not in _journals:
        _journals[run_folder] = Journal(run_folder)
    return _journals[run_folder]


def left_behind(runs: Path) -> list[Submission]:
    """The newest word about each job of drivers that are gone, the newest run and the last attempt first.

    A run that came to its end, in whatever way, has ended its jobs. One whose driver lives looks after them itself, also after
    those that it took over.
    """
    cared_for: set[str] = set()
    found: dict[str, Submission] = {}
    for journal in sorted(runs.glob(f"*/{FILE}"), key=_age, reverse=True):
        events = journal.parents[1] / EVENTS
        if driver_lives(events):
            cared_for |= read(journal).keys()
        elif not came_to_its_end(events):
            submissions = read(journal)
            # What a newer run says of a job counts; of several attempts in a run the last one comes first.
            found |= {key: submissions[key] for key in reversed(list(submissions)) if key not in found}
    return [each for key, each in found.items() if key not in cared_for]


def read(journal: Path) -> Mapping[str, Submission]:
    """The newest word about each submission, by key. A last line that is not whole was never acted upon."""
    try:
        known = journal.stat()
    except OSError:
        return {}
    return _read(journal, known.st_ino, known.st_size, known.st_mtime_ns)


@functools.lru_cache(maxsize=1024)
def _read(journal: Path, *_known: int) -> Mapping[str, Submission]:
    """Each submission asks for the journals of all runs; few of them have changed since the last one."""
    found: dict[str, Submission] = {}
    with contextlib.suppress(OSError):
        for line in journal.read_bytes().splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError):
                submission = _submission(json.loads(line))
                found[submission.key] = submission
    return MappingProxyType(found)


def taken_over(submission: Submission, *, run_id: str, output: str) -> Submission:
    """The same job in the hands of another run, whose output folder it will fill."""
    return replace(submission, run_id=run_id, outputs=(*submission.outputs, output))


def _submission(values: Mapping[str, Any]) -> Submission:
    return Submission(**{**values, "outputs": tuple(values["outputs"]), "inputs": tuple(values["inputs"])})


def _age(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0
