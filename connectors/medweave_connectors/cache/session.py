"""The cache in one run: each job is looked up before its command starts, and its outputs are stored after success.

The steps of a lookup are the same everywhere; `local` and `remote` store and restore the outputs. Does not import streamflow.
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

from medweave_connectors.cache.key import SHOWN_CHARACTERS, compute_key
from medweave_connectors.cache.store import LocalStore
from medweave_connectors.runlog import console
from medweave_connectors.runlog.run import RunRecord

FOLDER = ".kept"  # in the folder of runs
KEEP_DAYS = 14  # entries without use for so long are evicted
SWITCH = "MEDWEAVE_REUSE"  # 0: the cache is neither read nor written
NOT_ALLOWED = "its tool sets WorkReuse: {enableReuse: false}"
UNREADABLE = "an input or output has no content digest: a pipe, a socket, a link that leads out of the outputs"

_lookup: contextvars.ContextVar[CacheLookup | None] = contextvars.ContextVar("medweave_work", default=None)


class NotCacheable(Exception):
    """A job cannot be looked up or stored; the message says why, without file names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCommand:
    """The command of a job as the engine passes it to a connector.

    Attributes:
        words: quoted for a shell.
        environment: what the tool sets.
        streams: files of stdin, stdout and stderr.
    """

    words: Sequence[str]
    environment: Mapping[str, str]
    streams: Sequence[str | None]


class CacheSession:
    """The cache as one run uses it.

    Args:
        limit_gib: size limit of the local store, GiB; 0 turns the cache off.
        keep_days: entries without use for so long are evicted.
    """

    def __init__(self, run: RunRecord, *, limit_gib: float, keep_days: float) -> None:
        self.run = run
        self.is_enabled = limit_gib > 0 and os.environ.get(SWITCH, "1") != "0"
        self.store = LocalStore(run.folder.parent / FOLDER, limit_gib=limit_gib, keep_days=keep_days)
        self._secret: bytes | None = None
        self._used: set[str] = set()
        self._once: dict[tuple[str, ...], asyncio.Future[Any]] = {}
        run.on_end(self._settle)

    def note_used(self, key: str) -> None:
        """Remember that this run stored or restored an entry."""
        self._used.add(key)

    async def run_once(self, key: tuple[str, ...], ask: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of `ask`, called once per key in this run; a failed call is repeated."""
        result = self._once.get(key)
        if result is None or (result.done() and (result.cancelled() or result.exception() is not None)):
            result = self._once[key] = asyncio.ensure_future(ask())
        return await asyncio.shield(result)

    def _settle(self) -> None:
        self.store.note_renamed(self._used)

    def secret(self) -> bytes:
        """Return the secret of the digests. The first call creates it and evicts old entries.

        Raises:
            OSError: the store's folder cannot be created.
        """
        if self._secret is None:
            self._secret = self.store.secret()
            if why := self.store.evict():
                console.say(
                    f"medweave: the cache of earlier outputs was not cleaned up.\n  seen:     {why}\n"
                    "  expected: a database that this run can read and write\n"
                    f"  do:       check {FOLDER} in the folder of runs; if you delete it, steps run again and nothing else is lost"
                )
        return self._secret


class CacheLookup(ABC):
    """Lookup of one job in the cache.

    Attributes:
        has_succeeded: its command was run and returned a success code.

    Args:
        inputs: values of its inputs, files and folders with their paths on the job's machine.
        allowed: the tool does not turn WorkReuse off.
    """

    def __init__(self, session: CacheSession, job_name: str, inputs: Mapping[str, Any], *, allowed: bool) -> None:
        self.session, self.job_name, self.inputs = session, job_name, inputs
        self.has_succeeded = False
        self._allowed, self._key = allowed, ""

    async def look_up(self, command: JobCommand) -> str:
        """Restore the outputs of an earlier job into the output folder. Return the run that produced them; empty for a miss."""
        self._key, self.has_succeeded = "", False
        report = self.session.run.job_looked_up
        if not self._allowed:
            report(self.job_name, why=NOT_ALLOWED)
            return ""
        try:
            parts, secret = await self.compute_parts(command)
        except (OSError, NotCacheable) as error:
            report(self.job_name, why=str(error) if isinstance(error, NotCacheable) else UNREADABLE)
            return ""
        self._key = compute_key(parts, secret)
        shown, run_id, why = {name: digest[:SHOWN_CHARACTERS] for name, digest in parts.items()}, "", ""
        try:
            run_id = await self.restore(self._key)
        except NotCacheable as error:
            why = str(error)
        if run_id:
            self.session.note_used(self._key)
        report(self.job_name, work=self._key, parts=shown, reused_from=run_id, why=why)
        return run_id

    async def store_outputs(self) -> None:
        """Store the outputs of a successful command. On failure print why; the next run computes them again."""
        if not (self._key and self.has_succeeded):
            return
        try:
            await self.store_job_outputs(self._key)
            self.session.note_used(self._key)
        except (OSError, NotCacheable) as error:
            why = str(error) if isinstance(error, NotCacheable) else os.strerror(error.errno or 0)
            console.say(f"medweave: the outputs of {self.job_name} were not cached: {why}")

    @abstractmethod
    async def compute_parts(self, command: JobCommand) -> tuple[dict[str, str], bytes]:
        """Return the parts of the cache key, as `key.key_parts` does, and the secret of the digests.

        Raises:
            OSError, NotCacheable: a part cannot be computed.
        """

    @abstractmethod
    async def restore(self, key: str) -> str:
        """Restore cached outputs into the job's output folder. Return the run that produced them; empty for a miss.

        Raises:
            NotCacheable: the entry exists, and its content is gone.
        """

    @abstractmethod
    async def store_job_outputs(self, key: str) -> None:
        """Store the contents of the job's output folder.

        Raises:
            OSError, NotCacheable: they cannot be stored.
        """

    @abstractmethod
    async def report_folder(self) -> Path | None:
        """Return a local folder with the reports among the restored outputs."""


def begin(lookup: CacheLookup | None) -> contextvars.Token[CacheLookup | None]:
    """Set the lookup of the job whose command the connector will run, for this task and tasks that it starts."""
    return _lookup.set(lookup)


def end(token: contextvars.Token[CacheLookup | None]) -> None:
    """Reset the current lookup to its earlier value."""
    _lookup.reset(token)


def current_lookup() -> CacheLookup | None:
    """Return the lookup of the job whose command is to be run; None without a cache."""
    return _lookup.get()


def delete_cache(runs: Path) -> bool:
    """Remove the cache of a folder of runs. Return False if there was no cache."""
    exists = (runs / FOLDER).is_dir()
    shutil.rmtree(runs / FOLDER, ignore_errors=True)
    return exists
