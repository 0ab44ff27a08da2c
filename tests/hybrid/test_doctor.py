"""`medweave doctor` at the testbed's own site: a real login node, Slurm and cluster."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from medweave import __version__
from support.helm_release import ADMIN, Tenant
from support.hybrid_runs import SITE, laptop
from support.images import build
from support.pod_runs import BASE_IMAGE, restricted
from support.testbed import Sites, unique


def looked_at(testbed: Sites, *words: str, site: Path = SITE) -> tuple[int, list[dict[str, Any]]]:
    ended = subprocess.run(
        [sys.executable, "-m", "medweave.cli", "doctor", "--site", str(site), "--json", *words],
        env=os.environ | laptop(testbed), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


def test_all_is_well_and_no_pod_is_left(testbed: Sites) -> None:
    for role in ("train", "segment"):  # which the site's file names
        build(role)
    code, hops = looked_at(
        testbed, *(f"--deployment={name}" for name in ("laptop", "login", "slurm", "training-ddp", "inference"))
    )
    assert {hop["health"] for hop in hops} <= {"ok", "warning"}, hops
    assert code == 0
    names = {(hop["place"], hop["name"]) for hop in hops}
    assert {
        ("login", "ssh"),
        ("slurm", "service normal"),
        ("inference", "rights"),
        ("inference", "image"),
        ("inference", "worker"),
        ("inference", "bandwidth"),
    } <= names
    (speed,) = (hop["seen"] for hop in hops if (hop["place"], hop["name"]) == ("inference", "bandwidth"))
    assert re.fullmatch(r"[1-9]\d* MB/s to a pod, [1-9]\d* MB/s from a pod, through the API server", speed), speed
    (worker,) = (hop["seen"] for hop in hops if (hop["place"], hop["name"]) == ("inference", "worker"))
    assert worker == f"medweave {__version__} in localhost/medweave-segment:1"
    routes = {hop["place"]: hop["seen"] for hop in hops if hop["name"] == "route"}
    assert set(routes) == {"login - training-ddp", "login - inference", "training-ddp - inference"}
    for place, seen in routes.items():
        listens = place.rpartition(" ")[2]
        pattern = rf"direct: [1-9]\d* MB/s forward, [1-9]\d* MB/s back, over one connection; {listens} listens .*"
        assert re.fullmatch(pattern, seen), (place, seen)
    left = testbed.laptop(
        "kubectl", "get", "pods,networkpolicies", "-l", "app.kubernetes.io/managed-by=medweave-doctor", "-o", "name"
    )
    assert left.returncode == 0
    assert left.stdout == ""


def test_bandwidth_to_a_pod_is_measured_like_copies(testbed: Sites, tenant: Tenant, tmp_path: Path) -> None:
    pod = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": unique("quick")}}
    own = {"name": "work", "image": BASE_IMAGE, "imagePullPolicy": "Never", "securityContext": restricted()}
    (tmp_path / "pods.yml").write_text(yaml.safe_dump(pod | {"spec": {"containers": [own]}}))
    config = {"files": ["pods.yml"], "kubeconfig": str(tenant.kubeconfig)}
    site = {"title": "x", "deployments": {"pods": {"type": "medweave.kubernetes", "workdir": "/tmp", "config": config}}}
    site["roles"] = {"segment": {"deployment": "pods", "service": "work"}}
    (tmp_path / "site.yml").write_text(yaml.safe_dump(site))
    _, hops = looked_at(testbed, site=tmp_path / "site.yml")
    (speed,) = (hop["seen"] for hop in hops if hop["name"] == "bandwidth")
    pattern = r"[1-9]\d* MB/s to a pod, [1-9]\d* MB/s from a pod, through the API server"  # and not: over WebSocket
    assert re.fullmatch(pattern, speed), speed


def test_slow_image_pull_is_reported_with_the_clusters_last_event(
    testbed: Sites, tenant: Tenant, tmp_path: Path
) -> None:
    pod = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": unique("slow")}}
    own = {
        "name": "work",
        "image": "198.51.100.1/nowhere:1",
        "securityContext": restricted(),
    }  # no host has this address
    (tmp_path / "pods.yml").write_text(yaml.safe_dump(pod | {"spec": {"containers": [own]}}))
    config = {"files": ["pods.yml"], "kubeconfig": str(tenant.kubeconfig)}
    site = {"title": "x", "deployments": {"pods": {"type": "medweave.kubernetes", "workdir": "/tmp", "config": config}}}
    site["roles"] = {"segment": {"deployment": "pods", "service": "work"}}
    (tmp_path / "site.yml").write_text(yaml.safe_dump(site))
    code, hops = looked_at(testbed, "--timeout=3", site=tmp_path / "site.yml")
    (hop,) = (hop for hop in hops if hop["name"] == "image")
    assert (code, hop["health"]) == (65, "unknown")
    assert 'pod not started within 3 s (Pulling: Pulling image "198.51.100.1/nowhere:1")' in hop["seen"]


def test_the_storage_class_of_a_claim_that_a_run_makes(testbed: Sites, tenant: Tenant, tmp_path: Path) -> None:
    admin, name = dataclasses.replace(tenant, kubeconfig=ADMIN), unique("class")
    pod = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name}}
    pod["spec"] = {
        "containers": [
            {"name": "work", "image": BASE_IMAGE, "imagePullPolicy": "Never", "securityContext": restricted()}
        ]
    }
    claims = [
        {
            "kind": "PersistentVolumeClaim",
            "apiVersion": "v1",
            "metadata": {"name": claim},
            "spec": {"storageClassName": claim},
        }
        for claim in (name, "no-such-class")
    ]
    made = {"kind": "StorageClass", "apiVersion": "storage.k8s.io/v1", "metadata": {"name": name}}
    (tmp_path / "pods.yml").write_text(yaml.safe_dump_all([pod, *claims]))

    def storage_hops(kubeconfig: Path) -> dict[str, str]:
        config = {"files": ["pods.yml"], "kubeconfig": str(kubeconfig), "namespace": tenant.namespace}
        site = {
            "title": "a claim",
            "deployments": {"pods": {"type": "medweave.kubernetes", "workdir": "/tmp", "config": config}},
        }
        site["roles"] = {"segment": {"deployment": "pods", "service": "work"}}
        (tmp_path / "site.yml").write_text(yaml.safe_dump(site))
        _, hops = looked_at(testbed, site=tmp_path / "site.yml")
        return {hop["health"]: hop["seen"] for hop in hops if hop["name"] == "storage"}

    admin.call("kubectl", "create", "-f", "-", stdin=json.dumps(made | {"provisioner": "kubernetes.io/no-provisioner"}))
    try:
        assert storage_hops(ADMIN) == {
            "ok": f"storage class {name} exists",
            "fault": "no such storage class: no-such-class",
        }
    finally:
        admin.call("kubectl", "delete", "storageclass", name)
    seen = storage_hops(tenant.kubeconfig)["warning"]
    assert "listing storage classes is not permitted" in seen, "a tenant has no such right"
