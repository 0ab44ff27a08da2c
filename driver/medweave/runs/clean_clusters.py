"""The part of `medweave clean` for Kubernetes: Jobs, pods, releases and folders of one run.

The connectors do it in a separate process: they import StreamFlow, which this package does not.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medweave.project.deployments import connector_schemas
from medweave_core.documents.streamflow_bindings import targets
from medweave_core.documents.streamflow_paths import resolve_paths
from medweave_core.errors import TryAgainError
from medweave_core.runlog.history import Run
from medweave_core.runlog.run_folder import WORK
from medweave_core.runlog.run_ownership import RunOwner

CLUSTERS = ("medweave.kubernetes", "medweave.helm", "medweave.compss")
PROGRAM = "medweave_connectors.cleanup"
LIMIT_S = 900


def clean_clusters(record: Run, owner: RunOwner, file: Path, document: Mapping[str, Any]) -> list[str]:
    """Remove the objects of a run in the clusters of a streamflow.yml; return a report as lines.

    Raises:
        UsageError: a variable in the file has no value.
        TryAgainError: something could not be removed.
    """
    deployments = _deployments(record, file, document)
    if not deployments:
        return []
    request = {
        "run_id": owner.run_id,
        "token": owner.token,
        "pid": record.facts.get("pid"),
        "has_folders": record.state != "completed" and (record.folder / WORK).exists(),
        "file": str(file.absolute()),
        "deployments": deployments,
    }
    answer = _run_cleanup(request)
    stays = [f"{name}: {text}" for name, texts in answer["stays"].items() for text in texts]
    if stays:
        raise not_clean("\n".join(stays))
    return [f"{name}: {', '.join(texts) or 'nothing'} removed" for name, texts in answer["removed"].items()]


def not_clean(seen: str) -> TryAgainError:
    """Return the error for a run of which something could not be removed."""
    return TryAgainError(
        "some files or jobs could not be removed.",
        seen="\n            ".join(seen.splitlines()),
        expected="sites that answer, jobs that can be canceled, and a pod that mounts the volume of each folder",
        do="read the message above, then run the same command again",
    )


def run_program(
    words: Sequence[str], *, limit_s: float, stdin: str | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """Run a cleanup program and return its standard output.

    Raises:
        TryAgainError: the program failed.
    """
    process = subprocess.run(
        words, input=stdin, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
    )
    if process.returncode:
        raise not_clean(process.stderr.strip() or f"exit code {process.returncode}")
    return process.stdout


def _deployments(record: Run, file: Path, document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the clusters that the workflow uses, with the settings that the connectors get in a run."""
    workflows = document.get("workflows") or {}
    used = {target.get("deployment") for flow in workflows.values() for _, _, target in targets(flow)}
    deployments = {
        name: deployment
        for name, deployment in (document.get("deployments") or {}).items()
        if deployment["type"] in CLUSTERS and name in used
    }
    config = copy.deepcopy({"deployments": deployments, "workflows": workflows})
    resolve_paths(config | {"path": str(file.absolute())}, record.folder / WORK, connector_schemas())
    bound = [
        target for flow in config["workflows"].values() for _, binding, target in targets(flow) if "step" in binding
    ]
    return [
        {
            "name": name,
            "type": deployment["type"],
            "config": deployment["config"],
            "places": [
                [target.get("service"), target.get("workdir") or deployment["workdir"]]
                for target in bound
                if target.get("deployment") == name
            ],
        }
        for name, deployment in config["deployments"].items()
    ]


def _run_cleanup(request: Mapping[str, Any]) -> Mapping[str, Any]:
    output = run_program([sys.executable, "-m", PROGRAM], limit_s=LIMIT_S, stdin=json.dumps(request))
    answer: dict[str, Any] = json.loads(output)
    return answer
