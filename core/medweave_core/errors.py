"""Errors, each with its exit code, and the meaning of exit codes: the contract that even a killed step keeps."""

from __future__ import annotations

import copyreg
import dataclasses
from dataclasses import dataclass
from typing import Any

PARTIAL = 3
"""Exit code of `streamflow run`, never of a step: some jobs of a scatter failed, and the outputs are those of the others."""

_MEANINGS = {
    2: "wrong usage",
    65: "bad data",
    69: "a library is missing",
    70: "internal error",
    74: "reading or writing failed",
    75: "may succeed when run again",
    126: "command cannot be executed",
    127: "command not found",
    130: "interrupted",
    137: "killed, perhaps out of memory",
    143: "terminated by a signal (SIGTERM)",
}


@dataclass(slots=True)
class StepError(Exception):
    """A failure in four parts: the failure, the seen and the expected value, and the fix.

    No part may hold a patient name, a UID or a secret: cases are named by their case id.
    """

    what: str
    seen: str = ""
    expected: str = ""
    do: str = ""

    exit_code = 70

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors of workers come from other processes; pickle passes only the positional arguments of an exception.
        parts = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return copyreg.__newobj__, (type(self), *self.args), parts | vars(self)  # type: ignore[attr-defined]

    def __str__(self) -> str:
        lines = [self.what]
        for label, text in (("seen", self.seen), ("expected", self.expected), ("do", self.do)):
            if text:
                lines.append(f"  {label + ':':<9} {text}")
        return "\n".join(lines)


class UsageError(StepError):
    """The command line is wrong: an option's value cannot be used (exit code 2)."""

    exit_code = 2


class UserInputError(StepError):
    """The data is wrong: the person who made the cohort, model or mask must act (exit code 65)."""

    exit_code = 65


class BackendMissingError(StepError):
    """A library that this verb needs is not installed here (exit code 69)."""

    exit_code = 69


class InternalError(StepError):
    """medweave or the numerics failed, such as a loss that is not a number (exit code 70)."""

    exit_code = 70


class StorageError(StepError):
    """Reading or writing failed: disk full, permission denied, a device error (exit code 74)."""

    exit_code = 74


class TryAgainError(StepError):
    """A transient fault: the same command may succeed later (exit code 75)."""

    exit_code = 75


def describe_exit_code(exit_code: int) -> str:
    """Return `exit code 65, bad data`; the number alone if it has no agreed meaning."""
    meaning = _MEANINGS.get(exit_code)
    return f"exit code {exit_code}" + (f", {meaning}" if meaning else "")
