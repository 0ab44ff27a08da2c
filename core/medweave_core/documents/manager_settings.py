"""Settings of a StreamFlow file that the engine misinterprets.

Pure: no streamflow in here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medweave_core.documents.field_errors import fault_at

CONTAINERS, QUEUES = ("docker", "docker-compose", "singularity"), ("medweave.slurm", "slurm", "pbs", "flux")


def check_wraps(config: Mapping[str, Any]) -> None:
    """Reject containers over a queue: StreamFlow starts them on the login node, where jobs cannot use them.

    Args:
        config: the parsed streamflow.yml with its path under `path`.

    Raises:
        FieldFault: the first such deployment.
    """
    deployments = config.get("deployments") or {}
    for name, deployment in deployments.items():
        wraps = deployment.get("wraps")
        inner = wraps.get("deployment") if isinstance(wraps, Mapping) else wraps
        kind = deployments.get(inner, {}).get("type")
        if deployment["type"] in CONTAINERS and kind in QUEUES:
            raise fault_at(
                Path(config["path"]),
                ("deployments", name, "wraps"),
                "a container deployment cannot wrap a batch system.",
                seen=f"{deployment['type']} over {inner} ({kind})",
                expected="the container inside the job: a container on the login node would not contain the job",
                do=f"bind the step to {inner}, and set an Apptainer image in `environment` of its service",
            )


def check_managers(config: Mapping[str, Any]) -> None:
    """Reject settings that cause endless retries, endless copies or mixed runs.

    Args:
        config: the parsed streamflow.yml with its path under `path`.

    Raises:
        FieldFault: the first such setting.
    """
    file = Path(config["path"])
    workflows = list(config.get("workflows") or {})
    if len(workflows) > 1:
        raise fault_at(
            file,
            ("workflows",),
            "a StreamFlow file must have one workflow.",
            seen=", ".join(workflows),
            expected="one workflow; StreamFlow runs several in sequence under one run name and in one event log",
            do="write one file per workflow",
        )
    failures = config.get("failureManager") or {}
    # `default` is StreamFlow's other name for it; without a type, `enabled: true` (the default) means this manager.
    retries = failures and failures.get("type", "default" if failures.get("enabled", True) else "dummy") != "dummy"
    if retries and failures.get("enabled") is False:
        raise fault_at(
            file,
            ("failureManager", "enabled"),
            "StreamFlow ignores `enabled: false` if `type` is set.",
            seen=f"type: {failures['type']}, enabled: false",
            expected="no failureManager if jobs should not be retried",
            do="remove failureManager",
        )
    if retries and "max_retries" not in (failures.get("config") or {}):
        raise fault_at(
            file,
            ("failureManager", "config", "max_retries"),
            "without max_retries, a failed job is retried forever and without a pause.",
            seen="no max_retries",
            expected="a number of attempts, including the first one: 1 means no retry",
            do="write max_retries: 3 and retry_delay: 30, or remove failureManager",
        )
    checkpoints = config.get("checkpointManager") or {}
    if checkpoints and checkpoints.get("type", "default" if checkpoints.get("enabled", False) else "dummy") != "dummy":
        raise fault_at(
            file,
            ("checkpointManager",),
            "checkpointManager copies its own copies until the disk is full, and saves nothing.",
            seen=f"type: {checkpoints.get('type', 'default')}",
            expected="no checkpointManager; trainings write their own checkpoints",
            do="remove checkpointManager",
        )
