"""What makes two jobs the same work, and what is kept of them: the pure parts, and real files."""

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
from medweave_connectors.cache.database import Memo
from medweave_connectors.cache.key import described, key_of, parts_of
from medweave_connectors.cache.local_software import _program, processor, software_of
from medweave_connectors.cache.store import Shelf

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
    return parts_of(**(facts | changes))


def test_names_of_runs_and_of_the_engines_folders_change_nothing() -> None:
    words = ["train", "--data", f"/work/runs/run-2/work/{B}/data", "--steps", "9"]
    again = parts(words=words, environment={"HOME": f"/w/{B}", "TMPDIR": "/y", "MODE": "fast"}, run_id="run-2")
    assert again == parts()
    assert key_of(again, SECRET) == key_of(parts(), SECRET)


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
def test_each_part_that_changes_is_another_work(change: dict[str, Any], part: str) -> None:
    now, before = parts(**change), parts()
    assert [name for name in now.keys() | before if now.get(name) != before.get(name)] == [part]
    assert key_of(now, SECRET) != key_of(before, SECRET)


def test_a_tools_own_shell_syntax_is_read_through_the_engines_wrapping() -> None:
    def wrapped(folder: str) -> list[str]:
        text = base64.b64encode(f"cat /work/{folder}/a | sort".encode()).decode()
        return ["/bin/sh", "-c", f'"$(echo {text} | base64 -d)"']

    assert parts(words=wrapped(A)) == parts(words=wrapped(B))


def test_nobody_finds_a_value_by_trying_without_the_secret() -> None:
    assert parts()["input steps"] != parts(secret=b"another")["input steps"]


def test_a_file_is_told_by_name_and_content_wherever_it_lies() -> None:
    def value(folder: str) -> dict[str, Any]:
        beside = {"class": "File", "basename": "a.idx", "path": f"/{folder}/a.idx"}
        return {"class": "File", "basename": "a", "path": f"/{folder}/a", "size": 3, "secondaryFiles": [beside]}

    told = described({"images": [value("x")], "threshold": 0.5}, lambda path: f"digest of {Path(path).name}")
    assert told == {
        "images": [["File", "a", "digest of a", [["File", "a.idx", "digest of a.idx", []]]]],
        "threshold": 0.5,
    }
    assert told["images"] == described([value("y")], lambda path: f"digest of {Path(path).name}")


def old(path: Path, text: str) -> Path:
    """A file that was not touched just now."""
    path.write_text(text)
    os.utime(path, ns=(0, 0))
    return path


def test_a_folder_is_told_by_what_lies_in_it(tmp_path: Path) -> None:
    contents, folder = Contents(Memo(tmp_path / "memo")), tmp_path / "a"
    (folder / "sub").mkdir(parents=True)
    file = old(folder / "sub" / "x", "one")
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
    file, contents = old(tmp_path / "x", "one"), Contents(Memo(tmp_path / "memo"))
    first = contents.digest(file)
    monkeypatch.setattr(content.hashlib, "file_digest", None)
    assert Contents(Memo(tmp_path / "memo")).digest(file) == first


def test_a_file_that_has_just_changed_is_read_again(tmp_path: Path) -> None:
    file, contents = tmp_path / "x", Contents(Memo(tmp_path / "memo"))
    file.write_text("one")
    first = contents.digest(file)
    said = file.stat()
    file.write_text("two")
    os.utime(file, ns=(said.st_atime_ns, said.st_mtime_ns))
    assert contents.digest(file) != first


@pytest.mark.parametrize("broken", ["text", "folder"])
def test_a_memo_that_cannot_be_used_costs_time_only(tmp_path: Path, broken: str) -> None:
    memo = tmp_path / "memo"
    memo.mkdir() if broken == "folder" else memo.write_text("no database")
    assert Contents(Memo(memo)).digest(old(tmp_path / "x", "one")) == Contents(Memo(tmp_path / "good")).digest(
        tmp_path / "x"
    )


def shelf(tmp_path: Path, **limits: float) -> Shelf:
    found = Shelf(tmp_path / "kept", **({"limit_gib": 1, "keep_days": 14} | limits))
    found.secret()
    return found


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


def test_what_is_kept_comes_back_as_it_was(tmp_path: Path) -> None:
    kept, made = shelf(tmp_path), outputs(tmp_path)
    assert kept.keep(KEY, made, staged={"config.json": sha256_of("staged")}, run_id="run-1")
    into = tmp_path / "into"
    into.mkdir()
    record = kept.take(KEY, into)
    assert record is not None
    assert record.run_id == "run-1"
    assert (into / "sub" / "x").samefile(made / "sub" / "x")
    assert (into / "sub" / "x").stat().st_mode & 0o777 == 0o755
    assert (into / "latest").readlink() == Path("sub/x")
    assert not (into / "config.json").exists()
    assert kept.take("cd" + KEY[2:], into) is None


@pytest.mark.parametrize("change", ["written to", "removed", "another kind", "more in a folder"])
def test_a_command_that_changes_what_was_staged_is_run_each_time(tmp_path: Path, change: str) -> None:
    kept, made = shelf(tmp_path), outputs(tmp_path)
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
    assert not kept.keep(KEY, made, staged=staged, run_id="run-1")


def test_links_that_lead_in_circles_are_not_followed_to_see_what_was_staged(tmp_path: Path) -> None:
    kept, made = shelf(tmp_path), outputs(tmp_path)
    for number in range(30):  # each of them once more in each of them
        (made / f"{number}").symlink_to(".")
    assert not kept.keep(KEY, made, staged={"config.json": sha256_of("staged")}, run_id="run-1")


