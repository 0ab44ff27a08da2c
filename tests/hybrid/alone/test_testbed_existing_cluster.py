"""With a cluster that the user has, the testbed starts none: it makes its tenants there and takes them out again.

The running testbed's cluster represents the user's.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.testbed import MAY_GO_DOWN, Sites, call, down_parts

SECOND = Path("/opt/medweave-testbed-second")


@pytest.fixture
def second(testbed: Sites) -> Iterator[dict[str, str]]:
    """Yield the environment of a second testbed that uses the first one's cluster."""
    if not MAY_GO_DOWN:
        pytest.skip("takes the tenants away, which others may be using: MEDWEAVE_TESTBED_MAY_GO_DOWN=1 allows it")
    SECOND.mkdir(exist_ok=True)
    if not (SECOND / "environment").exists():
        (SECOND / "environment").symlink_to(testbed.layout.environment)  # 7 GB that are the same
    environment = {
        "MEDWEAVE_TESTBED": str(SECOND),
        "MEDWEAVE_TESTBED_BINARIES": str(testbed.layout.bin),
        "MEDWEAVE_TESTBED_KUBERNETES": "existing",
        "KUBECONFIG": str(testbed.layout.admin_kubeconfig),
    }
    yield environment
    assert call("down", "--purge", environment={"MEDWEAVE_TESTBED": str(SECOND)}).returncode == 0
    assert call("up", timeout_s=300).returncode == 0


def test_tenants_are_created_and_removed_again(testbed: Sites, second: dict[str, str]) -> None:
    refused = call("up", environment=second, timeout_s=300)
    assert refused.returncode == 1
    assert "has a namespace 'tenant-a' already" in refused.stdout

    assert testbed.admin("delete", "namespace", "tenant-a", "tenant-b").returncode == 0
    outcome = call("up", environment=second, timeout_s=300)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    status = json.loads(call("status", "--json", environment={"MEDWEAVE_TESTBED": str(SECOND)}).stdout)
    names = {part["name"] for part in status["parts"]}
    assert status["up"], status
    assert "cluster" in names
    assert not {"apiserver", "kubelet", "etcd"} & names
    pods = call("laptop", "--", "kubectl", "auth", "can-i", "create", "pods", environment=second)
    assert pods.stdout == "yes\n", pods.stderr
    assert call("hpc", "--", "srun", "-N2", "true", environment=second).returncode == 0
    assert set(down_parts()) <= {
        "tenants",
        "volumes",
        "environment",
    }  # the first testbed keeps running, except for the parts we deleted

    assert call("down", environment={"MEDWEAVE_TESTBED": str(SECOND)}).returncode == 0
    deadline = time.monotonic() + 60
    while testbed.admin("get", "namespace", "tenant-a").returncode == 0 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert testbed.admin("get", "namespace", "tenant-a").returncode != 0
    assert testbed.admin("get", "nodes").returncode == 0


def test_a_wrong_kubeconfig_is_an_error_within_seconds(second: dict[str, str], tmp_path: Path) -> None:
    config = json.loads(Path(second["KUBECONFIG"]).read_text(encoding="utf-8"))
    config["clusters"][0]["cluster"]["server"] = "https://198.18.0.2:1"
    wrong = tmp_path / "wrong.kubeconfig"
    wrong.write_text(json.dumps(config), encoding="utf-8")
    began = time.monotonic()
    outcome = call("up", environment=second | {"KUBECONFIG": str(wrong)}, timeout_s=300)
    assert time.monotonic() - began < 120
    assert outcome.returncode == 1
    assert "testbed: cluster: the existing cluster does not answer." in outcome.stdout
    assert os.fspath(wrong) in outcome.stdout
