"""Programs that a kubeconfig names for its credentials (`users[].user.exec`): real scripts, and a server that looks at tokens."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes_asyncio.client import CoreV1Api

from medweave_connectors.sites.pods.api import credentials
from medweave_connectors.sites.pods.api.access import connect
from medweave_connectors.sites.pods.api.credentials import read_credential
from medweave_connectors.sites.pods.api.errors import DeploymentRefused
from medweave_connectors.sites.pods.api.masking import without_secrets
from medweave_connectors.sites.pods.api.namespace_client import ApiServerError, NamespaceClient
from medweave_connectors.sites.pods.exec.execution import execute
from support.api_server import NAMESPACE, ApiServer, pod_document
from support.cluster_connections import HOST, GuardedServer, Relay, certificate, tls, write_kubeconfig
from support.engine import run
from support.small_cluster import write

VERSION = "client.authentication.k8s.io/v1"
# A token says until when it is good: the server needs no clock of the script's.
LASTING = """#!/bin/sh
echo run >> "$(dirname "$0")/plugin-runs"
end=$(( $(date +%s) + {seconds} ))
printf '{answer}' $end "$(date -u -d @$end +%Y-%m-%dT%H:%M:%SZ)"
"""


def answer(status: str) -> str:
    """What a program prints."""
    return f'{{"apiVersion": "{VERSION}", "kind": "ExecCredential", "status": {{{status}}}}}'


def lasting(seconds: int) -> str:
    """A script whose tokens live so long, s."""
    return LASTING.format(seconds=seconds, answer=answer('"token": "until-%s", "expirationTimestamp": "%s"'))


def good_now(token: str) -> bool:
    return token.startswith("until-") and time.time() < int(token.removeprefix("until-"))


def script(folder: Path, text: str) -> Path:
    path = folder / "login"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def kubeconfig(folder: Path, port: int, **plugin: Any) -> str:
    user = {"exec": {"apiVersion": VERSION, "command": "./login", **plugin}}  # from the kubeconfig's folder
    return write_kubeconfig(folder / "kubeconfig", {"server": f"http://127.0.0.1:{port}"}, user)


@pytest.fixture
def server() -> Iterator[GuardedServer]:
    with GuardedServer(good_now) as guarded:
        guarded.add(pod_document("w-0"))
        yield guarded


def use(path: str, work: Callable[[NamespaceClient, Any], Awaitable[None]]) -> None:
    async def go() -> None:
        clients, cluster = await connect("pods", kubeconfig=path, context=None, in_cluster=False, namespace="")
        try:
            await work(cluster, CoreV1Api(api_client=clients[1]))
        finally:
            for client in clients:
                await client.close()

    asyncio.run(go())


async def command(websocket: Any) -> str:
    execution = await execute(websocket, NAMESPACE, "w-0:worker", ["echo", "done"])
    return (await execution.collect())[0].decode()


def num_runs(folder: Path) -> int:
    return len((folder / "plugin-runs").read_text().splitlines())


@pytest.mark.slow
def test_a_token_is_asked_again_before_it_expires(
    tmp_path: Path, server: GuardedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "AGAIN_S", 0.0)
    script(tmp_path, lasting(2))

    async def work(cluster: NamespaceClient, websocket: Any) -> None:
        for _ in range(8):
            assert await cluster.pods("app=w")
            assert await command(websocket) == "done\n"
            await asyncio.sleep(0.5)

    use(kubeconfig(tmp_path, server.port), work)
    assert server.refused == 0
    assert 2 <= num_runs(tmp_path) <= 6


def test_a_token_that_the_server_takes_no_more_is_asked_again(
    tmp_path: Path, server: GuardedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "AGAIN_S", 0.0)
    script(tmp_path, lasting(600))

    async def work(cluster: NamespaceClient, websocket: Any) -> None:
        for ask in (lambda: cluster.pods("app=w"), lambda: command(websocket)):
            answers = iter((False, True))
            server.accepts = lambda token, answers=answers: next(answers)  # type: ignore[misc]
            assert await ask()

    use(kubeconfig(tmp_path, server.port), work)
    assert (server.refused, num_runs(tmp_path)) == (2, 3)


def test_a_token_that_is_never_accepted_is_an_error(tmp_path: Path, server: GuardedServer) -> None:
    script(tmp_path, lasting(-5))
    with pytest.raises(DeploymentRefused) as caught:
        use(kubeconfig(tmp_path, server.port), nothing)
    assert "Unauthorized" in str(caught.value)
    assert num_runs(tmp_path) == 1, "the plugin does not run for every request"


@pytest.mark.slow
def test_a_program_that_fails_later_is_told_and_asked_again(
    tmp_path: Path, server: GuardedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "AGAIN_S", 0.0)
    script(tmp_path, lasting(2))

    async def work(cluster: NamespaceClient, websocket: Any) -> None:
        script(tmp_path, "#!/bin/sh\necho 'log in again' >&2\nexit 4\n")
        await asyncio.sleep(2.1)
        with pytest.raises(ApiServerError, match=r"users\[me\].user.exec: '.*login' ended with 4: log in again"):
            await cluster.pods("app=w")
        script(tmp_path, lasting(2))
        assert await cluster.pods("app=w")

    use(kubeconfig(tmp_path, server.port), work)


async def nothing(cluster: NamespaceClient, websocket: Any) -> None:
    """Connects to the cluster, and does nothing else."""


def refusal(path: str) -> str:
    with pytest.raises(DeploymentRefused) as caught:
        use(path, nothing)
    message = str(caught.value)
    assert message.startswith("deployments.pods.config.kubeconfig: ")
    assert "users[me].user.exec: " in message
    return message


def test_a_program_that_fails_is_told_with_its_words_and_no_secret(tmp_path: Path) -> None:
    words = "session of hospital expired; token=abc123 at https://me:pw1@idp.example.org eyJhbGciOi.eyJzdWIi.c2ln $SSO_SECRET $1"
    script(tmp_path, f'#!/bin/sh\necho "{words}" >&2\nexit 3\n')
    variables = [{"name": "SSO_SECRET", "value": "correct horse"}]
    message = refusal(kubeconfig(tmp_path, 1, env=variables, args=["--password", "battery staple"]))
    assert "login' ended with 3: session of hospital expired; token=*** at https://***@idp.example.org ***" in message
    for secret in ("abc123", "pw1", "eyJ", "horse", "staple"):
        assert secret not in message


def test_a_program_that_is_missing_is_told_with_how_to_install_it(tmp_path: Path) -> None:
    message = refusal(kubeconfig(tmp_path, 1, command="no-such-login", installHint="apt install\n  no-such-login"))
    assert "'no-such-login' cannot be started: No such file or directory" in message
    assert "do:       apt install no-such-login" in message


@pytest.mark.slow
def test_a_program_that_never_ends_is_told_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "PLUGIN_S", 2.0)
    script(tmp_path, f"#!/bin/sh\necho $$ > {tmp_path}/pid\nsleep 60\n")
    assert "did not end within 2 s" in refusal(kubeconfig(tmp_path, 1))
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/exe").exists()


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ('"token": ""', "neither a token nor a certificate with its key"),
        ('"clientCertificateData": "x"', "neither a token nor a certificate with its key"),
        ('"token": "hunter2", "expirationTimestamp": "soon"', "its expirationTimestamp is not a time"),
    ],
)
def test_what_is_no_credential_is_told_and_not_quoted(tmp_path: Path, status: str, words: str) -> None:
    script(tmp_path, f"#!/bin/sh\necho '{answer(status)}'\n")
    message = refusal(kubeconfig(tmp_path, 1))
    assert f"printed no usable ExecCredential: {words}" in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    "text", ["hunter2", "[]", '{"kind": "ExecCredential"}', answer('"token": "t"').replace("/v1", "/v0")]
)
def test_other_output_is_no_credential(text: str) -> None:
    with pytest.raises(ValueError, match=r"no JSON|no ExecCredential|its apiVersion is not") as caught:
        read_credential(text, VERSION)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("plugin", [{"command": ""}, {"args": 3}, {"env": [{"name": "A"}]}, {"apiVersion": None}])
def test_an_invalid_description_of_a_program_is_an_error(tmp_path: Path, plugin: dict[str, Any]) -> None:
    refusal(kubeconfig(tmp_path, 1, **plugin))


def test_the_program_gets_its_arguments_and_variables(tmp_path: Path, server: GuardedServer) -> None:
    text = f'#!/bin/sh\necho "$1 $AT" > {tmp_path}/got\necho "$KUBERNETES_EXEC_INFO" > {tmp_path}/info\n'
    script(tmp_path, text + lasting(600).removeprefix("#!/bin/sh\n"))
    use(kubeconfig(tmp_path, server.port, args=["get token"], env=[{"name": "AT", "value": "hospital"}]), nothing)
    assert (tmp_path / "got").read_text() == "get token hospital\n"
    info = json.loads((tmp_path / "info").read_text())
    assert (info["kind"], info["apiVersion"], info["spec"]["interactive"]) == ("ExecCredential", VERSION, False)


def test_a_program_may_give_a_certificate(tmp_path: Path) -> None:
    own, mine = certificate(tmp_path, HOST), certificate(tmp_path, "me-at-the-hospital")
    status = {"clientCertificateData": mine[0].read_text(), "clientKeyData": mine[1].read_text()}
    (tmp_path / "answer").write_text(json.dumps({"apiVersion": VERSION, "kind": "ExecCredential", "status": status}))
    script(tmp_path, f"#!/bin/sh\ncat {tmp_path}/answer\n")
    with ApiServer() as server, Relay(server.port, tls=tls(own, clients=mine[0])) as front:
        server.add(pod_document("w-0"))
        cluster = {
            "server": f"https://127.0.0.1:{front.port}",
            "tls-server-name": HOST,
            "certificate-authority": str(own[0]),
        }
        user = {"exec": {"apiVersion": VERSION, "command": "./login"}}

        async def work(cluster: NamespaceClient, websocket: Any) -> None:
            assert await command(websocket) == "done\n"

        use(write_kubeconfig(tmp_path / "kubeconfig", cluster, user), work)
    assert set(front.subjects) == {"me-at-the-hospital"}


@pytest.mark.slow
def test_a_run_outlives_its_first_token(tmp_path: Path, server: GuardedServer) -> None:
    script(tmp_path, lasting(7))
    kubeconfig(tmp_path, server.port)
    write(tmp_path, {"first": "sleep 8; echo {} > run_report.json; echo $POD_NAME > result.txt"})
    ended = run(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "results" / "result.txt").read_text() == "w-0\n"
    assert server.refused == 0
    assert num_runs(tmp_path) >= 2
    assert "until-" not in ended.stderr


@pytest.mark.parametrize(
    "text",
    [
        "pods is forbidden: User cannot list resource",
        "dial tcp 10.1.2.3:6443: connect: connection refused",
        "/home/me/.kube/cache/login-with-a-rather-long-name/session.json: no such file",
        "the key is missing",
    ],
)
def test_words_are_not_hidden(text: str) -> None:
    assert without_secrets(text) == text
