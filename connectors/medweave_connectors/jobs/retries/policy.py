"""Retry policy: a table from kind of failure to reaction, and the decision after a failed attempt. Pure.

A kind that is not in the table ends the step, and no setting changes that: a job with an `Unknown` end may still run, so a retry
could duplicate it, and a canceled job was ended on purpose (but see `CLUSTER`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from medweave_core.errors import TryAgainError, describe_exit_code

MOST_ATTEMPTS = 20  # whatever the table says
LONGEST_WAIT_S = 3600.0


class FailureKind(StrEnum):
    """Why a job failed; the same words for every site."""

    OUT_OF_MEMORY = "OutOfMemory"
    TIMEOUT = "Timeout"
    PREEMPTED = "Preempted"
    NODE_FAIL = "NodeFail"
    CANCELLED = "Cancelled"  # by a user or operator at the site
    STEP_FAILED = "StepFailed"  # the command returned an exit code
    SUBMIT_REJECTED = "SubmitRejected"  # the site refused the job
    UNKNOWN = "Unknown"  # lost: the final state is unknown, or whether it ended


class Checkpoint(StrEnum):
    """State of the checkpoint folder after a failed attempt."""

    NONE = "none"
    OLD = "old"  # of an earlier attempt
    NEW = "new"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """A row of the table.

    Attributes:
        do: `again`: the same command, from the newest checkpoint if the step declares a folder for them and one is there.
            `moreMemory`: so too, and with more memory. `continue`: so too, if the attempt has written a checkpoint.
        retries: further attempts after failures of this kind.
        wait: time before the first of them, s; it doubles with each.
        factor: of `moreMemory`.
        cap: most memory of a node, MiB; 0: that of the largest node.
        why: of `stop`: why this kind of site makes no further attempt.
    """

    do: Literal["again", "moreMemory", "continue", "stop"]
    retries: int = 0
    wait: int = 0
    factor: float = 1.5
    cap: int = 0
    why: str = ""


Table = Mapping[FailureKind, Reaction]
DEFAULTS: Table = {
    FailureKind.OUT_OF_MEMORY: Reaction(do="moreMemory", retries=3),
    FailureKind.TIMEOUT: Reaction(do="continue", retries=10),
    FailureKind.PREEMPTED: Reaction(do="again", retries=5, wait=30),
    FailureKind.NODE_FAIL: Reaction(do="again", retries=3, wait=30),
    FailureKind.STEP_FAILED: Reaction(do="again", retries=2, wait=30),
    FailureKind.SUBMIT_REJECTED: Reaction(do="stop", retries=3, wait=60),
}


_POD_IS_GONE = "its pod is gone with its files; a failureManager of the file can place the step in another one"
# For standing pods: another attempt can run only in the same pod.
STANDING: dict[FailureKind, Reaction] = {
    FailureKind.OUT_OF_MEMORY: Reaction(
        do="stop", why="the memory of a standing pod is fixed; raise resources.limits.memory of its container"
    ),
    FailureKind.TIMEOUT: DEFAULTS[FailureKind.TIMEOUT],
    FailureKind.PREEMPTED: Reaction(do="stop", why=_POD_IS_GONE),
    FailureKind.NODE_FAIL: Reaction(do="stop", why=_POD_IS_GONE),
    FailureKind.STEP_FAILED: DEFAULTS[FailureKind.STEP_FAILED],
}
# For pods that all have the step's inputs: a replaced pod gets the files from the others. Deleting such a pod replaces it, so it
# is not a request to end the step.
CLUSTER: Table = STANDING | {
    FailureKind.PREEMPTED: DEFAULTS[FailureKind.PREEMPTED],
    FailureKind.NODE_FAIL: DEFAULTS[FailureKind.NODE_FAIL],
    FailureKind.CANCELLED: Reaction(do="again", retries=3, wait=30),
}

# For a machine without a scheduler: no other kind of failure can be recognized there.
ONE_MACHINE: Table = {FailureKind.STEP_FAILED: DEFAULTS[FailureKind.STEP_FAILED]}


def read_table(changes: Mapping[str, Mapping[str, Any]], usual: Table = DEFAULTS) -> Table:
    """Return the usual table with the changes of a site's file, whose keys the connector's schema defines."""
    return {kind: dataclasses.replace(row, **changes.get(kind, {})) for kind, row in usual.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAttempt:
    """A failed attempt.

    Attributes:
        exit_code: of the command, as a shell reports it.
        memory_mib: allocated on each node, MiB.
    """

    kind: FailureKind
    exit_code: int = 1
    memory_mib: float = 0.0
    checkpoint: Checkpoint = Checkpoint.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Another attempt, into a clean output folder.

    Attributes:
        after_s: delay, s.
        memory_mib: on each node, MiB.
        from_checkpoint: there is one to continue from.
    """

    after_s: float
    memory_mib: float
    from_checkpoint: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """No further attempt.

    Attributes:
        why: in a few words.
        by_limit: the table allows a retry, but a limit that `why` names was reached.
    """

    why: str
    by_limit: bool = False


def decide(failures: Sequence[FailedAttempt], table: Table, *, largest_mib: float | None = None) -> Retry | Stop:
    """Return the decision after the last failure of a job.

    Args:
        failures: of all its attempts, in order.
        largest_mib: memory of the largest node that the job may get, MiB; None if unknown.
    """
    last = failures[-1]
    row = table.get(last.kind)
    if row is None or row.do == "stop":
        if row is not None and row.why:
            return Stop(why=row.why, by_limit=True)
        return Stop(why=f"{last.kind} is not retried")
    if last.kind is FailureKind.STEP_FAILED and last.exit_code != TryAgainError.exit_code:
        return Stop(why=f"{describe_exit_code(last.exit_code)}, a retry would fail again")
    number = sum(failure.kind is last.kind for failure in failures)
    if number > row.retries:
        return Stop(
            why=f"{last.kind} occurred {number} times, and the limit is {row.retries} retries", by_limit=row.retries > 0
        )
    if len(failures) >= MOST_ATTEMPTS:
        return Stop(why=f"{MOST_ATTEMPTS} attempts have failed", by_limit=True)
    memory_mib = last.memory_mib
    if row.do == "continue" and last.checkpoint is not Checkpoint.NEW:
        return Stop(why="the attempt has written no checkpoint to continue from")
    if row.do == "moreMemory":
        most_mib = min(row.cap or math.inf, largest_mib or math.inf)
        memory_mib = min(math.ceil(last.memory_mib * row.factor), most_mib)
        if memory_mib <= last.memory_mib:
            return Stop(why=f"it had {last.memory_mib:.0f} MiB, and {most_mib:.0f} MiB is the limit", by_limit=True)
    return Retry(
        after_s=min(row.wait * 2.0 ** (number - 1), LONGEST_WAIT_S),
        memory_mib=memory_mib,
        from_checkpoint=last.checkpoint is not Checkpoint.NONE,
    )


def sentence(decision: Retry | Stop, last: FailedAttempt, *, next_attempt: int) -> str:
    """Return the decision as a sentence for the user."""
    if isinstance(decision, Stop):
        return f"not retried: {decision.why}"
    memory = f" with {decision.memory_mib:.0f} MiB" if decision.memory_mib != last.memory_mib else ""
    checkpoint = " from its newest checkpoint" if decision.from_checkpoint else ""
    wait = f" in {decision.after_s:.0f} s" if decision.after_s else ""
    return f"{last.kind}: attempt {next_attempt}{wait}{memory}{checkpoint}"
