"""Cache keys and the local store: pure parts, and real files."""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from medweave_connectors.cache import content
from medweave_connectors.cache.content import FOLDER_SIGN, Contents
from medweave_connectors.cache.database import CacheDatabase
from medweave_connectors.cache.key import compute_key, describe_value, key_parts
from medweave_connectors.cache.local_software import _program, processor, software_of
from medweave_connectors.cache.store import LocalStore

SECRET = b"secret"
KEY = "ab" + 62 * "0"
A, B = "0f8fad5b-d9cb-469f-a165-70867728950e", "7c9e6679-7425-40de-944b-e07fc1f90ae7"


def parts(**changes: Any) -> dict[str, str]:
    facts: dict[str, Any] = {
        "words": ["train", "--data", f"/work/runs/run-1/work/{A}/data", "--steps", "9"],
        "environment": {"HOME": f"/work/{A}", "TMPDIR": "/tmp/x", "MODE": "fast"},
        "streams": [None, "log.txt", None],
        "inputs": {"steps": 9, "data": ["Directory", "data", "ab", []]},
        "staged": {"config.json": "cd"},
        "software": "ef",
        "processor": "x86",
        "run_id": "run-1",
        "secret": SECRET,
    }
    return key_parts(**(facts | changes))


def test_the_cache_key_ignores_run_ids_and_engine_folders() -> None:
    words = ["train", "--data", f"/work/runs/run-2/work/{B}/data", "--steps", "9"]
    again = parts(words=words, environment={"HOME": f"/w/{B}", "TMPDIR": "/y", "MODE": "fast"}, run_id="run-2")
    assert again == parts()
    assert compute_key(again, SECRET) == compute_key(parts(), SECRET)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"words": ["train", "--steps", "10"]}, "command"),
        ({"environment": {"MODE": "slow"}}, "environment"),
        ({"streams": [None, "other.txt", None]}, "streams"),
        ({"inputs": {"steps": 9, "data": ["Directory", "data", "ac", []]}}, "input data"),
        ({"inputs": {"steps": "9", "data": ["Directory", "data", "ab", []]}}, "input steps"),
        ({"staged": {}}, "files beside the command"),
        ({"software": "ee"}, "programs"),
        ({"processor": "arm"}, "processor"),
    ],
)
def test_a_changed_part_changes_the_cache_key(change: dict[str, Any], part: str) -> None:
    now, before = parts(**change), parts()
    assert [name for name in now.keys() | before if now.get(name) != before.get(name)] == [part]
    assert compute_key(now, SECRET) != compute_key(before, SECRET)


def test_shell_syntax_of_a_tool_is_decoded_from_the_engine_wrapping() -> None:
    def wrapped(folder: str) -> list[str]:
        text = base64.b64encode(f"cat /work/{folder}/a | sort".encode()).decode()
        return ["/bin/sh", "-c", f'"$(echo {text} | base64 -d)"']

    assert parts(words=wrapped(A)) == parts(words=wrapped(B))


def test_digests_depend_on_the_secret() -> None:
    assert parts()["input steps"] != parts(secret=b"another")["input steps"]


def test_a_file_is_described_by_name_and_content_not_by_path() -> None:
    def value(folder: str) -> dict[str, Any]:
        index = {"class": "File", "basename": "a.idx", "path": f"/{folder}/a.idx"}
        return {"class": "File", "basename": "a", "path": f"/{folder}/a", "size": 3, "secondaryFiles": [index]}

    result = describe_value({"images": [value("x")], "threshold": 0.5}, lambda path: f"digest of {Path(path).name}")
    assert result == {
        "images": [["File", "a", "digest of a", [["File", "a.idx", "digest of a.idx", []]]]],
        "threshold": 0.5,
    }
    assert result["images"] == describe_value([value("y")], lambda path: f"digest of {Path(path).name}")


def write_old(path: Path, text: str) -> Path:
    """Write a file with an old modification time."""
    path.write_text(text)
    os.utime(path, ns=(0, 0))
    return path


def test_the_digest_of_a_folder_covers_its_contents(tmp_path: Path) -> None:
    contents, folder = Contents(CacheDatabase(tmp_path / "memo")), tmp_path / "a"
    (folder / "sub").mkdir(parents=True)
    file = write_old(folder / "sub" / "x", "one")
    first = contents.digest(folder)
    assert contents.digest(folder) == first
    file.chmod(0o755)
    executable = contents.digest(folder)
    file.write_text("two")
    changed = contents.digest(folder)
    (folder / "empty").mkdir()
    assert len({first, executable, changed, contents.digest(folder)}) == 4


