"""`medweave.ssh` and the user's ssh: configuration, jump hosts, agent. Real sshd, real ssh-agent."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.host.errors import SiteConfigError, SiteUnreachable
from medweave_connectors.sites.ssh import connect, openssh_config
from medweave_connectors.sites.ssh.command_line import ssh_words
from medweave_connectors.sites.ssh.connector import MedweaveSSHConnector
from medweave_core.errors import UsageError
from support.sshd import USER, Sshd, agent, make_key, sshd


@dataclass
class Site:
    """A login node behind a jump host, and the user's home."""

    home: Path
    key: Path
    jump: Sshd
    inner: Sshd

    def write(self, text: str) -> None:
        (self.home / ".ssh" / "config").write_text(text.format(**vars(self), user=USER, known=self.known_hosts))

    @property
    def known_hosts(self) -> Path:
        return self.home / ".ssh" / "known_hosts"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Sshd, Sshd]]:
    folder = tmp_path_factory.mktemp("servers")
    key = make_key(folder / "key")
    with sshd(folder / "jump", [key]) as jump, sshd(folder / "inner", [key]) as inner:
        yield key, jump, inner


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: tuple[Path, Sshd, Sshd]) -> Site:
    key, jump, inner = servers
    (tmp_path / "home" / ".ssh").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    site = Site(tmp_path / "home", key, jump, inner)
    site.known_hosts.write_text(jump.known_host + inner.known_host)
    return site


def output_of(command: str = "echo in", **settings: Any) -> str:
    """Run a command at the machine and return its output."""

    async def go() -> str:
        connector = MedweaveSSHConnector("login", "/", **({"nodes": ["hpc"], "connectTimeout": 5} | settings))
        try:
            await connector.deploy(False)
            (node,) = connector.nodes
            place = ExecutionLocation(name=node, deployment="login")
            result = await connector.run(place, [command], capture_output=True)
            assert result is not None
            return result[0]
        finally:
            await connector.undeploy(False)

    return asyncio.run(asyncio.wait_for(go(), 60))


def refused(**settings: Any) -> str:
    before = time.monotonic()
    with pytest.raises(SiteConfigError) as caught:
        output_of(**settings)
    assert time.monotonic() - before < 15
    text = str(caught.value)
    assert all(f"\n  {word}" in text for word in ("seen:", "expected:", "do:"))
    return text


WITH_JUMP = """
# as in the instructions of sites
IgnoreUnknown UseKeychain
Host hpc  # the cluster
    HostName = 127.0.0.1
    Port {inner.port}
    User {user}
    IdentityFile "{key}"
    ProxyJump gate
    StrictHostKeyChecking no
    UserKnownHostsFile {known}
    UseKeychain yes
Host gate
    HostName 127.0.0.1
    Port {jump.port}
    User {user}
    IdentityFile {key}
    UserKnownHostsFile {known}
Match originalhost other exec "false it's"
    User nobody
"""


def test_a_host_alias_behind_a_jump_host(site: Site) -> None:
    site.write(WITH_JUMP)
    before = site.jump.log.count("direct-tcpip")
    assert output_of('echo "${SSH_CONNECTION##* }"') == str(site.inner.port)
    assert site.jump.log.count("direct-tcpip") > before
    assert f"target 127.0.0.1 port {site.inner.port}" in site.jump.log


def test_the_chain_may_be_in_one_line(site: Site) -> None:
    text = WITH_JUMP.replace("ProxyJump gate", "ProxyJump gate,{user}@second:{inner.port}")
    site.write(text + "Host second\n  HostName 127.0.0.1\n  IdentityFile {key}\n  UserKnownHostsFile {known}\n")
    before = site.inner.log.count("direct-tcpip")
    assert output_of() == "in"
    assert site.inner.log.count("direct-tcpip") > before, "the second hop led to the machine"


def test_a_proxy_command_gets_its_tokens(site: Site) -> None:
    config = site.home / ".ssh" / "config"
    site.write(WITH_JUMP.replace("ProxyJump gate", f"ProxyCommand ssh -F {config} -W %h:%p gate"))
    assert output_of() == "in"


