"""Messages about a job that Slurm refused or ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from medweave_connectors.sites.slurm.service import Allocation
from medweave_connectors.sites.slurm.states import SchedulerState, SlurmJobState

_OUT_OF_MEMORY = ("exceeded memory limit", "oom-kill", "oom_kill", "Out Of Memory")

# Part of sbatch's error output, the setting it is about, and what to do. The first match counts.
_REFUSALS = (
    ("invalid partition", "partition", "name a partition that `sinfo` lists for you"),
    ("invalid account", "account", "name an account that `sacctmgr show associations user=$USER` lists"),
    ("invalid qos", "qos", "name a QOS that `sacctmgr show associations user=$USER` lists"),
    ("generic resource", "gres", "name the GPUs as `sinfo --format=%G` shows them"),
    ("reservation", "reservation", "name a reservation that `scontrol show reservation` lists"),
    ("unrecognized option", "options", "write options as `sbatch --help` shows them"),
    ("gres", "gres", "name the GPUs as `sinfo --format=%G` shows them"),
    ("time limit", "time", "request a shorter time"),
    ("feature", "constraint", "name a feature that `sinfo --format=%f` lists"),
    (
        "memory specification",
        "partition",
        "bind the step to a partition whose nodes have the memory that its tool requests",
    ),
    (
        "node configuration",
        "partition",
        "bind the step to a partition whose nodes have the resources that its tool requests",
    ),
    ("processors", "partition", "bind the step to a partition whose nodes have the cores that its tool requests"),
    ("node count", "partition", "bind the step to fewer nodes (`locations`), or to a larger partition"),
)
# After these it is unknown whether the job was accepted.
_NO_ANSWER = (
    "unable to contact",
    "socket timed out",
    "connection refused",
    "communication connection failure",
    "zero bytes",
)
# After these it was not: the request did not leave the login node.
_NOT_SENT = ("connect failure", "connection refused")


def is_unanswered(refusal: str) -> bool:
    """Return True if sbatch failed without an answer of the controller: the job may be queued nevertheless."""
    return any(words in refusal.lower() for words in _NO_ANSWER)


def setting_hint(setting: str) -> str:
    """Return the hint where valid names of a setting are listed."""
    return next(do for _, name, do in _REFUSALS if name == setting)


def is_not_sent(refusal: str) -> bool:
    """Return True if the controller was not reached: the job is not queued."""
    return any(words in refusal.lower() for words in _NOT_SENT)


def refused_setting(refusal: str) -> tuple[str, str]:
    """Return the service's setting that sbatch refuses, and what to do."""
    for words, setting, do in _REFUSALS:
        if words in refusal.lower():
            return setting, do
    return "partition", "submit a job with these resources by hand, and correct the service"


def blocking_setting(reason: str) -> tuple[str, str]:
    """Return the service's setting that keeps a job pending forever, and what to do."""
    for part, setting in (
        ("Time", "time"),
        ("Wall", "time"),
        ("Account", "account"),
        ("QOS", "qos"),
        ("Constraint", "constraint"),
    ):
        if part in reason:
            return setting, {
                "time": "set `time` to the maximum of the site; a longer ToolTimeLimit of the tool is then reduced to it",
            }.get(setting, "correct it, or bind the step to another service")
    return "partition", "bind the step to a service whose limits allow what its tool requests"


def expected(requested: Allocation) -> str:
    """Return the job's request in one line."""
    gpus = f", {requested.gpus} GPUs" if requested.gpus else ""
    limit = f", {requested.minutes} min" if requested.minutes else ""
    per_node = " each" if requested.num_nodes > 1 else ""
    nodes = f"{requested.num_nodes} nodes" if requested.num_nodes > 1 else "1 node"
    return f"{nodes} with {requested.cores} cores, {requested.memory_mib} MiB{gpus}{per_node}{limit}"


def looks_out_of_memory(state: SchedulerState, stderr: Sequence[str]) -> bool:
    """Return True if a job ran out of memory. Without cgroups, Slurm reports FAILED 0:9 and only stderr names the memory."""
    if state.state is SlurmJobState.OUT_OF_MEMORY:
        return True
    killed = state.state in (SlurmJobState.FAILED, SlurmJobState.CANCELLED) and (
        state.signal_number == 9 or state.exit_code in (9, 137)
    )
    return killed and any(words in line for line in stderr for words in _OUT_OF_MEMORY)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLabel:
    """The service of a job, for messages: `hpc/gpu4`, `deployments.hpc.config.services.gpu4`."""

    name: str
    setting: str


def site_word(
    job_id: str, state: SchedulerState, requested: Allocation, service: ServiceLabel, *, out_of_memory: bool
) -> str:
    """Return the site's part of a failure message; empty after a success."""
    if state.state is SlurmJobState.COMPLETED:
        return ""
    problem, do = _problem(state, requested, service, out_of_memory=out_of_memory)
    elapsed = f", {state.seconds:.0f} s" if state.seconds is not None else ""
    reason = f" Reason={state.reason}" if state.reason else ""
    limit = f" of {state.time_limit}" if state.time_limit and state.state is SlurmJobState.TIMEOUT else ""
    peak = f", peak memory {state.peak_memory_mib:.0f} MiB" if state.peak_memory_mib else ""
    nodes = f", on {state.nodes}" if state.nodes else ""
    return "\n".join(
        (
            f"{service.name}: Slurm job {job_id} {problem}.",
            f"  seen:     {state.source} State={state.word} ExitCode={state.exit_code}:{state.signal_number}"
            f"{reason}{elapsed}{limit}{peak}{nodes}",
            "  expected: State=COMPLETED and ExitCode=0:0",
            *([f"  do:       {do}"] if do else []),
        )
    )


def _problem(
    state: SchedulerState, requested: Allocation, service: ServiceLabel, *, out_of_memory: bool
) -> tuple[str, str]:
    if out_of_memory:
        return (
            f"ran out of memory ({requested.memory_mib} MiB on each node)",
            "request more memory in the tool's ResourceRequirement (ramMin), or let the step use less",
        )
    if state.state is SlurmJobState.TIMEOUT and state.source == "exit file":  # Slurm's limits are whole minutes
        return "exceeded the time limit of its tool", "raise the tool's ToolTimeLimit"
    return {
        SlurmJobState.TIMEOUT: (
            f"hit its time limit of {requested.minutes} min" if requested.minutes else "hit its time limit",
            f"raise {service.setting}.time, or the tool's ToolTimeLimit if that is shorter",
        ),
        SlurmJobState.PREEMPTED: (
            "was preempted",
            "run again, or bind the step to a partition without preemption",
        ),
        SlurmJobState.NODE_FAIL: ("lost a node", "run again; report it to the operators if it happens again"),
        SlurmJobState.CANCELLED: ("was canceled at the site", "find out who canceled it (`sacct -j`), and run again"),
        SlurmJobState.FAILED: ("failed", ""),
        SlurmJobState.UNKNOWN: ("is lost: its final state is unknown", "check its files, and run again"),
    }[state.state]


def lost_rank(ranks: Mapping[int, tuple[int, int, str]]) -> int | None:
    """Return the node rank that failed first in a node group; srun's exit code may be any rank's.

    Args:
        ranks: node rank to (exit code, end in seconds since 1970, host).
    """
    failed = [rank for rank, (code, _, _) in ranks.items() if code]
    return min(failed, key=lambda rank: (ranks[rank][1], rank), default=None)
