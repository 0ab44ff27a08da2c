"""Copies between two deployments that see the same files: made where they lie, and sent where the two only seem to see the same."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from medweave_connectors.host.errors import NoRoom
from support.direct_ends import PATH, Recorded, recorded
from support.transfers import Places, places, replaced, with_pods

PATIENT = "Mustermann_Erika_1970"
ODD = ("-dash", "a blank", "quo'te\"s", "$HOME `id` \\n", "two\nlines", "ümläut", "x" * 255, "\udcff\udcfe", "tail\n")
SEES = "the two see the same files; "
# Looks at the source, asks what it sees | prepares, copies, compares, renames: no stream is opened, and no program is started.
ASKED = {"other": 3, "site": 4}
STORE_TOOLS = ("cp", "stat", "find", "awk", "id", "head", "rm", "chmod", "mkdir", "tar", "sha256sum", "sort", "base64")


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Places]:
    with places(tmp_path) as made:
        made.server.environment["PATH"] = f"{made.programs}:{PATH}"
        made.settings = {}
        yield made


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return recorded(monkeypatch)


def cohort(at: Places, name: str = "cohort") -> Path:
    """More than a MiB below a folder, with a patient's name and odd ones."""
    folder = at.source / name
    (folder / "empty" / "emptier").mkdir(parents=True)
    (folder / PATIENT).write_bytes(os.urandom(2**20 + 1))
    for each in ODD:
        (folder / each).write_bytes(os.urandom(100))
    (folder / "tool").write_text("#!/bin/sh\n")
    (folder / "tool").chmod(0o4755)
    (folder / "link").symlink_to("empty")
    (folder / "locked").mkdir(mode=0o500)
    return folder


def same(one: Path, other: Path) -> bool:
    return subprocess.run(["diff", "-r", one, other], check=False).returncode == 0


def inodes(folder: Path) -> list[int]:
    return sorted(each.stat().st_ino for each in folder.rglob("*") if each.is_file())


def sent(at: Places, *names: str, writable: bool = False) -> None:
    async def act(each: Places) -> None:
        for name in names:
            await each.send("through-driver", name, writable=writable)

    at.at_work(act)


def told(run: Recorded) -> list[tuple[str, str]]:
    return [(each["route"], each["reason"]) for each in run.transfers]


def in_a_run(at: Places, run: Recorded) -> None:
    """From now on, what is sent lies in the folder of a run, and so does what arrives."""
    for name in ("source", "target"):
        folder = getattr(at, name) / run.run_id / "job"
        folder.mkdir(parents=True)
        setattr(at, name, folder)


# ---- they see the same


@pytest.mark.slow
@pytest.mark.parametrize("tools", ["gnu", "busybox"])
def test_a_copy_is_made_where_the_files_lie(at: Places, run: Recorded, tools: str) -> None:
    if tools == "busybox":
        busybox = shutil.which("busybox")
        if busybox is None:
            pytest.skip("no busybox here (apt-get install busybox)")
        for each in STORE_TOOLS:
            (at.programs / each).symlink_to(busybox)
    folder = cohort(at)
    sent(at, "cohort", f"cohort/{PATIENT}")
    assert same(folder, at.target / "cohort")
    assert same(folder / PATIENT, at.target / "cohort" / PATIENT)
    assert told(run) == [("same-file-system", f"{SEES}it was copied there")] * 2
    assert run.notices == []
    mode = (at.target / "cohort" / "tool").stat().st_mode
    assert stat.S_IMODE(mode) == 0o755, "nobody runs it as its owner"
    assert (at.target / "cohort" / "locked").stat().st_mode & 0o777 == 0o500
    assert (at.target / "cohort" / "link").is_dir()
    assert not set(inodes(folder)) & set(inodes(at.target / "cohort")), "the user's own files get no further name"


def test_no_stream_is_opened(at: Places, run: Recorded) -> None:
    cohort(at)
    sent(at, "cohort")
    assert dict(at.asked) == ASKED


