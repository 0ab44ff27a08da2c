"""Exit codes as people read them: the one contract that even a killed step keeps."""

from __future__ import annotations

PARTIAL = 3
"""Of `streamflow run`, never of a step: some jobs of a scatter failed, the outputs hold what the others made."""

_MEANINGS = {
    2: "wrong usage",
    65: "bad data",
    69: "a library is missing",
    70: "internal error",
    74: "reading or writing failed",
    75: "may succeed when run again",
    126: "the command cannot be executed",
    127: "the command was not found",
    130: "interrupted",
    137: "killed, perhaps for lack of memory",
    143: "asked to end",
}


def meaning(exit_code: int) -> str:
    """`exit code 65, bad data`; the number alone where it has no agreed meaning."""
    told = _MEANINGS.get(exit_code)
    return f"exit code {exit_code}" + (f", {told}" if told else "")
