"""Servers with few algorithms, or too many logins: what a run and `medweave doctor` make of them. Real sshd."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from medweave.doctor.connection import SshLogin, Unreachable, connected
from medweave_connectors.sites.ssh import sessions
from medweave_connectors.sites.ssh.algorithms import read_offers, without_common
from medweave_connectors.sites.ssh.connect import Target
from medweave_connectors.sites.ssh.sessions import NotReached, Sessions
from medweave_core.errors import UsageError
from support.sshd import Sshd, make_key, sshd


@contextlib.contextmanager
def server_with(folder: Path, *settings: str) -> Iterator[tuple[Sshd, Target]]:
    key = make_key(folder / "key")
    with sshd(folder / "server", [key], *settings) as server:
        (folder / "known_hosts").write_text(server.known_host)
        yield (
            server,
            Target(
                where="deployments.login.config",
                host="127.0.0.1",
                port=server.port,
                user="root",
                key=str(key),
                known_hosts=str(folder / "known_hosts"),
            ),
        )


def run_by(target: Target, line: str) -> tuple[str, int]:
    """Return the result of a run, or its error."""

    async def go() -> tuple[str, int]:
        login = Sessions(target, most=10, notify=lambda _: None)
        try:
            return await login.shells.execute(line, 30)
        finally:
            await login.close()

    return asyncio.run(go())


@pytest.mark.case("doctor-ciphers", expected="aes256-gcm and chacha20-poly1305 are accepted, by runs and by doctor")
@pytest.mark.parametrize("cipher", ["aes256-gcm@openssh.com", "chacha20-poly1305@openssh.com"])
def test_each_aead_cipher_is_accepted(tmp_path: Path, cipher: str, seen: Callable[[object], None]) -> None:
    with server_with(tmp_path, f"Ciphers {cipher}") as (_, target):
        answer = run_by(target, "echo in")
        with connected(SshLogin(target=target)) as reached:
            answer_to_doctor = reached.ask("echo in")
    seen(answer)
    assert answer == answer_to_doctor == ("in", 0)


@pytest.mark.case("doctor-ciphers", expected="the error names the algorithms, in a run and in doctor")
@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("Ciphers aes256-cbc", "no common cipher: 127.0.0.1:{port} offers aes256-cbc"),
        (
            "KexAlgorithms sntrup761x25519-sha512@openssh.com",
            "no common key exchange: 127.0.0.1:{port} offers sntrup761",
        ),
    ],
)
def test_error_names_the_algorithms_without_a_match(
    tmp_path: Path, setting: str, words: str, seen: Callable[[object], None]
) -> None:
    with server_with(tmp_path, setting) as (server, target):
        with pytest.raises(UsageError) as caught:
            run_by(target, "true")
        with pytest.raises(Unreachable) as closed, connected(SshLogin(target=target)):
            raise AssertionError("it was let in")
    seen(caught.value.seen)
    assert words.format(port=server.port) in str(caught.value)
    assert words.format(port=server.port) in str(closed.value)
    assert setting.split()[0] in closed.value.do


def test_a_server_with_too_many_logins_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "PAUSES_S", (0.1, 0.1))
    with (
        server_with(tmp_path, "MaxStartups 1", "LoginGraceTime 30") as (server, target),
        contextlib.ExitStack() as stack,
    ):
        for _ in range(2):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        with pytest.raises(NotReached, match="before it sent its version") as caught:
            run_by(target, "true")
    assert "MaxStartups" in str(caught.value)


OURS = [["curve25519-sha256"], ["ssh-ed25519"], ["aes256-gcm@openssh.com", "aes256-ctr"], ["hmac-sha2-256"]]


def kexinit(*lists: str) -> bytes:
    """Return the beginning of a server's SSH_MSG_KEXINIT."""
    return b"\x14" + bytes(16) + b"".join(len(names).to_bytes(4, "big") + names.encode() for names in lists)


@pytest.mark.parametrize(
    ("lists", "setting"),
    [
        (("curve25519-sha256", "ssh-ed25519", "aes256-ctr", "aes256-ctr", "hmac-sha2-256"), None),
        (("curve25519-sha256", "ssh-ed25519", "aes256-gcm@openssh.com", "", "hmac-md5"), None),
        (("curve25519-sha256", "ssh-ed25519", "aes256-ctr", "aes256-ctr", "hmac-md5"), "MACs"),
        (("kex-strict-s-v00@openssh.com", "ssh-ed25519", "aes256-ctr", "", "hmac-sha2-256"), "KexAlgorithms"),
        (("curve25519-sha256", "ssh-rsa", "aes256-ctr", "", "hmac-sha2-256"), "HostKeyAlgorithms"),
    ],
)
def test_the_kind_without_a_common_algorithm(lists: tuple[str, ...], setting: str | None) -> None:
    offer = without_common(read_offers(kexinit(*lists), OURS))
    assert (offer and offer.setting) == setting


@pytest.mark.parametrize("length", [0, 5, 17, 20, 40])
def test_truncated_message_is_ignored(length: int) -> None:
    whole = kexinit("curve25519-sha256", "ssh-ed25519", "aes256-ctr", "aes256-ctr", "hmac-sha2-256")
    assert read_offers(whole[:length], OURS) == ()
