"""Runs of the engine over real pods of the testbed, with the account of a tenant."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.engine import Run, start, write_workflow
from support.engine_file import engine_file
from support.helm_release import TESTBED, Tenant

BASE_IMAGE = "localhost/medweave-base:1"
WORKDIR = "/work"
GANG = {"hints": {"urn:medweave:cwl#Gang": {}}}
PROGRESS = """echo 'medweave-progress {"unit":"case","done":1,"total":2,"detail":"x"}' >&2\n"""


def restricted() -> dict[str, Any]:
    """Return the securityContext that pod security "restricted" requires."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def pods_of(
    name: str,
    *,
    kind: str = "Deployment",
    replicas: int = 2,
    image: str = BASE_IMAGE,
    memory: str = "256Mi",
    **container: Any,
) -> dict[str, Any]:
    """Return a workload of pods that stay and work in an emptyDir."""
    spec: dict[str, Any] = {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": name}},
        "template": {
            "metadata": {"labels": {"app": name}},
            "spec": {
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 1,
                "containers": [
                    {
                        "name": "worker",
                        "image": image,
                        "imagePullPolicy": "Never",
                        "command": ["sh", "-c", "trap 'exit 0' TERM; sleep infinity & wait"],
                        "resources": {
                            "requests": {"cpu": "20m", "memory": "32Mi"},
                            "limits": {"cpu": "1", "memory": memory},
                        },
                        "securityContext": restricted(),
                        "volumeMounts": [{"name": "work", "mountPath": WORKDIR}],
                    }
                    | container
                ],
                "volumes": [{"name": "work", "emptyDir": {}}],
            },
        },
    }
    if kind == "StatefulSet":
        spec |= {"serviceName": name, "podManagementPolicy": "Parallel"}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def pods_on_claim(name: str, **pods: Any) -> dict[str, Any]:
    """Return a workload of pods that work on the claim of the tenant's data, shared by all of them."""
    document = pods_of(name, **pods)
    claim = {"name": "work", "persistentVolumeClaim": {"claimName": "medweave-data"}}
    document["spec"]["template"]["spec"]["volumes"] = [claim]
    return document


def write(
    folder: Path,
    tools: Mapping[str, Any],
    *,
    kind: str,
    config: Mapping[str, Any],
    target: Mapping[str, Any] | None = None,
    job: Mapping[str, Any] | None = None,
    deployment: str = "pods",
    **keys: Any,
) -> None:
    """Write a workflow whose steps are bound to a deployment, which has these keys in addition to its usual ones."""
    deployments = {deployment: {"type": kind, "workdir": WORKDIR, "config": dict(config), **keys}}
    file = engine_file(deployments, {"/": {"deployment": deployment, **(target or {})}})
    write_workflow(folder, tools, job=job, file=file)
    # The script travels on the command line: a pod sees no file of this machine.
    workflow = json.loads((folder / "tiny.cwl").read_text(encoding="utf-8"))
    for name, step in workflow["steps"].items():
        script = (folder / f"{name}.sh").read_text(encoding="utf-8")
        step["run"]["baseCommand"] = ["sh", "-c", script, "sh"]
    (folder / "tiny.cwl").write_text(json.dumps(workflow), encoding="utf-8")


def give_input(folder: Path, step: str, value: Mapping[str, Any]) -> None:
    """Add to a step's tool an input `data`, as the first argument of its script."""
    document = json.loads((folder / "tiny.cwl").read_text(encoding="utf-8"))
    kind = value["class"]
    document["inputs"]["data"] = kind
    document["steps"][step]["in"]["data"] = "data"
    document["steps"][step]["run"]["inputs"]["data"] = {"type": kind, "inputBinding": {"position": 1}}
    (folder / "tiny.cwl").write_text(json.dumps(document), encoding="utf-8")
    (folder / "job.yml").write_text(json.dumps({"data": value}), encoding="utf-8")


def environment(tenant: Tenant) -> dict[str, str]:
    """Return the variables of the driver: helm on its PATH, the tenant's kubeconfig."""
    return {
        "PATH": f"{TESTBED / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "KUBECONFIG": str(tenant.kubeconfig),
        "MEDWEAVE_TESTBED": str(TESTBED),
    }


def go(folder: Path, tenant: Tenant, *, limit_s: float = 300, **variables: str) -> Run:
    """Run to the end, with these variables of the driver in addition to the usual ones."""
    return begin(folder, tenant, **variables).wait(limit_s)


def begin(folder: Path, tenant: Tenant, **variables: str) -> Run:
    """Start a run and return while it is running."""
    return start(folder, environment=environment(tenant) | variables)


def reported_after_s(going: Run, text: str) -> float:
    """Return the seconds from the driver's first line, which names the run, until it printed this."""
    going.wait_for_line("medweave: run ")
    started = time.monotonic()
    going.wait_for_line(text)
    return time.monotonic() - started


def failure(ended: Run) -> dict[str, Any]:
    """Return the event of the failed job."""
    (job,) = [event["data"] for event in ended.of_type("job.ended") if event["data"]["state"] == "failed"]
    return dict(job)


def decisions(ended: Run) -> list[tuple[str, bool]]:
    """Return the failure kind of each failed attempt, and whether it was retried."""
    return [(event["data"]["failure"], event["data"]["again"]) for event in ended.of_type("job.reaction")]
