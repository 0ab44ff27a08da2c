"""What to tell the user about a job that Slurm refused or ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from medweave_connectors.sites.slurm.service import Allocation
from medweave_connectors.sites.slurm.states import JobState, Told

_OUT_OF_MEMORY = ("exceeded memory limit", "oom-kill", "oom_kill", "Out Of Memory")

# A part of sbatch's answer, the setting it is about, and what to do. In this order: the first that fits.
_REFUSALS = (
    ("invalid partition", "partition", "name a partition that `sinfo` lists for you"),
    ("invalid account", "account", "name an account that `sacctmgr show associations user=$USER` lists"),
    ("invalid qos", "qos", "name a QOS that `sacctmgr show associations user=$USER` lists"),
    ("generic resource", "gres", "name the GPUs as `sinfo --format=%G` shows them"),
    ("reservation", "reservation", "name a reservation that `scontrol show reservation` lists"),
    ("unrecognized option", "options", "write options as `sbatch --help` shows them"),
    ("gres", "gres", "name the GPUs as `sinfo --format=%G` shows them"),
    ("time limit", "time", "ask for a shorter time"),
    ("feature", "constraint", "name a feature that `sinfo --format=%f` lists"),
    (
        "memory specification",
        "partition",
        "bind the step to a partition whose nodes have the memory that its tool asks for",
    ),
    ("node configuration", "partition", "bind the step to a partition whose nodes have what its tool asks for"),
    ("processors", "partition", "bind the step to a partition whose nodes have the cores that its tool asks for"),
    ("node count", "partition", "bind the step to fewer nodes (`locations`), or to a larger partition"),
)
# After these it is not known whether the job was taken.
_NO_ANSWER = (
    "unable to contact",
    "socket timed out",
    "connection refused",
    "communication connection failure",
    "zero bytes",
)
# Of these, the ones after which it was not: no word of it has left the login node.
_NOT_SENT = ("connect failure", "connection refused")


def unanswered(refusal: str) -> bool:
    """True where sbatch failed without a word of the controller: the job may be in the queue all the same."""
    return any(words in refusal.lower() for words in _NO_ANSWER)


def what_to_do(setting: str) -> str:
    """Where the names that may stand in a setting are listed."""
    return next(do for _, each, do in _REFUSALS if each == setting)


def never_heard(refusal: str) -> bool:
    """True where the controller was not even reached: the job is not in the queue."""
    return any(words in refusal.lower() for words in _NOT_SENT)


def refused_setting(refusal: str) -> tuple[str, str]:
    """(the service's setting that sbatch is against, what to do)."""
    for words, setting, do in _REFUSALS:
        if words in refusal.lower():
            return setting, do
    return "partition", "submit a job of this shape by hand, and correct the service"


def hopeless_setting(reason: str) -> tuple[str, str]:
    """(the service's setting for whose sake a job waits for ever, what to do)."""
    for part, setting in (
        ("Time", "time"),
        ("Wall", "time"),
        ("Account", "account"),
        ("QOS", "qos"),
        ("Constraint", "constraint"),
    ):
        if part in reason:
            return setting, {
                "time": "write the longest time that the site grants; the tool's ToolTimeLimit is then cut to it",
            }.get(setting, "correct it, or bind the step to another service")
    return "partition", "bind the step to a service that may have what its tool asks for"


def expected(asked: Allocation) -> str:
    """What the job asked for, in one line."""
    gpus = f", {asked.gpus} GPUs" if asked.gpus else ""
    limit = f", {asked.minutes} min" if asked.minutes else ""
    each = " each" if asked.num_nodes > 1 else ""
    nodes = f"{asked.num_nodes} nodes" if asked.num_nodes > 1 else "1 node"
    return f"{nodes} with {asked.cores} cores, {asked.memory_mib} MiB{gpus}{each}{limit}"


def looks_out_of_memory(told: Told, stderr: Sequence[str]) -> bool:
    """A site that does not confine jobs by cgroup kills them: FAILED 0:9, and only stderr names the memory."""
    if told.state is JobState.OUT_OF_MEMORY:
        return True
    killed = told.state in (JobState.FAILED, JobState.CANCELLED) and (
        told.signal_number == 9 or told.exit_code in (9, 137)
    )
    return killed and any(words in line for line in stderr for words in _OUT_OF_MEMORY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the job ran, for messages: `hpc/gpu4`, `deployments.hpc.config.services.gpu4`."""

    name: str
    setting: str


def site_word(job_id: str, told: Told, asked: Allocation, place: Place, *, out_of_memory: bool) -> str:
    """The site's part of a failure; empty after a success."""
    if told.state is JobState.COMPLETED:
        return ""
    what, do = _what_and_do(told, asked, place, out_of_memory=out_of_memory)
    elapsed = f", {told.seconds:.0f} s" if told.seconds is not None else ""
    reason = f" Reason={told.reason}" if told.reason else ""
    limit = f" of {told.time_limit}" if told.time_limit and told.state is JobState.TIMEOUT else ""
    peak = f", peak memory {told.peak_memory_mib:.0f} MiB" if told.peak_memory_mib else ""
    nodes = f", on {told.nodes}" if told.nodes else ""
    return "\n".join(
        (
            f"{place.name}: Slurm job {job_id} {what}.",
            f"  seen:     {told.source} State={told.word} ExitCode={told.exit_code}:{told.signal_number}"
            f"{reason}{elapsed}{limit}{peak}{nodes}",
            "  expected: State=COMPLETED and ExitCode=0:0",
            *([f"  do:       {do}"] if do else []),
        )
    )


def _what_and_do(told: Told, asked: Allocation, place: Place, *, out_of_memory: bool) -> tuple[str, str]:
    if out_of_memory:
        return (
            f"ran out of memory ({asked.memory_mib} MiB on each node)",
            "ask for more in the tool's ResourceRequirement (ramMin), or make the step smaller",
        )
    if told.state is JobState.TIMEOUT and told.source == "exit file":  # Slurm's own limit is whole minutes
        return "took longer than its tool may", "raise the tool's ToolTimeLimit"
    return {
        JobState.TIMEOUT: (
            f"hit its time limit of {asked.minutes} min" if asked.minutes else "hit its time limit",
            f"raise {place.setting}.time, or the tool's ToolTimeLimit if that is shorter",
        ),
        JobState.PREEMPTED: (
            "was preempted",
            "run again, or bind the step to a partition whose jobs are left alone",
        ),
        JobState.NODE_FAIL: ("lost a node", "run again; tell the operators if it happens again"),
        JobState.CANCELLED: ("was cancelled at the site", "ask who cancelled it (`sacct -j`), and run again"),
        JobState.FAILED: ("failed", ""),
        JobState.UNKNOWN: ("is lost: nobody knows how it ended", "look at its files, and run again"),
    }[told.state]


def lost_rank(ranks: Mapping[int, tuple[int, int, str]]) -> int | None:
    """Of a gang that failed: the node rank that ended first with an error; srun's own exit code is any of theirs.

    Args:
        ranks: node rank to (exit code, end in seconds since 1970, host).
    """
    failed = [rank for rank, (code, _, _) in ranks.items() if code]
    return min(failed, key=lambda rank: (ranks[rank][1], rank), default=None)
