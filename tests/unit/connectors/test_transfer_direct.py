"""Copies between two sites, straight from one to the other; through the driver, with the reason, where that cannot be."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from medweave_connectors.engine.data.manager import MedweaveDataManager
from medweave_connectors.host.errors import NoRoom
from medweave_connectors.transfer.routes.direct import commands
from medweave_connectors.transfer.routes.direct import direct_copy as carry_module
from support.direct_ends import Recorded
from support.transfers import Places, with_pods

ODD = ("-dash", "a blank", "quo'te\"s", "$HOME `id` \\n", "two\nlines", "ümläut", "x" * 255, "\udcff\udcfe", "tail\n")
PATIENT = "Mustermann_Erika_1970"
STRAIGHT = {"other": 2, "site": 3}  # looks at the source, digests | prepares, manifest, rename: no stream is opened
ONCE = 'if mkdir "{once}" 2>/dev/null; then {broken}; fi\nexec "$real" "$@"'
PACKING, UNPACKING = (f'case "$1" in {letter}*) ;; *) exec "$real" "$@" ;; esac\n' for letter in "cx")


def cohort(at: Places, name: str = "cohort") -> Path:
    """Some MiB below a folder, with a patient's name."""
    folder = at.source / name
    folder.mkdir()
    for n in range(3):
        (folder / f"{PATIENT}_{n}").write_bytes(os.urandom(2**20 + n))
    return folder


def same(one: Path, other: Path) -> bool:
    return subprocess.run(["diff", "-r", one, other], check=False).returncode == 0


def sent(at: Places, *names: str, kind: Any = MedweaveDataManager) -> None:
    """Sends these from one site to the other, one after the other."""

    async def act(each: Places) -> None:
        for name in names:
            await each.send("through-driver", name)

    at.at_work(act, kind)


def went_on(at: Places, run: Recorded, folder: Path, why: str) -> None:
    """It is whole, came straight in two streams or more, and what cut the first is known, once."""
    assert same(folder, at.target / folder.name)
    assert at.left() == [folder.name]
    (told,) = run.transfers
    assert told["route"] == "direct"
    (said,) = run.notices
    assert why in said
    assert PATIENT not in f"{said} {told}"


# ---- straight


@pytest.mark.slow
def test_a_copy_between_two_sites_goes_straight(at: Places, run: Recorded) -> None:
    folder = cohort(at, "-a folder's name")
    (folder / "empty" / "emptier").mkdir(parents=True)
    for name in ODD:
        (folder / name).write_bytes(os.urandom(100))
    (folder / "tool").write_text("#!/bin/sh\n")
    (folder / "tool").chmod(0o750)
    (folder / "locked").mkdir(mode=0o500)
    (folder / "link").symlink_to("empty")
    sent(at, folder.name)
    assert same(folder, at.target / folder.name)
    assert (at.target / folder.name / "tool").stat().st_mode & 0o777 == 0o750
    assert dict(at.asked) == STRAIGHT
    (told,) = run.transfers
    assert (told["route"], told["reason"]) == ("direct", "the two reach each other; the destination listens")
    assert 3 * 2**20 < told["num_bytes"] < told["wire_bytes"], "noise is sent as it is"
    assert run.notices == []


def test_what_becomes_smaller_is_sent_so(at: Places, run: Recorded) -> None:
    folder = cohort(at)
    for each in folder.iterdir():
        each.write_bytes(bytes(2**20))
    sent(at, "cohort")
    assert same(folder, at.target / "cohort")
    assert run.transfers[0]["wire_bytes"] < 2**16


@pytest.mark.slow
def test_many_at_once_ask_once_who_listens(at: Places, run: Recorded) -> None:
    for n in range(8):
        cohort(at, f"case {n}")

    async def act(each: Places) -> None:
        await asyncio.gather(*(each.send("through-driver", f"case {n}") for n in range(8)))

    at.at_work(act)
    assert at.left() == [f"case {n}" for n in range(8)]
    assert [each["route"] for each in run.transfers] == ["direct"] * 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "why"), [(partial(MedweaveDataManager, direct=False), "switched off"), (None, "1 MiB")]
)
def test_what_is_small_or_unwanted_goes_through_the_driver(at: Places, run: Recorded, kind: Any, why: str) -> None:
    folder = cohort(at)
    if kind is None:
        for each in folder.iterdir():
            each.write_bytes(b"small")
    sent(at, "cohort", kind=kind or MedweaveDataManager)
    (told,) = run.transfers
    assert told["route"] == "through-driver"
    assert (told["wire_bytes"] is None) == (kind is None), "what is small is not counted"
    assert why in told["reason"]
    assert run.notices == [], "nobody is told what was wanted so"


