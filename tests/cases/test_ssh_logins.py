"""Accounts as hospitals have them: any login shell, start-up files that print, few sessions. One real sshd for all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from streamflow.core.deployment import ExecutionLocation

from medweave.doctor.connection import SshLogin
from medweave.doctor.hop_result import Health, HopResult
from medweave.doctor.machine import MachineChecks
from medweave_connectors.host.errors import SiteConfigError, SiteUnreachable
from medweave_connectors.sites.ssh.connect import Target
from medweave_connectors.sites.ssh.connector import MedweaveSSHConnector
from medweave_connectors.sites.ssh.host_group import HostStep
from support.sshd import Account, Sshd, make_key, sshd

PRINTS = "echo Welcome to the cluster; echo $PATH; printf 'no end of line'\n"
ACCOUNTS = [
    Account(name="tcsh", shell="/usr/bin/tcsh", files={".tcshrc": "echo Welcome, maintenance on Monday\n"}),
    Account(name="csh", shell="/bin/csh", files={".cshrc": "set prompt='%'\nalias echo false\n"}),
    Account(name="fish", shell="/usr/bin/fish", files={".config/fish/config.fish": "echo Welcome\n"}),
    Account(name="zsh", shell="/usr/bin/zsh", files={".zshenv": "echo Welcome\n"}),
    Account(name="bash", shell="/bin/bash", files={".bashrc": PRINTS}),
    Account(name="stderr", shell="/bin/bash", files={".bashrc": "echo 'quota: 98 % used' >&2\n"}),
    Account(name="long", shell="/bin/bash", files={".bashrc": "head -c 300000 /dev/zero | tr '\\0' x\n"}),
    Account(name="options", shell="/bin/bash", files={".bashrc": "set -eu -o noclobber; export SHELLOPTS CDPATH=/\n"}),
    Account(name="moves", shell="/bin/bash", files={".bashrc": "cd /; alias ls=false; umask 022\n"}),
    Account(
        name="locale", shell="/bin/bash", files={".bashrc": "export LC_ALL=de_DE.UTF-8 LANGUAGE=de GREP_OPTIONS=-v\n"}
    ),
    Account(name="other", shell="/bin/bash", files={".bashrc": '[ -n "$AGAIN" ] || AGAIN=1 exec tcsh\n'}),
    Account(name="slow", shell="/bin/bash", files={".bashrc": "sleep 1.5; echo Welcome\n"}),
    Account(name="homeless", shell="/bin/bash", files=None),
    Account(name="forced", settings=['ForceCommand sh -c "$SSH_ORIGINAL_COMMAND"']),
    Account(name="nologin", shell="/usr/sbin/nologin"),
    Account(name="sftp", settings=["ForceCommand internal-sftp"]),
    Account(name="expired", shell="/bin/bash", files={".bashrc": "echo Password change required; exit 1\n"}),
    Account(name="few", shell="/bin/bash", settings=["MaxSessions 3"]),
    Account(name="fewest", shell="/bin/bash", settings=["MaxSessions 2"]),
    Account(name="one", shell="/bin/bash", settings=["MaxSessions 1"]),
]
WORK = [
    "tcsh",
    "csh",
    "fish",
    "zsh",
    "bash",
    "stderr",
    "long",
    "options",
    "moves",
    "locale",
    "other",
    "homeless",
    "forced",
]


@dataclass(frozen=True)
class Site:
    """The server, and how one of its accounts is used."""

    server: Sshd
    key: Path
    known_hosts: Path

    def connector(self, account: str) -> MedweaveSSHConnector:
        config = {"username": account, "sshKey": str(self.key), "knownHosts": str(self.known_hosts)}
        return MedweaveSSHConnector("login", "/", [f"127.0.0.1:{self.server.port}"], **config)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("logins")
    key = make_key(folder / "key")
    with sshd(folder / "server", [key], accounts=ACCOUNTS) as server:
        (folder / "known_hosts").write_text(server.known_host)
        yield Site(server, key, folder / "known_hosts")


def using(site: Site, account: str, act: Callable[[Any, ExecutionLocation], Any]) -> Any:
    """Run an act with a deployed connector for an account; return its result."""
    (shell,) = (Path(one.shell) for one in ACCOUNTS if one.name == account)
    needed = Path("/usr/bin/tcsh") if account == "other" else shell  # `other` starts tcsh
    if not needed.exists():
        pytest.skip(f"no {needed.name} here (apt-get install {needed.name})")

    async def go() -> Any:
        connector = site.connector(account)
        try:
            await connector.deploy(False)
            (found,) = (await connector.get_available_locations()).values()
            return await act(connector, found.location)
        finally:
            await connector.undeploy(False)

    return asyncio.run(asyncio.wait_for(go(), 60))


async def job(connector: Any, place: ExecutionLocation, folder: Path, words: list[str], name: str = "/a/0") -> Any:
    folder.mkdir(exist_ok=True)
    step = HostStep(name=name, words=words, environment={}, output_directory=str(folder), stdout="out.txt")
    return await connector.run_once(step, [place], {})


async def all_kinds(connector: Any, place: ExecutionLocation, folder: Path) -> dict[str, Any]:
    """Return the result of each kind of session: a short command, a job, and copies in both directions."""
    (folder / "sent").write_text("to the site\n")
    answers = {
        "command": await connector.run(
            place, ["echo", "'a!b $HOME'", "&&", "pwd", ">", "/dev/null"], capture_output=True
        ),
        "job": await job(connector, place, folder / "job", ["echo", "'hi!there'", "$((1 + 1))"]),
    }
    (folder / "there").mkdir()
    await connector.copy_local_to_remote(str(folder / "sent"), str(folder / "there" / "got"), [place])
    await connector.copy_remote_to_local(str(folder / "job" / "out.txt"), str(folder / "back.txt"), place)
    return answers | {"sent": (folder / "there" / "got").read_text(), "back": (folder / "back.txt").read_text()}


RIGHT = {"command": ("a!b $HOME", 0), "job": ("", 0), "sent": "to the site\n", "back": "hi!there 2\n"}


@pytest.mark.case("ssh-tcsh", expected="commands, jobs and copies work behind tcsh")
def test_a_tcsh_login(site: Site, tmp_path: Path, seen: Callable[[object], None]) -> None:
    answers = using(site, "tcsh", lambda *there: all_kinds(*there, tmp_path))
    seen(answers["job"])
    assert answers == RIGHT


@pytest.mark.case("ssh-login-noise", expected="what .bashrc prints reaches no command, job or copy")
def test_login_shell_that_prints_output(site: Site, tmp_path: Path, seen: Callable[[object], None]) -> None:
    answers = using(site, "bash", lambda *there: all_kinds(*there, tmp_path))
    seen(answers["back"])
    assert answers == RIGHT


@pytest.mark.parametrize("account", [name for name in WORK if name not in ("tcsh", "bash")])
def test_other_logins(site: Site, tmp_path: Path, account: str) -> None:
    assert using(site, account, lambda *there: all_kinds(*there, tmp_path)) == RIGHT


def test_a_long_command_behind_tcsh(site: Site, tmp_path: Path) -> None:
    names = [f"'case {number:05} {'x' * 50}!'" for number in range(3000)]
    count = "'import sys; print(len(sys.argv) - 1, sum(map(len, sys.argv[1:])))'"
    answer = using(site, "tcsh", lambda *there: job(*there, tmp_path / "job", ["python3", "-c", count, *names]))
    assert answer == ("", 0)
    assert (tmp_path / "job" / "out.txt").read_text() == f"3000 {sum(map(len, names)) - 2 * 3000}\n"


def test_failed_job_reports_only_its_own_message(site: Site, tmp_path: Path) -> None:
    async def act(connector: Any, place: ExecutionLocation) -> Any:
        return await job(connector, place, tmp_path / "job", ["ls", "/nothing"])

    cause, code = using(site, "stderr", act)
    assert code == 2
    assert "/nothing" in cause
    assert "quota" not in cause


@pytest.mark.slow
def test_a_slow_login(site: Site) -> None:
    assert using(site, "slow", lambda connector, place: connector.run(place, ["echo", "in"], capture_output=True)) == (
        "in",
        0,
    )


@pytest.mark.parametrize(
    ("account", "words"),
    [
        ("nologin", "This account is currently not available"),
        ("sftp", "ended with exit status"),
        ("expired", "Password change required"),
    ],
)
def test_account_without_shell_commands_is_reported(
    site: Site, account: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("medweave_connectors.sites.ssh.sessions.PAUSES_S", (0.0,))
    with pytest.raises(SiteUnreachable, match="the login account runs no commands") as caught:
        using(site, account, lambda *_: None)
    assert words in str(caught.value)
    assert "ForceCommand" in str(caught.value)


@pytest.mark.case("max-sessions", expected="three sessions: fewer shells and jobs at a time, and all of them are done")
@pytest.mark.parametrize("account", ["few", pytest.param("fewest", marks=pytest.mark.slow)])
def test_few_sessions(
    site: Site, tmp_path: Path, account: str, seen: Callable[[object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    async def act(connector: Any, place: ExecutionLocation) -> Any:
        commands = [connector.run(place, ["sleep", "0.1;", "echo", str(n)], capture_output=True) for n in range(6)]
        jobs = [job(connector, place, tmp_path / f"job-{n}", ["echo", str(n)], f"/a/{n}") for n in range(4)]
        return await asyncio.gather(*commands, *jobs), await all_kinds(connector, place, tmp_path)

    results, answers = using(site, account, act)
    text = capsys.readouterr().err
    seen(text.strip() or results)
    assert results == [(str(n), 0) for n in range(6)] + [("", 0)] * 4
    assert answers == RIGHT
    assert "MaxSessions" in text


def test_one_session_is_too_few(site: Site, tmp_path: Path) -> None:
    with pytest.raises(SiteConfigError, match="MaxSessions") as caught:
        using(site, "one", lambda *there: all_kinds(*there, tmp_path))
    assert "with 1 open" in str(caught.value)


def doctor(site: Site, account: str) -> dict[str, HopResult]:
    """Return the lines of `medweave doctor` about an account, by name."""
    target = Target(
        where="deployments.login.config",
        host="127.0.0.1",
        port=site.server.port,
        user=account,
        key=str(site.key),
        known_hosts=str(site.known_hosts),
    )
    with contextlib.ExitStack() as stack:
        machine = MachineChecks("login", SshLogin(target=target), stack, "run: medweave provision --site site.yml")
        found: list[HopResult] = list(machine.open())
        if found[0].health is Health.OK:
            found += machine.sessions()
        return {hop.name: hop for hop in found}


@pytest.mark.case("max-sessions", expected="doctor names MaxSessions")
def test_doctor_counts_the_sessions(site: Site, seen: Callable[[object], None]) -> None:
    hop = doctor(site, "few")["sessions"]
    seen(hop.seen)
    assert hop.health is Health.WARNING
    assert "MaxSessions" in hop.seen
    assert hop.seen.startswith("3 parallel sessions")


@pytest.mark.case("ssh-login-noise", expected="doctor reports what a login prints")
def test_doctor_reports_what_a_login_prints(site: Site, seen: Callable[[object], None]) -> None:
    hops = doctor(site, "bash")
    seen(hops["login"].seen)
    assert hops["login"].health is Health.WARNING
    assert "no end of line" in hops["login"].seen
    assert hops["sessions"].health is Health.OK


@pytest.mark.parametrize(("account", "words"), [("one", "MaxSessions"), ("sftp", "runs no commands")])
def test_doctor_reports_an_account_that_cannot_be_used(
    site: Site, account: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("medweave_connectors.sites.ssh.sessions.PAUSES_S", (0.0,))
    *_, hop = doctor(site, account).values()
    assert hop.health is Health.FAULT
    assert words in f"{hop.seen} {hop.do}"
