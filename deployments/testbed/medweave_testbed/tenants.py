"""Two tenants of the cluster: a namespace each, with enforced pod security, and a service account with rights there only."""

from __future__ import annotations

import base64
import json
import pwd
import time
from typing import Any

from . import certificates
from .errors import TestbedError
from .layout import TENANTS, Layout
from .part import Part, Testbed, as_list

ACCOUNT = "medweave"
TOKEN_VALIDITY = "8760h"
GONE_S = 60.0

# What `helm upgrade --install`, its `--wait`, scaling and `kubectl exec`, `cp` and `logs` need, and no more. Rights over rights
# (roles, bindings) and over other service accounts' tokens are not among them.
_WRITE = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]
_READ = ["get", "list", "watch"]
RULES: tuple[dict[str, list[str]], ...] = (
    {
        "apiGroups": [""],
        "resources": ["pods", "services", "configmaps", "secrets", "persistentvolumeclaims"],
        "verbs": _WRITE,
    },
    {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get", "create"]},
    {"apiGroups": [""], "resources": ["pods/log", "pods/status", "endpoints", "resourcequotas"], "verbs": _READ},
    {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": _READ},
    {
        "apiGroups": ["apps"],
        "resources": ["deployments", "statefulsets", "deployments/scale", "statefulsets/scale"],
        "verbs": _WRITE,
    },
    {"apiGroups": ["apps"], "resources": ["replicasets", "controllerrevisions"], "verbs": _READ},
    {"apiGroups": ["batch"], "resources": ["jobs", "cronjobs"], "verbs": _WRITE},
    {"apiGroups": ["autoscaling"], "resources": ["horizontalpodautoscalers"], "verbs": _WRITE},
    {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": _WRITE},
    {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": _WRITE},
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": _READ},
)


def owner(layout: Layout) -> dict[str, str]:
    """Return the label that says which testbed made an object; a cluster may serve several."""
    return {"app.kubernetes.io/managed-by": layout.cgroup}


def is_ours(layout: Layout, namespace: dict[str, Any]) -> bool:
    """Return whether this testbed made a namespace."""
    labels: dict[str, str] = namespace["metadata"].get("labels", {})
    return owner(layout).items() <= labels.items()


def manifests(layout: Layout, tenant: str) -> list[dict[str, Any]]:
    """Return the namespace of a tenant and the rights of its service account."""
    security = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
    meta = {"name": ACCOUNT, "namespace": tenant, "labels": owner(layout)}
    api = "rbac.authorization.k8s.io"
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": tenant, "labels": {**owner(layout), **security}},
        },
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta, "automountServiceAccountToken": False},
        {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": meta, "rules": list(RULES)},
        {
            "apiVersion": f"{api}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": api, "kind": "Role", "name": ACCOUNT},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": tenant}],
        },
    ]


def tenant_kubeconfig(server: str, authority: bytes, token: str, tenant: str) -> str:
    """Return the self-contained kubeconfig of a tenant."""
    cluster = {"server": server, "certificate-authority-data": base64.b64encode(authority).decode()}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "testbed", "cluster": cluster}],
        "users": [{"name": tenant, "user": {"token": token}}],
        "contexts": [{"name": tenant, "context": {"cluster": "testbed", "user": tenant, "namespace": tenant}}],
        "current-context": tenant,
    }
    return json.dumps(document, indent=2)


def kubeconfig_of(layout: Layout, tenant: str) -> str:
    """Path of a tenant's kubeconfig in the laptop's home."""
    return str(layout.laptop_home / ".kube" / f"{tenant}.kubeconfig")


def check_ours(testbed: Testbed, tenant: str) -> None:
    """Raises: TestbedError: an existing cluster has a namespace of that name with another owner."""
    words = testbed.kubectl_words("get", "namespace", tenant, "-o", "json", "--ignore-not-found")
    text = testbed.commands.run(words)
    if not text.strip() or is_ours(testbed.layout, json.loads(text)):
        return
    label = "=".join(*owner(testbed.layout).items())
    raise TestbedError(
        f"the cluster of {testbed.kubeconfig} has a namespace '{tenant}' already.",
        seen=f"namespace '{tenant}' without the label {label}",
        expected="no such namespace, or one that the testbed made",
        do=f"use another cluster, or delete the namespace if it is not needed: kubectl delete namespace {tenant}",
    )


def wait_until_gone(testbed: Testbed, tenant: str) -> None:
    """Wait while a namespace of that name is being deleted: until it has gone, the cluster takes nothing new into it.

    Raises:
        TestbedError: it is still there after a minute.
    """
    deadline = time.monotonic() + GONE_S
    words = testbed.kubectl_words("get", "namespace", tenant, "-o", "jsonpath={.status.phase}", "--ignore-not-found")
    while testbed.commands.run(words).strip() == "Terminating":
        if time.monotonic() > deadline:
            raise TestbedError(
                f"the namespace '{tenant}' does not go away.",
                seen=f"phase Terminating for {GONE_S:.0f} s",
                expected="a namespace that is deleted within seconds",
                do=f"look at what holds it: kubectl get namespace {tenant} -o yaml",
            )
        time.sleep(0.3)


def server_of(testbed: Testbed) -> tuple[str, bytes]:
    """(URL, authority's certificate) of the cluster, from the administrator's kubeconfig."""
    text = testbed.kubectl("config", "view", "--minify", "--flatten", "--raw", "-o", "json")
    cluster = json.loads(text)["clusters"][0]["cluster"]
    return cluster["server"], base64.b64decode(cluster.get("certificate-authority-data", ""))


def start(testbed: Testbed) -> None:
    """Create the tenants and write their kubeconfigs, readable by the laptop's user only."""
    for tenant in TENANTS:
        wait_until_gone(testbed, tenant)
        check_ours(testbed, tenant)
    documents = [document for tenant in TENANTS for document in manifests(testbed.layout, tenant)]
    testbed.kubectl("apply", "--server-side", "-f", "-", text=as_list(documents))
    server, authority = server_of(testbed)
    user = pwd.getpwnam(testbed.layout.laptop_user)
    folder = testbed.layout.laptop_home / ".kube"
    folder.mkdir(mode=0o700, exist_ok=True)
    testbed.commands.run(["chown", f"{user.pw_name}:", folder])
    for tenant in TENANTS:
        token = testbed.kubectl("create", "token", ACCOUNT, "-n", tenant, f"--duration={TOKEN_VALIDITY}").strip()
        text = tenant_kubeconfig(server, authority, token, tenant)
        certificates.write_private(folder / f"{tenant}.kubeconfig", text, (user.pw_uid, user.pw_gid))


def trouble(testbed: Testbed) -> str | None:
    """Which tenant is not served with its own kubeconfig."""
    for tenant in TENANTS:
        config = kubeconfig_of(testbed.layout, tenant)
        words = [str(testbed.layout.bin / "kubectl"), f"--kubeconfig={config}", "--request-timeout=5s"]
        code, output, errors = testbed.commands.outcome([*words, "auth", "can-i", "create", "pods/exec"], timeout_s=10)
        if code != 0:
            return f"{tenant} is refused with {config}: " + " ".join((errors or output).split())[:200]
    return None


def parts() -> list[Part]:
    """Return the tenants' part."""
    return [Part(name="tenants", needs=("apiserver", "controllers", "users"), trouble=trouble, start=start)]
