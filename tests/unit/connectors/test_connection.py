"""The engine's database: when rows are in the file, and what a failed statement or commit leaves."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from medweave_connectors.engine.database.connection import FILE, CommittingConnection
from medweave_connectors.runlog.run import RunRecord

INSERT = "INSERT INTO workflow(name) VALUES(?)"


@pytest.fixture
def record(tmp_path: Path) -> Iterator[RunRecord]:
    run = RunRecord(tmp_path / "runs", "lung")
    run.begin()
    yield run
    run.finish()


def names(run: RunRecord) -> list[str]:
    """What another process sees."""
    with sqlite3.connect(run.work / FILE) as other:
        return [row[0] for row in other.execute("SELECT name FROM workflow ORDER BY id")]


def test_rows_are_in_the_file_when_the_event_loop_waits_again(record: RunRecord) -> None:
    async def write() -> None:
        async with CommittingConnection(record) as database:
            for name in ("a", "b"):
                async with database.execute(INSERT, (name,)):
                    pass
            assert names(record) == [], "both are committed together"
            await asyncio.sleep(0)
            assert names(record) == ["a", "b"]
            database.execute(INSERT, ("c",))
            await database.close()
            assert names(record) == ["a", "b", "c"]

    asyncio.run(write())


def test_several_rows_are_written_together_or_not_at_all(record: RunRecord) -> None:
    async def write() -> None:
        async with CommittingConnection(record) as database:
            database.execute(INSERT, ("before",))
            with pytest.raises(sqlite3.IntegrityError):
                database.executemany("INSERT INTO workflow(id, name) VALUES(?, ?)", [(7, "one"), (7, "two")])
            await database.close()

    asyncio.run(write())
    assert names(record) == ["before"]


def test_a_failed_commit_is_raised_by_the_next_statement(record: RunRecord) -> None:
    async def write() -> None:
        async with CommittingConnection(record) as database:
            database.execute("PRAGMA defer_foreign_keys = ON")
            database.execute("INSERT INTO step(name, workflow) VALUES('lost', 99)")
            await asyncio.sleep(0)
            with pytest.raises(sqlite3.IntegrityError):
                database.execute(INSERT, ("a",))
            with pytest.raises(sqlite3.IntegrityError):
                await database.close()

    asyncio.run(write())
    assert names(record) == []
