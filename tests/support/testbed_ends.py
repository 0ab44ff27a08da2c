"""The data manager between real pods and the real login node, in this process: no engine, no workflow."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.engine.data.manager import MedweaveDataManager
from medweave_connectors.sites.kubernetes.connector import MedweaveKubernetesConnector
from medweave_connectors.sites.slurm.connector import MedweaveSlurmConnector
from medweave_connectors.sites.ssh.connector import MedweaveSSHConnector
from support.helm_release import Tenant, until
from support.hybrid_runs import laptop
from support.testbed import Sites

LOGIN, SLURM = "login", "hpc"


def login_of(testbed: Sites) -> dict[str, Any]:
    """Return the options to reach the login node as the laptop's user."""
    facts, home = laptop(testbed), testbed.layout.laptop_home
    return {
        "nodes": [f"{facts['MEDWEAVE_TESTBED_LOGIN_HOST']}:{facts['MEDWEAVE_TESTBED_LOGIN_PORT']}"],
        "username": facts["MEDWEAVE_TESTBED_LOGIN_USER"],
        "sshKey": str(home / ".ssh" / "id_ed25519"),
        "knownHosts": str(home / ".ssh" / "known_hosts"),
    }


@contextmanager
def standing(tenant: Tenant, document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the first pod of a StatefulSet, while the block runs."""
    name = document["metadata"]["name"]
    tenant.call("kubectl", "apply", "-f", "-", stdin=json.dumps(document))
    try:
        words = ("kubectl", "wait", "--for=condition=Ready", f"pod/{name}-0", "--timeout=30s")
        until(lambda: tenant.ended(*words).returncode == 0, limit_s=90, what="the pod")
        yield f"{name}-0"
    finally:
        tenant.ended("kubectl", "delete", f"statefulset/{name}", "--wait=false")


def pods_connector(tenant: Tenant, name: str) -> MedweaveKubernetesConnector:
    """Return the deployment of the pods with the label `app=NAME`."""
    config = {"kubeconfig": str(tenant.kubeconfig), "namespace": tenant.namespace, "selector": f"app={name}"}
    return MedweaveKubernetesConnector(name, "/", **config)


def pod_place(name: str, number: int = 0) -> ExecutionLocation:
    """Return a pod of a StatefulSet, whose deployment has its name."""
    return ExecutionLocation(name=f"{name}-{number}:worker", deployment=name)


def slurm_connectors(login: Mapping[str, Any]) -> dict[str, Any]:
    """Return the connectors of Slurm and of the login node it wraps."""
    over = MedweaveSSHConnector(LOGIN, "/", **login)
    services = {"usual": {"partition": "normal"}}
    return {LOGIN: over, SLURM: MedweaveSlurmConnector(SLURM, "/", over, None, services=services)}


def slurm_place(login: Mapping[str, Any]) -> ExecutionLocation:
    """Return the queue, as the engine has it: over the login node."""
    inner = ExecutionLocation(name=login["nodes"][0], deployment=LOGIN)
    return ExecutionLocation(name=f"{SLURM}/usual", deployment=SLURM, service="usual", wraps=inner)


@contextlib.asynccontextmanager
async def managed(connectors: Mapping[str, Any], **settings: Any) -> AsyncIterator[Any]:
    """Yield a data manager between deployments that are up while the block runs."""
    context = SimpleNamespace(
        deployment_manager=SimpleNamespace(get_connector=connectors.__getitem__),
        checkpoint_manager=SimpleNamespace(register=lambda _: None),
    )
    context.data_manager = manager = MedweaveDataManager(context, **settings)  # type: ignore[arg-type]
    for connector in connectors.values():
        await connector.deploy(True)
    try:
        yield manager
    finally:
        for connector in reversed(list(connectors.values())):
            await connector.undeploy(True)
