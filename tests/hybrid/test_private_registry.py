"""Images of a registry that wants a login: the node has it from a secret of the namespace, or the run ends with why."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import private_registry
from support.cwl_files import ROOT
from support.helm_release import Tenant
from support.images import buildah
from support.pod_runs import go, pods_of, write
from support.testbed import BASE_IMAGE, Sites, unique, wait_for

PORT, USER = 5017, "puller"
GOOD = "echo {} > run_report.json; hostname > result.txt"
SMALL = {
    "requests": {"cpu": "20m", "memory": "64Mi", "ephemeral-storage": "64Mi"},
    "limits": {"cpu": "1", "memory": "512Mi", "ephemeral-storage": "1Gi"},
}


@pytest.fixture(scope="module")
def password() -> str:
    return secrets.token_hex(8)


@pytest.fixture(scope="module")
def asked(testbed: Sites, password: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What the registry was asked, line by line; it stands beside the node, which takes plain HTTP from itself only."""
    folder = tmp_path_factory.mktemp("registry")
    pushed = buildah("push", "--disable-compression", BASE_IMAGE, f"oci:{folder / 'layout'}:1")
    assert pushed.returncode == 0, pushed.stderr
    program = [sys.executable, private_registry.__file__, str(folder / "layout"), str(PORT), USER, password]
    log = folder / "asked.txt"
    with log.open("w") as lines:
        serving = subprocess.Popen([*testbed.words_inside("base"), *program], stdout=lines, stderr=subprocess.STDOUT)
    try:
        connect = f"import socket; socket.create_connection(('127.0.0.1', {PORT}), 1)"
        look = [sys.executable, "-c", connect]
        wait_for(lambda: testbed.inside("base", *look).returncode == 0 or None, "the registry")
        yield log
    finally:
        serving.terminate()
        serving.wait()


@pytest.fixture(scope="module")
def secret(tenant: Tenant, password: str) -> Iterator[str]:
    """A secret with the login, as the how-to says."""
    name = unique("login")
    login = [f"--docker-server=localhost:{PORT}", f"--docker-username={USER}", f"--docker-password={password}"]
    tenant.call("kubectl", "create", "secret", "docker-registry", name, *login)
    yield name
    tenant.ended("kubectl", "delete", "secret", name)


def image() -> str:
    """A name that the node has never pulled."""
    return f"localhost:{PORT}/{unique('base')}"


def release(folder: Path, repository: str, **values: Any) -> None:
    """A step in the pods of a release."""
    given = {
        "image": {"repository": repository, "tag": "1", "pullPolicy": "Always"},
        "python": "/usr/bin/python3", "requiredModules": ["json"], "resources": SMALL,
        "terminationGracePeriodSeconds": 5, **values,
    }  # fmt: skip
    chart = os.path.relpath(ROOT / "helm" / "segmentation-worker", folder)
    write(folder, {"segment": GOOD}, kind="medweave.helm", config={"chart": chart, "values": given})


def test_a_release_pulls_with_the_namespaces_secret(tmp_path: Path, tenant: Tenant, asked: Path, secret: str) -> None:
    repository = image()
    release(tmp_path, repository, imagePullSecrets=[{"name": secret}])
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 0, ended.stderr
    name = repository.partition("/")[2]
    assert f"/v2/{name}/manifests/" in asked.read_text()
    assert "with a login" in asked.read_text()


def test_manifests_pull_with_the_namespaces_secret(tmp_path: Path, tenant: Tenant, asked: Path, secret: str) -> None:
    document = pods_of(unique("private"), kind="Deployment", replicas=1)
    pod = document["spec"]["template"]["spec"]
    pod["containers"][0] |= {"image": f"{image()}:1", "imagePullPolicy": "Always"}
    pod["imagePullSecrets"] = [{"name": secret}]
    (tmp_path / "pods.yaml").write_text(yaml.safe_dump(document))
    write(tmp_path, {"segment": GOOD}, kind="medweave.kubernetes", config={"files": ["pods.yaml"]})
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 0, ended.stderr


def test_without_the_secret_the_run_ends_with_the_registrys_word(tmp_path: Path, tenant: Tenant, asked: Path) -> None:
    release(tmp_path, image())
    started = time.monotonic()
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 1
    assert "deployments.pods.config.values.image" in ended.stderr
    assert "401 Unauthorized" in ended.stderr or "authorization failed" in ended.stderr, ended.stderr
    print(f"told after {time.monotonic() - started:.1f} s")
    assert "Traceback" not in ended.stderr
