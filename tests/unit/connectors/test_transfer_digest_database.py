"""The digest database of local folders: it has digests only, and none of files that changed since."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medweave_connectors.transfer.manifest import digest_database, local_scan, tree_digest
from medweave_connectors.transfer.manifest.digest_cache import DigestCache
from medweave_connectors.transfer.manifest.digest_database import DigestDatabase, open_digest_database
from medweave_connectors.transfer.manifest.manifest import Kind, Manifest

KEY = ("laptop", "here", "/cohort")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store digests of new files and small folders too."""
    monkeypatch.setattr(local_scan, "QUIET_S", 0.0)
    monkeypatch.setattr(tree_digest, "MANY", 1)


@pytest.fixture
def cohort(tmp_path: Path) -> Path:
    folder = tmp_path / "cohort"
    for name in ("Doe^Jane/1", "Doe^Jane/2", "3"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"scan")
    return folder


def manifest_of(folder: Path, digit: str = "") -> Manifest:
    seen = local_scan.scan(str(folder))
    assert seen is not None
    read = {
        path: entry._replace(sha256=digit * 64 if entry.kind is Kind.FILE else "")
        for path, entry in seen.entries.items()
    }
    return replace(seen, entries=read)


def remembered(at: Path, folder: Path, digit: str = "a") -> DigestDatabase:
    database, seen = DigestDatabase(at), manifest_of(folder)
    assert seen.known_by is not None
    database.note(seen.known_by, seen, manifest_of(folder, digit), digit * 64)
    return database


def recalled(database: DigestDatabase, folder: Path) -> Manifest | None:
    seen = manifest_of(folder)
    assert seen.known_by is not None
    return database.recall(seen.known_by, seen)


def test_digests_of_an_unchanged_folder_are_recalled(tmp_path: Path, cohort: Path) -> None:
    database = remembered(tmp_path / "memo", cohort)
    recalled_manifest = recalled(database, cohort)
    assert recalled_manifest == manifest_of(cohort, "a")
    assert recalled_manifest is not None
    assert tree_digest.listing_digest(recalled_manifest) == "a" * 64


def test_digests_without_a_tree_are_recalled_without_one(tmp_path: Path, cohort: Path) -> None:
    database, seen = DigestDatabase(tmp_path / "memo"), manifest_of(cohort)
    assert seen.known_by is not None
    database.note(seen.known_by, seen, manifest_of(cohort, "a"), None)
    recalled_manifest = recalled(database, cohort)
    assert recalled_manifest is not None
    assert recalled_manifest.tree is None


def rewrite(file: Path) -> None:
    before = file.stat()
    file.write_bytes(b"SCAN")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def swap(file: Path) -> None:
    other = file.parent / "2"
    other.rename(file.parent / "x")
    file.rename(other)
    (file.parent / "x").rename(file)


def follow_another(file: Path) -> None:
    file.unlink()
    file.symlink_to("2")


@pytest.mark.parametrize(
    "change",
    [
        rewrite,
        swap,
        follow_another,
        Path.unlink,
        lambda file: file.chmod(0o755),
        lambda file: (file.parent / "empty").mkdir(),
        lambda file: file.parent.chmod(0o700),
    ],
)
def test_digests_of_a_changed_folder_are_not_recalled(
    tmp_path: Path, cohort: Path, change: Callable[[Path], None]
) -> None:
    database = remembered(tmp_path / "memo", cohort)
    change(cohort / "Doe^Jane" / "1")
    assert recalled(database, cohort) is None


def test_digests_of_recently_changed_files_are_not_stored(
    tmp_path: Path, cohort: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_scan, "QUIET_S", 3600.0)
    assert manifest_of(cohort).known_by is None
    monkeypatch.setattr(local_scan, "QUIET_S", 0.0)
    before = manifest_of(cohort)
    assert before.known_by is not None
    rewrite(cohort / "3")  # during the read
    database = DigestDatabase(tmp_path / "memo")
    database.note(before.known_by, before, manifest_of(cohort, "a"), None)
    assert recalled(database, cohort) is None


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_corrupted_database_file_is_ignored(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("spoiled")
    (folder / "cohort").mkdir()
    (folder / "cohort" / "scan").touch()
    database = remembered(folder / "memo", folder / "cohort")
    (file,) = (folder / "memo").iterdir()
    content = bytearray(file.read_bytes())
    if data.draw(st.booleans()):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    file.write_bytes(content)
    assert recalled(database, folder / "cohort") is None


def test_the_database_contains_no_names_and_is_private(tmp_path: Path, cohort: Path) -> None:
    remembered(tmp_path / "memo", cohort)
    (file,) = (tmp_path / "memo").iterdir()
    assert len(file.read_bytes()) == 32 * (3 + 3) + 8
    assert "Doe" not in file.name
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_the_oldest_folders_are_removed_first(tmp_path: Path, cohort: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest_database, "MAX_FOLDERS", 2)
    for number in range(4):
        shutil.copytree(cohort, tmp_path / f"{number}")
        remembered(tmp_path / "memo", tmp_path / f"{number}")
        for file in (tmp_path / "memo").iterdir():
            os.utime(file, (number, number))
    assert len(list((tmp_path / "memo").iterdir())) == 2
    remembered(tmp_path / "memo", tmp_path / "3")
    assert len(list((tmp_path / "memo").iterdir())) == 2, "one file per folder, however often it changed"


def test_the_database_is_in_the_cache_folder() -> None:
    assert open_digest_database({"XDG_CACHE_HOME": "/c", "HOME": "/h"})._at == Path("/c/medweave/digests")  # type: ignore[union-attr]
    assert open_digest_database({"XDG_CACHE_HOME": "", "HOME": "/h"})._at == Path("/h/.cache/medweave/digests")  # type: ignore[union-attr]
    assert open_digest_database({}) is None


def test_files_are_read_to_be_sent_but_not_to_query_a_store(tmp_path: Path, cohort: Path) -> None:
    seen, reads = manifest_of(cohort), list[str]()

    async def read() -> Manifest:
        reads.append("read")
        return manifest_of(cohort, "a")

    def query(*, to_ask: bool, here: bool = True) -> Manifest:
        return asyncio.run(DigestCache(DigestDatabase(tmp_path / "memo")).of(KEY, seen, read, here=here, to_ask=to_ask))

    assert query(to_ask=True) == manifest_of(cohort, "a")
    assert query(to_ask=True) == replace(seen, entries=manifest_of(cohort, "a").entries)
    assert len(reads) == 1
    query(to_ask=False)
    query(to_ask=True, here=False)
    assert len(reads) == 3


def test_only_files_of_the_database_are_removed(tmp_path: Path, cohort: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest_database, "MAX_FOLDERS", 1)
    at = tmp_path / "memo"
    at.mkdir()
    (at / "notes.txt").write_text("the user's")
    (at / "1a-2b").write_bytes(b"an old folder")
    for name in ("notes.txt", "1a-2b"):
        os.utime(at / name, (0, 0))
    remembered(at, cohort)
    assert (at / "notes.txt").exists()
    assert not (at / "1a-2b").exists()
