"""Reuse in one run: each job asks for its outputs before its command starts, and hands them in when it did well.

What is asked, kept and told is the same everywhere; where outputs lie, and how they are found again, is `here`'s and `there`'s.
No streamflow in here.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_connectors.cache.key import SHOWN_CHARACTERS, key_of
from medweave_connectors.cache.store import Shelf
from medweave_connectors.runlog import console
from medweave_connectors.runlog.run import RunRecord

FOLDER = ".kept"  # in the folder of runs
KEEP_DAYS = 14  # what is not used for so long goes
SWITCH = "MEDWEAVE_REUSE"  # 0: nothing is reused, and nothing kept
NOT_ALLOWED = "its tool says WorkReuse: {enableReuse: false}"
UNREADABLE = "something that it reads, or that it has written, cannot be told by content: a pipe, a socket, a link that leads out"

_work: contextvars.ContextVar[Work | None] = contextvars.ContextVar("medweave_work", default=None)


class Untold(Exception):
    """What a job's work is cannot be told; the words say why, for people, and name no file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The command of a job as the engine gives it to a connector.

    Attributes:
        words: as a shell is given them.
        environment: what the tool sets.
        streams: files of stdin, stdout and stderr.
    """

    words: Sequence[str]
    environment: Mapping[str, str]
    streams: Sequence[str | None]


class Reuse:
    """The shelf of a run's folder of runs, and what goes on there.

    Args:
        limit_gib: what the shelf may hold, GiB; 0 for none.
        keep_days: what is not used for so long leaves it.
    """

    def __init__(self, run: RunRecord, *, limit_gib: float, keep_days: float) -> None:
        self.run = run
        self.on = limit_gib > 0 and os.environ.get(SWITCH, "1") != "0"
        self.shelf = Shelf(run.folder.parent / FOLDER, limit_gib=limit_gib, keep_days=keep_days)
        self._secret: bytes | None = None
        self._used: set[str] = set()
        self._once: dict[tuple[str, ...], asyncio.Future[Any]] = {}
        run.when_ended = self._settle

    def used(self, key: str) -> None:
        """Something was kept, or taken, in this run."""
        self._used.add(key)

    async def once(self, key: tuple[str, ...], ask: Callable[[], Awaitable[Any]]) -> Any:
        """What was asked in this run before is not asked again; what failed is."""
        known = self._once.get(key)
        if known is None or (known.done() and (known.cancelled() or known.exception() is not None)):
            known = self._once[key] = asyncio.ensure_future(ask())
        return await asyncio.shield(known)

    def _settle(self) -> None:
        for key in self._used:
            self.shelf.renamed(key)

    def secret(self) -> bytes:
        """Made, and room with it, when the first job asks.

        Raises:
            OSError: the shelf cannot be made.
        """
        if self._secret is None:
            self._secret = self.shelf.secret()
            if why := self.shelf.make_room():
                console.say(
                    f"medweave: the cache of earlier outputs was not cleaned up.\n  seen:     {why}\n"
                    "  expected: a database that this run can read and write\n"
                    f"  do:       look at {FOLDER} in the folder of runs; without it, steps run again and nothing else is lost"
                )
        return self._secret


class Work(ABC):
    """One job's command that may have been done before.

    Attributes:
        did_well: its command was run, and ended with a code of success.

    Args:
        inputs: values of its inputs, files and folders with their paths on the job's machine.
        allowed: whether its tool lets its work be reused.
    """

    def __init__(self, reuse: Reuse, job_name: str, inputs: Mapping[str, Any], *, allowed: bool) -> None:
        self.reuse, self.job_name, self.inputs = reuse, job_name, inputs
        self.did_well = False
        self._allowed, self._key = allowed, ""

    async def take(self, asked: Asked) -> str:
        """The run that has done it, whose outputs now lie where the command would have written them; empty for none."""
        self._key, self.did_well = "", False
        tell = self.reuse.run.job_looked_up
        if not self._allowed:
            tell(self.job_name, why=NOT_ALLOWED)
            return ""
        try:
            parts, secret = await self.parts(asked)
        except (OSError, Untold) as error:
            tell(self.job_name, why=str(error) if isinstance(error, Untold) else UNREADABLE)
            return ""
        self._key = key_of(parts, secret)
        shown, found, why = {name: digest[:SHOWN_CHARACTERS] for name, digest in parts.items()}, "", ""
        try:
            found = await self.given(self._key)
        except Untold as error:
            why = str(error)
        if found:
            self.reuse.used(self._key)
        tell(self.job_name, work=self._key, parts=shown, reused_from=found, why=why)
        return found

    async def keep(self) -> None:
        """Hands in what the command has written; what cannot be kept is made again by the next run."""
        if not (self._key and self.did_well):
            return
        try:
            await self.handed_in(self._key)
            self.reuse.used(self._key)
        except (OSError, Untold) as error:
            why = str(error) if isinstance(error, Untold) else os.strerror(error.errno or 0)
            console.say(f"medweave: what {self.job_name} has written is not kept for reuse: {why}")

    @abstractmethod
    async def parts(self, asked: Asked) -> tuple[dict[str, str], bytes]:
        """What the work is made of, as `key.parts_of` has it, and the secret of its digests.

        Raises:
            OSError, Untold: something of it cannot be told.
        """

    @abstractmethod
    async def given(self, key: str) -> str:
        """Puts what was kept into the job's output folder: the run that has done it; empty for none.

        Raises:
            Untold: it was kept, and is not there any more.
        """

    @abstractmethod
    async def handed_in(self, key: str) -> None:
        """Keeps what lies in the job's output folder.

        Raises:
            OSError, Untold: it cannot be kept.
        """

    @abstractmethod
    async def report_folder(self) -> Path | None:
        """A folder of this machine with the reports of the outputs that were given."""


def begin(work: Work | None) -> contextvars.Token[Work | None]:
    """Says to the connector, in the same task or one that it starts, which job's command it will run."""
    return _work.set(work)


def end(token: contextvars.Token[Work | None]) -> None:
    """Takes that back."""
    _work.reset(token)


def current_work() -> Work | None:
    """The job whose command is to be run; None where nothing is reused."""
    return _work.get()


def forget_all(runs: Path) -> bool:
    """Remove the cache of a folder of runs; False where there is none."""
    there = (runs / FOLDER).is_dir()
    shutil.rmtree(runs / FOLDER, ignore_errors=True)
    return there