@pytest.mark.slow
def test_the_site_file_overrides_the_users_configuration(site: Site, tmp_path: Path) -> None:
    site.write(WITH_JUMP.replace("User {user}", "User unknown-user", 1).replace('"{key}"', "/nothing", 1))
    assert "refused" in refused()
    assert output_of(username=USER, sshKey=str(site.key)) == "in"
    site.write(WITH_JUMP.replace("Port {inner.port}", "Port 1", 1))
    assert output_of(nodes=[f"hpc:{site.inner.port}"]) == "in"
    site.write(WITH_JUMP)
    other = tmp_path / "hosts"
    other.touch()
    text = refused(knownHosts=str(other))
    assert text.startswith("deployments.login.config.knownHosts: hpc ")
    assert str(other) in text


def test_include_and_match_work_as_in_ssh(site: Site) -> None:
    (site.home / "more").write_text(f"IdentityFile {site.key}\nHost elsewhere\n  User wrong\n")
    site.write(
        'Match originalhost hpc exec "test %n = hpc"\n  HostName 127.0.0.1\n  Port {inner.port}\n'
        "Host hpc\n  Include {home}/more\nHost *\n  UserKnownHostsFile {known}\n"
    )
    assert output_of() == "in"


def test_host_keys_are_checked_whatever_the_users_file_says(site: Site) -> None:
    text = WITH_JUMP.replace("ProxyJump gate", "")
    for switched_off in ("none", "/dev/null"):
        site.write(text.replace("UserKnownHostsFile {known}", f"UserKnownHostsFile {switched_off}", 1))
        message = refused()
        assert message.startswith("deployments.login.config.knownHosts: hpc cannot be reached")
        assert "UserKnownHostsFile" in message
    site.known_hosts.write_text(f"[127.0.0.1]:{site.inner.port} {site.jump.host_key}\n")
    site.write(text)
    assert f"{site.known_hosts} (UserKnownHostsFile of Host hpc" in refused()


def test_a_host_key_alias_names_the_entry(site: Site) -> None:
    site.known_hosts.write_text(f"cluster {site.inner.host_key}\n")
    text = WITH_JUMP.replace("ProxyJump gate", "HostKeyAlias cluster")
    site.write(text)
    assert output_of() == "in"
    site.write(text.replace("HostKeyAlias cluster", "HostKeyAlias another"))
    assert "does not list for another" in refused()


def test_the_host_key_of_the_jump_host_is_checked(site: Site) -> None:
    site.known_hosts.write_text(site.inner.known_host + f"[127.0.0.1]:{site.jump.port} {site.inner.host_key}\n")
    site.write(WITH_JUMP.replace("User {user}", "User {user}\n    StrictHostKeyChecking no"))
    text = refused()
    assert text.startswith("deployments.login.config.nodes: hpc cannot be reached")
    assert "a host key of the jump host gate" in text
    assert "compare, and accept it: ssh hpc" in text


def test_a_jump_host_that_refuses_the_login_is_named(site: Site, tmp_path: Path) -> None:
    strange = make_key(tmp_path / "strange")
    head, _, tail = WITH_JUMP.rpartition("IdentityFile {key}")
    site.write(f"{head}IdentityFile {strange}{tail}")
    text = refused()
    assert text.startswith("deployments.login.config.nodes: hpc cannot be reached")
    assert f"the jump host gate refused the keys of the agent and of ssh's configuration for user {USER}" in text
    assert f"User or IdentityFile of Host gate in {site.home}/.ssh/config" in text


def test_a_jump_host_that_forwards_nothing_is_named(site: Site, tmp_path: Path) -> None:
    with sshd(tmp_path / "closed", [site.key], "AllowTcpForwarding no") as closed:
        site.known_hosts.write_text(closed.known_host + site.inner.known_host)
        site.write(WITH_JUMP.replace("{jump.port}", str(closed.port)))
        assert f"the jump host gate does not forward to 127.0.0.1:{site.inner.port}" in refused()


def test_a_jump_host_that_is_down_may_come_back(site: Site) -> None:
    site.write(WITH_JUMP.replace("{jump.port}", "1"))
    with pytest.raises(SiteUnreachable, match=r"its jump host gate: .*Connect call failed"):
        output_of()


