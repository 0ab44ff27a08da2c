"""Services of a Slurm site, and the allocation that a job requests from one. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medweave_connectors.jobs.job_requests import JobRequest, refuse_without_gang
from medweave_connectors.jobs.retries.attempt_script import SIGNAL_LEAD_S, lead_s
from medweave_connectors.jobs.worker_environment import NOTHING, WorkerEnvironment
from medweave_core.errors import UsageError

# Options of sbatch that medweave sets itself, or that submit no job. sbatch takes each also by a beginning of its name.
OWNED_OPTIONS = (
    "account", "array", "chdir", "clusters", "comment", "constraint", "cpus-per-gpu", "cpus-per-task", "error", "gpus",
    "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres", "help", "job-name", "mem", "mem-per-cpu", "mem-per-gpu", "nodes",
    "no-requeue", "ntasks", "ntasks-per-node", "open-mode", "output", "parsable", "partition", "qos", "requeue", "reservation",
    "signal", "test-only", "time", "usage", "version", "wait", "wrap",
)  # fmt: skip
_OPTION = re.compile(r"--([a-z][a-z-]*)(=.*)?", re.DOTALL)
_TIME = re.compile(r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)")


def minutes_of(text: str, *, where: str) -> int:
    """Convert `12:00:00` or `2-00:00:00` (days-hours:minutes:seconds) to minutes, rounded up.

    Raises:
        UsageError: another form.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{where}: not a time.",
            seen=text,
            expected="hours:minutes:seconds or days-hours:minutes:seconds",
            do="write '12:00:00' for twelve hours",
        )
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    complete_lines = (days * 24 + hours) * 60 + minutes + math.ceil(seconds / 60)
    if not complete_lines:
        raise UsageError(
            f"{where}: the time limit is zero.",
            seen=text,
            expected="at least one second; without `time`, the limit of the partition",
            do="set the maximum time of a job, or remove `time`",
        )
    return complete_lines


def check_service(keys: Mapping[str, Any], *, where: str) -> None:
    """Refuse options that medweave sets itself, and a time limit of zero.

    Args:
        keys: of the service in the file.
        where: its path in the file, for messages.

    Raises:
        UsageError: the first such key.
    """
    for number, option in enumerate(keys.get("options", ())):
        _refuse_owned(option, where=f"{where}.options[{number}]")
    if keys.get("time"):
        minutes_of(keys["time"], where=f"{where}.time")


def _refuse_owned(option: str, *, where: str) -> None:
    match = _OPTION.fullmatch(option)
    if match is None:
        raise UsageError(
            f"{where}: not a long option of sbatch.",
            seen=option,
            expected="--name or --name=value, such as --exclude=n7",
            do="write the option's long name, and its value after '='",
        )
    owned = next((name for name in sorted(OWNED_OPTIONS, key=len) if name.startswith(match[1])), "")
    if owned:
        shortened = "" if owned == match[1] else f", which sbatch may take for --{owned}"
        raise UsageError(
            f"{where}: medweave sets this option itself, or sbatch submits no job with it.",
            seen=f"{option}{shortened}",
            expected="an option for which neither the service has a key nor the tool a request",
            do=f"remove it; --{owned} follows from the keys of the service, the requests of the tool and the job",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A kind of job that the site accepts.

    Attributes:
        partition, account, qos, constraint, reservation: as Slurm's options of these names; empty leaves them out.
        time: longest time that the site grants, `hours:minutes:seconds`; a longer ToolTimeLimit is cut to it.
        gpusPerNode: GPUs that a job may have on each node.
        gres: Slurm's name for them (`gpu`, `gpu:a100`).
        environment: loaded before the command of a step, on each of its nodes.
        prologue: path of a shell file whose text is at the start of each job script.
        requeue: Slurm may requeue a job, with the same id.
        options: further long options of sbatch, as `--name=value`.
        signalLeadTime: time before its time limit at which a step with a checkpoint folder gets USR1, s.
    """

    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    time: str = ""
    gpusPerNode: int = 0
    gres: str = "gpu"
    environment: WorkerEnvironment = NOTHING
    prologue: str = ""
    requeue: bool = False
    options: Sequence[str] = ()
    signalLeadTime: int = SIGNAL_LEAD_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Resources requested for one job; cores, memory and GPUs are per node.

    Attributes:
        signal_s: how long before its time limit it gets USR1, s; 0 for never.
    """

    num_nodes: int
    cores: int
    memory_mib: int
    gpus: int
    minutes: int | None
    signal_s: int = 0


def allocation(request: JobRequest, service: Service, *, time_limit_s: int | None, where: str) -> Allocation:
    """Return the allocation for a step's request at a service.

    Args:
        time_limit_s: the tool's ToolTimeLimit.
        where: the service's path in the file, for messages.

    Raises:
        UsageError: the step needs GPUs that the service does not give, or several nodes for a step that is not a node group.
    """
    if request.hints.gpus_min > service.gpusPerNode:
        raise UsageError(
            f"{where}.gpusPerNode: too few GPUs for the step.",
            seen=f"{service.gpusPerNode} per node",
            expected=f"at least {request.hints.gpus_min} (medweave:GPURequest of the tool)",
            do="bind the step to a service with GPUs, or set gpusPerNode to the number that its nodes have",
        )
    refuse_without_gang(request, where=where)
    granted = minutes_of(service.time, where=f"{where}.time") if service.time else None
    tool_limit = math.ceil(time_limit_s / 60) if time_limit_s else None
    limits = [minutes for minutes in (granted, tool_limit) if minutes is not None]
    limit = min(limits, default=None)
    signal_s = lead_s(None if limit is None else limit * 60, service.signalLeadTime)
    return Allocation(
        num_nodes=request.num_nodes,
        cores=max(1, math.ceil(request.cores)),
        memory_mib=max(1, math.ceil(request.memory_mib)),
        gpus=min(request.hints.gpus_max, service.gpusPerNode),
        minutes=limit,
        signal_s=signal_s if request.hints.checkpoint_folder else 0,
    )


def refuse_if_too_large(allocation: Allocation, nodes: Sequence[tuple[int, int]], *, where: str) -> None:
    """Slurm may take a job that no node of its partition can ever run, and let it wait.

    Args:
        nodes: (cores, MiB) of the partition's nodes; empty where they are not known.
        where: the service's path in the file, for messages.

    Raises:
        UsageError: no node has the requested cores and memory.
    """
    if nodes and not any(cores >= allocation.cores and memory >= allocation.memory_mib for cores, memory in nodes):
        raise UsageError(
            f"{where}.partition: no node has the resources that the step requests.",
            seen="nodes with " + "; ".join(f"{cores} cores and {memory} MiB" for cores, memory in sorted(set(nodes))),
            expected=f"at least {allocation.cores} cores and {allocation.memory_mib} MiB (the tool's ResourceRequirement)",
            do="bind the step to a partition with larger nodes",
        )
