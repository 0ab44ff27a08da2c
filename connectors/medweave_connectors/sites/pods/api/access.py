"""Connection of a deployment to its cluster: kubeconfig, namespace and API clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # comes with StreamFlow
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import ConfigException, load_incluster_config

from medweave_connectors.sites.pods.api.api_client import UnknownContext, create_clients, load_configuration
from medweave_connectors.sites.pods.api.credentials import PluginFailed
from medweave_connectors.sites.pods.api.errors import DeploymentRefused
from medweave_connectors.sites.pods.api.masking import without_secrets
from medweave_connectors.sites.pods.api.namespace_client import ApiServerError, NamespaceClient
from medweave_core.documents.closest_match import closest

HEARTBEAT_S = 20.0
FIRST_ANSWER_S = 7.0  # a wrong address is reported within 10 s of the start
CONNECTIONS = 256
_IN_CLUSTER_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def find_namespace(kubeconfig: str, context: str | None, in_cluster: bool) -> str:
    """Return the default namespace of the account or of the kubeconfig's context."""
    if in_cluster:
        with contextlib.suppress(OSError):
            return _IN_CLUSTER_NAMESPACE.read_text(encoding="utf-8").strip() or "default"
        return "default"
    with contextlib.suppress(OSError, yaml.YAMLError, AttributeError):
        document = yaml.safe_load(Path(kubeconfig).read_text(encoding="utf-8"))
        name = context or document.get("current-context")
        for entry in document.get("contexts") or []:
            if entry.get("name") == name:
                return (entry.get("context") or {}).get("namespace") or "default"
    return "default"


async def connect(
    deployment: str, *, kubeconfig: str, context: str | None, in_cluster: bool, namespace: str
) -> tuple[list[Any], NamespaceClient]:
    """Return the clients of a deployment (plain and websocket), and the namespace client, after one successful request.

    Args:
        namespace: empty for the default of the kubeconfig.

    Raises:
        DeploymentRefused: the kubeconfig is invalid, or the cluster denies access.
    """
    try:
        if in_cluster:
            configuration = Configuration()
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            configuration = await load_configuration(kubeconfig, context)
        configuration.connection_pool_maxsize = CONNECTIONS
        plain, websocket = create_clients(configuration, heartbeat_s=HEARTBEAT_S)
    except PluginFailed as error:
        raise _no_credential(deployment, error, kubeconfig) from error
    except UnknownContext as error:
        raise _no_context(deployment, str(context), error.args, kubeconfig) from error
    except (ConfigException, OSError, ValueError, KeyError, TypeError, AssertionError, yaml.YAMLError) as error:
        raise _unreachable(deployment, error, kubeconfig=kubeconfig, namespace=namespace) from error
    clients = [plain, websocket]
    cluster = NamespaceClient(plain, namespace or find_namespace(kubeconfig, context, in_cluster))
    try:
        await _first_answer(cluster)
    except ApiServerError as error:
        for client in clients:
            await client.close()
        raise _unreachable(deployment, error, kubeconfig=kubeconfig, namespace=cluster.namespace) from error
    return clients, cluster


async def _first_answer(cluster: NamespaceClient) -> None:
    try:
        async with asyncio.timeout(FIRST_ANSWER_S):
            await cluster.pods("medweave.dev/none")
    except TimeoutError:
        raise ApiServerError(0, f"no answer within {FIRST_ANSWER_S:.0f} s") from None


def _no_credential(deployment: str, error: PluginFailed, kubeconfig: str) -> DeploymentRefused:
    return DeploymentRefused(
        f"deployments.{deployment}.config.kubeconfig: its credential plugin returned no credential.",
        seen=f"{error} (kubeconfig {kubeconfig})",
        expected="an ExecCredential with a token, or with a certificate and its key, on its standard output",
        do=error.hint
        or "run that command yourself, follow its instructions (log in again, install it), and start again",
    )


def _no_context(deployment: str, context: str, known: Sequence[str], kubeconfig: str) -> DeploymentRefused:
    return DeploymentRefused(
        f"deployments.{deployment}.config.kubeContext: the kubeconfig has no context '{context}'.",
        seen=f"context '{context}' (kubeconfig {kubeconfig})",
        expected=f"one of its contexts: {', '.join(known) or 'it has none'}",
        do=closest(context, known) or "write one of these, or the path of another kubeconfig",
    )


def _unreachable(deployment: str, error: Exception, *, kubeconfig: str, namespace: str) -> DeploymentRefused:
    # Name the key of the site file that has to change.
    key, do = {
        401: ("kubeconfig", "write the path of a kubeconfig whose token or certificate is valid"),
        403: (
            "namespace",
            "name a namespace in which this account may list pods, or ask its administrator for the right",
        ),
        404: ("namespace", "correct the name of the namespace"),
    }.get(
        error.status if isinstance(error, ApiServerError) else 0,
        (
            "kubeconfig",
            "correct the path or the context, and check whether the cluster can be reached from this machine",
        ),
    )
    return DeploymentRefused(
        f"deployments.{deployment}.config.{key}: the cluster refuses the connection or the account.",
        seen=f"{without_secrets(str(error))} (kubeconfig {kubeconfig}, namespace {namespace or 'of its context'})",
        expected="a cluster that responds, and an account that may list the pods of the namespace and start commands in them",
        do=do,
    )
