"""Runs in which it matters where each job goes: small steps that read each other's folders, and where they went."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from support.engine import Run
from support.engine_file import engine_file


def step(script: str, *, reads: Mapping[str, str] | None = None, **keys: Any) -> dict[str, Any]:
    """Return a step that reads what other steps wrote, and writes the folder `out`.

    Args:
        reads: name of an input to the step that wrote it.
        keys: further ones of the tool.
    """
    tool = {
        "class": "CommandLineTool",
        "baseCommand": ["sh", "-c", f"mkdir out; {script}"],
        "inputs": dict.fromkeys(reads or {}, "Directory"),
        "outputs": {"out": {"type": "Directory", "outputBinding": {"glob": "out"}}},
    }
    return {"run": tool | keys, "in": {name: f"{source}/out" for name, source in (reads or {}).items()}, "out": ["out"]}


def at(*deployments: str) -> Any:
    """Return the target of a binding, or several."""
    targets = [{"deployment": name} for name in deployments]
    return targets if len(targets) > 1 else targets[0]


def write(
    folder: Path,
    steps: Mapping[str, Any],
    targets: Mapping[str, Any],
    deployments: Mapping[str, Any],
    *,
    filters: Mapping[str, Any] | None = None,
    **blocks: Any,
) -> None:
    """Write the workflow and its streamflow.yml.

    Args:
        targets: by step; a binding to several has all filters, one to a single target none.
        filters: the file's `bindingFilters`.
        blocks: other blocks of the file.
    """
    last = {"outputSource": f"{list(steps)[-1]}/out", "type": "Directory"}
    document = {"cwlVersion": "v1.2", "class": "Workflow", "inputs": {}, "outputs": {"out": last}, "steps": dict(steps)}
    file = yaml.safe_load(engine_file(deployments, {})) | blocks
    file["workflows"]["tiny"]["bindings"] = [
        {"step": f"/{name}", "target": target} | ({"filters": list(filters or {})} if isinstance(target, list) else {})
        for name, target in targets.items()
    ]
    file["bindingFilters"] = filters or {}
    for name, content in (("tiny.cwl", document), ("job.yml", {}), ("streamflow.yml", file)):
        (folder / name).write_text(json.dumps(content))


def placed(ended: Run) -> dict[str, str]:
    """Return deployment and location of each job, by its step; only the name for a local deployment."""
    assert ended.exit_code == 0, ended.stderr
    return {
        event["step"].strip("/"): f"{event['deployment']}/{event['location']}".removesuffix("/__LOCAL__")
        for event in ended.of_type("job.scheduled")
    }
