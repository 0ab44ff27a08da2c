"""Direct copies between two sites, and the fallback through the driver with its reason."""

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
from support.transfers import TransferSites, with_pods

ODD = ("-dash", "a blank", "quo'te\"s", "$HOME `id` \\n", "two\nlines", "ümläut", "x" * 255, "\udcff\udcfe", "tail\n")
PATIENT = "Mustermann_Erika_1970"
DIRECT_CALLS = {
    "other": 2,
    "site": 3,
}  # scan the source, digests | prepare, manifest, rename: no stream through the driver
ONCE = 'if mkdir "{once}" 2>/dev/null; then {broken}; fi\nexec "$real" "$@"'
PACKING, UNPACKING = (f'case "$1" in {letter}*) ;; *) exec "$real" "$@" ;; esac\n' for letter in "cx")


def cohort(at: TransferSites, name: str = "cohort") -> Path:
    """Write 3 MiB in files with a patient's name to a folder."""
    folder = at.source / name
    folder.mkdir()
    for n in range(3):
        (folder / f"{PATIENT}_{n}").write_bytes(os.urandom(2**20 + n))
    return folder


def same(one: Path, other: Path) -> bool:
    return subprocess.run(["diff", "-r", one, other], check=False).returncode == 0


def sent(at: TransferSites, *names: str, kind: Any = MedweaveDataManager) -> None:
    """Copy these folders from one site to the other, in order."""

    async def act(sites: TransferSites) -> None:
        for name in names:
            await sites.send("through-driver", name)

    at.run_connected(act, kind)


def assert_resumed(at: TransferSites, run: Recorded, folder: Path, why: str) -> None:
    """Assert that the copy is complete and direct, and that one notice reports why the first stream was cut."""
    assert same(folder, at.target / folder.name)
    assert at.target_names() == [folder.name]
    (transfer,) = run.transfers
    assert transfer["route"] == "direct"
    (notice,) = run.notices
    assert why in notice
    assert PATIENT not in f"{notice} {transfer}"


# ---- direct copies


@pytest.mark.slow
def test_a_copy_between_two_sites_is_direct(at: TransferSites, run: Recorded) -> None:
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
    assert dict(at.calls) == DIRECT_CALLS
    (transfer,) = run.transfers
    assert (transfer["route"], transfer["reason"]) == ("direct", "both sites reach each other; the destination listens")
    assert 3 * 2**20 < transfer["num_bytes"] < transfer["wire_bytes"], "random bytes are not compressed"
    assert run.notices == []


def test_compressible_files_are_sent_compressed(at: TransferSites, run: Recorded) -> None:
    folder = cohort(at)
    for file in folder.iterdir():
        file.write_bytes(bytes(2**20))
    sent(at, "cohort")
    assert same(folder, at.target / "cohort")
    assert run.transfers[0]["wire_bytes"] < 2**16


@pytest.mark.slow
def test_concurrent_copies_are_all_direct(at: TransferSites, run: Recorded) -> None:
    for n in range(8):
        cohort(at, f"case {n}")

    async def act(sites: TransferSites) -> None:
        await asyncio.gather(*(sites.send("through-driver", f"case {n}") for n in range(8)))

    at.run_connected(act)
    assert at.target_names() == [f"case {n}" for n in range(8)]
    assert [transfer["route"] for transfer in run.transfers] == ["direct"] * 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "why"), [(partial(MedweaveDataManager, direct=False), "switched off"), (None, "1 MiB")]
)
def test_small_copies_and_disabled_direct_routes_go_through_the_driver(
    at: TransferSites, run: Recorded, kind: Any, why: str
) -> None:
    folder = cohort(at)
    if kind is None:
        for file in folder.iterdir():
            file.write_bytes(b"small")
    sent(at, "cohort", kind=kind or MedweaveDataManager)
    (transfer,) = run.transfers
    assert transfer["route"] == "through-driver"
    assert (transfer["wire_bytes"] is None) == (kind is None), "wire bytes are not counted for small copies"
    assert why in transfer["reason"]
    assert run.notices == [], "an expected fallback gives no notice"


@pytest.mark.slow
def test_no_direct_route_is_tried_from_or_to_the_driver(at: TransferSites, run: Recorded) -> None:
    cohort(at), cohort(at, "second")

    async def act(sites: TransferSites) -> None:
        await sites.send("from-driver", "cohort")
        await sites.send("to-driver", "second")

    at.run_connected(act)
    assert [(transfer["route"], transfer["reason"]) for transfer in run.transfers] == [
        ("from-driver", "the driver is one end of the copy"),
        ("to-driver", "the driver is one end of the copy"),
    ]


