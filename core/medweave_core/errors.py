"""Failures split by who must act, each with the exit code that the caller sees."""

from __future__ import annotations

import copyreg
import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class StepError(Exception):
    """A failure told in four parts: what failed, what was seen, what was expected, what to do.

    No part may hold a patient name, a UID or a secret: cases are named by their case id.
    """

    what: str
    seen: str = ""
    expected: str = ""
    do: str = ""

    exit_code = 70

    def __reduce__(self) -> tuple[Any, ...]:
        # Those of tasks and workers come from other processes; an exception is pickled with what was given by place alone.
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
    """A passing fault: the same command may succeed later (exit code 75)."""

    exit_code = 75
