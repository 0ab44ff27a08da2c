"""Shorter intervals of the connectors for sites that are stand-ins on this machine, which need not be spared as real ones are."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

# Module of `medweave_connectors` to its constants. A test that is about one of them sets it itself, after these.
SHORT: Mapping[str, Mapping[str, Any]] = {
    # Pauses between two looks.
    "compss.replaced": {"POLL_S": 0.2},
    "kubernetes.connector": {"UNDO_PAUSE_S": 0.2},
    "kubernetes.job": {"POLL_S": 0.1, "FOLLOW_S": 0.3},
    "kubernetes.job_cluster": {"LOOK_S": 0.2, "MAKE_PAUSE_S": 0.2, "SURE_S": 0.6, "GRACE_S": 1.0},
    "kubernetes.takeover": {"PAUSE_S": 0.3, "LEFT_PAUSE_S": 0.2},
    "placement.scheduler": {"LOOK_S": 0.5},
    "pods.events": {"EVENTS_S": 0.4},
    "pods.places": {"LIST_AGAIN_S": 0.4, "AGAIN_S": (0.0, 0.2, 0.6, 1.6, 3.0)},
    "pods.patience": {"NEVER_S": 0.6},
    "pods.readiness": {"POLL_S": 0.1, "GONE_S": 0.4, "MAKING_S": 0.2},
    "slurm.connector": {"CANCEL_PAUSE_S": 0.2},
    "slurm.ends": {"SHORTEST_S": 0.2},
    "slurm.job": {"END_PAUSE_S": 0.2, "MOVE_PAUSE_S": 0.5},
    "slurm.patience": {"SHORTEST_PAUSE_S": 0.3},
    "slurm.submission": {"LOOK_PAUSE_S": 0.3},
    "slurm.takeover": {"PAUSE_S": 0.5},
    "slurm.watch": {"SHORTEST_S": 0.2, "LONGEST_FOLLOW_S": 0.4, "WAIT_NOTICE_S": 1.0, "PER_SECOND": 4.0},
    "reactions.attempts": {"LOOK_PAUSE_S": 0.5},
    "ssh.connector": {"CUT_PAUSES_S": (0.1, 0.4, 1.0), "GRACE_S": 1.0},
    "transfer.copies": {"CUT_PAUSES_S": (0.1, 0.4, 1.0)},
    "transfer.going_on": {"PAUSES_S": (0.1, 0.2, 0.5, 1.0, 2.0)},
    # Between TERM and KILL, where a test's processes take no hints.
    "local.process": {"GRACE_S": 1.0},
    "local.streams": {"GRACE_S": 1.0},
    "pods.group": {"GRACE_S": 1.0, "WATCH_S": 0.3, "BACK_PAUSE_S": 0.2, "HEARD_PAUSE_S": 0.1, "OWN_WORDS_S": 3.0},
}


def shorten(replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Sets the constants in this process.

    Args:
        replace: gets a module, the name of a constant, and its value.
    """
    for module_name, constants in SHORT.items():
        module = importlib.import_module(f"medweave_connectors.{module_name}")
        for name, value in constants.items():
            assert hasattr(module, name), f"{module_name} has no {name}"
            replace(module, name, value)
