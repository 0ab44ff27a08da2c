"""The failure of one rank, as it is reported to the other ranks and to the user."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import Any

from medweave_core import errors
from medweave_core.errors import InternalError, StepError, TryAgainError
from medweave_steps.runtime.signals import Terminated
from medweave_steps.runtime.verb import as_step_error

_KEY = "medweave/failure"
_KINDS: dict[str, type[StepError]] = {
    kind.__name__: kind
    for kind in (
        errors.UsageError,
        errors.UserInputError,
        errors.BackendMissingError,
        errors.StorageError,
        TryAgainError,
        InternalError,
    )
}
_TERMINATED = "Terminated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The failure that ended a rank.

    Attributes:
        kind: name of the error's class, which decides the exit code.
        what, seen, expected, do: its four parts.
        signal_number: of the signal that ended the rank, else 0.
        is_cause: False if this rank only lost the others, for an unknown cause.
    """

    kind: str
    what: str
    seen: str = ""
    expected: str = ""
    do: str = ""
    signal_number: int = 0
    is_cause: bool = True

    def error(self) -> BaseException:
        """Return the exception that ends the verb with this message and exit code."""
        if self.kind == _TERMINATED:
            return Terminated(self.signal_number)
        return _KINDS[self.kind](self.what, self.seen, self.expected, self.do)

    def dumps(self) -> str:
        """Return the failure as one line of JSON."""
        return json.dumps(dataclasses.asdict(self))


def loads(text: str) -> Failure:
    """Return the failure that `dumps` wrote."""
    return Failure(**json.loads(text))


def failure_of(error: BaseException, *, who: str) -> Failure:
    """Return the failure for the exception that ended a rank.

    Args:
        who: `rank 1 on node-b`.
    """
    if isinstance(error, Terminated):
        return Failure(
            kind=_TERMINATED, what=f"{who} received a termination signal.", signal_number=error.exit_code - 128
        )
    cause = as_step_error(error)
    kind = next((name for name, cls in _KINDS.items() if isinstance(cause, cls)), InternalError.__name__)
    return Failure(kind=kind, what=f"{who}: {cause.what}", seen=cause.seen, expected=cause.expected, do=cause.do)


def lost_contact(who: str, seen: str) -> Failure:
    """Return the failure of a rank that lost its connection to the others for an unknown cause."""
    return Failure(
        kind=TryAgainError.__name__,
        what=f"{who} lost the connection to the other ranks.",
        seen=seen,
        expected="all ranks running until training ends",
        do="check logs and memory of the other nodes, and run the step again",
        is_cause=False,
    )


def silent(who: str, rank: int, seconds: float) -> Failure:
    """Return the failure of a rank that another rank has received no heartbeat from."""
    return Failure(
        kind=TryAgainError.__name__,
        what=f"rank {rank} is unresponsive.",
        seen=f"no heartbeat for {seconds:.0f} s, reported by {who}",
        expected="all ranks running until training ends",
        do="check node, network and memory of this rank, and run the step again",
    )


def first_line(error: BaseException) -> str:
    """Return the message of torch's error without its source location, advice and stack."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[\S+\]\s*", "", line).partition(". This is ")[0][:300]


def died(who: str, exit_code: int | None) -> Failure:
    """Return the failure of a process that ended without reporting an error."""
    if exit_code is not None and exit_code < 0:
        seen = f"killed by signal {-exit_code}" + (
            "; the usual cause is insufficient memory" if exit_code == -9 else ""
        )
    else:
        seen = f"exit code {exit_code}, without an error message"
    return Failure(
        kind=TryAgainError.__name__,
        what=f"{who} ended before training finished.",
        seen=seen,
        expected="all ranks running until training ends",
        do="increase the memory of the step (ramMin in the workflow) or reduce the ranks per node, and run the step again",
    )


def publish(store: Any, failure: Failure) -> None:
    """Publish a failure to all ranks; only the first one is stored.

    Args:
        store: torch.distributed store that all ranks can reach.
    """
    store.compare_set(_KEY, "", failure.dumps())


def read(store: Any) -> Failure | None:
    """Return the failure that a rank has published, if any."""
    return loads(store.get(_KEY).decode()) if store.check([_KEY]) else None