@pytest.mark.slow
def test_copies_between_ssh_sites_and_pods_are_direct(at: TransferSites, tmp_path: Path, run: Recorded) -> None:
    folder = cohort(at)

    async def act(sites: TransferSites) -> None:
        other = sites.locations()["other"]
        sites.manager.register_path(other, str(folder))
        await sites.manager.transfer_data(other, str(folder), pods, str(sites.target / "sent"))
        back = str(sites.target / "sent")
        sites.manager.register_path(pods[0], back)
        site = sites.locations()["site"]
        await sites.manager.transfer_data(pods[0], back, [site], str(sites.target / "back"), True)

    with with_pods(at, tmp_path) as pods:
        at.run_connected(act)
    assert same(folder, at.target / "sent")
    assert same(folder, at.target / "back")
    assert [(transfer["location"], transfer["route"]) for transfer in run.transfers] == [
        ("w-0:worker", "direct"),
        ("w-1:worker", "direct"),
        (f"127.0.0.1:{at.server.port}", "direct"),
    ]


@pytest.mark.slow
def test_files_missing_from_a_store_are_copied_directly(at: TransferSites, run: Recorded) -> None:
    folder = cohort(at)
    at.target = at.target / run.run_id / "job"
    at.target.mkdir(parents=True)

    async def act(sites: TransferSites) -> None:
        await sites.send("through-driver", "cohort")
        sites.manager.path_mapper = type(sites.manager.path_mapper)(sites.manager.context)  # a later run
        (folder / "new").write_bytes(os.urandom(2**20 + 7))
        sites.calls.clear()
        await sites.send("through-driver", "cohort", "again")

    at.run_connected(act)
    assert same(folder, at.target / "again")
    assert [(transfer["route"], transfer["num_files"]) for transfer in run.transfers] == [("direct", 3), ("direct", 1)]
    assert sum("command -v python3" in command for command in at.server.commands) == 4


@pytest.mark.slow
@pytest.mark.parametrize("breaks", [False, True])
def test_all_pods_of_a_cluster_receive_a_direct_copy(
    at: TransferSites, tmp_path: Path, run: Recorded, breaks: bool
) -> None:
    folder = cohort(at)
    if breaks:  # at one pod
        broken = 'if tr "\\0" " " < /proc/$PPID/cmdline | grep -q "python3 -I"; then exit 1; fi'
        at.replace("tar", UNPACKING + ONCE.format(once=tmp_path / "once", broken=broken))

    async def act(sites: TransferSites) -> None:
        connector = sites.manager.context.deployment_manager.get_connector("pods")
        connector.mirrors = lambda location: [pods[1]]
        other = sites.locations()["other"]
        sites.manager.register_path(other, str(folder))
        await sites.manager.transfer_data(other, str(folder), pods[:1], str(sites.target / "sent"))

    with with_pods(at, tmp_path) as pods:
        at.run_connected(act)
    assert same(folder, at.target / "sent")
    assert at.target_names() == ["sent"]
    assert [(transfer["location"], transfer["route"]) for transfer in run.transfers] == [
        ("w-0:worker", "direct"),
        ("w-1:worker", "direct"),
    ]


# ---- fallback through the driver


def refused_ports(monkeypatch: pytest.MonkeyPatch, sending: tuple[bool, ...] = (True, False)) -> None:
    """Let peers connect to a closed port: the sender if `sending` contains True, the receiver if it contains False."""
    real = commands.task_line
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def line(settings: Any, *, sends: bool) -> bytes:
        refused = not settings["listen"] and sends in sending
        return real({**settings, "port": port} if refused else settings, sends=sends)

    monkeypatch.setattr(commands, "task_line", line)


