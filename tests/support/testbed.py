"""The testbed as tests use it: programs run as the laptop's user, as the HPC user, as a tenant, as the administrator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ROOT / "deployments" / "testbed" / "testbed.py"
sys.path.insert(0, str(COMMAND.parent))

from medweave_testbed.catalogue import parts_of  # noqa: E402
from medweave_testbed.cli import make_testbed  # noqa: E402
from medweave_testbed.layout import Layout, layout_of  # noqa: E402
from medweave_testbed.part import bring_up, reason  # noqa: E402

# Some tests take the testbed down, or its tenants away; others may be using it.
MAY_GO_DOWN = os.environ.get("CI") == "true" or os.environ.get("MEDWEAVE_TESTBED_MAY_GO_DOWN") == "1"
BASE_IMAGE = "localhost/medweave-base:1"
Value = TypeVar("Value")
Outcome = subprocess.CompletedProcess[str]


def call(
    *words: str, text: str | None = None, timeout_s: float = 120, environment: Mapping[str, str] | None = None
) -> Outcome:
    """Run the testbed's command line in a separate process."""
    return subprocess.run(
        [sys.executable, str(COMMAND), *words], input=text, capture_output=True, text=True, timeout=timeout_s,
        env={**os.environ, **(environment or {})}, check=False,
    )  # fmt: skip


def down_parts() -> dict[str, str]:
    """Return why each part that is down is down; the key "testbed" means that the command did not answer."""
    outcome = call("status", "--json")
    if not outcome.stdout.startswith("{"):
        return {"testbed": outcome.stderr.strip() or "no answer"}
    return {part["name"]: part["reason"] for part in json.loads(outcome.stdout)["parts"] if not part["up"]}


def wait_for(look: Callable[[], Value | None], what: str, *, deadline_s: float = 60) -> Value:
    """Poll until the result is not None and return it; fail after the deadline."""
    end = time.monotonic() + deadline_s
    while (result := look()) is None:
        assert time.monotonic() < end, f"{what}: not within {deadline_s:.0f} s"
        time.sleep(0.1)
    return result


class Sites:
    """The sites of a running testbed."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def laptop(self, *words: str, text: str | None = None, timeout_s: float = 120) -> Outcome:
        """Run a program as the laptop's user, behind its walls."""
        return call("laptop", "--", *words, text=text, timeout_s=timeout_s)

    def hpc(self, *words: str, text: str | None = None, timeout_s: float = 120) -> Outcome:
        """Run a program as the HPC user on the login node."""
        return call("hpc", "--", *words, text=text, timeout_s=timeout_s)

    def inside(self, view: str, *words: str) -> Outcome:
        """Run a program as root with a site's view of the machine."""
        line = [*self.words_inside(view), *words]
        return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)

    def words_inside(self, view: str) -> list[str]:
        """Return the words before a command that is to run as root with a site's view of the machine."""
        return make_testbed(dict(os.environ)).walls.inside(view)

    def ssh(self, command: str, *, timeout_s: float = 120) -> Outcome:
        """Run a shell command on the login node as the laptop's user does."""
        return self.laptop("ssh", "testbed-login", command, timeout_s=timeout_s)

    def admin(self, *words: str, text: str | None = None) -> Outcome:
        """Run kubectl with all rights."""
        return self._kubectl(self.layout.admin_kubeconfig, words, text)

    def tenant(self, name: str, *words: str, text: str | None = None) -> Outcome:
        """Run kubectl with a tenant's own kubeconfig."""
        return self._kubectl(self.layout.laptop_home / ".kube" / f"{name}.kubeconfig", words, text)

    def _kubectl(self, config: Path, words: tuple[str, ...], text: str | None) -> Outcome:
        line = [str(self.layout.bin / "kubectl"), f"--kubeconfig={config}", *words]
        return subprocess.run(line, input=text, capture_output=True, text=True, timeout=120, check=False)

    @contextmanager
    def pod(self, tenant: str, document: Mapping[str, Any]) -> Iterator[str]:
        """Run a pod during the block; yield its name."""
        name = document["metadata"]["name"]
        made = self.tenant(tenant, "apply", "-f", "-", text=json.dumps(document))
        assert made.returncode == 0, made.stderr
        try:
            ready = self.tenant(tenant, "wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")
            assert ready.returncode == 0, ready.stderr + self.tenant(tenant, "describe", "pod", name).stdout
            yield name
        finally:
            self.tenant(tenant, "delete", "pod", name, "--grace-period=0", "--force")

    @contextmanager
    def made(self, *documents: Mapping[str, Any]) -> Iterator[None]:
        """Create objects as the administrator while the block runs."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})
        applied = self.admin("apply", "-f", "-", text=text)
        assert applied.returncode == 0, applied.stderr
        try:
            yield
        finally:
            self.admin("delete", "-f", "-", "--wait=false", text=text)

    @contextmanager
    def without(self, daemon: str, signal: str) -> Iterator[None]:
        """Kill a daemon (KILL), or stop it (STOP), which leaves its connections open, while the block runs."""
        bed = make_testbed(dict(os.environ))
        kill, pid = [*bed.walls.inside(), "kill"], str(bed.daemons.pid(daemon))
        bed.commands.run([*kill, f"-{signal}", pid])
        try:
            yield
        finally:
            (part,) = [part for part in parts_of(self.layout, existing_cluster=False) if part.daemon == daemon]
            if signal == "STOP":
                bed.commands.run([*kill, "-CONT", pid])
                wait_for(lambda: reason(part, bed) is None or None, f"{daemon} works again")
            bring_up(part, bed)

    def job_state(self, job: str) -> str | None:
        """Return the final state of a Slurm job, from sacct; None while it is not over."""
        states = self.hpc("sacct", "-X", "-n", "-P", "-j", job, "-o", "State").stdout.split()
        return states[0] if states and states[0] not in {"PENDING", "RUNNING", "COMPLETING", "REQUEUED"} else None

    def submitted(self, *options: str, script: str) -> str:
        """Submit a job script; return the job id."""
        outcome = self.hpc("sbatch", "--parsable", *options, text=f"#!/bin/bash\n{script}\n")
        assert outcome.returncode == 0, outcome.stderr
        return outcome.stdout.strip()


def pod_document(
    name: str,
    command: str,
    *,
    claims: Mapping[str, tuple[str, bool]] | None = None,
    limits: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a pod that pod security "restricted" accepts.

    Args:
        command: what /bin/sh runs in it.
        claims: mount path by claim, and whether it is mounted read-only.
        limits: resource limits.
    """
    mounts = [{"name": claim, "mountPath": path, "readOnly": ro} for claim, (path, ro) in (claims or {}).items()]
    container = {
        "name": "main", "image": BASE_IMAGE, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", command],
        "volumeMounts": mounts, "resources": {"limits": dict(limits or {})},
        "securityContext": {
            "allowPrivilegeEscalation": False, "runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001,
            "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
        },
    }  # fmt: skip
    volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims or {}]
    spec = {
        "containers": [container],
        "volumes": volumes,
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
    }
    labels = {"app.kubernetes.io/name": name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def priority_class(name: str) -> dict[str, Any]:
    """Return a PriorityClass just above the default."""
    return {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 1}


def unique(prefix: str) -> str:
    """Return a name that no other test uses."""
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def sites() -> Sites:
    """Return the sites of the testbed that the environment names."""
    return Sites(layout_of(os.environ))
