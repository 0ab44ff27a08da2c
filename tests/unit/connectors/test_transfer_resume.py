"""Interrupted copies: only missing parts are sent again, and the result is complete even if an old program still writes."""

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
from support.transfers import ROUTES, Route, TransferSites, with_pods

PATIENT = "Mustermann_Erika_1970"
MIB = 2**20
# Of 1 GiB, 5 % may be sent again: 51 MiB (issue 6). A cut loses the bytes in transit and one block, whatever the file's size.
MOST_AGAIN_BYTES = 24 * MIB  # three cuts; starting from the beginning each time would be 144 MiB
LARGE_BYTES = 96 * MIB
# The first `times` calls write or read some bytes, and then hang until the connection is cut.
HANGS = """case "$*" in {which}) ;; *) exec "$real" "$@" ;; esac
n=$(ls -d {folder}/cut.* 2>/dev/null | wc -l)
if [ $n -lt {times} ]; then {does}; mkdir {folder}/cut.$n; sleep 60; exit 1; fi
exec "$real" "$@"
"""
PACKS, UNPACKS = "chf*", "xp*"


@pytest.fixture
def by_tar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use tar for large files too, since tests can replace tar but not the program of a tree stream."""
    monkeypatch.setattr(tree_stream_piece, "LARGE_BYTES", 2**40)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "RETRY_PAUSES_S", (0.1, 0.2, 0.2, 0.2))


def large(at: TransferSites, num_bytes: int = LARGE_BYTES) -> Path:
    file = at.source / "scan"
    file.write_bytes(os.urandom(MIB) * (num_bytes // MIB) + os.urandom(12345))
    return file


def many(at: TransferSites, count: int = 600) -> Path:
    """Write small files to several folders, one of them empty, one read-only for its owner."""
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


def modes_and_times(path: Path) -> dict[str, Any]:
    """Return the mode of each file and folder, and the modification time of files."""
    paths = [path, *path.rglob("*")]
    stats = {str(entry.relative_to(path)): entry.stat() for entry in paths}
    return {
        name: (stat_result.st_mode, int(stat_result.st_mtime) if path.is_file() or (path / name).is_file() else 0)
        for name, stat_result in stats.items()
    }


def same(one: Path, other: Path) -> bool:
    return (
        modes_and_times(one) == modes_and_times(other)
        and subprocess.run(["diff", "-r", one, other], check=False).returncode == 0
    )


def arrived_bytes(folder: Path) -> int:
    """Return the bytes of an incomplete copy in a folder."""
    total = 0
    for top, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # the file was moved
                total += Path(top, name).stat().st_size
    return total


def hangs(at: TransferSites, which: str, does: str, *, times: int = 1, program: str = "tar") -> None:
    at.replace(program, HANGS.format(which=which, folder=at.programs, times=times, does=does))


async def when(is_so: Callable[[], bool], task: asyncio.Task[Any]) -> None:
    while not is_so():
        assert not task.done(), task
        await asyncio.sleep(0.02)


async def cut_when(at: TransferSites, task: asyncio.Task[Any], *moments: Callable[[], bool]) -> None:
    """Wait for a task, and cut its connections at these moments."""
    try:
        for moment in moments:
            await when(moment, task)
            await asyncio.to_thread(at.server.cut)
        await task
    finally:
        task.cancel()


def has_hung(at: TransferSites, n: int) -> Callable[[], bool]:
    return (at.programs / f"cut.{n}").exists


def has_arrived(at: TransferSites, num_bytes: int) -> Callable[[], bool]:
    return lambda: arrived_bytes(at.target) >= num_bytes


def cut(at: TransferSites, route: Route, name: str, *moments: Callable[[], bool]) -> None:
    at.run_connected(lambda sites: cut_when(sites, asyncio.create_task(sites.send(route, name)), *moments))


def transfer_facts(run: Recorded, route: str) -> dict[str, Any]:
    (facts,) = run.transfers
    assert facts["route"] == route
    assert PATIENT not in f"{facts} {run.notices}"
    return facts


# ---- interrupted copies are resumed


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
def test_a_large_file_is_resumed_after_three_lost_connections(
    at: TransferSites, run: Recorded, route: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("medweave_connectors.engine.data.manager.PORTS", (1, 1))
    file = large(at)

    async def act(sites: TransferSites) -> None:
        sites.manager._router._direct = False
        moments = (has_arrived(sites, part * LARGE_BYTES // 4) for part in (1, 2, 3))
        await cut_when(sites, asyncio.create_task(sites.send(route, "scan")), *moments)

    at.run_connected(act)
    assert same(file, at.target / "scan")
    assert at.target_names() == ["scan"]
    facts = transfer_facts(run, route)
    assert facts["num_bytes"] == file.stat().st_size
    assert 0 <= facts["again_bytes"] <= MOST_AGAIN_BYTES
    assert sum("a copy was cut and is resumed" in notice for notice in run.notices) == 3


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
def test_many_small_files_are_resumed_after_lost_connections(at: TransferSites, run: Recorded, route: Route) -> None:
    folder = many(at, 1800)  # 16 MiB, since a cut loses at most 3.4 MiB in transit or in a block
    all_bytes = arrived_bytes(folder)

    async def act(sites: TransferSites) -> None:
        sites.manager._router._direct = False
        moments = (has_arrived(sites, part * all_bytes // 3) for part in (1, 2))
        await cut_when(sites, asyncio.create_task(sites.send(route, "cohort")), *moments)

    at.run_connected(act)
    assert same(folder, at.target / "cohort")
    assert at.target_names() == ["cohort"]
    assert transfer_facts(run, route)["again_bytes"] < all_bytes / 2


@pytest.mark.slow
@pytest.mark.usefixtures("by_tar")
def test_a_large_file_in_a_folder_is_resumed(at: TransferSites, run: Recorded) -> None:
    folder = many(at, 20)
    (folder / "large").write_bytes(os.urandom(8 * MIB))
    (folder / "large").chmod(0o440)
    hangs(at, UNPACKS, 'head -c 6000000 | "$real" "$@"')
    cut(at, "from-driver", "cohort", has_hung(at, 0))
    assert same(folder, at.target / "cohort")
    assert transfer_facts(run, "from-driver")["again_bytes"] < 3 * MIB


@pytest.mark.slow
def test_a_direct_copy_is_resumed_directly(at: TransferSites, run: Recorded) -> None:
    file = large(at)
    moments = [has_arrived(at, part * LARGE_BYTES // 4) for part in (1, 2, 3)]
    cut(at, "through-driver", "scan", *moments)
    assert same(file, at.target / "scan")
    assert at.target_names() == ["scan"]
    assert transfer_facts(run, "direct")["again_bytes"] <= MOST_AGAIN_BYTES


@pytest.mark.slow
@pytest.mark.usefixtures("by_tar")
def test_a_direct_copy_that_breaks_twice_is_resumed_through_the_driver(at: TransferSites, run: Recorded) -> None:
    file = large(at, 16 * MIB)
    by_agent = 'tr "\\0" " " < /proc/$PPID/cmdline | grep -q "python3 -I"'
    at.replace(
        "tar",
        f'case "$1" in x*) if {by_agent}; then head -c 5000000 | "$real" "$@"; exit 1; fi;; esac; exec "$real" "$@"',
    )
    at.replace("dd", f'case "$1" in of*) if {by_agent}; then exit 1; fi;; esac; exec "$real" "$@"')
    at.run_connected(lambda sites: sites.send("through-driver", "scan"))
    assert same(file, at.target / "scan")
    facts = transfer_facts(run, "through-driver")
    assert "2 direct streams broke off" in facts["reason"]
    assert arrived_bytes(at.target) == file.stat().st_size
    assert any("11." in notice and "MiB remain" in notice for notice in run.notices), run.notices


@pytest.mark.slow
@pytest.mark.parametrize("back", [False, True])
def test_a_file_of_a_pod_is_resumed_after_lost_connections(
    at: TransferSites, run: Recorded, tmp_path: Path, back: bool
) -> None:
    file = large(at)

    async def act(sites: TransferSites) -> None:
        ends = [sites.locations()["laptop"], pods[0]]
        source, target = reversed(ends) if back else ends
        sites.manager.register_path(source, str(file))
        task = asyncio.create_task(sites.manager.transfer_data(source, str(file), [target], str(sites.target / "scan")))
        for part in (1, 2, 3):
            await when(has_arrived(sites, part * LARGE_BYTES // 4), task)
            await asyncio.to_thread(sites.pods.drop, "w-0")
        await task

    with with_pods(at, tmp_path) as pods:
        at.run_connected(act)
    assert same(file, at.target / "scan")
    assert at.target_names() == ["scan"]
    assert transfer_facts(run, "to-driver" if back else "from-driver")["again_bytes"] <= MOST_AGAIN_BYTES


@pytest.mark.slow
def test_a_copy_to_two_pods_is_resumed_if_one_connection_is_lost(
    at: TransferSites, run: Recorded, tmp_path: Path
) -> None:
    file = large(at, 32 * MIB)

    async def act(sites: TransferSites) -> None:
        laptop = sites.locations()["laptop"]
        sites.manager.register_path(laptop, str(file))
        task = asyncio.create_task(sites.manager.transfer_data(laptop, str(file), pods, str(sites.target / "scan")))
        await when(has_arrived(sites, 8 * MIB), task)
        await asyncio.to_thread(sites.pods.drop, "w-1")
        await task

    with with_pods(at, tmp_path) as pods:
        at.run_connected(act)
    assert same(file, at.target / "scan")
    assert at.target_names() == ["scan"]


@pytest.mark.slow
def test_files_missing_from_a_store_are_resumed(at: TransferSites, run: Recorded) -> None:
    folder = many(at, 30)
    at.target = at.target / run.run_id / "job"
    at.target.mkdir(parents=True)

    async def act(sites: TransferSites) -> None:
        await sites.send("from-driver", "cohort")
        sites.manager.path_mapper = type(sites.manager.path_mapper)(sites.manager.context)  # a later run
        (folder / "new").write_bytes(os.urandom(8 * MIB))
        hangs(at, UNPACKS, 'head -c 6000000 | "$real" "$@"')
        await cut_when(sites, asyncio.create_task(sites.send("from-driver", "cohort", "again")), has_hung(sites, 0))

    at.run_connected(act)
    for name in ("cohort", "again"):
        assert subprocess.run(["diff", "-r", folder, at.target / name, "-x", "new"], check=False).returncode == 0
    assert (at.target / "again" / "new").read_bytes() == (folder / "new").read_bytes()
    # At most 2.4 MB in transit are sent again; files in the store are not.
    assert [(transfer["num_files"], transfer["again_bytes"] < 3 * MIB) for transfer in run.transfers] == [
        (31, True),
        (1, True),
    ]
    one, other = (at.target / name / "00800" for name in ("cohort", "again"))
    assert one.samefile(other), "linked from the store"
    assert one.stat().st_mode & 0o777 == 0o550


# ---- changes between the cut and the resumption


@pytest.mark.slow
@pytest.mark.usefixtures("by_tar")
def test_a_program_that_still_writes_after_the_cut_does_no_harm(at: TransferSites, run: Recorded) -> None:
    # A program with a lost connection continues during the resumed copy: it writes the same files again, and then ends.
    file = large(at, 16 * MIB)
    wakes = f"""head -c 9000000 > {at.programs}/input; head -c 5000000 {at.programs}/input | "$real" "$@"
        ( while [ ! -e {at.programs}/resumed ]; do sleep 0.05; done; "$real" "$@" < {at.programs}/input
          touch {at.programs}/woke ) & :"""
    hangs(at, UNPACKS, wakes)
    waits = f"touch {at.programs}/resumed; while [ ! -e {at.programs}/woke ]; do sleep 0.05; done"
    at.replace("dd", f'"$real" "$@"; case "$1" in of*) {waits};; esac')
    cut(at, "from-driver", "scan", has_hung(at, 0))
    assert same(file, at.target / "scan")
    assert at.target_names() == ["scan"]
    assert sum("xpf" in command for command in at.server.commands) == 1, "the folder was not sent again as a whole"


@pytest.mark.slow
@pytest.mark.usefixtures("by_tar")
def test_a_source_that_changes_after_the_cut_is_sent_again(at: TransferSites, run: Recorded) -> None:
    file = large(at, 16 * MIB)
    hangs(at, UNPACKS, 'head -c 9000000 | "$real" "$@"')

    async def act(sites: TransferSites) -> None:
        task = asyncio.create_task(sites.send("from-driver", "scan"))
        await when(has_hung(sites, 0), task)
        with file.open("r+b") as stream:
            stream.write(b"another scan")
        await cut_when(sites, task, has_hung(sites, 0))

    at.run_connected(act)
    assert same(file, at.target / "scan")
    assert at.target_names() == ["scan"]


@pytest.mark.slow
@pytest.mark.usefixtures("by_tar")
@pytest.mark.parametrize("always", [False, True])
def test_a_flipped_byte_before_the_cut_is_detected(at: TransferSites, run: Recorded, always: bool) -> None:
    # The copy is sent again as a whole, and fails if the byte flips again.
    file = large(at, 16 * MIB)
    hangs(at, UNPACKS, 'head -c 9000000 | "$real" "$@"; printf X | dd of="$4/scan" bs=1 seek=99 conv=notrunc')
    if always:
        flips = '"$real" "$@"; printf X | dd of="$4/scan" bs=1 seek=99 conv=notrunc; exit 0'
        script = (at.programs / "tar").read_text().replace('\nexec "$real" "$@"\n', f"\n{flips}\n")
        (at.programs / "tar").write_text(script)
        with pytest.raises(TransferFailed, match="1 of 1 files with other content"):
            cut(at, "from-driver", "scan", has_hung(at, 0))
        assert at.target_names() == []
        return
    cut(at, "from-driver", "scan", has_hung(at, 0))
    assert same(file, at.target / "scan")
    assert transfer_facts(run, "from-driver")["again_bytes"] >= 9_000_000 - MIB


@pytest.mark.slow
@pytest.mark.usefixtures("by_tar")
def test_a_destination_that_stays_unreachable_fails_the_copy(
    at: TransferSites, run: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("medweave_connectors.sites.ssh.sessions.PAUSES_S", (0.1,))
    large(at, 16 * MIB)
    hangs(at, UNPACKS, 'head -c 9000000 | "$real" "$@"')

    async def act(sites: TransferSites) -> None:
        task = asyncio.create_task(sites.send("from-driver", "scan"))
        await when(has_hung(sites, 0), task)
        await asyncio.to_thread(sites.server.stop)
        await task

    with pytest.raises((SiteUnreachable, TransferFailed)) as raised:
        at.run_connected(act)
    assert PATIENT not in str(raised.value)
    assert run.transfers == []


@pytest.mark.usefixtures("by_tar")
def test_a_full_disk_is_not_resumed(at: TransferSites, run: Recorded) -> None:
    # A failed command reads no more input, which looks like a lost connection.
    large(at, 16 * MIB)
    full = f'head -c 3000000 >/dev/null; echo "tar: {PATIENT}: No space left on device" >&2; exit 2'
    at.replace("tar", f'case "$1" in x*) {full};; esac; exec "$real" "$@"')
    with pytest.raises(TransferFailed, match="No space left on device"):
        at.run_connected(lambda sites: sites.send("from-driver", "scan"))
    assert run.notices == []
    assert at.target_names() == []


@pytest.mark.slow
def test_a_source_that_sends_more_than_the_missing_part_is_refused(at: TransferSites, run: Recorded) -> None:
    large(at, 16 * MIB)
    hangs(at, PACKS, '"$real" "$@" | head -c 9000000')
    at.replace("dd", 'case "$1" in if*) "$real" "$@"; exec head -c 9000000 /dev/zero;; esac; exec "$real" "$@"')
    with pytest.raises(SourceRefused, match="more bytes than the source"):
        # What has arrived decides whether the second attempt sends a part.
        cut(at, "to-driver", "scan", lambda: has_hung(at, 0)() and has_arrived(at, 4 * MIB)())
    assert at.target_names() == []