@pytest.mark.slow
def test_from_and_to_this_machine_nothing_is_tried(at: Places, run: Recorded) -> None:
    cohort(at), cohort(at, "second")

    async def act(each: Places) -> None:
        await each.send("from-driver", "cohort")
        await each.send("to-driver", "second")

    at.at_work(act)
    assert [(each["route"], each["reason"]) for each in run.transfers] == [
        ("from-driver", "one of its ends is this machine"),
        ("to-driver", "one of its ends is this machine"),
    ]


@pytest.mark.slow
def test_pods_get_it_from_a_machine_reached_by_ssh(at: Places, tmp_path: Path, run: Recorded) -> None:
    folder = cohort(at)

    async def act(each: Places) -> None:
        other = each.places()["other"]
        each.manager.register_path(other, str(folder))
        await each.manager.transfer_data(other, str(folder), pods, str(each.target / "sent"))
        back = str(each.target / "sent")
        each.manager.register_path(pods[0], back)
        site = each.places()["site"]
        await each.manager.transfer_data(pods[0], back, [site], str(each.target / "back"), True)

    with with_pods(at, tmp_path) as pods:
        at.at_work(act)
    assert same(folder, at.target / "sent")
    assert same(folder, at.target / "back")
    assert [(each["location"], each["route"]) for each in run.transfers] == [
        ("w-0:worker", "direct"),
        ("w-1:worker", "direct"),
        (f"127.0.0.1:{at.server.port}", "direct"),
    ]


@pytest.mark.slow
def test_what_a_store_lacks_goes_straight_too(at: Places, run: Recorded) -> None:
    folder = cohort(at)
    at.target = at.target / run.run_id / "job"
    at.target.mkdir(parents=True)

    async def act(each: Places) -> None:
        await each.send("through-driver", "cohort")
        each.manager.path_mapper = type(each.manager.path_mapper)(each.manager.context)  # a later run
        (folder / "new").write_bytes(os.urandom(2**20 + 7))
        each.asked.clear()
        await each.send("through-driver", "cohort", "again")

    at.at_work(act)
    assert same(folder, at.target / "again")
    assert [(each["route"], each["num_files"]) for each in run.transfers] == [("direct", 3), ("direct", 1)]
    assert sum("command -v python3" in each for each in at.server.commands) == 4


@pytest.mark.slow
@pytest.mark.parametrize("breaks", [False, True])
def test_all_pods_of_a_cluster_get_it(at: Places, tmp_path: Path, run: Recorded, breaks: bool) -> None:
    folder = cohort(at)
    if breaks:  # at one of them
        broken = 'if tr "\\0" " " < /proc/$PPID/cmdline | grep -q "python3 -I"; then exit 1; fi'
        at.replace("tar", UNPACKING + ONCE.format(once=tmp_path / "once", broken=broken))

    async def act(each: Places) -> None:
        connector = each.manager.context.deployment_manager.get_connector("pods")
        connector.mirrors = lambda location: [pods[1]]
        other = each.places()["other"]
        each.manager.register_path(other, str(folder))
        await each.manager.transfer_data(other, str(folder), pods[:1], str(each.target / "sent"))

    with with_pods(at, tmp_path) as pods:
        at.at_work(act)
    assert same(folder, at.target / "sent")
    assert at.left() == ["sent"]
    assert [(each["location"], each["route"]) for each in run.transfers] == [
        ("w-0:worker", "direct"),
        ("w-1:worker", "direct"),
    ]


# ---- not straight


def refused_ports(monkeypatch: pytest.MonkeyPatch, sending: tuple[bool, ...] = (True, False)) -> None:
    """Nobody listens where an end connects to, if it is one that sends, or gets."""
    real = commands.task_line
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def line(settings: Any, *, sends: bool) -> bytes:
        refused = not settings["listen"] and sends in sending
        return real({**settings, "port": port} if refused else settings, sends=sends)

    monkeypatch.setattr(commands, "task_line", line)


