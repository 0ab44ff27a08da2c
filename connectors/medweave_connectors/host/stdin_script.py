"""Shell scripts by standard input: without a length limit, and parsed by `sh` only. Does not import streamflow.

A word of a command line has at most 128 KiB on Linux, and in a pod it becomes part of a URL.
"""

from __future__ import annotations

import shlex

# No backslash, quote or `!` besides these quotes: csh, fish and others can read it within single quotes, too.
READ_AND_RUN = 'IFS= read -r script || exit; eval "$(printf %b "$script")"'
WORDS = ["sh", "-c", READ_AND_RUN]
WHOLE_INPUT = ["sh", "-c", 'eval "$(cat)"']  # runs its whole input as a script; the commands in it have no input
LONG_BYTES = 100_000  # longer scripts do not fit into a word of a command line: Linux accepts 128 KiB


def encode(script: str) -> bytes:
    """Return a script as the one line that `READ_AND_RUN` reads; what follows it is the input of the script's commands."""
    line = script.replace("\\", "\\\\").replace("\n", "\\n")
    return line.encode(errors="surrogateescape") + b"\n"


def here_document(words: str, script: str, mark: str) -> str:
    """Return shell text in which a command runs a script as its whole input.

    Args:
        words: shell text before `WHOLE_INPUT`; empty for none.
        mark: a line that the script does not have.
    """
    return f"{words}{shlex.join(WHOLE_INPUT)} << '{mark}'\n{script}\n{mark}\n"


def is_long(script: str) -> bool:
    """Return whether a script has to go by standard input."""
    return len(script.encode(errors="surrogateescape")) > LONG_BYTES
