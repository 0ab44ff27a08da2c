"""Helm and kubectl as a tenant's own account calls them, and releases that are always taken away again."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from support.built_once import GO_ENVIRONMENT, alone

Values = dict[str, Any]
KUBE_SCORE = "github.com/zegl/kube-score/cmd/kube-score@v1.20.0"
TESTBED = Path(os.environ.get("MEDWEAVE_TESTBED") or "/opt/medweave-testbed")
ADMIN = TESTBED / "kubernetes" / "admin.kubeconfig"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A namespace and the account that may work in it.

    Attributes:
        binaries: folder of `helm` and `kubectl`.
        kubeconfig: file with the account's token.
    """

    binaries: Path
    kubeconfig: Path
    namespace: str

    @property
    def server(self) -> tuple[str, int]:
        """Return the host and port of the API server."""
        document = yaml.safe_load(self.kubeconfig.read_text(encoding="utf-8"))
        address = urlsplit(document["clusters"][0]["cluster"]["server"])
        assert address.hostname is not None
        return address.hostname, address.port or 443

    def call(self, program: str, *words: str | Path, stdin: str | None = None, limit_s: float = 300) -> str:
        """Return standard output; fail the test with standard error if the call fails."""
        ended = self.ended(program, *words, stdin=stdin, limit_s=limit_s)
        assert ended.returncode == 0, f"{program} {' '.join(map(str, words))}\n{ended.stderr}\n{ended.stdout}"
        return ended.stdout

    def scored(self, manifests: str) -> list[dict[str, Any]]:
        """Return kube-score's findings on rendered objects; it exits 1 if one is critical."""
        words = [str(kube_score()), "score", "--output-format", "json", "-"]
        ended = subprocess.run(words, input=manifests, text=True, capture_output=True, check=False)
        answer = json.loads(ended.stdout)
        return list(answer)

    def following(self, pod: str) -> subprocess.Popen[str]:
        """Start `kubectl logs --follow` of a pod, which runs until the pod is gone."""
        words = [str(self.binaries / "kubectl"), "logs", "--follow", pod, "--namespace", self.namespace]
        environment = os.environ | {"KUBECONFIG": str(self.kubeconfig)}
        return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def ended(
        self, program: str, *words: str | Path, stdin: str | None = None, limit_s: float = 300
    ) -> subprocess.CompletedProcess[str]:
        path = f"{self.binaries}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            [str(self.binaries / program), *map(str, words), "--namespace", self.namespace],
            env=os.environ | {"PATH": path, "KUBECONFIG": str(self.kubeconfig)},
            input=stdin, text=True, capture_output=True, check=False, timeout=limit_s,
        )  # fmt: skip

    def get(self, kinds: str, selector: str = "") -> list[dict[str, Any]]:
        """Return the objects of some kinds, `pods,services`, by their labels."""
        answer = json.loads(self.call("kubectl", "get", kinds, "--selector", selector, "--output", "json"))
        return list(answer["items"])

    def pods(self, release: str) -> dict[str, dict[str, Any]]:
        """Return the running pods of a release by name, without terminating ones."""
        answer = self.get("pods", f"app.kubernetes.io/instance={release}")
        return {pod["metadata"]["name"]: pod for pod in answer if "deletionTimestamp" not in pod["metadata"]}

    def within(self, pod: str, script: str) -> subprocess.CompletedProcess[str]:
        """Run a shell line in a pod's only container."""
        return self.ended("kubectl", "exec", pod, "--", "bash", "-c", script)


@contextmanager
def release(tenant: Tenant, name: str, chart: Path, values: Values, *, wait: bool = True) -> Iterator[float]:
    """Install a release while the block runs; yield the seconds until its pods were ready."""
    started = time.monotonic()
    options = ["--wait", "--timeout", "5m"] if wait else []
    try:
        tenant.call("helm", "install", name, chart, "--values", "-", *options, stdin=json.dumps(values), limit_s=400)
        yield time.monotonic() - started
    finally:
        tenant.ended("helm", "uninstall", name, "--ignore-not-found", "--wait", "--timeout", "2m")


@contextmanager
def granter(tenant: Tenant, account: str) -> Iterator[Tenant]:
    """Yield the cluster's administrator in the tenant's namespace, to grant rights; its account exists during the block."""
    answer = dataclasses.replace(tenant, kubeconfig=ADMIN)
    answer.call("kubectl", "create", "serviceaccount", account)
    try:
        yield answer
    finally:
        answer.call("kubectl", "delete", "serviceaccount", account)


def until(condition: Any, *, limit_s: float, what: str) -> Any:
    """Poll every half second until the result is true; fail with the description of the wait."""
    end = time.monotonic() + limit_s
    while True:
        seen = condition()
        if seen:
            return seen
        assert time.monotonic() < end, f"not within {limit_s} s: {what}"
        time.sleep(0.5)


def first_tenant() -> Tenant:
    """Return the testbed's first tenant; the test is skipped (in CI it fails) where the testbed is not up."""
    answer = Tenant(
        binaries=TESTBED / "bin",
        kubeconfig=TESTBED / "laptop" / "home" / ".kube" / "tenant-a.kubeconfig",
        namespace="tenant-a",
    )
    if answer.kubeconfig.is_file() and answer.ended("kubectl", "get", "pods", "--request-timeout=10s").returncode == 0:
        return answer
    pytest.skip("the testbed is not up: make testbed")


def kube_score() -> Path:
    """Return the checker of charts: the machine's own, or built once next to the testbed's caches (a minute of two cores)."""
    with alone(TESTBED / "cache" / "test-tools" / ".lock"):
        return _kube_score(TESTBED / "cache" / "test-tools")


def _kube_score(folder: Path) -> Path:
    answer = shutil.which("kube-score", path=f"{folder}{os.pathsep}{os.environ['PATH']}")
    if answer:
        return Path(answer)
    go = shutil.which("go", path=f"{os.environ['PATH']}{os.pathsep}/usr/local/go/bin")
    if go is None:
        pytest.skip("there is neither kube-score nor Go to build it with")
    caches = {
        "GOCACHE": TESTBED / "cache" / "go-build",
        "GOMODCACHE": TESTBED / "cache" / "go-modules",
        "GOBIN": folder,
    }
    environment = os.environ | GO_ENVIRONMENT | {name: str(path) for name, path in caches.items()}
    environment["GOFLAGS"] = "-modcacherw"
    built = subprocess.run(
        [go, "install", "-ldflags", "-s -w", KUBE_SCORE], env=environment, text=True, capture_output=True, check=False
    )
    assert built.returncode == 0, built.stderr[-2000:]
    return folder / "kube-score"
