"""Runs over releases of the chart `compss-cluster`, made by `medweave.compss` or `medweave.helm`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from support.cwl_files import ROOT
from support.engine import Run
from support.helm_release import TESTBED, Tenant
from support.pod_runs import BASE_IMAGE, write

CHART = ROOT / "helm" / "compss-cluster"
AT_ONCE = {"StepFailed": {"wait": 0}}
DEPLOYMENT = "gang"  # not used by other tests or the tutorial: its remaining releases are uninstalled after every test
NEVER = {kind: {"do": "stop"} for kind in ("Preempted", "NodeFail", "Cancelled")}  # of a pod that is lost
SMALL = {
    "requests": {"cpu": "20m", "memory": "64Mi", "ephemeral-storage": "64Mi"},
    "limits": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "2Gi"},
}


def releases(tenant: Tenant) -> list[str]:
    """Return the releases that bear medweave's labels and this test's deployment."""
    records = tenant.get("secrets", f"owner=helm,medweave.dev/deployment={DEPLOYMENT}")
    return sorted({record["metadata"]["labels"]["name"] for record in records})


def image() -> dict[str, Any]:
    """Return the values for the testbed's image."""
    repository, _, tag = BASE_IMAGE.rpartition(":")
    return {"repository": repository, "tag": tag, "pullPolicy": "Never"}


def ddp(replicas: int = 2, **more: Any) -> dict[str, Any]:
    """Return values of a small cluster that starts at once, with these keys in addition to its own."""
    return {
        "image": image(),
        "python": "/usr/bin/python3",
        "requiredModules": ["json"],
        "worker": {"replicas": replicas, "resources": SMALL},
        "master": {"resources": SMALL},
        "terminationGracePeriodSeconds": 10,
        **more,
    }


def prepare(
    folder: Path, tools: dict[str, Any], *, engine: str = "ddp", values: dict[str, Any] | None = None, **more: Any
) -> None:
    """Write a workflow over `medweave.compss`, whose config has these keys in addition to its usual ones."""
    config = {
        "chart": os.path.relpath(CHART, folder),
        "engine": engine,
        "timeout": 120,
        **more,
    }
    write(folder, tools, kind="medweave.compss", config=config | {"values": values or ddp()}, deployment=DEPLOYMENT)


def with_environment(**more: Any) -> dict[str, Any]:
    """Return values for pods with the worker environment of the testbed, at its own path."""
    folder = str(TESTBED / "environment")
    volumes = {"environment": (folder, "medweave-environment"), **more}
    return ddp(
        python=f"{folder}/bin/python",
        requiredModules=["medweave_steps"],
        extraVolumes=[
            {"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
            for name, (_, claim) in volumes.items()
        ],
        extraVolumeMounts=[{"name": name, "mountPath": path, "readOnly": True} for name, (path, _) in volumes.items()],
    )


def worker(tenant: Tenant, number: int) -> str:
    """Return the name of a worker's pod."""
    (records,) = [
        pod["metadata"]["name"]
        for pod in tenant.get("pods", "")
        if pod["metadata"]["name"].endswith(f"-worker-{number}")
        and pod["metadata"]["name"].startswith(f"{DEPLOYMENT}-")
    ]
    return str(records)


def without_worker(going: Run, tenant: Tenant, lost: str) -> Run:
    """Delete a worker's pod; assert that the run ends within a minute; return it."""
    before = time.monotonic()
    tenant.call("kubectl", "delete", "pod", lost, "--wait=false", "--grace-period=1")
    ended = going.wait(120)
    assert time.monotonic() - before < 60
    return ended