def test_a_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "QUIET_NS", -1)
    file, contents = write_old(tmp_path / "x", "one"), Contents(CacheDatabase(tmp_path / "memo"))
    first = contents.digest(file)
    monkeypatch.setattr(content.hashlib, "file_digest", None)
    assert Contents(CacheDatabase(tmp_path / "memo")).digest(file) == first


def test_a_file_that_has_just_changed_is_read_again(tmp_path: Path) -> None:
    file, contents = tmp_path / "x", Contents(CacheDatabase(tmp_path / "memo"))
    file.write_text("one")
    first = contents.digest(file)
    status = file.stat()
    file.write_text("two")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert contents.digest(file) != first


@pytest.mark.parametrize("broken", ["text", "folder"])
def test_a_database_that_cannot_be_used_costs_time_only(tmp_path: Path, broken: str) -> None:
    file = tmp_path / "memo"
    file.mkdir() if broken == "folder" else file.write_text("no database")
    assert Contents(CacheDatabase(file)).digest(write_old(tmp_path / "x", "one")) == Contents(
        CacheDatabase(tmp_path / "good")
    ).digest(tmp_path / "x")


def make_store(tmp_path: Path, **limits: float) -> LocalStore:
    store = LocalStore(tmp_path / "cache", **({"limit_gib": 1, "keep_days": 14} | limits))
    store.secret()
    return store


def sha256_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def outputs(tmp_path: Path) -> Path:
    folder = tmp_path / "outputs"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "x").write_text("one")
    (folder / "sub" / "x").chmod(0o755)
    (folder / "latest").symlink_to("sub/x")
    (folder / "config.json").write_text("staged")
    return folder


def test_stored_outputs_are_restored_unchanged(tmp_path: Path) -> None:
    store, made = make_store(tmp_path), outputs(tmp_path)
    assert store.save(KEY, made, staged={"config.json": sha256_of("staged")}, run_id="run-1")
    into = tmp_path / "into"
    into.mkdir()
    record = store.restore(KEY, into)
    assert record is not None
    assert record.run_id == "run-1"
    assert (into / "sub" / "x").samefile(made / "sub" / "x")
    assert (into / "sub" / "x").stat().st_mode & 0o777 == 0o755
    assert (into / "latest").readlink() == Path("sub/x")
    assert not (into / "config.json").exists()
    assert store.restore("cd" + KEY[2:], into) is None


@pytest.mark.parametrize("change", ["written to", "removed", "another kind", "more in a folder"])
def test_a_command_that_changes_staged_files_is_not_cached(tmp_path: Path, change: str) -> None:
    store, made = make_store(tmp_path), outputs(tmp_path)
    staged = {"config.json": sha256_of("staged"), "sub": FOLDER_SIGN, "sub/x": sha256_of("one")}
    config = made / "config.json"
    if change == "written to":
        config.write_text("STAGED")
    elif change == "more in a folder":
        (made / "sub" / "y").touch()
    else:
        config.unlink()
        if change == "another kind":
            config.mkdir()
    assert not store.save(KEY, made, staged=staged, run_id="run-1")


def test_circular_links_are_not_followed_when_staged_files_are_checked(tmp_path: Path) -> None:
    store, made = make_store(tmp_path), outputs(tmp_path)
    for number in range(30):  # following them would multiply the entries at each level
        (made / f"{number}").symlink_to(".")
    assert not store.save(KEY, made, staged={"config.json": sha256_of("staged")}, run_id="run-1")


def test_unchanged_staged_files_are_not_stored(tmp_path: Path) -> None:
    store, made, into = make_store(tmp_path), outputs(tmp_path), tmp_path / "into"
    (made / "new").write_text("new")
    staged = {"config.json": sha256_of("staged"), "sub": FOLDER_SIGN, "sub/x": sha256_of("one")}
    assert store.save(KEY, made, staged=staged, run_id="run-1")
    into.mkdir()
    assert store.restore(KEY, into) is not None
    assert sorted(path.name for path in into.iterdir()) == ["latest", "new"]


