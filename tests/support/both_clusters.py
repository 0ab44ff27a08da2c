"""The testbed's Kubernetes as stock StreamFlow and as medweave reach it, with a tenant's own account: connectors, small charts."""

from __future__ import annotations

import contextlib
import functools
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil

from medweave_connectors.sites.helm.connector import MedweaveHelmConnector
from medweave_connectors.sites.kubernetes.connector import MedweaveKubernetesConnector
from support.connector_runs import Site
from support.engine import Run, start
from support.engine_faults import start_stock
from support.engine_file import OURS, STOCK, engine_file
from support.helm_release import Tenant
from support.pod_runs import WORKDIR, environment, pods_of, write

# What StreamFlow knows the pods of a release by.
INSTANCE = {"app.kubernetes.io/instance": "{{ .Release.Name }}"}
# Leaves a file `listed` when the connector of that class has looked at the pods.
LISTED = """
from pathlib import Path
from {module} import {name} as Connector
look = Connector.{method}
async def listed(*arguments, **keywords):
    locations = await look(*arguments, **keywords)
    Path("listed").touch()
    return locations
Connector.{method} = listed
"""
STOCK_LISTED = LISTED.format(
    module="streamflow.deployment.connector.kubernetes", name="HelmConnector", method="_get_running_pods"
)
OUR_LISTED = LISTED.format(
    module="medweave_connectors.sites.pods.connector", name="PodsConnector", method="get_available_locations"
)
# Leaves in a file `used` what a run's own step has for its deployment, when it is placed.
USED = """
import json
from pathlib import Path
from medweave_connectors.engine.scheduling.scheduler import MedweaveScheduler
schedule = MedweaveScheduler.schedule
async def noted(self, job, binding, request):
    await schedule(self, job, binding, request)
    if job.name == "/first/0":
        connector = self.context.deployment_manager.get_connector("pods")
        facts = [type(connector).__name__, connector.transferBufferSize, *(target.deployment.lazy for target in binding.targets)]
        Path("used").write_text(json.dumps(facts))
MedweaveScheduler.schedule = noted
"""


# Pods that are late are looked for every 15 s where the file does not say so.
SOON = {"scheduling": {"scheduler": {"type": "medweave.scheduler", "config": {"retry_delay": 2}}}}


def tiny_chart(folder: Path, *, labels: Mapping[str, str] = INSTANCE, **pods: Any) -> Path:
    """Return a chart of one pod that bears the release's name.

    Args:
        labels: of the pod, in addition to its own.
        pods: as `support.pod_runs.pods_of`.
    """
    chart = folder / "tiny"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text('{"apiVersion": "v2", "name": "tiny", "version": "0.1.0"}')
    document = pods_of("{{ .Release.Name }}", replicas=1, **pods)
    document["spec"]["template"]["metadata"]["labels"] |= labels
    (chart / "templates" / "pods.yaml").write_text(json.dumps(document))
    return chart


