"""Direct streams between two agents, with real processes and TLS: authentication, and detection of incomplete streams."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from medweave_connectors.transfer.agent import direct_peer, program_text
from medweave_connectors.transfer.routes.direct import commands, peer_program
from medweave_connectors.transfer.routes.direct import direct_copy as direct_copy_module
from medweave_connectors.transfer.routes.direct.certificates import make_identity
from medweave_connectors.transfer.routes.direct.direct_copy import (
    CopyBroke,
    Listener,
    NotConnected,
    PeerTask,
    copy_directly,
)
from medweave_connectors.transfer.streams import pieces
from support.direct_ends import LocalEnd, between
from support.old_python import assert_is_python

SIZE = 3 * 2**20 + 17
Hook = Callable[[dict[str, Any]], None]


@pytest.fixture
def blob(tmp_path: Path) -> Path:
    file = tmp_path / "blob"
    file.write_bytes(os.urandom(SIZE))
    return file


def hooked(monkeypatch: pytest.MonkeyPatch, name: str, hook: Hook) -> None:
    """Let a test change the settings that one peer receives."""
    real = getattr(commands, name)

    def with_hook(**facts: Any) -> Any:
        settings = real(**facts)
        hook(settings)
        return settings

    monkeypatch.setattr(direct_copy_module.commands, name, with_hook)


def copied_bytes(
    blob: Path,
    *,
    listener: Listener = Listener.TARGET,
    send: str = "cat {blob}",
    get: str = "cat > {blob}.copy",
    at: LocalEnd | None = None,
    guard: Mapping[str, Any] | None = None,
) -> int:
    """Copy between two shell commands on this machine. Return the number of bytes."""
    words = (["sh", "-c", command.format(blob=blob)] for command in (send, get))
    ends = (LocalEnd("a"), at or LocalEnd("b"))
    source, target = (
        PeerTask(end.end, word, checker) for end, word, checker in zip(ends, words, (None, guard), strict=True)
    )

    async def act() -> int:
        return (await copy_directly(source, target, listener, ports=commands.PORTS, connected=lambda: None)).num_bytes

    count = asyncio.run(asyncio.wait_for(act(), 40))
    assert all(not program.usable for end in ends for program in end.programs)
    return count


@pytest.mark.parametrize("listener", Listener)
def test_the_output_of_one_command_reaches_the_other(blob: Path, listener: Listener) -> None:
    assert copied_bytes(blob, listener=listener) == SIZE
    assert blob.with_name("blob.copy").read_bytes() == blob.read_bytes()


@pytest.mark.slow
def test_an_archive_is_checked_before_it_is_unpacked(blob: Path) -> None:
    target = blob.parent / "target"
    target.mkdir()
    (blob.parent / "link").symlink_to("/etc")
    pack, unpack = f"tar cPf - -C {blob.parent} ", f"tar xPf - -C {target}"
    for send, why in (
        (f"{pack} --transform s,^,../, blob", "an entry lies outside of the requested path"),
        (f"{pack} --transform s,link,blob, link", "neither a file nor a folder"),
        (f"{pack} blob | head -c 5120", "is truncated"),
        ("true", "is truncated"),
    ):
        with pytest.raises(CopyBroke, match=why):
            copied_bytes(blob, send=send, get=unpack, guard=pieces.checker_settings("blob", None))
        assert not any(file.is_symlink() for file in target.iterdir())
    copied_bytes(blob, send=f"{pack} blob", get=unpack, guard=pieces.checker_settings("blob", None))
    assert (target / "blob").read_bytes() == blob.read_bytes()


def test_programs_for_agents_are_valid_in_old_python_versions() -> None:
    text = program_text.of("direct_peer")
    for source in (text, program_text.of("archive"), program_text.of("encoding")):
        assert_is_python(source)


def test_an_empty_stream_is_copied(blob: Path) -> None:
    assert copied_bytes(blob, send="true") == 0
    assert blob.with_name("blob.copy").read_bytes() == b""


def test_a_command_may_succeed_without_reading_all_input(blob: Path) -> None:
    assert copied_bytes(blob, get="head -c 1000 > {blob}.copy") == SIZE  # as tar does with its padding
    assert blob.with_name("blob.copy").read_bytes() == blob.read_bytes()[:1000]


# ---- authentication


def strangers(settings: dict[str, Any], connections: list[socket.socket]) -> None:
    """Open three connections before the right peer's: a silent one, one with plain text, and one with another certificate."""
    for data in (b"", b"GET / HTTP/1.1\r\n\r\n", None):
        link = socket.create_connection((settings["hosts"][0], settings["port"]))
        connections.append(link)
        if data is not None:
            link.sendall(data)
            continue
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with contextlib.suppress(OSError):
            secured = context.wrap_socket(link)
            assert secured.recv(1) == b""


