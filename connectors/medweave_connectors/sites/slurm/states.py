"""Slurm's job states and their meaning. One table; a word that is not in it is `UNKNOWN`. Pure.

Words as printed by Slurm 22.05 to 24.11 (`man squeue`, `man sacct`, JOB STATE CODES).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from medweave_connectors.jobs.retries.policy import FailureKind


class SlurmJobState(Enum):
    """State of a job. Only `COMPLETED` is a success."""

    WAITING = "waiting"  # in the queue
    RUNNING = "running"  # has nodes, or is giving them back
    COMPLETED = "completed"
    FAILED = "failed"  # its command failed
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out of memory"
    PREEMPTED = "preempted"
    NODE_FAIL = "node failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"

    @property
    def ended(self) -> bool:
        """Return True for a final state. `UNKNOWN` is not final: the query is repeated."""
        return self not in (SlurmJobState.WAITING, SlurmJobState.RUNNING, SlurmJobState.UNKNOWN)


_WORDS: Mapping[str, SlurmJobState] = {
    "PENDING": SlurmJobState.WAITING,
    "CONFIGURING": SlurmJobState.WAITING,
    "REQUEUED": SlurmJobState.WAITING,
    "REQUEUE_FED": SlurmJobState.WAITING,
    "REQUEUE_HOLD": SlurmJobState.WAITING,
    "RESV_DEL_HOLD": SlurmJobState.WAITING,
    "SPECIAL_EXIT": SlurmJobState.WAITING,
    "RUNNING": SlurmJobState.RUNNING,
    "COMPLETING": SlurmJobState.RUNNING,
    "RESIZING": SlurmJobState.RUNNING,
    "SIGNALING": SlurmJobState.RUNNING,
    "STAGE_OUT": SlurmJobState.RUNNING,
    "STOPPED": SlurmJobState.RUNNING,
    "SUSPENDED": SlurmJobState.RUNNING,
    "COMPLETED": SlurmJobState.COMPLETED,
    "FAILED": SlurmJobState.FAILED,
    "TIMEOUT": SlurmJobState.TIMEOUT,
    "DEADLINE": SlurmJobState.TIMEOUT,
    "OUT_OF_MEMORY": SlurmJobState.OUT_OF_MEMORY,
    "PREEMPTED": SlurmJobState.PREEMPTED,
    "BOOT_FAIL": SlurmJobState.NODE_FAIL,
    "LAUNCH_FAILED": SlurmJobState.NODE_FAIL,
    "NODE_FAIL": SlurmJobState.NODE_FAIL,
    "RECONFIG_FAIL": SlurmJobState.NODE_FAIL,
    "CANCELLED": SlurmJobState.CANCELLED,
    "REVOKED": SlurmJobState.CANCELLED,
}

# Reasons for which a job stays pending until the user or an operator changes something.
PERMANENT_PENDING_REASONS = frozenset(
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


def state_of(word: str) -> SlurmJobState:
    """Return the state of Slurm's word, also of `CANCELLED by 1000` and `NODE_FAIL+`."""
    first = word.strip().rstrip("+").split()
    return _WORDS.get(first[0], SlurmJobState.UNKNOWN) if first else SlurmJobState.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerState:
    """The state of a job by one source.

    Attributes:
        source: `sacct`, `scontrol` or `exit file`.
        word: its word for the state, as printed.
        exit_code, signal_number: the two numbers of Slurm's ExitCode; without the state they do not prove success.
        seconds: time on the nodes, s.
        queue_seconds: from submission to start, s.
        cpu_seconds: user and system time, s.
        peak_memory_mib: largest resident set of one task, MiB.
        nodes: in Slurm's notation: `n[1-2]`.
        reason: Slurm's Reason (`TimeLimit`); may be empty.
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
    def state(self) -> SlurmJobState:
        return state_of(self.word)


def judge(
    sacct: SchedulerState | None,
    scontrol: SchedulerState | None,
    exit_file: SchedulerState | None,
    *,
    purged: bool,
    may_requeue: bool = False,
) -> SchedulerState | None:
    """Return the state that counts for a job that seems to have ended; None while no source reports an end.

    Accounting comes first, then the controller. The job's exit file counts only if Slurm has purged the job (a site without
    accounting, after MinJobAge): until then, the end of its command is not the end of the job. An end in accounting does not
    count if the controller has requeued or restarted the job.

    Args:
        purged: the controller reported that it has no such job.
        may_requeue: Slurm may requeue the job. Accounting may then report the end of an earlier start, and only the controller
            shows whether it was the last one.
    """
    if may_requeue and not purged:
        return scontrol if scontrol is not None and scontrol.state.ended else None
    if scontrol is not None and not scontrol.state.ended and not scontrol.word.startswith("COMPLETING"):
        return None
    for report in (sacct, scontrol, exit_file if purged else None):
        if report is not None and report.state.ended:
            return report
    return None


_KINDS: Mapping[SlurmJobState, FailureKind] = {
    SlurmJobState.FAILED: FailureKind.STEP_FAILED,
    SlurmJobState.TIMEOUT: FailureKind.TIMEOUT,
    SlurmJobState.OUT_OF_MEMORY: FailureKind.OUT_OF_MEMORY,
    SlurmJobState.PREEMPTED: FailureKind.PREEMPTED,
    SlurmJobState.NODE_FAIL: FailureKind.NODE_FAIL,
    SlurmJobState.CANCELLED: FailureKind.CANCELLED,
}


def apply_time_limit(state: SchedulerState, exit_file: SchedulerState | None, limit_s: int | None) -> SchedulerState:
    """Return a TIMEOUT state if the command exceeded its tool's limit: Slurm's limits are minutes, with a minute of grace.

    Args:
        exit_file: reports how long the command ran.
        limit_s: of the tool (ToolTimeLimit), in s; 0 or None for none.
    """
    ran_s = exit_file.seconds if exit_file is not None else None
    if (
        not limit_s
        or ran_s is None
        or ran_s <= limit_s
        or state.state not in (SlurmJobState.COMPLETED, SlurmJobState.FAILED)
    ):
        return state
    return replace(state, source="exit file", word="TIMEOUT", seconds=ran_s, time_limit=f"{limit_s} s", reason="")


def failure_kind(state: SchedulerState, *, out_of_memory: bool) -> FailureKind:
    """Return the kind of a failure, from the list that all sites share.

    Args:
        out_of_memory: there is evidence of it, whatever the state.
    """
    return FailureKind.OUT_OF_MEMORY if out_of_memory else _KINDS.get(state.state, FailureKind.UNKNOWN)


def shell_exit_code(state: SchedulerState, *others: SchedulerState | None) -> int:
    """Return the exit code as a shell reports it; 0 only for a success.

    sacct subtracts 128 from exit codes of 128 and more: the 203 of a broken program would become 75, which allows a retry.

    Args:
        others: reports of other sources about the same job.
    """
    if state.state is SlurmJobState.COMPLETED:
        return state.exit_code
    if state.signal_number:
        return 128 + state.signal_number
    codes = (other.exit_code for other in others if other is not None and other.state is state.state)
    complete = (code for code in codes if code == state.exit_code + 128)
    return next(complete, state.exit_code) or 1
