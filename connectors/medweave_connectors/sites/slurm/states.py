"""What Slurm says about a job, and what it means. One table; a word that is not in it is `UNKNOWN`. Pure.

Words as Slurm 22.05 to 24.11 print them (`man squeue`, `man sacct`, JOB STATE CODES).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from medweave_connectors.jobs.retries.policy import FailureKind


class JobState(Enum):
    """Where a job is. Only `COMPLETED` is a success."""

    WAITING = "waiting"  # in the queue
    GOING = "going"  # has nodes, or is giving them back
    COMPLETED = "completed"
    FAILED = "failed"  # its command did
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out of memory"
    PREEMPTED = "preempted"
    NODE_FAIL = "node failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"

    @property
    def ended(self) -> bool:
        """True where nothing more will happen. An unknown word is no end: it is asked again."""
        return self not in (JobState.WAITING, JobState.GOING, JobState.UNKNOWN)


_WORDS: Mapping[str, JobState] = {
    "PENDING": JobState.WAITING,
    "CONFIGURING": JobState.WAITING,
    "REQUEUED": JobState.WAITING,
    "REQUEUE_FED": JobState.WAITING,
    "REQUEUE_HOLD": JobState.WAITING,
    "RESV_DEL_HOLD": JobState.WAITING,
    "SPECIAL_EXIT": JobState.WAITING,
    "RUNNING": JobState.GOING,
    "COMPLETING": JobState.GOING,
    "RESIZING": JobState.GOING,
    "SIGNALING": JobState.GOING,
    "STAGE_OUT": JobState.GOING,
    "STOPPED": JobState.GOING,
    "SUSPENDED": JobState.GOING,
    "COMPLETED": JobState.COMPLETED,
    "FAILED": JobState.FAILED,
    "TIMEOUT": JobState.TIMEOUT,
    "DEADLINE": JobState.TIMEOUT,
    "OUT_OF_MEMORY": JobState.OUT_OF_MEMORY,
    "PREEMPTED": JobState.PREEMPTED,
    "BOOT_FAIL": JobState.NODE_FAIL,
    "LAUNCH_FAILED": JobState.NODE_FAIL,
    "NODE_FAIL": JobState.NODE_FAIL,
    "RECONFIG_FAIL": JobState.NODE_FAIL,
    "CANCELLED": JobState.CANCELLED,
    "REVOKED": JobState.CANCELLED,
}

# Reasons for which a job waits for ever: nobody but the user or an operator can change them.
HOPELESS_REASONS = frozenset(
    {
        "AccountNotAllowed",
        "AssocGrpCPUMinutesLimit",
        "AssocMaxCpuPerJobLimit",
        "AssocMaxGRESPerJob",
        "AssocMaxMemPerJob",
        "AssocMaxNodePerJobLimit",
        "AssocMaxWallDurationPerJobLimit",
        "BadConstraints",
        "DependencyNeverSatisfied",
        "InvalidAccount",
        "InvalidQOS",
        "JobHeldAdmin",
        "JobHeldUser",
        "PartitionNodeLimit",
        "PartitionTimeLimit",
        "QOSMaxCpuPerJobLimit",
        "QOSMaxGRESPerJob",
        "QOSMaxMemoryPerJob",
        "QOSMaxNodePerJobLimit",
        "QOSMaxWallDurationPerJobLimit",
        "QOSNotAllowed",
    }
)


def state_of(word: str) -> JobState:
    """The meaning of Slurm's word; `CANCELLED by 1000` and `NODE_FAIL+` too."""
    first = word.strip().rstrip("+").split()
    return _WORDS.get(first[0], JobState.UNKNOWN) if first else JobState.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What one source says about a job.

    Attributes:
        source: `sacct`, `scontrol` or `exit file`.
        word: its word for the state, as printed.
        exit_code, signal_number: the two numbers of Slurm's ExitCode; they prove nothing without the state.
        seconds: time on the nodes, s.
        queue_seconds: from submission to start, s.
        cpu_seconds: user and system time, s.
        peak_memory_mib: largest resident set of one task, MiB.
        nodes: as Slurm writes them: `n[1-2]`.
        reason: Slurm's word for it beside the state (`TimeLimit`); empty where it has none.
    """

    source: str
    word: str
    exit_code: int = 0
    signal_number: int = 0
    seconds: float | None = None
    queue_seconds: float | None = None
    cpu_seconds: float | None = None
    peak_memory_mib: float | None = None
    nodes: str = ""
    time_limit: str = ""
    reason: str = ""

    @property
    def state(self) -> JobState:
        return state_of(self.word)


def judge(
    sacct: Told | None,
    scontrol: Told | None,
    exit_file: Told | None,
    *,
    forgotten: bool,
    starts_again: bool = False,
) -> Told | None:
    """The word that counts about a job that seems to have ended; None while no source knows an end.

    Accounting comes first, then the controller. The job's own exit file counts only where Slurm has forgotten the job (a
    site without accounting, after MinJobAge): while Slurm knows it, the end of its command is not the end of the job. Nor is an
    end that accounting tells of a job which the controller has put back into the queue, or started again.

    Args:
        forgotten: the controller has said that it knows no such job.
        starts_again: Slurm itself may start the job again. What accounting has may then be the end of an earlier start, and only
            the controller knows whether it was the last one.
    """
    if starts_again and not forgotten:
        return scontrol if scontrol is not None and scontrol.state.ended else None
    if scontrol is not None and not scontrol.state.ended and not scontrol.word.startswith("COMPLETING"):
        return None
    for told in (sacct, scontrol, exit_file if forgotten else None):
        if told is not None and told.state.ended:
            return told
    return None


_KINDS: Mapping[JobState, FailureKind] = {
    JobState.FAILED: FailureKind.STEP_FAILED,
    JobState.TIMEOUT: FailureKind.TIMEOUT,
    JobState.OUT_OF_MEMORY: FailureKind.OUT_OF_MEMORY,
    JobState.PREEMPTED: FailureKind.PREEMPTED,
    JobState.NODE_FAIL: FailureKind.NODE_FAIL,
    JobState.CANCELLED: FailureKind.CANCELLED,
}


def held_to_limit(told: Told, exit_file: Told | None, limit_s: int | None) -> Told:
    """The word that counts where the command has its own limit: Slurm's are minutes, and it lets a job run on for one more.

    Args:
        exit_file: knows how long the command ran.
        limit_s: of the tool (ToolTimeLimit), in s; 0 or None for none.
    """
    ran_s = exit_file.seconds if exit_file is not None else None
    if not limit_s or ran_s is None or ran_s <= limit_s or told.state not in (JobState.COMPLETED, JobState.FAILED):
        return told
    return replace(told, source="exit file", word="TIMEOUT", seconds=ran_s, time_limit=f"{limit_s} s", reason="")


def failure_kind(told: Told, *, out_of_memory: bool) -> FailureKind:
    """The kind of a failure, in the words that all sites share.

    Args:
        out_of_memory: the evidence says so, whatever the state.
    """
    return FailureKind.OUT_OF_MEMORY if out_of_memory else _KINDS.get(told.state, FailureKind.UNKNOWN)


def shell_exit_code(told: Told, *others: Told | None) -> int:
    """As a shell would tell it; 0 for a success only, never for another state.

    sacct takes 128 from exit codes of 128 and more, which makes 203 of a broken program the 75 of one that may be tried again.

    Args:
        others: what other sources say of the same job.
    """
    if told.state is JobState.COMPLETED:
        return told.exit_code
    if told.signal_number:
        return 128 + told.signal_number
    known = (each.exit_code for each in others if each is not None and each.state is told.state)
    whole = (code for code in known if code == told.exit_code + 128)
    return next(whole, told.exit_code) or 1
