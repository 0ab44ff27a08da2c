"""Why the engine or a connector fails a job: the error that it raised, in words for the user and for the event log."""

from __future__ import annotations

import errno
import re
import sqlite3

from streamflow.core.exception import FailureHandlingException

from medweave_connectors.host.errors import (
    CommandFailed,
    ImpossibleRequest,
    JobEndedBySite,
    OutputNotCollected,
    SiteConfigError,
    SiteUnreachable,
    StreamBroke,
    TimeLimitExceeded,
    TransferFailed,
)
from medweave_connectors.runlog import current
from medweave_core.errors import StepError, StorageError
from medweave_core.untrusted_text import plain, plain_line

# The words of these errors are ours, and hold no name of a patient or a file.
_SAFE = (CommandFailed, ImpossibleRequest, OutputNotCollected, SiteConfigError, StepError, TransferFailed)
# The outcome of the job's command says it already.
_IN_OUTCOME = (JobEndedBySite, TimeLimitExceeded)
_REPEATED = "FAILED Job "  # the engine's repetition of the command's outcome
_CODE_0 = (
    "The command ended with exit code 0, which its tool declares as a failure (permanentFailCodes, temporaryFailCodes)."
)
_STORAGE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
_DATABASE = ("disk is full", "disk I/O error", "readonly database", "unable to open database file")
_ORDINARY = re.compile(r"[A-Za-z`'\"(),.:;!?-]+")


def note_job_error(job_name: str, error: Exception) -> None:
    """Record why a job fails. An error of this machine's disk ends the run instead, and is no failure of the job."""
    run = current()
    if run is None or isinstance(error, _IN_OUTCOME):
        return
    if str(error).startswith(_REPEATED):
        job = run.jobs.get(job_name)
        if job is not None and job.outcome is not None and job.outcome.exit_code == 0:
            run.job_error(job_name, _CODE_0, _CODE_0)
        return
    if (storage := storage_error(error)) is not None:
        run.storage_failed(storage)
        return
    message = event_message(error)
    run.job_error(
        job_name, message if isinstance(error, StreamBroke) else plain(str(error)).strip() or message, message
    )


def event_message(error: BaseException) -> str:
    """Return the words of an error that may enter the event log: those of other programs without names of files and values."""
    if isinstance(error, StreamBroke):
        return without_names(str(error).partition(":")[0])
    if isinstance(error, (SiteUnreachable, *_SAFE)):
        return plain(str(error)).strip()
    if isinstance(error, FailureHandlingException) and error.__cause__ is not None:
        return event_message(error.__cause__)
    text = without_names(plain_line(str(error)))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def without_names(text: str) -> str:
    """Return a text with `…` in place of each word that may name a file, a patient or a value."""
    words = [word if _ORDINARY.fullmatch(word) and ("." not in word[:-1]) else "…" for word in text.split()]
    return " ".join(word for number, word in enumerate(words) if word != "…" or words[number - 1 : number] != ["…"])


def storage_error(error: BaseException) -> StorageError | None:
    """Return an error of the disk of the driver's machine, as a StorageError; None for any other error."""
    if isinstance(error, StorageError):
        return error
    seen = ""
    if isinstance(error, OSError) and error.errno in _STORAGE:
        seen = str(error.strerror)
    elif isinstance(error, sqlite3.Error) and any(words in str(error) for words in _DATABASE):
        seen = f"database: {error}"
    if not seen:
        return None
    return StorageError(
        "a file of the run could not be written on the driver's machine.",
        seen=seen,
        expected="space, and the right to write, in the folder of runs",
        do="free space on the disk that holds the folder of runs, and run again: finished steps are cache hits",
    )
