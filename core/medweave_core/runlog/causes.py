"""The error message of a command that failed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from medweave_core.errors import describe_exit_code

STEP_PREFIX = "medweave-step "


def step_message(stderr_tail: Sequence[str]) -> str:
    """Return the last error that a medweave step printed (what failed, seen, expected, do); empty without such an error.

    Only this part of stderr is known to hold no patient data, so only this goes into the event log.
    """
    for start in range(len(stderr_tail) - 1, -1, -1):
        if stderr_tail[start].startswith(STEP_PREFIX):
            parts = takewhile(lambda line: line.startswith("  "), stderr_tail[start + 1 :])
            return "\n".join((stderr_tail[start], *parts))
    return ""


def cause(stderr_tail: Sequence[str], stdout_tail: Sequence[str], exit_code: int) -> str:
    """Return the message for the user: the error of the step, else its last lines, else the exit code."""
    if message := step_message(stderr_tail):
        return message
    lines = list(stderr_tail) or list(stdout_tail)
    if exit_code == 127:
        lines.append(
            "  do:       install the steps in the environment of this deployment: pip install 'medweave[all]', "
            "or the extra of the step"
        )
    return "\n".join(lines) or f"The command printed nothing; {describe_exit_code(exit_code)}."
