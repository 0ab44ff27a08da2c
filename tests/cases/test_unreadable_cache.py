"""A cache whose database cannot be read, or is locked, loses no entry."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from medweave_connectors.cache import database
from medweave_connectors.cache.store import DATABASE_FILE, LocalStore

KEY, OTHER = 64 * "a", 64 * "b"
DAY_S = 86_400


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Create a cache with one entry, written two days ago."""
    root, outputs = tmp_path / ".kept", tmp_path / "outputs"
    cache = LocalStore(root, limit_gib=50, keep_days=14)
    cache.secret()
    outputs.mkdir()
    (outputs / "model.bin").write_bytes(b"weeks of training")
    assert cache.save(KEY, outputs, staged={}, run_id="r1")
    assert cache.database._table is not None
    cache.database._table.close()  # as at the end of a driver: the database is one file again
    aged(root / KEY)
    return root


def aged(folder: Path) -> Path:
    two_days = time.time() - 2 * DAY_S
    os.utime(folder, (two_days, two_days))
    return folder


@contextmanager
def unreadable(root: Path, why: str) -> Iterator[None]:
    """Make the database unreadable for some lines."""
    file, aside = root / DATABASE_FILE, root / "aside"
    if why in ("locked for writing", "locked"):
        other = sqlite3.connect(file, isolation_level=None)
        if why == "locked":  # as by a program that keeps the file for itself
            other.execute("PRAGMA locking_mode=EXCLUSIVE")
            other.execute("PRAGMA journal_mode=DELETE")
        other.execute("BEGIN IMMEDIATE")
        other.execute("DELETE FROM files")
        yield
        other.execute("ROLLBACK")
        other.close()
        return
    file.rename(aside)
    if why == "folder":
        file.mkdir()
    elif why == "damaged":
        file.write_bytes(b"no database" * 1000)
    yield
    file.rmdir() if file.is_dir() else file.unlink()
    aside.rename(file)


@pytest.mark.case("memo-fallback", expected="nothing is removed, and a message says so")
@pytest.mark.parametrize("why", ["locked", "locked for writing", "folder", "damaged"])
def test_an_unreadable_database_removes_nothing(
    root: Path, why: str, seen: Callable[[object], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LOCK_S", 0.1)
    entry = root / KEY / "model.bin"
    with unreadable(root, why):
        cache = LocalStore(root, limit_gib=50, keep_days=14)
        cache.secret()
        reason = cache.evict()
        LocalStore(root, limit_gib=0, keep_days=-1).evict()  # each entry is too old, and too large
    seen(f"{'stays' if entry.exists() else 'deleted'}; {reason}")
    assert entry.exists()
    assert bool(reason) is (why != "locked for writing"), "reading works while another driver writes"
    (root.parent / "into").mkdir()
    taken = LocalStore(root, limit_gib=50, keep_days=14).restore(KEY, root.parent / "into")
    assert (taken is not None) or why == "damaged", "the entry serves again, where its record is not lost"


def test_an_entry_is_not_written_without_its_record(root: Path, tmp_path: Path) -> None:
    with unreadable(root, "folder"):
        assert not LocalStore(root, limit_gib=50, keep_days=14).save(
            OTHER, tmp_path / "outputs", staged={}, run_id="r2"
        )
    assert not (root / OTHER).exists()


def test_entries_of_a_damaged_database_stay_with_the_new_one_too(root: Path) -> None:
    (root / DATABASE_FILE).write_bytes(b"no database")
    remnant = root / "new-0123456789abcdef"
    remnant.mkdir()
    aged(remnant)
    for _ in range(2):
        reason = LocalStore(root, limit_gib=50, keep_days=14).evict()
        assert reason == "memo.sqlite.damaged was damaged; entries without a record stay"
    assert (root / KEY / "model.bin").exists()
    assert not remnant.exists(), "a part that was never complete is a remnant"


def test_only_entries_and_parts_of_them_are_remnants(root: Path) -> None:
    mine, lost = root / "my folder", root / OTHER
    for folder in (mine, lost):
        folder.mkdir()
        aged(folder)
    assert LocalStore(root, limit_gib=50, keep_days=14).evict() == ""
    assert mine.exists()
    assert not lost.exists()