@pytest.mark.slow
def test_refused_connections_fall_back_to_the_driver(
    at: TransferSites, run: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused_ports(monkeypatch)
    cohort(at), cohort(at, "second")
    sent(at, "cohort", "second")
    why = "there is no direct route (at the destination: connection refused; at the source: connection refused)"
    assert [(transfer["route"], transfer["reason"]) for transfer in run.transfers] == [("through-driver", why)] * 2
    (notice,) = run.notices
    assert notice == f"data from other goes through the driver: {why}"
    opened = sum("command -v python3" in command for command in at.server.commands)
    assert opened == 4, "both peers in both directions, once in a run"


def test_the_source_listens_if_the_destination_cannot_be_connected_to(
    at: TransferSites, run: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused_ports(monkeypatch, sending=(True,))
    cohort(at), cohort(at, "second")
    sent(at, "cohort", "second")
    assert [transfer["reason"] for transfer in run.transfers] == ["both sites reach each other; the source listens"] * 2
    assert run.notices == []
    opened = sum("command -v python3" in command for command in at.server.commands)
    assert opened == 6, "the result of the probe is reused"


def test_a_site_with_a_broken_python_falls_back_to_the_driver(at: TransferSites, run: Recorded) -> None:
    at.replace("python3", "exit 1")
    folder = cohort(at)
    sent(at, "cohort")
    assert same(folder, at.target / "cohort")
    (transfer,) = run.transfers
    assert transfer["route"] == "through-driver"
    (notice,) = run.notices
    assert "ended without a message" in notice
    assert "ended without a message" in transfer["reason"]


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
def test_a_broken_direct_stream_is_resumed(
    at: TransferSites, run: Recorded, tmp_path: Path, which: str, broken: str
) -> None:
    at.replace("tar", which + ONCE.format(once=tmp_path / "once", broken=broken))
    folder = cohort(at)
    sent(at, "cohort")
    assert_resumed(at, run, folder, "a copy was cut and is resumed: a direct stream broke off: ")


@pytest.mark.slow
def test_a_direct_copy_is_resumed_after_lost_connections(at: TransferSites, run: Recorded, tmp_path: Path) -> None:
    hangs = f'"$real" "$@" | head -c 1500000; touch {tmp_path}/begun; sleep 30; exit 1'
    at.replace("tar", PACKING + ONCE.format(once=tmp_path / "once", broken=hangs))
    folder = cohort(at)

    async def act(sites: TransferSites) -> None:
        task = asyncio.create_task(sites.send("through-driver", "cohort"))
        while not (tmp_path / "begun").exists():
            assert not task.done(), task
            await asyncio.sleep(0.01)
        await asyncio.to_thread(sites.server.cut)
        await task

    at.run_connected(act)
    assert_resumed(at, run, folder, "a copy was cut and is resumed: a direct stream broke off: ")


@pytest.mark.slow
def test_no_direct_stream_is_tried_after_two_broke_off(at: TransferSites, run: Recorded) -> None:
    for name in ("one", "two", "three"):
        cohort(at, name)
    # The driver's tar runs in an ssh shell: only the agent's tar fails.
    at.replace(
        "tar",
        PACKING + 'if tr "\\0" " " < /proc/$PPID/cmdline | grep -q "python3 -I"; then exit 1; fi; exec "$real" "$@"',
    )
    sent(at, "one", "two", "three")
    assert at.target_names() == ["one", "three", "two"]
    assert ["2 direct streams broke off" in transfer["reason"] for transfer in run.transfers] == [True, True, True]
    assert sum("goes through the driver" in notice for notice in run.notices) == 1


def test_a_disk_that_fills_up_during_a_copy_is_reported_at_once(at: TransferSites, run: Recorded) -> None:
    at.replace("tar", UNPACKING + 'head -c 100000 >/dev/null; echo "tar: x: No space left on device" >&2; exit 2')
    cohort(at)
    with pytest.raises(NoRoom) as raised:
        sent(at, "cohort")
    assert "No space left on device (exit status 2)" in str(raised.value)
    assert PATIENT not in str(raised.value)
    assert at.target_names() == []
    assert dict(at.calls) == {"other": 3, "site": 2}, "no stream through the driver was opened"


def test_a_canceled_copy_leaves_no_files(at: TransferSites, tmp_path: Path) -> None:
    at.replace("tar", PACKING + f"touch {tmp_path}/begun; head -c 100000 /dev/zero; exec sleep 60")
    cohort(at)

    at.cancel_once_begun("cohort", tmp_path / "begun")
    assert at.target_names() == []


@pytest.mark.slow
def test_no_command_line_and_no_file_contains_a_key(
    at: TransferSites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Recorded
) -> None:
    keys: list[str] = []
    real = carry_module.make_identity

    def make() -> Any:
        identity = real()
        keys.extend(pem.splitlines()[1] for pem in (identity.key, identity.certificate))
        return identity

    monkeypatch.setattr(carry_module, "make_identity", make)
    at.server.environment["TMPDIR"] = str(tmp_path)
    at.replace(
        "tar", f'cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ > {tmp_path}/seen.$$ 2>/dev/null; exec "$real" "$@"'
    )
    cohort(at)
    sent(at, "cohort")
    assert run.transfers[0]["route"] == "direct"
    assert len(keys) == 4
    texts = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert any(b"python3\0-I\0-S\0-c\0" in text for text in texts), "the agent's command line was recorded"
    assert not any(key.encode() in text for key in keys for text in texts)
    assert not any(key in command for key in keys for command in at.server.commands)