def test_circular_jump_hosts_are_refused(site: Site) -> None:
    site.write("Host hpc gate\n  HostName 127.0.0.1\nHost hpc\n  ProxyJump gate\nHost gate\n  ProxyJump hpc\n")
    assert "ProxyJump" in refused()


def test_unknown_names_are_reported_with_their_setting(site: Site) -> None:
    site.write("")
    text = refused(nodes=["nowhere.invalid"])
    assert text.startswith("deployments.login.config.nodes: ")
    assert "a Host of" in text
    site.write("Host hpc\n  HostName nowhere.invalid\n")
    assert "no address for nowhere.invalid" in refused()
    site.write("Host hpc\n  ProxyJump nowhere.invalid\n")
    assert "no address for nowhere.invalid, the jump host" in refused()


def test_a_configuration_that_ssh_refuses_is_reported_with_its_message(site: Site) -> None:
    site.write("Host hpc\n  Usr me\n")
    text = refused()
    assert text.startswith("deployments.login.config.nodes: ssh refuses its configuration for hpc.")
    assert "config: line 2: Bad configuration option: usr" in text


def test_the_accounts_own_home_leaves_the_choice_of_files_to_ssh(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", pwd.getpwuid(os.getuid()).pw_dir)
    assert ssh_words("hpc", "", None) == ["ssh", "--", "hpc"], "the system's file counts, too"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ssh_words("hpc", "me", 22) == ["ssh", "-F", "none", "-l", "me", "-p", "22", "--", "hpc"]


def test_a_configuration_without_the_ssh_program_is_an_error(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    settings = {"nodes": [f"127.0.0.1:{site.inner.port}"], "sshKey": str(site.key)}
    assert output_of(**settings) == "in", "without a configuration no program is needed"
    site.write(WITH_JUMP)
    assert "no program `ssh`" in refused(**settings)


@pytest.mark.slow
def test_a_missing_or_encrypted_identity_file_is_named(site: Site, tmp_path: Path) -> None:
    locked = make_key(tmp_path / "locked", "secret")
    site.write(WITH_JUMP.replace('"{key}"', f"{site.home}/nothing\n    IdentityFile {locked}", 1))
    text = refused()
    assert f"IdentityFile {site.home}/nothing: No such file" in text
    assert f"{locked} is encrypted" in text
    site.write(WITH_JUMP.replace('"{key}"', f"{site.home}/nothing\n    IdentityFile {{key}}", 1))
    assert output_of() == "in", "ssh ignores a missing one, too"
    assert "config.sshKeyPassphraseFile" in refused(sshKey=str(locked), sshKeyPassphraseFile=str(tmp_path / "no file"))


def test_invalid_lines_of_known_hosts_are_ignored(site: Site) -> None:
    site.known_hosts.write_text("garbage\n127.0.0.1 ssh-new AAAA\n" + site.inner.known_host)
    site.write(WITH_JUMP.replace("ProxyJump gate", ""))
    assert output_of() == "in"


def test_the_agents_keys(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = WITH_JUMP.replace("ProxyJump gate", "").replace('    IdentityFile "{key}"\n', "")
    site.write(text)
    assert "refused" in refused()
    strange = make_key(tmp_path / "strange")
    socket = Path(f"/tmp/medweave-agent-{os.getpid()}")
    with agent(socket, strange, site.key):
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        assert output_of() == "in"
        monkeypatch.delenv("SSH_AUTH_SOCK")
        site.write(text.replace("Host gate", f"    IdentityAgent {socket}\nHost gate", 1))
        assert output_of() == "in"
        only = text.replace(
            "Host gate", f"    IdentityAgent {socket}\n    IdentitiesOnly yes\n    IdentityFile KEY\nHost gate", 1
        )
        site.write(only.replace("KEY", f"{strange}.pub"))
        assert "refused" in refused(), "the agent's other keys are not shown"
        site.write(only.replace("KEY", "{key}.pub"))
        assert output_of() == "in"


def test_a_server_that_requires_more_than_a_key(site: Site, tmp_path: Path) -> None:
    with sshd(
        tmp_path / "guarded", [site.key], "AuthenticationMethods publickey,password", "PasswordAuthentication yes"
    ) as guarded:
        site.known_hosts.write_text(guarded.known_host)
        text = WITH_JUMP.replace("{inner.port}", str(guarded.port)).replace("ProxyJump gate", "")
        site.write(text)
        message = refused()
        assert "does not accept a key alone from user" in message
        assert "it also requires a password or a code" in message
        assert "ControlPath ~/.ssh/master-%C" in message
        site.write(text.replace("Host gate", "    ControlPath ~/cm-%C\nHost gate", 1))
        assert "leave it open: ssh -M -N -f hpc" in refused()


def test_a_revoked_host_key_is_refused(site: Site, tmp_path: Path) -> None:
    (tmp_path / "revoked").write_text(f"# left the building\n{site.inner.host_key}\n")
    site.write(WITH_JUMP.replace("UseKeychain yes", f"RevokedHostKeys {tmp_path}/revoked"))
    assert "host key" in refused()
    (tmp_path / "revoked").unlink()
    assert "RevokedHostKeys" in refused()


def test_default_keys_are_not_offered_if_the_configuration_names_others(site: Site, tmp_path: Path) -> None:
    for suffix in ("", ".pub"):
        shutil.copy(f"{site.key}{suffix}", site.home / ".ssh" / f"id_ed25519{suffix}")
    site.write(WITH_JUMP.replace("ProxyJump gate", "IdentitiesOnly yes").replace('"{key}"', f"{tmp_path}/absent"))
    assert f"{tmp_path}/absent" in refused()


@pytest.mark.slow
def test_a_match_that_hangs_times_out(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openssh_config, "ANSWER_S", 1.0)
    site.write(WITH_JUMP.replace('other exec "false it\'s"', 'hpc exec "sleep 30"'))
    before = time.monotonic()
    assert "no answer within" in refused()
    assert time.monotonic() - before < 10


def test_a_missing_user_name_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown_user() -> str:
        raise KeyError("getpwuid(): uid not found: 4242")

    monkeypatch.setattr(openssh_config.getpass, "getuser", unknown_user)
    monkeypatch.setattr(openssh_config, "_can_ask", lambda: False)
    with pytest.raises(UsageError, match="no user name for the login"):
        asyncio.run(openssh_config.look_up("somewhere", "", None, where="deployments.login.config.username"))


def test_received_data_are_acknowledged_at_once() -> None:
    """The server waits for it with its first answer, which takes 40 ms else."""
    received = list[bytes]()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
            connection = SimpleNamespace(
                get_extra_info=lambda _: client, data_received=lambda data, _: received.append(data)
            )
            connect._acknowledged(connection)
            connection.data_received(b"data")
            assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1
    connection.data_received(b"the last of it")
    assert received == [b"data", b"the last of it"]


def test_a_connection_through_a_program_is_unchanged() -> None:
    one, other = socket.socketpair()
    with one, other:
        for sock in (None, one):
            connection = SimpleNamespace(get_extra_info=lambda _, sock=sock: sock, data_received=print)
            connect._acknowledged(connection)
            assert connection.data_received is print


@pytest.mark.parametrize("fills", [False, True])
def test_no_empty_packets_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fills: bool) -> None:
    """asyncssh sends an empty packet before each other one, for ciphers that are never used here."""
    assert not [cipher for cipher in connect.CIPHERS if "cbc" in cipher]
    monkeypatch.setenv("HOME", str(tmp_path))  # an empty configuration
    if fills:  # as without medweave: the server's log shows them
        monkeypatch.setattr(connect, "_without_fillers", lambda connection: connection)
    key = make_key(tmp_path / "key")
    with sshd(tmp_path / "server", [key], "LogLevel DEBUG3") as server:
        (tmp_path / "known").write_text(server.known_host)
        output = output_of(
            nodes=[f"127.0.0.1:{server.port}"], username=USER, sshKey=str(key), knownHosts=str(tmp_path / "known")
        )
        assert output == "in"
        _, accepted, later = server.log.partition("Accepted publickey")
        assert accepted
        assert ("MSG_IGNORE" in later) == fills
