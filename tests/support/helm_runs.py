"""Runs of the engine over releases: helm and the API server are small fakes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from support.api_server import ApiServer
from support.cwl_files import ROOT
from support.engine import Run, run, write_workflow
from support.engine_file import OURS, engine_file

HELM = "medweave.helm"
FAKES = ROOT / "tests" / "fakes" / "bin"
VERIFIED = {"dataManager": {"type": "medweave.transfer", "config": {}}}
GOOD = "echo {} > run_report.json; echo $POD_NAME > result.txt"
PROGRESS = """echo 'medweave-progress {"unit":"case","done":1,"total":2,"detail":"x"}' >&2\n"""
GANG = {"hints": {"urn:medweave:cwl#Gang": {}}}
WORKLOAD = """
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: r-{part}}}
spec:
  replicas: {replicas}
  serviceName: r-pods
  selector: {{matchLabels: {{part: {part}}}}}
  template: {{spec: {{containers: [{{name: {part}}}]}}}}
"""


@contextmanager
def two_workers(folder: Path) -> Iterator[ApiServer]:
    """Yield a server, and a chart of two workers; its kubeconfig lies in the folder."""
    (folder / "chart").mkdir()
    (folder / "chart" / "manifest.yaml").write_text(WORKLOAD.format(part="worker", replicas=2))
    with ApiServer() as fake:
        fake.write_kubeconfig(folder / "kubeconfig")
        yield fake


def write(
    folder: Path,
    tools: dict[str, Any],
    *,
    kind: str = HELM,
    target: str = "",
    config: str = "timeout: 20",
    managers: Any = OURS,
    **keys: Any,
) -> None:
    settings = yaml.safe_load(f"{{kubeconfig: kubeconfig, chart: chart, {config}}}")
    cluster = {"type": kind, "workdir": f"{folder}/in-pods", "config": settings} | keys
    file = engine_file(
        {"cluster": cluster}, {"/": yaml.safe_load(f"{{deployment: cluster{target}}}")}, managers=managers
    )
    write_workflow(folder, tools, file=file)


def with_helm(**more: str) -> dict[str, str]:
    # The fake needs a python3 with PyYAML that starts quickly.
    return {"PATH": f"{FAKES}:{Path(sys.executable).parent}:{os.environ['PATH']}"} | more


def go(tmp_path: Path, **environment: str) -> Run:
    return run(tmp_path, environment=with_helm(**environment))