def test_connections_of_other_programs_do_not_end_a_copy(blob: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connections: list[socket.socket] = []
    hooked(monkeypatch, "to_connect", lambda settings: strangers(settings, connections))
    assert copied_bytes(blob) == SIZE
    assert len(connections) == 3


@pytest.mark.parametrize("key", ["own", "peer"])
@pytest.mark.parametrize("listener", Listener)
def test_another_certificate_is_refused(
    blob: Path, monkeypatch: pytest.MonkeyPatch, key: str, listener: Listener
) -> None:
    def change(settings: dict[str, Any]) -> None:
        other = make_identity()
        settings[key] = other.certificate + (other.key if key == "own" else "")

    hooked(monkeypatch, "to_connect", change)
    with pytest.raises(NotConnected, match="peer certificate does not match"):
        copied_bytes(blob, listener=listener)
    assert not blob.with_name("blob.copy").exists(), "no command was started"


@pytest.mark.slow
def test_the_certificate_of_another_copy_is_refused(blob: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def change(settings: dict[str, Any]) -> None:
        seen.append(settings["own"])
        settings["own"] = seen[0]

    hooked(monkeypatch, "to_connect", change)
    assert copied_bytes(blob) == SIZE
    with pytest.raises(NotConnected, match="peer certificate does not match"):
        copied_bytes(blob)


@pytest.mark.slow
def test_tls_1_2_is_refused(blob: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []

    def older(settings: dict[str, Any]) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        link = socket.create_connection((settings["hosts"][0], settings["port"]))
        try:
            context.wrap_socket(link)
        except ssl.SSLError as error:
            refused.append(error.reason)

    hooked(monkeypatch, "to_connect", older)
    assert copied_bytes(blob) == SIZE
    assert refused


# ---- peers that are not reached


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_refused_connection_is_reported(blob: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hooked(monkeypatch, "to_connect", lambda settings: settings.update(port=closed_port()))
    with pytest.raises(NotConnected, match=r"^connection refused"):
        copied_bytes(blob)


def test_an_unresolvable_host_name_is_skipped(blob: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hooked(monkeypatch, "to_connect", lambda settings: settings["hosts"].insert(0, "nowhere.invalid"))
    assert copied_bytes(blob) == SIZE


def test_a_listener_without_a_peer_times_out(blob: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hooked(monkeypatch, "to_listen", lambda settings: settings.update(wait_s=0.2))
    hooked(monkeypatch, "to_connect", lambda settings: settings.update(hosts=[]))
    with pytest.raises(NotConnected, match="no address is known"):
        copied_bytes(blob)


def test_a_site_without_python(blob: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to(shutil.which("sh") or "")
    with pytest.raises(NotConnected, match="it has no python3"):
        copied_bytes(blob, at=LocalEnd("b", {"PATH": str(tmp_path / "bin")}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "why"), [("echo hello; exit 3", "ended without a message"), ("sleep 60", "no longer responds")]
)
def test_a_python_that_fails(
    blob: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    monkeypatch.setattr(direct_copy_module, "START_S", 0.5)
    monkeypatch.setattr(peer_program, "LEAVE_S", 0.5)
    file = tmp_path / "python3"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    with pytest.raises(NotConnected, match=why):
        copied_bytes(blob, at=LocalEnd("b", {"PATH": f"{tmp_path}:{os.environ['PATH']}"}))


# ---- incomplete streams


@pytest.mark.parametrize(
    ("commands_of", "why", "tar_errors", "status"),
    [
        ({"send": "head -c 2000000 {blob}; echo gone >&2; exit 3"}, "tar failed at the source", "gone", 3),
        ({"get": "head -c 1000 > {blob}.copy; echo full >&2; exit 4"}, "tar failed at the destination", "full", 4),
        ({"get": "cat > {blob}.copy; echo full >&2; exit 4"}, "tar failed at the destination", "full", 4),
        ({"send": "head -c 2000000 {blob}; kill -9 $PPID; sleep 1"}, "ended without a message", "", None),
        ({"get": "head -c 2000000 > {blob}.copy; kill -9 $PPID; sleep 1"}, "ended without a message", "", None),
    ],
)
def test_a_failed_command_is_reported(
    blob: Path, commands_of: dict[str, str], why: str, tar_errors: str, status: int | None
) -> None:
    with pytest.raises(CopyBroke) as raised:
        copied_bytes(blob, **commands_of)  # type: ignore[arg-type]
    assert why in str(raised.value) or str(raised.value) == "the stream was cut"
    assert (raised.value.tar_errors, raised.value.exit_status) == (tar_errors, status)


@pytest.mark.parametrize("flips", [True, False])
def test_a_stream_that_is_changed_or_cut_is_detected(blob: Path, monkeypatch: pytest.MonkeyPatch, flips: bool) -> None:
    seen = 0

    def change(data: bytes) -> bytes | None:
        nonlocal seen
        seen += len(data)
        if seen < 2**20:
            return data
        return bytes([data[0] ^ 1, *data[1:]]) if flips else None

    with contextlib.ExitStack() as middle:
        hooked(
            monkeypatch,
            "to_connect",
            lambda settings: settings.update(port=middle.enter_context(between(settings["port"], change))),
        )
        with pytest.raises(CopyBroke, match="the stream was cut"):
            copied_bytes(blob)


@pytest.mark.parametrize("word", [direct_peer.CUT, peer_program.LOST])
@pytest.mark.parametrize("first", ["word", "why"])
def test_of_two_failures_the_more_specific_one_is_reported(word: str, first: str) -> None:
    async def failing(why: str, *, at_once: bool) -> int:
        await asyncio.sleep(0 if at_once else 0.05)
        raise peer_program.PeerProgramFailed(why)

    async def act() -> None:
        await direct_copy_module.wait_for_peers(
            failing(word, at_once=first == "word"), failing("an archive was refused", at_once=first == "why")
        )

    with pytest.raises(peer_program.PeerProgramFailed, match="refused"):
        asyncio.run(act())


# ---- leftovers


async def _waiting(end: LocalEnd) -> Any:
    own, peer = make_identity(), make_identity()
    shell = await end.end.open(commands.boot_command())
    settings = commands.to_listen(bind="127.0.0.1", own=own, peer=peer)
    await shell.write(
        program_text.framed("direct_peer") + commands.task_line({**settings, "words": ["cat"]}, sends=True)
    )
    message = commands.parse_message(await shell.read())
    assert message is not None
    assert "listening" in message
    return shell, own.key.splitlines()[1]


@pytest.mark.parametrize("last", [b"stop\n", None])
def test_a_peer_ends_with_the_program_that_started_it(last: bytes | None) -> None:
    async def act() -> None:
        shell, _ = await _waiting(LocalEnd("a"))
        if last is None:
            shell.process.stdin.close()
        else:
            await shell.write(last)
        await asyncio.wait_for(shell.process.wait(), 10)

    asyncio.run(act())


def test_no_process_list_and_no_file_contains_a_key(tmp_path: Path) -> None:
    async def act() -> None:
        end = LocalEnd("a", {"TMPDIR": str(tmp_path), "HOME": str(tmp_path)})
        shell, line = await _waiting(end)
        pid = shell.process.pid
        for file in ("cmdline", "environ"):
            text = Path(f"/proc/{pid}/{file}").read_bytes()
            assert text
            assert line.encode() not in text
            assert b"CERTIFICATE" not in text
        open_files = subprocess.run(["ls", "-l", f"/proc/{pid}/fd"], capture_output=True, text=True, check=True).stdout
        assert str(tmp_path) not in open_files
        assert "deleted" not in open_files
        assert list(tmp_path.iterdir()) == []
        await shell.close()

    asyncio.run(act())


@pytest.mark.parametrize("ports", [[1, 2], [5000, 4000], [5000], [5000, 70000]])
def test_an_invalid_range_of_ports_is_refused(ports: list[int]) -> None:
    with pytest.raises(Exception, match="directPorts"):
        commands.parse_ports(ports)
