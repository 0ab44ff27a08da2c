"""Images of a registry that wants a login: the node has it from a secret of the namespace, or the run ends with why."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import private_registry
from support.cwl_files import ROOT
from support.engine import Run
from support.helm_release import Tenant
from support.images import buildah
from support.pod_runs import begin, go, pods_of, reported_after_s, write
from support.testbed import BASE_IMAGE, Sites, unique, wait_for

USER = "puller"
REPORTED_S = 10.0  # from the start of the run to the error, or to the reason of the wait
GOOD = "echo {} > run_report.json; hostname > result.txt"
SMALL = {
    "requests": {"cpu": "20m", "memory": "64Mi", "ephemeral-storage": "64Mi"},
    "limits": {"cpu": "1", "memory": "512Mi", "ephemeral-storage": "1Gi"},
}


@pytest.fixture(scope="module")
def password() -> str:
    return secrets.token_hex(8)


@dataclass(frozen=True)
class Registry:
    """A registry on the node, which accepts plain HTTP only from its own address.

    Attributes:
        log: its requests, one per line.
    """

    port: int
    log: Path

    def image(self, name: str = "base") -> str:
        """Return a name that the node has never pulled."""
        return f"localhost:{self.port}/{unique(name)}"


@pytest.fixture(scope="module")
def registry(testbed: Sites, password: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    folder = tmp_path_factory.mktemp("registry")
    pushed = buildah("push", "--disable-compression", BASE_IMAGE, f"oci:{folder / 'layout'}:1")
    assert pushed.returncode == 0, pushed.stderr
    program = [sys.executable, private_registry.__file__, str(folder / "layout"), USER, password]
    log = folder / "requests.txt"
    with log.open("w") as lines:
        words = [*testbed.words_inside("base"), *program]
        serving = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=lines, stderr=subprocess.STDOUT)
    try:
        port = wait_for(lambda: log.read_text().partition("\n")[0] or None, "the registry")
        yield Registry(port=int(port), log=log)
    finally:
        serving.communicate(timeout=30)


@pytest.fixture(scope="module")
def secret(tenant: Tenant, registry: Registry, password: str) -> Iterator[str]:
    """Yield a secret with the login, as the how-to says."""
    name = unique("login")
    login = [f"--docker-server=localhost:{registry.port}", f"--docker-username={USER}", f"--docker-password={password}"]
    tenant.call("kubectl", "create", "secret", "docker-registry", name, *login)
    yield name
    tenant.ended("kubectl", "delete", "secret", name)


def release(folder: Path, repository: str, *, config: dict[str, Any] | None = None, **values: Any) -> None:
    """Write a step in the pods of a release."""
    values = {
        "image": {"repository": repository, "tag": "1", "pullPolicy": "Always"},
        "python": "/usr/bin/python3", "requiredModules": ["json"], "resources": SMALL,
        "terminationGracePeriodSeconds": 5, **values,
    }  # fmt: skip
    chart = os.path.relpath(ROOT / "helm" / "segmentation-worker", folder)
    given_config = {"chart": chart, "values": values, **(config or {})}
    # Other tests count the releases of the deployment `pods` at the same time, and delete one.
    write(folder, {"segment": GOOD}, kind="medweave.helm", config=given_config, deployment="private")


def test_a_release_pulls_with_the_namespaces_secret(
    tmp_path: Path, tenant: Tenant, registry: Registry, secret: str
) -> None:
    repository = registry.image()
    release(tmp_path, repository, imagePullSecrets=[{"name": secret}])
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 0, ended.stderr
    name = repository.partition("/")[2]
    assert f"/v2/{name}/manifests/" in registry.log.read_text()
    assert "with a login" in registry.log.read_text()


def test_manifests_pull_with_the_namespaces_secret(
    tmp_path: Path, tenant: Tenant, registry: Registry, secret: str
) -> None:
    document = pods_of(unique("private"), kind="Deployment", replicas=1)
    pod = document["spec"]["template"]["spec"]
    pod["containers"][0] |= {"image": f"{registry.image()}:1", "imagePullPolicy": "Always"}
    pod["imagePullSecrets"] = [{"name": secret}]
    (tmp_path / "pods.yaml").write_text(yaml.safe_dump(document))
    write(tmp_path, {"segment": GOOD}, kind="medweave.kubernetes", config={"files": ["pods.yaml"]})
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 0, ended.stderr


def reported_in_time(going: Run, text: str) -> None:
    """Assert that the run ends in time with the node's error about the image."""
    reported_s = reported_after_s(going, "deployments.private.config.values.image: its pods cannot start.")
    ended = going.wait()
    assert ended.exit_code == 1
    assert re.search(f"failed to resolve reference .*({text})", ended.stderr), ended.stderr
    assert "Traceback" not in ended.stderr
    assert reported_s < REPORTED_S, f"reported after {reported_s:.1f} s"
    print(f"reported after {reported_s:.1f} s")


def test_without_the_secret_the_run_ends_with_the_registrys_error(
    tmp_path: Path, tenant: Tenant, registry: Registry
) -> None:
    release(tmp_path, registry.image())
    reported_in_time(begin(tmp_path, tenant), "401 Unauthorized|authorization failed")


def test_image_missing_in_the_registry(tmp_path: Path, tenant: Tenant, registry: Registry, secret: str) -> None:
    repository = registry.image("missing")
    release(tmp_path, repository, imagePullSecrets=[{"name": secret}])
    reported_in_time(begin(tmp_path, tenant), rf"{repository}:1: not found")
    name = repository.partition("/")[2]
    assert f"/v2/{name}/manifests/1 with a login" in registry.log.read_text(), "it was not the login"


def test_a_registry_that_is_overloaded_is_waited_for(
    tmp_path: Path, tenant: Tenant, registry: Registry, secret: str
) -> None:
    config = {"pendingTimeout": 12}
    release(tmp_path, registry.image("busy"), config=config, imagePullSecrets=[{"name": secret}])
    going = begin(tmp_path, tenant)
    reported_s = reported_after_s(going, "503 Service Unavailable")
    assert "ERROR" not in going.stderr, "it may come back"
    ended = going.wait()
    assert ended.exit_code == 1
    assert "deployments.private.config.pendingTimeout: its pods could not start within 12 s." in ended.stderr
    assert any("503 Service Unavailable" in event["data"]["text"] for event in ended.of_type("notice"))
    assert reported_s < REPORTED_S, f"reported after {reported_s:.1f} s"
    print(f"reported after {reported_s:.1f} s")