@pytest.mark.slow
def test_a_port_that_is_refused(at: Places, run: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    refused_ports(monkeypatch)
    cohort(at), cohort(at, "second")
    sent(at, "cohort", "second")
    why = "there is no direct way (at the destination: connection refused; at the source: connection refused)"
    assert [(each["route"], each["reason"]) for each in run.transfers] == [("through-driver", why)] * 2
    (said,) = run.notices
    assert said == f"what it gets from other goes through this machine: {why}"
    opened = sum("command -v python3" in each for each in at.server.commands)
    assert opened == 4, "both ends, both ways, once in a run"


def test_a_site_that_can_only_call_out(at: Places, run: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    refused_ports(monkeypatch, sending=(True,))
    cohort(at), cohort(at, "second")
    sent(at, "cohort", "second")
    assert [each["reason"] for each in run.transfers] == ["the two reach each other; the source listens"] * 2
    assert run.notices == []
    opened = sum("command -v python3" in each for each in at.server.commands)
    assert opened == 6, "what was found is kept"


def test_a_site_without_a_python_that_works(at: Places, run: Recorded) -> None:
    at.replace("python3", "exit 1")
    folder = cohort(at)
    sent(at, "cohort")
    assert same(folder, at.target / "cohort")
    (told,) = run.transfers
    assert told["route"] == "through-driver"
    (said,) = run.notices
    assert "ended without a word" in said
    assert "ended without a word" in told["reason"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "broken"),
    [
        (PACKING, '"$real" "$@" | head -c 1500000; exit 1'),
        (PACKING, '"$real" "$@" | head -c 1500000; kill -9 $PPID; sleep 1; exit 1'),
        (UNPACKING, 'head -c 1500000 | "$real" "$@"; exit 1'),
        (UNPACKING, 'head -c 1500000 | "$real" "$@"; kill -9 $PPID; sleep 1; exit 1'),
    ],
    ids=["tar dies at the source", "the source vanishes", "tar dies at the destination", "the destination vanishes"],
)
def test_what_breaks_in_the_middle_goes_on(at: Places, run: Recorded, tmp_path: Path, which: str, broken: str) -> None:
    at.replace("tar", which + ONCE.format(once=tmp_path / "once", broken=broken))
    folder = cohort(at)
    sent(at, "cohort")
    went_on(at, run, folder, "a copy was cut and is resumed: a direct stream broke off: ")


@pytest.mark.slow
def test_connections_that_are_lost_in_the_middle(at: Places, run: Recorded, tmp_path: Path) -> None:
    hangs = f'"$real" "$@" | head -c 1500000; touch {tmp_path}/begun; sleep 30; exit 1'
    at.replace("tar", PACKING + ONCE.format(once=tmp_path / "once", broken=hangs))
    folder = cohort(at)

    async def act(each: Places) -> None:
        task = asyncio.create_task(each.send("through-driver", "cohort"))
        while not (tmp_path / "begun").exists():
            assert not task.done(), task
            await asyncio.sleep(0.01)
        await asyncio.to_thread(each.server.cut)
        await task

    at.at_work(act)
    went_on(at, run, folder, "a copy was cut and is resumed: a direct stream broke off: ")


@pytest.mark.slow
def test_after_two_streams_that_broke_no_third_is_tried(at: Places, run: Recorded) -> None:
    for name in ("one", "two", "three"):
        cohort(at, name)
    # The driver's tar runs behind ssh's shell: only the far end's is refused.
    at.replace(
        "tar",
        PACKING + 'if tr "\\0" " " < /proc/$PPID/cmdline | grep -q "python3 -I"; then exit 1; fi; exec "$real" "$@"',
    )
    sent(at, "one", "two", "three")
    assert at.left() == ["one", "three", "two"]
    assert ["2 direct streams broke off" in each["reason"] for each in run.transfers] == [True, True, True]
    assert sum("goes through this machine" in each for each in run.notices) == 1


def test_a_disk_that_fills_up_on_the_way_is_told_at_once(at: Places, run: Recorded) -> None:
    at.replace("tar", UNPACKING + 'head -c 100000 >/dev/null; echo "tar: x: No space left on device" >&2; exit 2')
    cohort(at)
    with pytest.raises(NoRoom) as raised:
        sent(at, "cohort")
    assert "No space left on device (exit status 2)" in str(raised.value)
    assert PATIENT not in str(raised.value)
    assert at.left() == []
    assert dict(at.asked) == {"other": 3, "site": 2}, "no stream through the driver was opened"


def test_a_copy_that_is_cancelled_leaves_nothing(at: Places, tmp_path: Path) -> None:
    at.replace("tar", PACKING + f"touch {tmp_path}/begun; head -c 100000 /dev/zero; exec sleep 60")
    cohort(at)

    async def act(each: Places) -> None:
        task = asyncio.create_task(each.send("through-driver", "cohort"))
        while not (tmp_path / "begun").exists():
            assert not task.done(), task
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    at.at_work(act)
    assert at.left() == []


@pytest.mark.slow
def test_no_command_line_and_no_file_has_a_key(
    at: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Recorded
) -> None:
    keys: list[str] = []
    real = carry_module.make_identity

    def make() -> Any:
        made = real()
        keys.extend(each.splitlines()[1] for each in (made.key, made.certificate))
        return made

    monkeypatch.setattr(carry_module, "make_identity", make)
    at.server.environment["TMPDIR"] = str(tmp_path)
    at.replace(
        "tar", f'cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ > {tmp_path}/seen.$$ 2>/dev/null; exec "$real" "$@"'
    )
    cohort(at)
    sent(at, "cohort")
    assert run.transfers[0]["route"] == "direct"
    assert len(keys) == 4
    texts = [each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()]
    assert any(b"python3\0-I\0-S\0-c\0" in each for each in texts), "the program was seen"
    assert not any(key.encode() in text for key in keys for text in texts)
    assert not any(key in each for key in keys for each in at.server.commands)