def test_what_nobody_may_write_to_in_a_runs_folder_is_linked(at: Places, run: Recorded) -> None:
    in_a_run(at, run)
    folder = cohort(at)
    subprocess.run(["find", folder, "-type", "f", "-exec", "chmod", "a-w", "{}", "+"], check=True)
    sent(at, "cohort")
    assert told(run) == [("same-file-system", f"{SEES}it was linked there")]
    assert inodes(folder) == inodes(at.target / "cohort")
    assert same(folder, at.target / "cohort")


@pytest.mark.slow
@pytest.mark.parametrize("why", ["its owner may write to a file", "the copy is to be written to", "another's", "own"])
def test_what_somebody_may_write_to_is_copied(at: Places, run: Recorded, why: str) -> None:
    if why != "own":  # outside of the folder of a run
        in_a_run(at, run)
    folder = cohort(at)
    subprocess.run(["find", folder, "-type", "f", "-exec", "chmod", "a-w", "{}", "+"], check=True)
    if why.startswith("its"):
        (folder / "tool").chmod(0o644)
    if why == "another's":
        try:
            os.chown(folder / "tool", 65534, 65534)
        except PermissionError:
            pytest.skip("only root gives files away")
    before = [each.stat().st_mode for each in sorted(folder.rglob("*"))]
    sent(at, "cohort", writable=why.startswith("the copy"))
    assert told(run) == [("same-file-system", f"{SEES}it was copied there")]
    assert not set(inodes(folder)) & set(inodes(at.target / "cohort"))
    assert [each.stat().st_mode for each in sorted(folder.rglob("*"))] == before, "the source stays as it is"


def test_where_links_cannot_be_made_it_is_copied(at: Places, run: Recorded) -> None:
    in_a_run(at, run)
    folder = cohort(at)
    subprocess.run(["find", folder, "-type", "f", "-exec", "chmod", "a-w", "{}", "+"], check=True)
    # Some of them can be made: what they began is removed.
    at.replace("cp", 'case "$1" in *l*) "$real" -RLp "$2" "$3"; exit 1;; esac; exec "$real" "$@"')
    sent(at, "cohort")
    assert told(run) == [("same-file-system", f"{SEES}it was copied there")]
    assert same(folder, at.target / "cohort")


@pytest.mark.slow
def test_what_a_store_lacks_is_copied_there_too(at: Places, run: Recorded) -> None:
    folder = cohort(at)
    at.target = at.target / run.run_id / "job"
    at.target.mkdir(parents=True)

    async def act(each: Places) -> None:
        await each.send("through-driver", "cohort")
        each.manager.path_mapper = type(each.manager.path_mapper)(each.manager.context)  # a later run
        for name in ("-new", "new '1'\n"):
            (folder / name).write_bytes(os.urandom(2**20 + 7))
        await each.send("through-driver", "cohort", "again")

    at.at_work(act)
    assert same(folder, at.target / "again")
    assert [(each["route"], each["num_files"]) for each in run.transfers] == [
        ("same-file-system", len(ODD) + 2),
        ("same-file-system", 2),
    ]
    assert not any("python3" in each for each in at.server.commands), "no program was started for it"


@pytest.mark.slow
def test_pods_that_see_one_folder_copy_it_once(at: Places, tmp_path: Path, run: Recorded) -> None:
    folder = cohort(at)
    times = at.programs / "times"
    at.replace("cp", f'echo >> {times}; exec "$real" "$@"')

    async def act(each: Places) -> None:
        other = each.places()["other"]
        each.manager.register_path(other, str(folder))
        await each.manager.transfer_data(other, str(folder), pods, str(each.target / "sent"))

    with with_pods(at, tmp_path) as pods:
        at.at_work(act)
    assert same(folder, at.target / "sent")
    reasons = (f"{SEES}it was copied there", f"{SEES}it was put there once")
    assert sorted(told(run)) == [("same-file-system", each) for each in reasons]
    assert len(times.read_text()) == 2, "the look for reflinks, and the copy"


# ---- they do not


