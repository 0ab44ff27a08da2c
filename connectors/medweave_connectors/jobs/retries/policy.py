"""The table: kind of failure to reaction; and what it says about a job that has failed again. Pure.

A failure whose kind is not in the table ends the step, and no setting changes that: of `Unknown` nobody can say that the job is
over, so that another one might double it, and who cancelled a job wanted its end (but see `CLUSTER`).
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
    """Why a job did not do well; the same words for every site."""

    OUT_OF_MEMORY = "OutOfMemory"
    TIMEOUT = "Timeout"
    PREEMPTED = "Preempted"
    NODE_FAIL = "NodeFail"
    CANCELLED = "Cancelled"  # by somebody at the site
    STEP_FAILED = "StepFailed"  # the command ended by itself, with an exit code
    SUBMIT_REJECTED = "SubmitRejected"  # the site took no job
    UNKNOWN = "Unknown"  # lost: nobody knows how it ended, or whether it did


class Checkpoint(StrEnum):
    """What a failed attempt has left in the checkpoint folder that its step declares."""

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
        why: of `stop`: what keeps this kind of site from another attempt.
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


_POD_IS_GONE = "its pod is gone, and with it what it had; a failureManager of the file can place the step anew"
# In pods that stand whatever becomes of a step: the same pod is all that another attempt can have.
STANDING: dict[FailureKind, Reaction] = {
    FailureKind.OUT_OF_MEMORY: Reaction(
        do="stop", why="the memory of a standing pod is fixed; raise resources.limits.memory of its container"
    ),
    FailureKind.TIMEOUT: DEFAULTS[FailureKind.TIMEOUT],
    FailureKind.PREEMPTED: Reaction(do="stop", why=_POD_IS_GONE),
    FailureKind.NODE_FAIL: Reaction(do="stop", why=_POD_IS_GONE),
    FailureKind.STEP_FAILED: DEFAULTS[FailureKind.STEP_FAILED],
}
# In the pods of a cluster that all have what a step reads: one that its workload makes again is given the files of the others.
# Whoever deletes such a pod gets another one, and has not asked for the end of the step.
CLUSTER: Table = STANDING | {
    FailureKind.PREEMPTED: DEFAULTS[FailureKind.PREEMPTED],
    FailureKind.NODE_FAIL: DEFAULTS[FailureKind.NODE_FAIL],
    FailureKind.CANCELLED: Reaction(do="again", retries=3, wait=30),
}

# On a machine without a scheduler, which says of no other end what it came from.
ONE_MACHINE: Table = {FailureKind.STEP_FAILED: DEFAULTS[FailureKind.STEP_FAILED]}


def read_table(given: Mapping[str, Mapping[str, Any]], usual: Table = DEFAULTS) -> Table:
    """The usual table with the keys that a site's file changes, as the connector's schema has them."""
    return {kind: dataclasses.replace(row, **given.get(kind, {})) for kind, row in usual.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """An attempt that has failed and is over.

    Attributes:
        exit_code: of the command, as a shell tells it.
        memory_mib: what it had on each node, MiB.
    """

    kind: FailureKind
    exit_code: int = 1
    memory_mib: float = 0.0
    checkpoint: Checkpoint = Checkpoint.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """Another attempt, into a clean output folder.

    Attributes:
        after_s: from now, s.
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
        in_spite: the table would have tried again, but for a limit that `why` names.
    """

    why: str
    in_spite: bool = False


def decide(failures: Sequence[Failed], table: Table, *, largest_mib: float | None = None) -> Again | Stop:
    """What follows from the last failure of a job.

    Args:
        failures: of all its attempts, in order.
        largest_mib: memory of the largest node that the job may get, MiB; None where it is not known.
    """
    last = failures[-1]
    row = table.get(last.kind)
    if row is None or row.do == "stop":
        if row is not None and row.why:
            return Stop(why=row.why, in_spite=True)
        return Stop(why=f"{last.kind} is not tried again")
    if last.kind is FailureKind.STEP_FAILED and last.exit_code != TryAgainError.exit_code:
        return Stop(why=f"{describe_exit_code(last.exit_code)}, would come again")
    number = sum(each.kind is last.kind for each in failures)
    if number > row.retries:
        return Stop(why=f"{last.kind} came {number} times, {row.retries} are tried again", in_spite=row.retries > 0)
    if len(failures) >= MOST_ATTEMPTS:
        return Stop(why=f"{MOST_ATTEMPTS} attempts have failed", in_spite=True)
    memory_mib = last.memory_mib
    if row.do == "continue" and last.checkpoint is not Checkpoint.NEW:
        return Stop(why="the attempt has written no checkpoint to continue from")
    if row.do == "moreMemory":
        most_mib = min(row.cap or math.inf, largest_mib or math.inf)
        memory_mib = min(math.ceil(last.memory_mib * row.factor), most_mib)
        if memory_mib <= last.memory_mib:
            return Stop(why=f"it had {last.memory_mib:.0f} MiB, and {most_mib:.0f} MiB is the most", in_spite=True)
    return Again(
        after_s=min(row.wait * 2.0 ** (number - 1), LONGEST_WAIT_S),
        memory_mib=memory_mib,
        from_checkpoint=last.checkpoint is not Checkpoint.NONE,
    )


def sentence(decision: Again | Stop, last: Failed, *, next_attempt: int) -> str:
    """The decision as people read it."""
    if isinstance(decision, Stop):
        return f"not tried again: {decision.why}"
    memory = f" with {decision.memory_mib:.0f} MiB" if decision.memory_mib != last.memory_mib else ""
    checkpoint = " from its newest checkpoint" if decision.from_checkpoint else ""
    wait = f" in {decision.after_s:.0f} s" if decision.after_s else ""
    return f"{last.kind}: attempt {next_attempt}{wait}{memory}{checkpoint}"
