"""Copies whose stream is cut: they go on with what is missing, and what arrives is whole, whoever still writes to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from medweave_connectors.host import deadlines
from medweave_connectors.host.errors import SiteUnreachable, SourceRefused, TransferFailed
from medweave_connectors.transfer.streams import tree_stream_piece
from support.direct_ends import Recorded
from support.transfers import ROUTES, Places, Route, with_pods

PATIENT = "Mustermann_Erika_1970"
MIB = 2**20
# Of 1 GiB, 5 % may be sent again: 51 MiB (issue 6). What is on the line is lost with it, and a block, however large the file is.
MOST_AGAIN_BYTES = 20 * MIB
LARGE_BYTES = 96 * MIB
# The first `times` calls give or take so many bytes, and then hang until they are cut.
HANGS = """case "$*" in {which}) ;; *) exec "$real" "$@" ;; esac
n=$(ls -d {folder}/cut.* 2>/dev/null | wc -l)
if [ $n -lt {times} ]; then {does}; mkdir {folder}/cut.$n; sleep 60; exit 1; fi
exec "$real" "$@"
"""
PACKS, UNPACKS = "chf*", "xp*"


@pytest.fixture
def by_tar(monkeypatch: pytest.MonkeyPatch) -> None:
    """As through the driver, or to it: what is large is no stream of our own, whose program is no tar that a test can replace."""
    monkeypatch.setattr(tree_stream_piece, "LARGE_BYTES", 2**40)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "RETRY_PAUSES_S", (0.1, 0.2, 0.2, 0.2))


def large(at: Places, num_bytes: int = LARGE_BYTES) -> Path:
    file = at.source / "scan"
    file.write_bytes(os.urandom(MIB) * (num_bytes // MIB) + os.urandom(12345))
    return file


def many(at: Places, count: int = 600) -> Path:
    """Small files in several folders, one of them empty, one that its owner may not write to."""
    folder = at.source / "cohort"
    for n in range(count):
        file = folder / f"{PATIENT}_{n % 10}" / f"{n:05}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(os.urandom(8192 + n))
        os.utime(file, (n + 10**9, n + 10**9))
    (folder / "zz" / "empty").mkdir(parents=True)
    (folder / "00800").write_text("#!/bin/sh\n")
    (folder / "00800").chmod(0o750)
    for name, mode in ((f"{PATIENT}_3", 0o500), ("zz", 0o750)):
        (folder / name).chmod(mode)
    return folder


def looks(path: Path) -> dict[str, Any]:
    """Every file and folder: mode, and of a file its time too."""
    found = [path, *path.rglob("*")]
    stats = {str(each.relative_to(path)): each.stat() for each in found}
    return {
        name: (told.st_mode, int(told.st_mtime) if path.is_file() or (path / name).is_file() else 0)
        for name, told in stats.items()
    }


def same(one: Path, other: Path) -> bool:
    return looks(one) == looks(other) and subprocess.run(["diff", "-r", one, other], check=False).returncode == 0


def arrived_bytes(folder: Path) -> int:
    """What lies in there of a copy that is not whole."""
    total = 0
    for top, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # it has just been moved
                total += Path(top, name).stat().st_size
    return total


def hangs(at: Places, which: str, does: str, *, times: int = 1, program: str = "tar") -> None:
    at.replace(program, HANGS.format(which=which, folder=at.programs, times=times, does=does))


async def when(is_so: Callable[[], bool], task: asyncio.Task[Any]) -> None:
    while not is_so():
        assert not task.done(), task
        await asyncio.sleep(0.02)


async def cut_when(at: Places, task: asyncio.Task[Any], *moments: Callable[[], bool]) -> None:
    """What the task answers, whose connections are lost at these moments."""
    try:
        for each in moments:
            await when(each, task)
            await asyncio.to_thread(at.server.cut)
        await task
    finally:
        task.cancel()


def has_hung(at: Places, n: int) -> Callable[[], bool]:
    return (at.programs / f"cut.{n}").exists


def has_arrived(at: Places, num_bytes: int) -> Callable[[], bool]:
    return lambda: arrived_bytes(at.target) >= num_bytes


def cut(at: Places, route: Route, name: str, *moments: Callable[[], bool]) -> None:
    at.at_work(lambda each: cut_when(each, asyncio.create_task(each.send(route, name)), *moments))


def told(run: Recorded, route: str) -> dict[str, Any]:
    (facts,) = run.transfers
    assert facts["route"] == route
    assert PATIENT not in f"{facts} {run.notices}"
    return facts


# ---- what is cut goes on


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
def test_a_large_file_whose_connection_is_lost_three_times(
    at: Places, run: Recorded, route: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("medweave_connectors.engine.data.manager.PORTS", (1, 1))
    file = large(at)

    async def act(each: Places) -> None:
        each.manager._router._direct = False
        moments = (has_arrived(each, part * LARGE_BYTES // 4) for part in (1, 2, 3))
        await cut_when(each, asyncio.create_task(each.send(route, "scan")), *moments)

    at.at_work(act)
    assert same(file, at.target / "scan")
    assert at.left() == ["scan"]
    facts = told(run, route)
    assert facts["num_bytes"] == file.stat().st_size
    assert 0 <= facts["again_bytes"] <= MOST_AGAIN_BYTES
    assert sum("a copy was cut and is resumed" in each for each in run.notices) == 3


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
def test_many_small_files_whose_connection_is_lost(at: Places, run: Recorded, route: Route) -> None:
    folder = many(at, 1800)  # of 16 MiB, since what is on the line or in a block when it is cut are 3.4 MiB at most
    all_bytes = arrived_bytes(folder)

    async def act(each: Places) -> None:
        each.manager._router._direct = False
        moments = (has_arrived(each, part * all_bytes // 3) for part in (1, 2))
        await cut_when(each, asyncio.create_task(each.send(route, "cohort")), *moments)

    at.at_work(act)
    assert same(folder, at.target / "cohort")
    assert at.left() == ["cohort"]
    assert told(run, route)["again_bytes"] < all_bytes / 2


@pytest.mark.slow
@pytest.mark.usefixtures("by_tar")
def test_a_file_in_a_folder_that_is_cut(at: Places, run: Recorded) -> None:
    folder = many(at, 20)
    (folder / "large").write_bytes(os.urandom(8 * MIB))
    (folder / "large").chmod(0o440)
    hangs(at, UNPACKS, 'head -c 6000000 | "$real" "$@"')
    cut(at, "from-driver", "cohort", has_hung(at, 0))
    assert same(folder, at.target / "cohort")
    assert told(run, "from-driver")["again_bytes"] < 3 * MIB


@pytest.mark.slow
def test_a_straight_copy_goes_on_straight(at: Places, run: Recorded) -> None:
    file = large(at)
    moments = [has_arrived(at, part * LARGE_BYTES // 4) for part in (1, 2, 3)]
    cut(at, "through-driver", "scan", *moments)
    assert same(file, at.target / "scan")
    assert at.left() == ["scan"]
    assert told(run, "direct")["again_bytes"] <= MOST_AGAIN_BYTES


@pytest.mark.slow
@pytest.mark.usefixtures("by_tar")
def test_a_straight_copy_that_breaks_twice_goes_on_through_the_driver(at: Places, run: Recorded) -> None:
    file = large(at, 16 * MIB)
    by_agent = 'tr "\\0" " " < /proc/$PPID/cmdline | grep -q "python3 -I"'
    at.replace(
        "tar",
        f'case "$1" in x*) if {by_agent}; then head -c 5000000 | "$real" "$@"; exit 1; fi;; esac; exec "$real" "$@"',
    )
    at.replace("dd", f'case "$1" in of*) if {by_agent}; then exit 1; fi;; esac; exec "$real" "$@"')
    at.at_work(lambda each: each.send("through-driver", "scan"))
    assert same(file, at.target / "scan")
    facts = told(run, "through-driver")
    assert "2 direct streams broke off" in facts["reason"]
    assert arrived_bytes(at.target) == file.stat().st_size
    assert any("11." in each and "MiB remain" in each for each in run.notices), run.notices


@pytest.mark.slow
@pytest.mark.parametrize("back", [False, True])
def test_a_file_of_a_pod_whose_connection_is_lost(at: Places, run: Recorded, tmp_path: Path, back: bool) -> None:
    file = large(at)

    async def act(each: Places) -> None:
        ends = [each.places()["laptop"], pods[0]]
        source, target = reversed(ends) if back else ends
        each.manager.register_path(source, str(file))
        task = asyncio.create_task(each.manager.transfer_data(source, str(file), [target], str(each.target / "scan")))
        for part in (1, 2, 3):
            await when(has_arrived(each, part * LARGE_BYTES // 4), task)
            await asyncio.to_thread(each.pods.drop, "w-0")
        await task

    with with_pods(at, tmp_path) as pods:
        at.at_work(act)
    assert same(file, at.target / "scan")
    assert at.left() == ["scan"]
    assert told(run, "to-driver" if back else "from-driver")["again_bytes"] <= MOST_AGAIN_BYTES


@pytest.mark.slow
def test_two_pods_of_which_one_is_cut(at: Places, run: Recorded, tmp_path: Path) -> None:
    file = large(at, 32 * MIB)

    async def act(each: Places) -> None:
        laptop = each.places()["laptop"]
        each.manager.register_path(laptop, str(file))
        task = asyncio.create_task(each.manager.transfer_data(laptop, str(file), pods, str(each.target / "scan")))
        await when(has_arrived(each, 8 * MIB), task)
        await asyncio.to_thread(each.pods.drop, "w-1")
        await task

    with with_pods(at, tmp_path) as pods:
        at.at_work(act)
    assert same(file, at.target / "scan")
    assert at.left() == ["scan"]


@pytest.mark.slow
def test_what_a_store_lacks_goes_on_too(at: Places, run: Recorded) -> None:
    folder = many(at, 30)
    at.target = at.target / run.run_id / "job"
    at.target.mkdir(parents=True)

    async def act(each: Places) -> None:
        await each.send("from-driver", "cohort")
        each.manager.path_mapper = type(each.manager.path_mapper)(each.manager.context)  # a later run
        (folder / "new").write_bytes(os.urandom(8 * MIB))
        hangs(at, UNPACKS, 'head -c 6000000 | "$real" "$@"')
        await cut_when(each, asyncio.create_task(each.send("from-driver", "cohort", "again")), has_hung(each, 0))

    at.at_work(act)
    for name in ("cohort", "again"):
        assert subprocess.run(["diff", "-r", folder, at.target / name, "-x", "new"], check=False).returncode == 0
    assert (at.target / "again" / "new").read_bytes() == (folder / "new").read_bytes()
    # What had been sent and not written when the line was cut, 2.4 MB at most, is sent again; what lay there is not.
    assert [(each["num_files"], each["again_bytes"] < 3 * MIB) for each in run.transfers] == [(31, True), (1, True)]
    one, other = (at.target / name / "00800" for name in ("cohort", "again"))
    assert one.samefile(other), "from the store"
    assert one.stat().st_mode & 0o777 == 0o550


# ---- what may have happened meanwhile


@pytest.mark.slow
@pytest.mark.usefixtures("by_tar")
def test_who_still_writes_after_the_cut_spoils_nothing(at: Places, run: Recorded) -> None:
    # Its connection is lost, and it wakes up when the copy goes on: it makes anew what it has made before, and gives that up.
    file = large(at, 16 * MIB)
    wakes = f"""head -c 9000000 > {at.programs}/held; head -c 5000000 {at.programs}/held | "$real" "$@"
        ( while [ ! -e {at.programs}/goes-on ]; do sleep 0.05; done; "$real" "$@" < {at.programs}/held
          touch {at.programs}/woke ) & :"""
    hangs(at, UNPACKS, wakes)
    waits = f"touch {at.programs}/goes-on; while [ ! -e {at.programs}/woke ]; do sleep 0.05; done"
    at.replace("dd", f'"$real" "$@"; case "$1" in of*) {waits};; esac')
    cut(at, "from-driver", "scan", has_hung(at, 0))
    assert same(file, at.target / "scan")
    assert at.left() == ["scan"]
    assert sum("xpf" in each for each in at.server.commands) == 1, "nothing had to be sent whole once more"


@pytest.mark.slow
@pytest.mark.usefixtures("by_tar")
def test_a_source_that_changes_after_the_cut(at: Places, run: Recorded) -> None:
    file = large(at, 16 * MIB)
    hangs(at, UNPACKS, 'head -c 9000000 | "$real" "$@"')

    async def act(each: Places) -> None:
        task = asyncio.create_task(each.send("from-driver", "scan"))
        await when(has_hung(each, 0), task)
        with file.open("r+b") as stream:
            stream.write(b"another scan")
        await cut_when(each, task, has_hung(each, 0))

    at.at_work(act)
    assert same(file, at.target / "scan")
    assert at.left() == ["scan"]


@pytest.mark.slow
@pytest.mark.usefixtures("by_tar")
@pytest.mark.parametrize("always", [False, True])
def test_a_byte_that_is_flipped_in_what_had_arrived(at: Places, run: Recorded, always: bool) -> None:
    # The copy is sent once more, whole; and is an error where that does not help.
    file = large(at, 16 * MIB)
    hangs(at, UNPACKS, 'head -c 9000000 | "$real" "$@"; printf X | dd of="$4/scan" bs=1 seek=99 conv=notrunc')
    if always:
        flips = '"$real" "$@"; printf X | dd of="$4/scan" bs=1 seek=99 conv=notrunc; exit 0'
        script = (at.programs / "tar").read_text().replace('\nexec "$real" "$@"\n', f"\n{flips}\n")
        (at.programs / "tar").write_text(script)
        with pytest.raises(TransferFailed, match="1 of 1 files with other content"):
            cut(at, "from-driver", "scan", has_hung(at, 0))
        assert at.left() == []
        return
    cut(at, "from-driver", "scan", has_hung(at, 0))
    assert same(file, at.target / "scan")
    assert told(run, "from-driver")["again_bytes"] >= 9_000_000 - MIB


@pytest.mark.slow
@pytest.mark.usefixtures("by_tar")
def test_a_destination_that_does_not_come_back(at: Places, run: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("medweave_connectors.sites.ssh.sessions.PAUSES_S", (0.1,))
    large(at, 16 * MIB)
    hangs(at, UNPACKS, 'head -c 9000000 | "$real" "$@"')

    async def act(each: Places) -> None:
        task = asyncio.create_task(each.send("from-driver", "scan"))
        await when(has_hung(each, 0), task)
        await asyncio.to_thread(each.server.stop)
        await task

    with pytest.raises((SiteUnreachable, TransferFailed)) as raised:
        at.at_work(act)
    assert PATIENT not in str(raised.value)
    assert run.transfers == []


@pytest.mark.usefixtures("by_tar")
def test_a_disk_that_fills_up_is_no_cut(at: Places, run: Recorded) -> None:
    # A command that fails takes no more input, which looks like a connection that is lost.
    large(at, 16 * MIB)
    full = f'head -c 3000000 >/dev/null; echo "tar: {PATIENT}: No space left on device" >&2; exit 2'
    at.replace("tar", f'case "$1" in x*) {full};; esac; exec "$real" "$@"')
    with pytest.raises(TransferFailed, match="No space left on device"):
        at.at_work(lambda each: each.send("from-driver", "scan"))
    assert run.notices == []
    assert at.left() == []


@pytest.mark.slow
def test_a_source_that_sends_more_than_the_end_of_a_file(at: Places, run: Recorded) -> None:
    large(at, 16 * MIB)
    hangs(at, PACKS, '"$real" "$@" | head -c 9000000')
    at.replace("dd", 'case "$1" in if*) "$real" "$@"; exec head -c 9000000 /dev/zero;; esac; exec "$real" "$@"')
    with pytest.raises(SourceRefused, match="more than there was"):
        cut(at, "to-driver", "scan", has_hung(at, 0))
    assert at.left() == []