def to_pods(at: Places, tmp_path: Path, script: str, program: str, *names: str) -> None:
    """Sends to pods, which have another program than the source."""
    own = tmp_path / "own"
    own.mkdir()
    replaced(own, program, script)

    async def act(each: Places) -> None:
        other = each.places()["other"]
        for name in names:
            each.manager.register_path(other, str(each.source / name))
            await each.manager.transfer_data(other, str(each.source / name), pods[:1], str(each.target / name))

    with with_pods(at, tmp_path) as pods:
        at.pods.environment = {"PATH": f"{own}:{at.pods.environment['PATH']}"}
        at.at_work(act)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["-L", "-c"], ids=["other files under the path", "another folder of that name"])
def test_who_sees_something_else_gets_it_sent(at: Places, tmp_path: Path, run: Recorded, which: str) -> None:
    folder = cohort(at)
    elsewhere = (
        'case "$*" in *"%i %s %Y"*|*"-c %i"*) [ "$1" != WHICH ] || { echo 1 2 3; exit 0; };; esac; exec "$real" "$@"'
    )
    to_pods(at, tmp_path, elsewhere.replace("WHICH", which), "stat", "cohort")
    assert same(folder, at.target / "cohort")
    assert [each["route"] for each in run.transfers] == ["direct"]


@pytest.mark.slow
def test_who_sees_an_older_state_gets_it_sent(at: Places, tmp_path: Path, run: Recorded) -> None:
    # As a client of NFS may for some seconds: a file of the folder is not shown yet.
    folder = cohort(at)
    old = f'"$real" "$@"; code=$?; for last; do :; done; [ "$1" != -RLp ] || rm -f "$last/{PATIENT}"; exit $code'
    to_pods(at, tmp_path, old, "cp", "cohort")
    assert same(folder, at.target / "cohort")
    assert [each["route"] for each in run.transfers] == ["direct"]


@pytest.mark.slow
def test_a_source_that_sees_nothing_of_it_is_asked_once(at: Places, run: Recorded) -> None:
    for name in ("cohort", "second"):
        cohort(at, name)
    asked = at.programs / "asked"
    at.replace("stat", f'case "$*" in *.part) echo >> {asked}; exit 1;; esac; exec "$real" "$@"')
    sent(at, "cohort", "second")
    assert [each["route"] for each in run.transfers] == ["direct"] * 2
    assert len(asked.read_text()) == 1


@pytest.mark.slow
def test_another_user_without_rights_gets_it_sent(at: Places, run: Recorded) -> None:
    if os.getuid():
        pytest.skip("only root can be another user")
    for name in ("cohort", "second"):
        cohort(at, name)
    (at.source / "cohort" / PATIENT).chmod(0o600)
    at.target.chmod(0o777)
    tried = at.programs / "tried"
    at.replace("cp", f'echo >> {tried}; exec setpriv --reuid 65534 --regid 65534 --clear-groups "$real" "$@"')
    sent(at, "cohort", "second")
    assert same(at.source / "cohort", at.target / "cohort")
    assert at.left() == ["cohort", "second"]
    assert [each["route"] for each in run.transfers] == ["direct"] * 2
    assert len(tried.read_text()) == 2, (
        "the look for reflinks, and the copy, once: rights that it lacks it will lack again"
    )
    assert PATIENT not in str(told(run))


def test_a_disk_that_fills_up_is_told_at_once(at: Places, run: Recorded) -> None:
    cohort(at)
    at.replace("cp", f'echo "cp: error writing {PATIENT}: No space left on device" >&2; exit 1')
    with pytest.raises(NoRoom) as raised:
        sent(at, "cohort")
    assert "No space left on device" in str(raised.value)
    assert PATIENT not in str(raised.value)
    assert at.left() == []


def test_it_can_be_switched_off(at: Places, run: Recorded) -> None:
    cohort(at)
    at.settings["sameFileSystem"] = False
    sent(at, "cohort")
    assert [each["route"] for each in run.transfers] == ["direct"]
