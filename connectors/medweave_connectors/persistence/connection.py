"""StreamFlow's connection to its database, one file per run, whose rows are on the disk as soon as they are written."""

from __future__ import annotations

import os
from types import TracebackType

import aiosqlite  # comes with StreamFlow
from streamflow.persistence.sqlite import IN_MEMORY_SQLITE_CONNECTION, SqliteConnection

from medweave_connectors.record.run import RunRecord

FILE = "engine.db"
MMAP_BYTES = 256 * 2**20
LOCKED_S = 20


class CommittingConnection(SqliteConnection):  # type: ignore[misc]
    """Opens `work/engine.db` of the run, where one goes on, and commits after each use.

    The stock connection commits once, at the end of the run: a killed driver leaves no row, no other process sees one
    meanwhile, and a second run on the file finds it locked.
    """

    def __init__(self, run: RunRecord) -> None:
        super().__init__(IN_MEMORY_SQLITE_CONNECTION, MMAP_BYTES, LOCKED_S, init_db=True)
        self._run = run

    async def __aenter__(self) -> aiosqlite.Connection:
        """Opens it at the first use. StreamFlow also lists and validates: without a run nothing is written."""
        if self._connection is None and self._opening is None and self._run.running:
            path = self._run.folder / "work" / FILE
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))  # command lines and paths, for nobody else
            self.connection = str(path)
        connection: aiosqlite.Connection = await super().__aenter__()
        return connection

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        """Commits what was written; each use of the engine is one statement."""
        if self._connection is not None and self._connection.in_transaction:
            await self._connection.commit()
