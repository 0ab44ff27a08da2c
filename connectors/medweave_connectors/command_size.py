"""The size of a command with its environment, against the limits of the machine that starts it. Pure. No streamflow in here.

Linux (execve(2), "Limits on size of arguments and environment"): arguments and environment together have at most a quarter of the
stack limit, at most 6 MiB and at least 128 KiB, pointers included; one argument or variable has at most 128 KiB.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from medweave_steps.contracts.errors import UserInputError

SHORT_BYTES = 100_000  # below it no limit of Linux applies
MAX_WORD_BYTES = 131_072  # with the zero byte at its end
_POINTER_BYTES = 8
_MARK = "\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSize:
    """The size of a command.

    Attributes:
        num_words: arguments and environment variables.
        total_bytes: of all of them, with zero bytes and pointers.
        largest_bytes: of the largest one, with its zero byte.
        largest: its name for people.
    """

    num_words: int
    total_bytes: int
    largest_bytes: int
    largest: str


def measure(words: Sequence[str], environment: Mapping[str, str]) -> CommandSize:
    """Return the size of a command.

    Args:
        words: quoted for a shell. Text that is no list of words (an open quote) counts as one argument per item.
        environment: the variables that the step sets; those of the site are not in here.
    """
    try:
        arguments = shlex.split(" ".join(words))
    except ValueError:
        arguments = list(words)
    sizes = [(_num_bytes(argument), f"argument {number}") for number, argument in enumerate(arguments)]
    sizes += [(_num_bytes(f"{name}={value}"), f"environment variable {name}") for name, value in environment.items()]
    largest_bytes, largest = max(sizes, key=lambda size: size[0])
    total_bytes = sum(size + _POINTER_BYTES for size, _ in sizes)
    return CommandSize(
        num_words=len(sizes), total_bytes=total_bytes, largest_bytes=largest_bytes, largest=largest
    )


def size_check(words: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return shell text that refuses a command beyond the machine's limits, to run before the command; empty for a short one.

    The machine that starts the command knows its limits, so the check runs there: it prints the size and the limit to standard
    error and exits with 65.

    Args:
        words: quoted for a shell.
        environment: the variables that the step sets.
    """
    if sum(map(len, words)) + sum(len(name) + len(value) for name, value in environment.items()) < SHORT_BYTES:
        return ""
    size = measure(words, environment)
    if size.largest_bytes > MAX_WORD_BYTES:
        seen = f"{size.largest_bytes:,} bytes in {size.largest}, on {_MARK}"
        return _refusal(seen, f"at most {MAX_WORD_BYTES:,} bytes in each argument and environment variable", "hostname")
    seen = f"{size.total_bytes:,} bytes in {size.num_words:,} arguments and environment variables of the step, on {_MARK}"
    expected = f"at most {_MARK} bytes together with the environment of the site (a quarter of `ulimit -s`, 6 MiB at most)"
    limit = (
        'limit=$(ulimit -s); case $limit in *[!0-9]*) limit=6291456;; *) limit=$((limit * 256));; esac; '
        "[ $limit -le 6291456 ] || limit=6291456; [ $limit -ge 131072 ] || limit=131072; "
        "others=$(env | wc -c)"
    )
    refuse = _refusal(seen, expected, "hostname", 'echo "$limit"')
    return f"{limit}; if [ $(({size.total_bytes} + others)) -gt $limit ]; then {refuse}; fi"


def _refusal(seen: str, expected: str, *values: str) -> str:
    """Return shell text that prints the error, with the outputs of commands in the places of the marks, and exits."""
    error = UserInputError(
        "medweave: the command of this step is too long.",
        seen=seen,
        expected=expected,
        do="pass the values in a file (InitialWorkDirRequirement), or in a Directory in place of many Files",
    )
    parts = str(error).split(_MARK)
    words = [shlex.quote(parts[0])]
    for value, part in zip(values, parts[1:], strict=True):
        words += [f'"$({value})"', shlex.quote(part)]
    return f"printf %s {' '.join(words)} >&2; echo >&2; exit {error.exit_code}"


def _num_bytes(text: str) -> int:
    return len(text.encode(errors="surrogateescape")) + 1
