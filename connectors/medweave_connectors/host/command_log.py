"""Debug log of the commands that connectors run: kind, site, exit code and seconds; no arguments and no names of files.

`MEDWEAVE_LOG=debug`, or `medweave run --debug`, writes it to `connector.log` in the folder of the run. Does not import streamflow.
"""

from __future__ import annotations

import contextlib
import logging
import os
import posixpath
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

VARIABLE, DEBUG = "MEDWEAVE_LOG", "debug"
FILE = "connector.log"  # in the folder of a run
_ROOT = logging.getLogger("medweave.connectors")
# Only these words of a command are logged: any other one may be a name.
_PROGRAMS = frozenset(
    {
        "cat", "chmod", "cp", "df", "du", "find", "head", "ln", "ls", "mkdir", "mv", "nproc", "printf", "readlink", "rm", "sacct",
        "sacctmgr", "sbatch", "scancel", "scontrol", "sh", "sha1sum", "sha256sum", "sinfo", "squeue", "stat", "tar", "tee", "test",
        "true",
    }
)  # fmt: skip


@dataclass(slots=True)
class LoggedCommand:
    """A command that runs now; whoever runs it sets its exit code."""

    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class CommandLog:
    """Log of one deployment's commands, under the logger `medweave.connectors.<connector>`.

    Attributes:
        connector: kind of connector: `local`, `ssh`, `slurm`, `pods`.
        site: name of the deployment.
    """

    connector: str
    site: str

    @contextlib.contextmanager
    def command(self, kind: str) -> Iterator[LoggedCommand]:
        """Yield the command to log; at the end write its line, also after an error.

        Args:
            kind: `job`, `stream`, or what `kind_of` returns.
        """
        entry, started, error = LoggedCommand(), time.monotonic(), ""
        try:
            yield entry
        except BaseException as raised:
            error = f" error={type(raised).__name__}"
            raise
        finally:
            seconds, code = time.monotonic() - started, "-" if entry.exit_code is None else entry.exit_code
            logger = _ROOT.getChild(self.connector)
            logger.debug("site=%s command=%s exit=%s seconds=%.3f%s", self.site, kind, code, seconds, error)


def kind_of(command: Sequence[str]) -> str:
    """Return the program of an engine's command if it is a common one, otherwise `script`."""
    word = next(iter(" ".join(command).split(maxsplit=1)), "")
    name = posixpath.basename(word)
    return name if name in _PROGRAMS else "script"


class _LogFile(logging.FileHandler):
    """A log file whose failures end nothing: a full disk is reported by the event log."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore a line that cannot be written."""


def open_log(folder: Path) -> None:
    """Start the log in a run's folder, if the environment asks for it; a second run of this process moves it.

    Raises:
        OSError: the file cannot be created.
    """
    close_log()
    if os.environ.get(VARIABLE) != DEBUG:
        return
    handler = _LogFile(folder / FILE, encoding="utf-8")
    Path(handler.baseFilename).chmod(0o600)
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(name)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    _ROOT.addHandler(handler)
    _ROOT.setLevel(logging.DEBUG)
    _ROOT.propagate = False


def close_log() -> None:
    """Close the log file, if one is open."""
    for handler in [handler for handler in _ROOT.handlers if isinstance(handler, _LogFile)]:
        _ROOT.removeHandler(handler)
        handler.close()
