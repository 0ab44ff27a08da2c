"""Measure by how much a driver's memory grows during one copy, in a separate process: the test's process also runs the servers.

`python -m support.driver_growth FACTS`, in JSON: `folder` (free), `port`, `key`, `known_hosts`, `kubeconfig`, `from` and `to`
(`laptop`, `site` or `pods`), `path`, `target`. It prints MiB, as the last line.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.sites.kubernetes.connector import MedweaveKubernetesConnector
from support.transfers import TransferSites

KIB, MIB = 2**10, 2**20
RESET_PEAK = "5"  # see proc(5), clear_refs


def memory_bytes(key: str) -> int:
    """Return a memory value of this process: VmRSS is the current size, VmHWM the peak."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) * KIB for line in lines if line.startswith(f"{key}:"))


async def grown(at: TransferSites, facts: dict[str, Any]) -> float:
    """Return the growth during the copy in MiB, measured after a small copy."""
    ends = at.locations() | {"pods": ExecutionLocation(name="w-0:worker", deployment="pods")}
    source, target = ends[facts["from"]], ends[facts["to"]]

    async def send(path: str, name: str) -> None:
        at.manager.register_path(source, path)
        await at.manager.transfer_data(source, path, [target], str(Path(facts["target"], name)))

    await send(str(Path(facts["path"]).with_name("small")), "small")
    gc.collect()
    Path("/proc/self/clear_refs").write_text(RESET_PEAK, "utf-8")
    before = memory_bytes("VmRSS")
    await send(facts["path"], "copy")
    return (memory_bytes("VmHWM") - before) / MIB


def main() -> None:
    """Connect, copy, and print the growth."""
    facts = json.loads(sys.argv[1])
    login = {key: Path(facts[key]) for key in ("key", "known_hosts")}
    at = TransferSites(Path(facts["folder"]), SimpleNamespace(port=facts["port"], environment={}, **login))  # type: ignore[arg-type]
    config = {"kubeconfig": facts["kubeconfig"], "selector": "app=w"}
    at.more = lambda: {"pods": MedweaveKubernetesConnector("pods", "/", **config)}
    print(at.run_connected(lambda sites: grown(sites, facts)))


if __name__ == "__main__":
    main()
