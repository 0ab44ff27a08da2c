"""Re-attach journal: the jobs of a run, on this machine's disk before they are submitted, for a driver after a crash.

One file per run and kind of site, `work/slurm-jobs.jsonl`, which only its owner can read; it is removed with the run's scratch
after a success. Does not import streamflow.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from medweave_connectors.runlog import current, whole_lines
from medweave_core.runlog.log_state import came_to_its_end, driver_lives
from medweave_core.runlog.run_folder import EVENTS, WORK

# In the folder of a run.
SLURM, KUBERNETES = f"{WORK}/slurm-jobs.jsonl", f"{WORK}/kubernetes-jobs.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job that was submitted, or was about to be.

    Attributes:
        key: the job's comment or label, unique to the submission.
        run_id: of the run that wrote this record; of a re-attached job not the one in the key.
        job: the engine's name of the job.
        deployment, service: where it runs.
        fingerprint: digest of the command and its placement (`same_work.fingerprint`).
        folder: of the job's files, at the site.
        outputs: paths of its output folder, which may have been moved; the first existing one counts.
        inputs: paths that its command reads, at the site.
        job_id: the site's id, once known.
        workflow: of the run that submitted it; may be empty.
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
    """The journal of this process's run."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._alone = threading.Lock()  # several threads submit jobs

    def write(self, submission: Submission) -> None:
        """Append a record of a submission; on the disk when this returns.

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


def runs_folder() -> Path:
    """Return the folder of all runs of this machine, of which this process's run is one."""
    run = current()
    assert run is not None, "called without a run"
    return run.folder.parent


def of(run_folder: Path, file: str) -> Journal:
    """Return the journal of this process's run, one for all its deployments of a kind."""
    path = run_folder / file
    if path not in _journals:
        _journals[path] = Journal(path)
    return _journals[path]


async def record(file: str, submission: Submission | None, *, job_id: str) -> None:
    """Write a submission to the journal of its run, in a thread; outside of a run (None) nothing is written.

    Args:
        job_id: the site's id; empty before the submission.

    Raises:
        StorageError: the disk is full; nothing may be submitted then.
    """
    if submission is not None:
        journal = of(runs_folder() / submission.run_id, file)
        await asyncio.to_thread(journal.write, replace(submission, job_id=job_id))


def unattended_jobs(runs: Path, file: str) -> list[Submission]:
    """Return the newest record of each job of dead drivers, the newest run and the last attempt first.

    A run that ended, in any state, has ended its jobs. A running driver handles its own jobs, including re-attached ones.
    """
    attended: set[str] = set()
    newest: dict[str, Submission] = {}
    for journal in sorted(runs.glob(f"*/{file}"), key=_age, reverse=True):
        events = journal.parents[1] / EVENTS
        if driver_lives(events):
            attended |= read(journal).keys()
        elif not came_to_its_end(events):
            submissions = read(journal)
            # The record of a newer run counts; of several attempts in a run the last one comes first.
            newest |= {key: submissions[key] for key in reversed(list(submissions)) if key not in newest}
    return [submission for key, submission in newest.items() if key not in attended]


def attended_keys(runs: Path, file: str) -> set[str]:
    """Return the keys of jobs with a running driver."""
    journals = [journal for journal in runs.glob(f"*/{file}") if driver_lives(journal.parents[1] / EVENTS)]
    return {key for journal in journals for key in read(journal)}


def attended_jobs(run: Path, file: str) -> list[Submission]:
    """Return the jobs of a dead driver's run that running drivers have re-attached."""
    attended = attended_keys(run.parent, file)
    return [submission for key, submission in read(run / file).items() if key in attended]


def adopt(runs: Path, file: str, adopted: Submission) -> bool:
    """Write an unattended job into this run's journal. Return False if another driver has re-attached it.

    Args:
        adopted: the record for this run's journal.
    """
    with _alone(runs):
        if adopted.key not in {submission.key for submission in unattended_jobs(runs, file)}:
            return False
        of(runs / adopted.run_id, file).write(adopted)
    return True


@dataclass(slots=True)
class _ReadJournal:
    """The part of a journal that is parsed. Lines are only appended, so the next `read` parses the new ones only.

    Attributes:
        end: of the last complete line, in bytes.
    """

    inode: int
    end: int
    submissions: dict[str, Submission]


_read_journals: dict[Path, _ReadJournal] = {}
_one_reader = threading.Lock()


def read(journal: Path) -> Mapping[str, Submission]:
    """Return the newest record of each submission, by key. An incomplete last line is ignored: it preceded no submission."""
    with _one_reader:
        try:
            status = journal.stat()
            known = _read_journals.get(journal)
            if known is None or known.inode != status.st_ino or known.end > status.st_size:
                known = _read_journals[journal] = _ReadJournal(status.st_ino, 0, {})
            if status.st_size > known.end:
                _read_on(journal, known)
        except OSError:
            _read_journals.pop(journal, None)
            return {}
        return dict(known.submissions)


def _read_on(journal: Path, known: _ReadJournal) -> None:
    with journal.open("rb") as stream:
        stream.seek(known.end)
        data = stream.read()
    complete = data[: data.rfind(b"\n") + 1]
    known.end += len(complete)
    for line in complete.splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError):
            submission = _submission(json.loads(line))
            known.submissions[submission.key] = submission


def adopted(earlier: Submission, planned: Submission) -> Submission:
    """Return the record of an earlier job for the run that re-attaches it in place of the planned one."""
    outputs = (*earlier.outputs, planned.outputs[0])
    return replace(earlier, run_id=planned.run_id, outputs=outputs, inputs=planned.inputs)


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
