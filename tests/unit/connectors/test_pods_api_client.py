"""Connections to the API server over real TLS: private authorities, server names, proxies."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes_asyncio.client import CoreV1Api

from medweave_connectors.sites.pods.api.access import connect
from medweave_connectors.sites.pods.api.api_client import find_proxy
from medweave_connectors.sites.pods.api.errors import DeploymentRefused
from medweave_connectors.sites.pods.exec.execution import execute
from support.api_server import NAMESPACE, ApiServer, pod_document
from support.cluster_connections import HOST, Relay, certificate, tls, write_kubeconfig

Certificate = tuple[Path, Path]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificate(tmp_path_factory.mktemp("tls"), HOST)


@pytest.fixture
def front(own: Certificate) -> Iterator[Relay]:
    """The API server, behind TLS with a certificate for HOST."""
    with ApiServer() as server:
        server.add(pod_document("w-0"))
        with Relay(server.port, tls=tls(own)) as relay:
            yield relay


@pytest.fixture(autouse=True)
def no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


def ask(kubeconfig: str, context: str | None = None) -> str:
    """List the pods and run a command in one; both connections must work."""

    async def go() -> str:
        clients, cluster = await connect("pods", kubeconfig=kubeconfig, context=context, in_cluster=False, namespace="")
        try:
            (pod,) = await cluster.pods("app=w")
            execution = await execute(
                CoreV1Api(api_client=clients[1]), NAMESPACE, f"{pod.name}:worker", ["echo", "a b"]
            )
            return (await execution.collect())[0].decode()
        finally:
            for client in clients:
                await client.close()

    return asyncio.run(go())


def refusal(kubeconfig: str) -> str:
    with pytest.raises(DeploymentRefused) as caught:
        ask(kubeconfig)
    assert "deployments.pods.config.kubeconfig" in str(caught.value)
    return str(caught.value)


def test_a_context_that_the_kubeconfig_has_not_is_told_with_those_that_it_has(
    tmp_path: Path, own: Certificate, front: Relay
) -> None:
    cluster = {
        "server": f"https://127.0.0.1:{front.port}",
        "tls-server-name": HOST,
        "certificate-authority": str(own[0]),
    }
    kubeconfig = write_kubeconfig(tmp_path / "k", cluster)
    assert ask(kubeconfig, "radiology") == "a b\n"
    with pytest.raises(DeploymentRefused) as caught:
        ask(kubeconfig, "radiologie")
    message = str(caught.value)
    assert "deployments.pods.config.kubeContext: the kubeconfig has no context 'radiologie'." in message
    assert "expected: one of its contexts: radiology" in message
    assert "write 'radiology' (closest match)" in message
    with pytest.raises(DeploymentRefused, match=r"has no context 'x'\."):
        ask(kubeconfig, "x")


def test_an_authority_of_the_site_by_file_and_by_data(tmp_path: Path, own: Certificate, front: Relay) -> None:
    (tmp_path / "ca.crt").write_bytes(own[0].read_bytes())
    server = {"server": f"https://127.0.0.1:{front.port}", "tls-server-name": HOST}
    by_file = server | {"certificate-authority": "ca.crt"}  # from the kubeconfig's folder
    assert ask(write_kubeconfig(tmp_path / "k", by_file)) == "a b\n"
    data = base64.b64encode(own[0].read_bytes()).decode()
    assert ask(write_kubeconfig(tmp_path / "k", server | {"certificate-authority-data": data})) == "a b\n"
    assert "certificate verify failed" in refusal(write_kubeconfig(tmp_path / "k", server))
    missing = server | {"certificate-authority": "none.crt"}
    assert str(tmp_path / "none.crt") in refusal(write_kubeconfig(tmp_path / "k", missing))


def test_a_certificate_for_another_name_is_refused(tmp_path: Path, own: Certificate, front: Relay) -> None:
    cluster = {"server": f"https://127.0.0.1:{front.port}", "certificate-authority": str(own[0])}
    assert "certificate is not valid for '127.0.0.1'" in refusal(write_kubeconfig(tmp_path / "k", cluster))


def behind(own: Certificate, **more: Any) -> dict[str, Any]:
    return {"server": f"https://{HOST}:6443", "certificate-authority": str(own[0])} | more


def test_the_proxy_of_the_kubeconfig(tmp_path: Path, own: Certificate, front: Relay) -> None:
    with Relay(front.port, connect=True, password="me:hunter2secret") as proxy:
        at = f"127.0.0.1:{proxy.port}"
        cluster = behind(own, **{"proxy-url": f"http://me:hunter2secret@{at}"})
        assert ask(write_kubeconfig(tmp_path / "k", cluster)) == "a b\n"
        assert proxy.targets == [f"{HOST}:6443"] * 2, "the list, and the command"
        cluster = behind(own, **{"proxy-url": f"http://me:another7word@{at}"})
        message = refusal(write_kubeconfig(tmp_path / "k", cluster))
    assert "407" in message
    assert "another7word" not in message


def test_the_proxy_of_the_environment(
    tmp_path: Path, own: Certificate, front: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig = write_kubeconfig(tmp_path / "k", behind(own))
    with Relay(front.port, connect=True) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        assert ask(kubeconfig) == "a b\n"
        assert len(proxy.targets) == 2
        monkeypatch.setenv("NO_PROXY", "10.0.0.0/8,hospital.test")
        refusal(kubeconfig)  # there is no such name
        assert len(proxy.targets) == 2


def test_a_proxy_of_another_kind_is_refused(tmp_path: Path, own: Certificate) -> None:
    cluster = behind(own, **{"proxy-url": "socks5://me:hunter2secret@127.0.0.1:9"})
    message = refusal(write_kubeconfig(tmp_path / "k", cluster))
    assert "a socks5: proxy is not supported" in message
    assert "hunter2secret" not in message


@pytest.mark.parametrize(
    ("server", "without", "proxied"),
    [
        ("https://api.example.org:6443", "", True),
        ("https://api.example.org:6443", "*", False),
        ("https://api.example.org:6443", "example.org", False),
        ("https://api.example.org:6443", " .example.org , x", False),
        ("https://api.example.org:6443", "api.example.org:6443", False),
        ("https://api.example.org:6443", "api.example.org:443", True),
        ("https://api.badexample.org", "example.org", True),
        ("https://10.1.2.3:6443", "10.0.0.0/8", False),
        ("https://10.1.2.3:6443", "10.1.2.3", False),
        ("https://10.1.2.3:6443", "11.0.0.0/8", True),
        ("https://127.0.0.1:6443", "", False),
        ("https://localhost:6443", "", False),
        ("http://api.example.org", "", False),
    ],
)
def test_when_the_environments_proxy_is_used(server: str, without: str, proxied: bool) -> None:
    proxy = find_proxy(server, {"HTTPS_PROXY": "proxy.example.org:3128", "no_proxy": without})
    assert proxy == ("http://proxy.example.org:3128" if proxied else None)
