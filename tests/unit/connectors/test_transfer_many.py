"""Folders of many files: python3 at a site lists and links them with the same results as the shell."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medweave_connectors.transfer.agent import files as agent_files
from medweave_connectors.transfer.agent import program_text
from medweave_connectors.transfer.manifest import digest_database, local_scan, manifest, tree_digest
from medweave_connectors.transfer.store import many_files
from medweave_connectors.transfer.store.blob_store import Store
from medweave_connectors.transfer.store.folder_commands import MARK, STORE, remove_traces
from medweave_core.runlog.run_ownership import RunOwner
from support import store_runs
from support.engine import wait_until
from support.old_python import assert_is_python
from support.transfers import TransferSites, transfer_sites

TOKEN = "0123456789abcdef"
NUM_FILES = 300  # more files than one process reads
NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda name: name not in {".", ".."}
)


def run_shell(words: list[str]) -> str:
    line = " ".join(words)
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False).stdout


def listed(path: Path) -> manifest.Manifest:
    return manifest.parse(run_shell(manifest.command(str(path), many=True)))


def test_the_program_for_sites_is_valid_in_old_python_versions() -> None:
    assert_is_python(program_text.of("files"))
    assert "import medweave" not in program_text.of("files")


# ---- listing


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    files=st.dictionaries(NAMES, st.tuples(st.binary(max_size=20), st.booleans()), min_size=1, max_size=4),
    folders=st.sets(NAMES, max_size=2),
)
def test_python_and_shell_list_the_same_manifest(files: dict[str, tuple[bytes, bool]], folders: set[str]) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_digest, "MANY", 1)
        root = Path(name, "root")
        (root / "sub").mkdir(parents=True)
        for folder in folders - files.keys():
            (root / "sub" / folder).mkdir(0o750)
        for file, (content, executable) in files.items():
            (root / "sub" / file).write_bytes(content)
            (root / "sub" / file).chmod(0o755 if executable else 0o644)
        python_listing = listed(root)
        assert python_listing == manifest.parse(run_shell(manifest.command(str(root))))
        assert tree_digest.parse_digest(run_shell(tree_digest.listing_command(str(root)))) == tree_digest.parse_digest(
            run_shell(tree_digest.command(str(root)))
        )
        note, tree = Path(name, ".medweave-tree"), tree_digest.listing_digest(python_listing)
        assert (tree is not None) == note.exists()
        assert tree is None or hashlib.sha256(note.read_bytes()).hexdigest() == tree


def test_a_failed_process_fails_the_listing() -> None:
    def failing(items: list[bytes]) -> bytes:
        if b"7" in items:
            raise OSError
        return b"".join(items)

    items = [b"%d" % number for number in range(2 * agent_files.FILES_OF_A_PROCESS)]
    with pytest.raises(OSError, match="a worker process failed"):
        agent_files.shared(failing, items)
    result = b"".join(agent_files.shared(b"".join, items[:7] + items[8:]))
    assert sorted(result) == sorted(b"".join(items[:7] + items[8:]))


@pytest.mark.parametrize("script", ["exit 1", "kill -9 $$"])
def test_the_shell_lists_files_if_python3_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_bytes(b"1")
    expected = listed(tmp_path / "data")
    (tmp_path / "python3").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "python3").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert listed(tmp_path / "data") == expected
    answer = run_shell(tree_digest.listing_command(str(tmp_path / "data"))).splitlines()
    assert tree_digest.parse_digest(answer[-1]) == tree_digest.expected_digest(expected)


# ---- the store


def content_of(folder: Path) -> dict[str, bytes]:
    return {
        str(entry.relative_to(folder)): b"" if entry.is_dir() else entry.read_bytes() for entry in folder.rglob("*")
    }


class Runs:
    """Consecutive runs at a site with the same cohort of many files."""

    def __init__(self, at: TransferSites, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.workdir, self._site = at, workdir, store_runs.Runs(at, workdir, monkeypatch)
        self.cohort = at.source / "cohort"
        for number in range(NUM_FILES):
            file = self.cohort / f"case {number % 3}" / f"{number}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"%d" % (number // 2))

    def send(self) -> int:
        """Start a run and copy the cohort. Return the number of files that were sent."""
        self._site.next()
        _, num_files, _ = self._site.send("cohort")
        assert content_of(self.at.target / "cohort") == content_of(self.cohort)
        return num_files

    @property
    def trees(self) -> list[Path]:
        return [file for file in (self.workdir / STORE).glob("*/lists/*/*") if file.is_file()]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(local_scan, "QUIET_S", 0.0)
    with transfer_sites(tmp_path) as at:
        yield Runs(at, tmp_path / "work", monkeypatch)


@pytest.mark.slow
def test_a_stored_tree_is_linked_by_one_program(runs: Runs) -> None:
    assert runs.send() == NUM_FILES
    (tree,) = runs.trees
    assert hashlib.sha256(tree.read_bytes()).hexdigest() == tree.parent.name + tree.name
    runs.at.replace("tar", "exit 2")
    runs.at.replace("sha256sum", "exit 2")
    assert runs.send() == 0
    assert {file.stat().st_mode & 0o222 for file in runs.at.target.rglob("*") if file.is_file()} == {0}


@pytest.mark.slow
def test_files_read_in_an_earlier_run_are_not_read_again(runs: Runs) -> None:
    runs.send()
    before = runs.at.calls["laptop"]
    assert runs.send() == 0
    at_first, later = before, runs.at.calls["laptop"] - before
    assert later < at_first
    changed = runs.cohort / "case 0" / "0"
    now = changed.stat()
    changed.write_bytes(b"x")  # of the same size
    os.utime(changed, ns=(now.st_atime_ns, now.st_mtime_ns))
    assert runs.send() == 1


@pytest.mark.slow
def test_a_wrong_recalled_digest_is_corrected_by_reading(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    # As after a disk error on this machine: files that are missing from the store are read and sent.
    runs.send()
    recall = digest_database.DigestDatabase.recall

    def wrong(
        self: digest_database.DigestDatabase, known_by: manifest.FolderState, seen: manifest.Manifest
    ) -> manifest.Manifest | None:
        recalled = recall(self, known_by, seen)
        assert recalled is not None
        recalled.entries["case 0/0"] = recalled.entries["case 0/0"]._replace(sha256="0" * 64)
        return replace(recalled, tree=None)

    monkeypatch.setattr(digest_database.DigestDatabase, "recall", wrong)
    assert runs.send() == 1


@pytest.mark.slow
@pytest.mark.parametrize("when", [1, 2])
def test_files_are_sent_once_to_a_site_without_python3(runs: Runs, when: int) -> None:
    if when == 1:
        runs.at.replace("python3", "exit 1")
    assert runs.send() == NUM_FILES
    if when == 1:
        (runs.at.programs / "python3").unlink()
    else:
        runs.at.replace("python3", "exit 1")
    assert runs.send() == 0
    assert len(runs.trees) == 1, "stored by the first run with python3"


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["a tree", "no tree", "a file", "no file"])
def test_damaged_files_of_the_store_are_sent_again(runs: Runs, damage: str) -> None:
    runs.send()
    (tree,) = runs.trees
    (blob,) = (runs.workdir / STORE).glob(f"*/??/{hashlib.sha256(b'0').hexdigest()[2 : agent_files.KEY_CHARACTERS]}")
    at = tree if "tree" in damage else blob
    if damage.startswith("no"):
        at.unlink()
    else:
        before = at.stat()
        at.write_bytes(at.read_bytes()[:-1] + b"x")
        os.utime(at, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert runs.send() == (0 if "tree" in damage else 2)  # two files have the same content
    assert runs.send() == 0


@pytest.mark.slow
def test_the_tree_of_a_larger_cohort_is_stored(runs: Runs) -> None:
    runs.send()
    (runs.cohort / "new").write_bytes(b"new")
    assert runs.send() == 1
    assert len(runs.trees) == 2
    runs.at.replace("tar", "exit 2")
    assert runs.send() == 0


@pytest.mark.slow
@pytest.mark.parametrize("change", ["an empty folder", "less than before", "other permissions"])
def test_changed_subfolders_send_no_files(runs: Runs, change: str) -> None:
    empty, case = runs.cohort / "empty", runs.cohort / "case 0"
    if change == "less than before":
        empty.mkdir()
    runs.send()
    if change == "an empty folder":
        empty.mkdir()
    elif change == "less than before":
        empty.rmdir()
    else:
        case.chmod(0o710)
    assert runs.send() == 0
    arrived = runs.at.target / "cohort" / "case 0"
    assert arrived.stat().st_mode & 0o777 == case.stat().st_mode & 0o777


@pytest.mark.slow
def test_cleaning_a_run_removes_its_trees(runs: Runs) -> None:
    runs.send()
    wait_until(lambda: bool(runs.trees))
    owner = RunOwner("run-1", TOKEN)
    (runs.at.target.parent / MARK).write_text(owner.mark)
    subprocess.run(["sh", "-c", remove_traces(str(runs.workdir), owner)], check=True)
    assert [file for file in (runs.workdir / STORE).rglob("*") if file.is_file()] == []


def test_a_folder_that_cannot_be_linked_leaves_no_files(tmp_path: Path) -> None:
    assert not many_files.was_linked(
        run_shell(many_files.link_tree(Store(str(tmp_path), 1), str(tmp_path / "new"), "0" * 64))
    )
    assert not (tmp_path / "new").exists()
