"""The text of a streamflow.yml for the workflow that `support.engine.write_workflow` writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

LOCAL = {"type": "medweave.local", "config": {}}
OURS = {
    "scheduling": {"scheduler": {"type": "medweave.scheduler", "config": {}}},
    "database": {"type": "medweave.database", "config": {}},
}
STOCK = {"database": {"type": "default", "config": {"connection": ":memory:"}}}


def engine_file(
    deployments: Mapping[str, Any], targets: Mapping[str, Any] | None = None, *, managers: Mapping[str, Any] = OURS
) -> str:
    """Return the text of a streamflow.yml with one line for each block: `deployments: {here: {type: medweave.local, config: {}}}`.

    Args:
        deployments: as in the file.
        targets: step to the target of its binding; without them all steps go to the only deployment.
        managers: the other blocks.
    """
    if targets is None:
        (name,) = deployments
        targets = {"/": {"deployment": name}}
    workflow = {
        "type": "cwl",
        "config": {"file": "tiny.cwl", "settings": "job.yml"},
        "bindings": [{"step": step, "target": dict(target)} for step, target in targets.items()],
    }
    blocks = {"version": "v1.0", "workflows": {"tiny": workflow}, "deployments": dict(deployments), **managers}
    return "".join(f"{name}: {_flow(value)}" for name, value in blocks.items())


def ssh_site(port: int, workdir: str, *, key: str = "server/id_ed25519") -> dict[str, Any]:
    """Return a deployment at the server of `support.ssh_server`, whose files are in `server` next to the file."""
    config = {"nodes": [f"127.0.0.1:{port}"], "username": "me", "sshKey": key, "knownHosts": "server/known_hosts"}
    return {"type": "medweave.ssh", "workdir": workdir, "config": config}


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=2**20, allow_unicode=True)
    return text.removesuffix("...\n")