def test_what_was_staged_and_left_alone_is_no_part_of_what_is_kept(tmp_path: Path) -> None:
    kept, made, into = shelf(tmp_path), outputs(tmp_path), tmp_path / "into"
    (made / "new").write_text("new")
    staged = {"config.json": sha256_of("staged"), "sub": FOLDER_SIGN, "sub/x": sha256_of("one")}
    assert kept.keep(KEY, made, staged=staged, run_id="run-1")
    into.mkdir()
    assert kept.take(KEY, into) is not None
    assert sorted(each.name for each in into.iterdir()) == ["latest", "new"]


def test_what_was_changed_is_given_to_nobody(tmp_path: Path) -> None:
    kept, made, into = shelf(tmp_path), outputs(tmp_path), tmp_path / "into"
    kept.keep(KEY, made, staged={}, run_id="run-1")
    into.mkdir()
    said = (made / "sub" / "x").stat()
    (made / "sub" / "x").write_text("two")
    os.utime(made / "sub" / "x", ns=(said.st_atime_ns, said.st_mtime_ns))
    assert kept.take(KEY, into) is None
    assert not list(into.iterdir())
    assert kept.keep(KEY, made, staged={}, run_id="run-2"), "the place is free for what is made anew"
    assert kept.take(KEY, into) is not None


@pytest.mark.parametrize("odd", ["link out", "socket"])
def test_what_cannot_be_kept_leaves_nothing(tmp_path: Path, odd: str) -> None:
    kept, made = shelf(tmp_path), outputs(tmp_path)
    if odd == "socket":
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(os.path.relpath(made / "socket"))
    else:
        (made / "link").symlink_to(tmp_path)
    assert not kept.keep(KEY, made, staged={}, run_id="run-1")
    assert [path.name for path in (tmp_path / "kept").iterdir() if not path.name.startswith("memo")] == ["secret"]


def test_a_record_of_another_version_is_none(tmp_path: Path) -> None:
    kept, made = shelf(tmp_path), outputs(tmp_path)
    for text in ("", "[]", '{"version": 2}', '{"version": 1}'):
        kept.keep(KEY, made, staged={}, run_id="run-1")
        with sqlite3.connect(tmp_path / "kept" / "memo.sqlite") as table:
            table.execute("UPDATE works SET record=?", (text,))
        assert kept.take(KEY, tmp_path) is None
    kept.keep(KEY, made, staged={}, run_id="run-2")
    (tmp_path / "into").mkdir()
    assert kept.take(KEY, tmp_path / "into") is not None, "the place of what nobody can read is free"


def test_a_memo_that_a_power_cut_has_broken_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "memo.sqlite").write_text("no database")
    kept, made = shelf(tmp_path), outputs(tmp_path)
    kept.keep(KEY, made, staged={}, run_id="run-1")
    (tmp_path / "into").mkdir()
    assert Shelf(tmp_path / "kept", limit_gib=1, keep_days=1).take(KEY, tmp_path / "into") is not None


def test_work_without_files_is_kept_as_well(tmp_path: Path) -> None:
    (tmp_path / "outputs").mkdir()
    kept = shelf(tmp_path)
    kept.keep(KEY, tmp_path / "outputs", staged={}, run_id="run-1")
    assert kept.take(KEY, tmp_path / "outputs") is not None
    assert not (tmp_path / "kept" / KEY).exists()


def test_room_is_made_by_last_use(tmp_path: Path) -> None:
    kept = shelf(tmp_path, limit_gib=2.5 * 2**-20)  # 2.5 KiB
    keys = [f"{number}{KEY[1:]}" for number in range(4)]
    for number, key in enumerate(keys):
        made = tmp_path / f"made-{number}"
        made.mkdir()
        (made / "x").write_text(1024 * "x")
        kept.keep(key, made, staged={}, run_id="run-1")
    left = tmp_path / "kept" / "new-0123"
    left.mkdir()
    os.utime(left, (0, 0))
    (tmp_path / "into").mkdir()
    assert kept.take(keys[0], tmp_path / "into"), "which makes it the last one used"
    kept.make_room()
    assert {path.name for path in (tmp_path / "kept").iterdir() if path.is_dir()} == {keys[0], keys[3]}
    Shelf(tmp_path / "kept", limit_gib=1, keep_days=-1).make_room()
    assert not [path for path in (tmp_path / "kept").iterdir() if path.is_dir()]


def test_programs_are_told_apart(tmp_path: Path) -> None:
    program = tmp_path / "tool"
    program.write_text("#!/bin/sh\necho 1\n")
    program.chmod(0o755)
    search = f"{tmp_path}:/usr/bin:/bin"
    first = software_of(["tool", "--x"], search)
    assert software_of(["tool"], search) == first
    program.write_text("#!/bin/sh\necho 2\n")
    _program.cache_clear()  # as another run would
    assert software_of(["tool"], search) != first
    assert len({software_of([word], search) for word in ("nobodys", "sh", "medweave-step", "'unbalanced")}) == 4


def test_another_processor_is_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    told = set()
    for flags in ("avx2", "avx2 amx_int8"):
        file.write_text(f"processor : 0\nmodel name : X\ncpu MHz : {len(flags)}00\nflags : {flags}\n")
        processor.cache_clear()
        told.add(processor(file))
        file.write_text(f"processor : 0\nmodel name : X\ncpu MHz : 1234\nflags : {flags}\n")
        processor.cache_clear()
        assert processor(file) in told, "its clock is another one each time"
    assert len(told) == 2
    assert processor(tmp_path / "none")
    card = tmp_path / "gpus" / "0000:01:00.0" / "information"
    card.parent.mkdir(parents=True)
    card.write_text("Model: \t\t NVIDIA H100\nIRQ: 17\n")
    assert processor(file, tmp_path / "gpus") == f"{processor(file)}\nModel: \t\t NVIDIA H100"
