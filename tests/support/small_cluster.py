"""Runs of the engine over pods of the small API server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from support.api_server import ApiServer, pod_document
from support.engine import Run, write_workflow
from support.engine_file import engine_file

PROGRESS = """echo 'medweave-progress {"unit":"case","done":1,"total":2,"detail":"x"}' >&2\n"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: segment}
spec:
  replicas: 1
  selector: {matchLabels: {app: segment}}
  template:
    metadata: {labels: {app: segment}}
    spec: {containers: [{name: worker, image: x}]}
"""


@contextmanager
def small_cluster(folder: Path) -> Iterator[ApiServer]:
    """Yield a server with two pods and an unrelated one; its kubeconfig is in the folder."""
    with ApiServer() as server:
        server.add(pod_document("w-0"), pod_document("w-1"), pod_document("stranger", labels={"app": "other"}))
        server.write_kubeconfig(folder / "kubeconfig")
        yield server


def write(tmp_path: Path, tools: dict[str, Any], *, target: str = "", config: str = "selector: app=w") -> None:
    """Write a workflow whose steps are bound to pods.

    Args:
        target: further keys of the binding's target, as YAML.
        config: settings of the deployment, as YAML.
    """
    settings = yaml.safe_load(f"{{kubeconfig: kubeconfig, {config}}}")
    pods = {"type": "medweave.kubernetes", "workdir": f"{tmp_path}/in-pods", "config": settings}
    file = engine_file({"pods": pods}, {"/": yaml.safe_load(f"{{deployment: pods{target}}}")})
    write_workflow(tmp_path, tools, file=file)


def failure(ended: Run) -> dict[str, Any]:
    """Return the event of the job that failed."""
    (job,) = [event["data"] for event in ended.of_type("job.ended") if event["data"]["state"] == "failed"]
    return job


def applied(server: ApiServer, **status: Any) -> None:
    """Create a pod for every object that is applied from now on, and delete it with the object.

    Args:
        status: keys of the pod's status.
    """

    def make(document: dict[str, Any]) -> None:
        pod = pod_document("segment-1", labels=document["spec"]["template"]["metadata"]["labels"])
        pod["status"] |= status
        server.add(pod)

    server.on_apply = make
    server.on_delete = lambda document: server.remove("segment-1")
