"""What this run has submitted, on this machine's disk before the site knows of it: a driver that comes after a crash finds it.

One file per run and kind of site, `work/slurm-jobs.jsonl`, which only its owner can read; it goes with the run's scratch after a
success. No streamflow in here.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from medweave_connectors.runlog import whole_lines
from medweave_core.runlog.log_state import came_to_its_end, driver_lives
from medweave_core.runlog.run_folder import EVENTS, WORK

# In the folder of a run.
SLURM, KUBERNETES = f"{WORK}/slurm-jobs.jsonl", f"{WORK}/kubernetes-jobs.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job that was given to a site, or was about to be.

    Attributes:
        key: in the job's comment, or its label; no other submission has the same.
        run_id: of the run that wrote this down; not the one in the key where it has taken the job over.
        job: the engine's name of the job.
        deployment, service: where.
        fingerprint: what is computed (`work.fingerprint`).
        folder: of the job's own files, at the site.
        outputs: where its output folder lies, or will have been moved to; the first that exists is it.
        inputs: what its command reads, at the site.
        job_id: the site's, once it was known.
        workflow: of the run that has submitted it; empty where that is of no use.
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
    workflow: str = ""


class Journal:
    """The journal of a run that goes on."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
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
                otherwise="the journal of jobs could not be written; nothing was submitted.",
                on_disk=True,
            )


_journals: dict[Path, Journal] = {}


def of(run_folder: Path, file: str) -> Journal:
    """The journal of this process's run; the same for all its deployments of a kind."""
    path = run_folder / file
    if path not in _journals:
        _journals[path] = Journal(path)
    return _journals[path]


def left_behind(runs: Path, file: str) -> list[Submission]:
    """The newest word about each job of drivers that are gone, the newest run and the last attempt first.

    A run that came to its end, in whatever way, has ended its jobs. One whose driver lives looks after them itself, also after
    those that it took over.
    """
    cared_for: set[str] = set()
    found: dict[str, Submission] = {}
    for journal in sorted(runs.glob(f"*/{file}"), key=_age, reverse=True):
        events = journal.parents[1] / EVENTS
        if driver_lives(events):
            cared_for |= read(journal).keys()
        elif not came_to_its_end(events):
            submissions = read(journal)
            # What a newer run says of a job counts; of several attempts in a run the last one comes first.
            found |= {key: submissions[key] for key in reversed(list(submissions)) if key not in found}
    return [each for key, each in found.items() if key not in cared_for]


def in_hands(runs: Path, file: str) -> set[str]:
    """Keys of the jobs that drivers which live look after."""
    journals = [each for each in runs.glob(f"*/{file}") if driver_lives(each.parents[1] / EVENTS)]
    return {key for each in journals for key in read(each)}


def shared(run: Path, file: str) -> list[Submission]:
    """The jobs of a run whose driver is gone that drivers look after which live."""
    held = in_hands(run.parent, file)
    return [each for key, each in read(run / file).items() if key in held]


def take(runs: Path, file: str, own: Submission) -> bool:
    """Whether a job that was left is this run's from now on, in its journal too; false where another new driver was quicker.

    Args:
        own: as this run writes it down.
    """
    with _alone(runs):
        if own.key not in {each.key for each in left_behind(runs, file)}:
            return False
        of(runs / own.run_id, file).write(own)
    return True


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


@contextlib.contextmanager
def _alone(runs: Path) -> Iterator[None]:
    file = os.open(runs / ".takeover.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _submission(values: Mapping[str, Any]) -> Submission:
    return Submission(**{**values, "outputs": tuple(values["outputs"]), "inputs": tuple(values["inputs"])})


def _age(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0