@contextmanager
def chart_repository(tenant: Tenant, chart: Path, folder: Path, *options: str) -> Iterator[str]:
    """Yield the URL of a repository with a chart, while the block runs.

    Args:
        folder: for the repository's files; made.
        options: of `helm package`.
    """
    folder.mkdir()
    handler = functools.partial(SimpleHTTPRequestHandler, directory=folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        tenant.call("helm", "package", chart, *options, "--destination", folder)
        tenant.call("helm", "repo", "index", folder, "--url", url)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield url
        server.shutdown()


# ---- whole runs with a deployment `pods`, in files that differ in the types only


def begin_helm(folder: Path, tenant: Tenant, tools: Any, config: Mapping[str, Any], **deployment: Any) -> Run:
    """Start a run of medweave's."""
    _write(folder, tools, {"type": "medweave.helm", "config": dict(config)} | deployment, OURS | SOON)
    (folder / "listed.py").write_text(OUR_LISTED)
    return start(folder, environment=environment(tenant), preload=folder / "listed.py")


def begin_stock_helm(folder: Path, tenant: Tenant, tools: Any, config: Mapping[str, Any], **deployment: Any) -> Run:
    """Start a run of the engine alone."""
    own = {"timeout": "60s", "namespace": tenant.namespace}
    _write(folder, tools, {"type": "helm4", "config": own | dict(config)} | deployment, STOCK)
    return start_stock(folder, preload=STOCK_LISTED, environment=environment(tenant))


def used_in_a_run(folder: Path, tenant: Tenant, selector: str) -> list[Any]:
    """Run a step of medweave.kubernetes in pods that exist; return the connector class, its buffer (bytes), and if it was lazy."""
    write(folder, {"first": "echo done > result.txt"}, kind="medweave.kubernetes", config={"selector": selector})
    (folder / "used.py").write_text(USED)
    ended = start(folder, environment=environment(tenant), preload=folder / "used.py").wait(90)
    assert ended.exit_code == 0, ended.stderr
    facts: list[Any] = json.loads((folder / "used").read_text())
    return facts


def _write(folder: Path, tools: Any, deployment: dict[str, Any], managers: Any) -> None:
    folder.mkdir()
    write(folder, tools, kind=deployment["type"], config=deployment["config"])
    target = {"deployment": "pods", "service": "worker"}
    file = engine_file({"pods": {"workdir": WORKDIR} | deployment}, {"/": target}, managers=managers)
    (folder / "streamflow.yml").write_text(file)


# ---- connectors, called directly


def stock_helm(tenant: Tenant, chart: Path | str, release: str, **keys: Any) -> Any:
    """Return the stock connector for Helm 4."""
    from streamflow.deployment.connector.kubernetes import Helm4Connector

    access = {"kubeconfig": str(tenant.kubeconfig), "timeout": "60s"}
    return Helm4Connector("pods", "/site", **(access | {"chart": str(chart), "releaseName": release} | keys))


def stock_kubernetes(tenant: Tenant, *files: Path) -> Any:
    """Return the stock connector for manifests, or for existing pods."""
    from streamflow.deployment.connector.kubernetes import KubernetesConnector

    return KubernetesConnector(
        "pods",
        "/site",
        files=[str(file) for file in files],
        namespace=tenant.namespace,
        kubeconfig=str(tenant.kubeconfig),
        timeout=60,
    )


def our_kubernetes(tenant: Tenant, **keys: Any) -> Any:
    """Return medweave's connector, configured with the kubeconfig only."""
    return MedweaveKubernetesConnector("pods", "/", kubeconfig=str(tenant.kubeconfig), **keys)


def our_helm(tenant: Tenant, **keys: Any) -> Any:
    """Return medweave's connector for charts."""
    return MedweaveHelmConnector("pods", "/", kubeconfig=str(tenant.kubeconfig), timeout=60, **keys)


@asynccontextmanager
async def connected(connector: Any) -> AsyncIterator[Any]:
    """Yield a connector of pods that exist already; its connections are closed at the end."""
    await connector.deploy(True)
    try:
        yield connector
    finally:
        await connector.undeploy(True)


async def places(connector: Any, service: str | None = "worker") -> dict[str, Any]:
    """Return the location of each pod."""
    available_locations = (await connector.get_available_locations(service)).values()
    return {available.name.partition(":")[0]: available.location for available in available_locations}


def at(make: Callable[[], Any]) -> Site:
    """Return a deployment for `support.connector_runs.used`: it is made, and taken down at the end."""
    return Site(connectors=lambda: [make()], folder=WORKDIR, read=lambda path: "", service="worker")


async def name_of(connector: Any, place: Any) -> str:
    """Return the name of its location."""
    return str(place.name)


def end_helm(release: str) -> None:
    """End the helm of this very process that installs a release."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if release in child.cmdline():
                child.terminate()
