"""The testbed's cluster has two tenants: each has what a release needs in its own namespace, and nothing anywhere else."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from support.testbed import Sites, pod_document, unique, wait_for


@pytest.fixture
def victim(testbed: Sites) -> Iterator[str]:
    """Yield a running pod of tenant A and a Secret; both have the same name."""
    name = unique("victim")
    testbed.tenant("tenant-a", "create", "secret", "generic", name, "--from-literal=password=for-tenant-a")
    with testbed.pod("tenant-a", pod_document(name, "echo words of tenant a; sleep 600")):
        yield name
    testbed.tenant("tenant-a", "delete", "secret", name)


def test_a_tenant_reads_its_own_pods_secrets_files_and_logs(testbed: Sites, victim: str) -> None:
    assert victim in testbed.tenant("tenant-a", "get", "pods").stdout
    assert testbed.tenant("tenant-a", "get", "secret", victim).returncode == 0
    assert testbed.tenant("tenant-a", "logs", victim).stdout == "words of tenant a\n"
    outcome = testbed.tenant("tenant-a", "exec", victim, "--", "cat", "/etc/hostname")
    assert outcome.stdout.strip() == victim, outcome.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("get", "pods"),
        ("get", "pod", "VICTIM"),
        ("get", "secrets"),
        ("get", "secret", "VICTIM"),
        ("exec", "VICTIM", "--", "cat", "/etc/hostname"),
        ("cp", "VICTIM:/etc/hostname", "/dev/null"),
        ("logs", "VICTIM"),
        ("port-forward", "VICTIM", "0:80"),
        ("delete", "pod", "VICTIM"),
        ("create", "token", "medweave"),
        ("create", "configmap", "mine"),
    ],
    ids=" ".join,
)
def test_a_tenant_is_refused_what_belongs_to_the_other(testbed: Sites, victim: str, words: tuple[str, ...]) -> None:
    line = [word.replace("VICTIM", victim) for word in words]
    outcome = testbed.tenant("tenant-b", "--namespace=tenant-a", *line)
    assert outcome.returncode != 0
    assert "system:serviceaccount:tenant-b:medweave" in outcome.stderr
    assert "forbidden" in outcome.stderr.lower()


@pytest.mark.parametrize(
    "words",
    [
        ("get", "nodes"),
        ("get", "namespaces"),
        ("get", "persistentvolumes"),
        ("get", "secrets", "--all-namespaces"),
        ("create", "serviceaccount", "another"),
        ("create", "token", "medweave"),
        ("create", "rolebinding", "more", "--clusterrole=admin", "--serviceaccount=tenant-b:medweave"),
        ("create", "clusterrolebinding", "all", "--clusterrole=cluster-admin", "--serviceaccount=tenant-b:medweave"),
        ("get", "--raw", "/api/v1/nodes/testbed/proxy/pods"),
    ],
    ids=" ".join,
)
def test_a_tenant_is_refused_what_belongs_to_the_cluster(testbed: Sites, words: tuple[str, ...]) -> None:
    outcome = testbed.tenant("tenant-b", *words)
    assert outcome.returncode != 0
    assert "forbidden" in outcome.stderr.lower()


@pytest.mark.parametrize("tenant", ["tenant-a", "tenant-b"])
@pytest.mark.parametrize("fault", ["root", "privileged", "hostPath", "hostNetwork"])
def test_pod_security_is_enforced(testbed: Sites, tenant: str, fault: str) -> None:
    document = pod_document(unique("unsafe"), "true")
    container = document["spec"]["containers"][0]
    if fault == "root":
        container["securityContext"] |= {"runAsUser": 0, "runAsNonRoot": False}
    elif fault == "privileged":
        container["securityContext"] |= {"privileged": True, "allowPrivilegeEscalation": True}
    elif fault == "hostPath":
        document["spec"]["volumes"] = [{"name": "root", "hostPath": {"path": "/"}}]
    else:
        document["spec"]["hostNetwork"] = True
    outcome = testbed.tenant(tenant, "apply", "-f", "-", text=json.dumps(document))
    assert outcome.returncode != 0
    assert 'violates PodSecurity "restricted' in outcome.stderr


def test_a_tenant_cannot_claim_the_others_volume(testbed: Sites) -> None:
    name = unique("grab")
    spec = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "volumeName": "testbed-tenant-a-medweave-data",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}
    assert testbed.tenant("tenant-b", "apply", "-f", "-", text=json.dumps(claim)).returncode == 0
    try:

        def refusal() -> str | None:
            events = testbed.tenant("tenant-b", "get", "events", f"--field-selector=involvedObject.name={name}").stdout
            return events if "already bound to a different claim" in events else None

        wait_for(refusal, "the event that refuses the claim")
        phase = testbed.tenant("tenant-b", "get", "pvc", name, "-o", "jsonpath={.status.phase}").stdout
        assert phase == "Pending"
    finally:
        testbed.tenant("tenant-b", "delete", "pvc", name, "--wait=false")
