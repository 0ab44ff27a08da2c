"""A schedule on the testbed's cluster, by the images that this repository builds: the driver in one pod, the steps in another."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from medweave.placement.bind import bind
from medweave.schedule.kubernetes import LABEL
from support.cwl_files import ROOT, WORKFLOWS
from support.helm_release import ADMIN, TESTBED, Tenant
from support.images import name_of
from support.pod_runs import restricted
from support.testbed import unique

INFER = WORKFLOWS / "lung-nodule-segmentation" / "infer.cwl"
DATA = TESTBED / "pods" / "tenant-a"  # what the claim medweave-data shows
SMALL = {
    "requests": {"cpu": "50m", "memory": "256Mi", "ephemeral-storage": "64Mi"},
    "limits": {"cpu": "2", "memory": "3Gi", "ephemeral-storage": "2Gi"},
}
USER = 10001


def runner_values(**more: Any) -> dict[str, Any]:
    """Return the values of helm/runner on the testbed: the driver's own image, results on the tenant's claim."""
    repository, _, tag = name_of("driver").rpartition(":")
    return {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "work": {"existingClaim": "medweave-data"},
        "resources": SMALL,
        "terminationGracePeriodSeconds": 30,
    } | more


@contextmanager
def on_the_claim() -> Iterator[tuple[Path, str]]:
    """Yield a folder of the tenant's claim: its path on this machine, and in the runner's pods."""
    name = unique("schedule")
    folder = DATA / name
    folder.mkdir()
    os.chown(folder, USER, USER)
    try:
        yield folder, f"/work/{name}"
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def write_inference(folder: Path, *, inputs: dict[str, str], name: str, values: dict[str, Any], **keys: Any) -> Path:
    """Write the lung pipeline's inference, bound for the inside of the cluster: its steps in a pod of the image `segment`.

    Args:
        inputs: paths in the runner's pod of `cohort` and `segmentation_model`.
        name: of the schedule.
        values: of the chart.
        keys: of the schedule.
    """
    folder.mkdir()
    worker = {
        "name": "segment",
        "image": name_of("segment"),
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", "trap 'exit 0' TERM; sleep infinity & wait"],
        "env": values.get("extraEnv", []),
        "resources": SMALL,
        "securityContext": restricted(),
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}, {"name": "data", "mountPath": "/work"}],
    }
    spec = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "containers": [worker],
        "volumes": [
            {"name": "scratch", "emptyDir": {}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "medweave-data"}},
        ],
    }
    labels = {"app": f"{name}-segment"}
    template = {"metadata": {"labels": labels}, "spec": spec}
    pods = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"{name}-segment"},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }
    site = {
        "title": "the inside of the testbed's cluster",
        "deployments": {
            "pods": {
                "type": "medweave.kubernetes",
                "workdir": "/scratch",
                "config": {"files": ["pods.yml"], "inCluster": True},
            },
        },
        "roles": {
            role: {"deployment": "pods", "service": "segment"}
            for role in ("deidentify", "check", "preprocess", "segment")
        },
    }
    job: dict[str, Any] = {key: {"class": "Directory", "path": path} for key, path in inputs.items()}
    schedule = {"name": name, "file": "streamflow.yml", **keys}
    schedule["place"] = {
        "kubernetes": {
            "chart": str(ROOT / "helm" / "runner"),
            "kubeconfig": str(ADMIN),  # it grants rights, which a tenant may not
            "namespace": "tenant-a",
            "values": values,
        }
    }
    (folder / "pods.yml").write_text(yaml.safe_dump(pods))
    (folder / "site.yml").write_text(yaml.safe_dump(site, sort_keys=False))
    (folder / "job.yml").write_text(json.dumps(job | {"identified": False, "cases_per_batch": 1}))
    (folder / "schedule.yml").write_text(yaml.safe_dump(schedule, sort_keys=False))
    bound = folder / "streamflow.yml"
    bound.write_text(bind(INFER, str(folder / "site.yml"), bound, folder / "job.yml"))
    return folder / "schedule.yml"


def jobs(tenant: Tenant, name: str) -> list[dict[str, Any]]:
    """Return the Jobs of a schedule, in their order."""
    job_list = tenant.get("jobs", LABEL.format(name))
    return sorted(job_list, key=lambda job: str(job["metadata"]["creationTimestamp"]))


def conditions(job: dict[str, Any]) -> set[str]:
    """Return the true conditions of a Job: `Complete`, `Failed` …"""
    return {condition["type"] for condition in job["status"].get("conditions", []) if condition["status"] == "True"}


def log_of(tenant: Tenant, job: str) -> str:
    """Return the log of a Job's pod."""
    return tenant.ended("kubectl", "logs", f"job/{job}", "--tail=-1").stdout
