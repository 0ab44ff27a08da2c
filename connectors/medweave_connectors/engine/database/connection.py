"""StreamFlow's connection to its database, one file per run, whose rows are in the file before the event loop waits again."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Generator, Iterable
from importlib.resources import files
from types import TracebackType
from typing import Any

from streamflow.persistence.sqlite import IN_MEMORY_SQLITE_CONNECTION, SqliteConnection

from medweave_connectors.jobs.job_errors import storage_error
from medweave_connectors.runlog.run import RunRecord
from medweave_core.errors import StorageError

FILE = "engine.db"
MMAP_BYTES = 256 * 2**20
LOCKED_S = 20
_PRAGMAS = ("journal_mode = WAL", "synchronous = NORMAL", "temp_store = MEMORY", f"mmap_size = {MMAP_BYTES}")


class Statement:
    """A statement that was executed, as the engine uses one: awaited or entered, and then read."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor

    def __await__(self) -> Generator[Any, Any, Statement]:
        return self
        yield  # what makes this a generator; there is nothing to wait for

    async def __aenter__(self) -> Statement:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        self._cursor.close()

    @property
    def lastrowid(self) -> int | None:
        """Return the key of the row that was inserted."""
        return self._cursor.lastrowid

    async def fetchone(self) -> Any:
        """Return the next row, or None."""
        return self._cursor.fetchone()

    async def fetchall(self) -> list[Any]:
        """Return all remaining rows."""
        return self._cursor.fetchall()


class CommittingConnection(SqliteConnection):
    """Opens `work/engine.db` of a running run, and commits the rows of each iteration of the event loop at its end.

    StreamFlow's connection commits once, at the end of the run: a killed driver leaves no row, no other process sees a row before,
    and the file is locked for a second run. It also passes each statement to another thread and back, which takes longer than
    the statement: a fifth of a step's overhead. A statement of StreamFlow writes one row; here it is executed in this thread.
    A commit takes longer, so all statements of one iteration of the event loop share a commit.
    """

    def __init__(self, run: RunRecord) -> None:
        super().__init__(IN_MEMORY_SQLITE_CONNECTION, MMAP_BYTES, LOCKED_S, init_db=True)
        self._run = run
        self._database: sqlite3.Connection | None = None
        self._not_committed: sqlite3.Error | None = None

    async def __aenter__(self) -> CommittingConnection:
        """Open the database at the first use. StreamFlow also lists and validates: without a run nothing is written."""
        if self._database is None:
            try:
                self._database = self._opened()
            except (OSError, sqlite3.Error) as error:
                self._end_run_if_full(error)
                raise
        return self

    def _opened(self) -> sqlite3.Connection:
        if self._run.running:
            path = self._run.work / FILE
            os.close(
                os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
            )  # it has command lines and paths: readable by its owner only
            self.connection = str(path)
        database = sqlite3.connect(self.connection, timeout=LOCKED_S, isolation_level=None)
        database.row_factory = sqlite3.Row
        for pragma in _PRAGMAS:
            database.execute(f"PRAGMA {pragma}")
        database.executescript(files("streamflow.persistence").joinpath("schemas", "sqlite.sql").read_text("utf-8"))
        database.execute("PRAGMA foreign_keys = ON")
        return database

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        """Do nothing: the connection stays open."""

    def execute(self, statement: str, parameters: Any = ()) -> Statement:
        """Execute a statement; its commit follows.

        Raises:
            sqlite3.Error: of this statement, or of the commit before.
        """
        database = self._in_turn()
        try:
            return Statement(database.execute(statement, parameters))
        except sqlite3.Error as error:
            self._end_run_if_full(error)
            raise

    def executemany(self, statement: str, parameters: Iterable[Any]) -> Statement:
        """Execute a statement for several rows, for all of them or none; their commit follows.

        Raises:
            sqlite3.Error: of this statement, or of the commit before.
        """
        database = self._in_turn()
        database.execute("SAVEPOINT several")
        try:
            return Statement(database.executemany(statement, parameters))
        except sqlite3.Error as error:
            self._end_run_if_full(error)
            if database.in_transaction:  # a full disk may have rolled all of it back
                database.execute("ROLLBACK TO several")
            raise
        finally:
            if database.in_transaction:
                database.execute("RELEASE several")

    def _in_turn(self) -> sqlite3.Connection:
        """Return the database, in the transaction of this turn of the event loop."""
        assert self._database is not None, "the connection is entered first"
        if self._not_committed is not None:
            raise self._not_committed
        if not self._database.in_transaction:
            self._database.execute("BEGIN")
            asyncio.get_running_loop().call_soon(self._commit)
        return self._database

    def _commit(self) -> None:
        if self._database is not None and self._database.in_transaction:
            try:
                self._database.commit()
            except sqlite3.Error as error:  # not awaited: the next statement raises it, or `close`
                self._not_committed = error
                self._end_run_if_full(error)

    def _end_run_if_full(self, error: Exception) -> None:
        """End the run if the disk is the reason: no job is at fault."""
        if storage_error(error) is not None:
            self._run.storage_failed(database_failed(error))

    async def close(self) -> None:
        """Commit the last statements, and close the file.

        Raises:
            sqlite3.Error: a commit failed.
        """
        if self._database is None:
            return
        self._commit()
        self._database.close()
        self._database = None
        if self._not_committed is not None:
            raise self._not_committed


def database_failed(error: Exception) -> StorageError:
    """Return the error of a database that could not be written."""
    return StorageError(
        "the engine's database of the run could not be written on the driver's machine.",
        seen=str(error),
        expected="space, and the right to write, in the folder of runs",
        do="free space on the disk that holds the folder of runs, and run again: finished steps are cache hits",
    )
