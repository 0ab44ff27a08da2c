"""Reuse in one run: each job of this machine asks for its outputs before its command starts, and hands them in when it did well.

No streamflow in here.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medweave_connectors.record import console
from medweave_connectors.record.run import RunRecord
from medweave_connectors.reuse.content import tree
from medweave_connectors.reuse.key import SHOWN_CHARACTERS, described, key_of, parts_of
from medweave_connectors.reuse.shelf import Record, Shelf
from medweave_connectors.reuse.software import processor, software_of

FOLDER = ".kept"  # in the folder of runs
SWITCH = "MEDWEAVE_REUSE"  # 0: nothing is reused, and nothing kept
NOT_ALLOWED = "its tool says WorkReuse: {enableReuse: false}"
UNREADABLE = "something that it reads, or that it has written, cannot be told by content: a pipe, a socket, a link that leads out"

_work: contextvars.ContextVar[Work | None] = contextvars.ContextVar("medweave_work", default=None)


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
        run.when_ended = self._settle

    def used(self, key: str) -> None:
        """Something was kept, or taken, in this run."""
        self._used.add(key)

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
            self.shelf.make_room()
        return self._secret


class Work:
    """One job's command that may have been done before.

    Args:
        inputs: values of its inputs, files and folders with their paths on the job's machine.
        outputs: the job's output folder.
        allowed: whether its tool lets its work be reused.
    """

    def __init__(self, reuse: Reuse, job_name: str, inputs: Mapping[str, Any], outputs: Path, *, allowed: bool) -> None:
        self._reuse, self._job_name, self._inputs, self._outputs = reuse, job_name, inputs, outputs
        self._allowed = allowed
        self._key, self._staged = "", frozenset[str]()
        self.did_well = False  # its command was run, and ended with a code of success

    async def take(
        self, words: Sequence[str], *, environment: Mapping[str, str], streams: Sequence[str | None], search: str
    ) -> str:
        """The run that has done it, whose outputs now lie where the command would have written them; empty for none.

        Args:
            words: of the command, as a shell is given them.
            environment: what the tool sets.
            streams: files of stdin, stdout and stderr.
            search: folders of programs, as PATH has them.
        """
        self._key, self.did_well = "", False
        if not self._allowed:
            self._reuse.run.job_looked_up(self._job_name, why=NOT_ALLOWED)
            return ""
        try:
            parts, staged, key, record = await asyncio.to_thread(self._look, words, environment, streams, search)
        except OSError:
            self._reuse.run.job_looked_up(self._job_name, why=UNREADABLE)
            return ""
        self._key, self._staged = key, staged
        shown = {name: digest[:SHOWN_CHARACTERS] for name, digest in parts.items()}
        found = record.run_id if record is not None else ""
        if found:
            self._reuse.used(key)
        self._reuse.run.job_looked_up(self._job_name, parts=shown, reused_from=found)
        return found

    async def keep(self) -> None:
        """Hands in what the command has written; what cannot be kept is made again by the next run."""
        if not (self._key and self.did_well):
            return
        try:
            run_id = self._reuse.run.run_id
            await asyncio.to_thread(
                self._reuse.shelf.keep, self._key, self._outputs, staged=self._staged, run_id=run_id
            )
            self._reuse.used(self._key)
        except OSError as error:
            console.say(
                f"medweave: what {self._job_name} has written is not kept for reuse: {os.strerror(error.errno or 0)}"
            )

    def _look(
        self, words: Sequence[str], environment: Mapping[str, str], streams: Sequence[str | None], search: str
    ) -> tuple[dict[str, str], frozenset[str], str, Record | None]:
        contents = self._reuse.shelf.contents
        secret = self._reuse.secret()
        staged = {
            inside: "/" if is_folder else contents.digest(path)
            for inside, path, is_folder in (tree(os.fspath(self._outputs)) if self._outputs.is_dir() else ())
        }
        parts = parts_of(
            words=words,
            environment=environment,
            streams=streams,
            inputs={name: described(value, contents.digest) for name, value in self._inputs.items()},
            staged=staged,
            software=software_of(words, search),
            processor=processor(),
            run_id=self._reuse.run.run_id,
            secret=secret,
        )
        key = key_of(parts, secret)
        return parts, frozenset(staged), key, self._reuse.shelf.take(key, self._outputs)


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
    """Removes all that the runs of a folder keep for reuse; False where there was nothing."""
    there = (runs / FOLDER).is_dir()
    shutil.rmtree(runs / FOLDER, ignore_errors=True)
    return there