def test_an_entry_with_a_changed_file_is_not_restored(tmp_path: Path) -> None:
    store, made, into = make_store(tmp_path), outputs(tmp_path), tmp_path / "into"
    store.save(KEY, made, staged={}, run_id="run-1")
    into.mkdir()
    status = (made / "sub" / "x").stat()
    (made / "sub" / "x").write_text("two")
    os.utime(made / "sub" / "x", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert store.restore(KEY, into) is None
    assert not list(into.iterdir())
    assert store.save(KEY, made, staged={}, run_id="run-2"), "the key is free for new outputs"
    assert store.restore(KEY, into) is not None


@pytest.mark.parametrize("odd", ["link out", "socket"])
def test_outputs_that_cannot_be_stored_leave_no_entry(tmp_path: Path, odd: str) -> None:
    store, made = make_store(tmp_path), outputs(tmp_path)
    if odd == "socket":
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(os.path.relpath(made / "socket"))
    else:
        (made / "link").symlink_to(tmp_path)
    assert not store.save(KEY, made, staged={}, run_id="run-1")
    assert [path.name for path in (tmp_path / "cache").iterdir() if not path.name.startswith("memo")] == ["secret"]


def test_a_record_of_another_version_is_ignored(tmp_path: Path) -> None:
    store, made = make_store(tmp_path), outputs(tmp_path)
    for text in ("", "[]", '{"version": 2}', '{"version": 1}'):
        store.save(KEY, made, staged={}, run_id="run-1")
        with sqlite3.connect(tmp_path / "cache" / "memo.sqlite") as table:
            table.execute("UPDATE works SET record=?", (text,))
        assert store.restore(KEY, tmp_path) is None
    store.save(KEY, made, staged={}, run_id="run-2")
    (tmp_path / "into").mkdir()
    assert store.restore(KEY, tmp_path / "into") is not None, "the key of an unreadable record is free"


def test_a_database_damaged_by_a_power_cut_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "memo.sqlite").write_text("no database")
    store, made = make_store(tmp_path), outputs(tmp_path)
    store.save(KEY, made, staged={}, run_id="run-1")
    (tmp_path / "into").mkdir()
    assert LocalStore(tmp_path / "cache", limit_gib=1, keep_days=1).restore(KEY, tmp_path / "into") is not None


def test_outputs_without_files_are_stored_too(tmp_path: Path) -> None:
    (tmp_path / "outputs").mkdir()
    store = make_store(tmp_path)
    store.save(KEY, tmp_path / "outputs", staged={}, run_id="run-1")
    assert store.restore(KEY, tmp_path / "outputs") is not None
    assert not (tmp_path / "cache" / KEY).exists()


def test_least_recently_used_entries_are_evicted(tmp_path: Path) -> None:
    store = make_store(tmp_path, limit_gib=2.5 * 2**-20)  # 2.5 KiB
    keys = [f"{number}{KEY[1:]}" for number in range(4)]
    for number, key in enumerate(keys):
        made = tmp_path / f"made-{number}"
        made.mkdir()
        (made / "x").write_text(1024 * "x")
        store.save(key, made, staged={}, run_id="run-1")
    remnant = tmp_path / "cache" / "new-0123"
    remnant.mkdir()
    os.utime(remnant, (0, 0))
    (tmp_path / "into").mkdir()
    assert store.restore(keys[0], tmp_path / "into"), "which makes it the last one used"
    store.evict()
    assert {path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()} == {keys[0], keys[3]}
    LocalStore(tmp_path / "cache", limit_gib=1, keep_days=-1).evict()
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]


def test_programs_have_different_digests(tmp_path: Path) -> None:
    program = tmp_path / "tool"
    program.write_text("#!/bin/sh\necho 1\n")
    program.chmod(0o755)
    search = f"{tmp_path}:/usr/bin:/bin"
    first = software_of(["tool", "--x"], search)
    assert software_of(["tool"], search) == first
    program.write_text("#!/bin/sh\necho 2\n")
    _program.cache_clear()  # as another run would
    assert software_of(["tool"], search) != first
    assert len({software_of([word], search) for word in ("missing-program", "sh", "medweave-step", "'unbalanced")}) == 4


def test_processors_have_different_descriptions(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    digests = set()
    for flags in ("avx2", "avx2 amx_int8"):
        file.write_text(f"processor : 0\nmodel name : X\ncpu MHz : {len(flags)}00\nflags : {flags}\n")
        processor.cache_clear()
        digests.add(processor(file))
        file.write_text(f"processor : 0\nmodel name : X\ncpu MHz : 1234\nflags : {flags}\n")
        processor.cache_clear()
        assert processor(file) in digests, "the clock frequency is not part of it"
    assert len(digests) == 2
    assert processor(tmp_path / "none")
    card = tmp_path / "gpus" / "0000:01:00.0" / "information"
    card.parent.mkdir(parents=True)
    card.write_text("Model: \t\t NVIDIA H100\nIRQ: 17\n")
    assert processor(file, tmp_path / "gpus") == f"{processor(file)}\nModel: \t\t NVIDIA H100"
