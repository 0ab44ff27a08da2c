"""Shorter intervals of the connectors for stand-ins of sites on this machine, which tolerate more load."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

# Module of `medweave_connectors` to its constants. A test that is about one of them sets it itself, after these.
SHORT: Mapping[str, Mapping[str, Any]] = {
    # Pauses between two looks.
    "sites.compss.replacement_pods": {"POLL_S": 0.2},
    "sites.kubernetes.job.lifecycle": {"POLL_S": 0.1, "FOLLOW_S": 0.3},
    "sites.kubernetes.job.client": {"LOOK_S": 0.2, "REFUSED_S": 0.6, "GRACE_S": 1.0},
    "sites.kubernetes.job.reattach": {"PAUSE_S": 0.3, "LEFT_PAUSE_S": 0.2},
    "engine.scheduling.scheduler": {"CHECK_S": 0.5},
    "sites.pods.api.namespace_client": {"EVENTS_S": 0.4, "RETRY_PAUSE_S": 0.2},
    "sites.pods.exec.containers": {"LIST_AGAIN_S": 0.4, "AGAIN_S": (0.0, 0.2, 0.6, 1.6, 3.0)},
    "sites.pods.startup.deadlines": {"NEVER_S": 0.6},
    "sites.pods.startup.readiness": {"POLL_S": 0.1, "GONE_S": 0.4, "MAKING_S": 0.2},
    "sites.slurm.connector": {"CANCEL_PAUSE_S": 0.2},
    "sites.slurm.job": {"END_PAUSE_S": 0.2, "MOVE_PAUSE_S": 0.5},
    "sites.slurm.submission": {"LOOK_PAUSE_S": 0.3, "PER_SECOND": 20.0},
    "sites.slurm.reattach": {"PAUSE_S": 0.5},
    "sites.slurm.watch": {"SHORTEST_S": 0.2, "LONGEST_FOLLOW_S": 0.4, "WAIT_NOTICE_S": 1.0, "PER_SECOND": 4.0},
    "jobs.retries.attempts": {"LOOK_PAUSE_S": 0.5},
    "jobs.supervised_group": {"OWN_END_S": 3.0},
    "sites.ssh.host_group": {"GRACE_S": 1.0},
    "host.deadlines": {"RETRY_PAUSES_S": (0.1, 0.2, 0.5, 1.0, 2.0), "SHORTEST_PAUSE_S": 0.3},
    # Between TERM and KILL, where a test's processes take no hints.
    "sites.local.process": {"GRACE_S": 1.0},
    "transfer.streams.local_programs": {"GRACE_S": 1.0},
    "sites.pods.exec.pod_group": {
        "GRACE_S": 1.0,
        "WATCH_S": 0.3,
        "BACK_PAUSE_S": 0.2,
        "STATUS_PAUSE_S": 0.1,
    },
}


def shorten(replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Set the constants in this process.

    Args:
        replace: gets a module, the name of a constant, and its value.
    """
    for module_name, constants in SHORT.items():
        module = importlib.import_module(f"medweave_connectors.{module_name}")
        for name, value in constants.items():
            assert hasattr(module, name), f"{module_name} has no {name}"
            replace(module, name, value)
