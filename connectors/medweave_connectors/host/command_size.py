"""The size of a command with its environment, compared with the limits of the machine that starts it. Pure.

Linux (execve(2), "Limits on size of arguments and environment"): arguments and environment together have at most a quarter of the
stack limit, at most 6 MiB and at least 128 KiB, pointers included; one argument or variable has at most 128 KiB.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from medweave_core.errors import UserInputError

SHORT_BYTES = 100_000  # below it no limit of Linux applies
MAX_WORD_BYTES = 131_072  # with the zero byte at its end
MIN_BYTES, MAX_BYTES = 131_072, 6 * 2**20  # of all together, whatever the stack limit is
_POINTER_BYTES = 8
_MARK = "\0"
_WORD = re.compile(r"(?:[^\s'\"\\]+|'[^']*'|\"(?:[^\"\\]|\\.)*\"|\\.|['\"])+", re.DOTALL)


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
        words: quoted for a shell; their quotes count.
        environment: the variables that the step sets; those of the site are not in here.
    """
    arguments = _WORD.findall(" ".join(words))
    sizes = [(_num_bytes(argument), f"argument {number}") for number, argument in enumerate(arguments)]
    sizes += [(_num_bytes(f"{name}={value}"), f"environment variable {name}") for name, value in environment.items()]
    largest_bytes, largest = max(sizes, key=lambda size: size[0])
    if largest.startswith("argument"):  # exactly, without its quotes
        largest_bytes = _num_bytes("".join(_split(arguments[int(largest.rpartition(" ")[2])])))
    total_bytes = sum(size + _POINTER_BYTES for size, _ in sizes)
    return CommandSize(num_words=len(sizes), total_bytes=total_bytes, largest_bytes=largest_bytes, largest=largest)


def is_long_command(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether a limit of Linux may apply to a command."""
    return sum(map(len, words)) + sum(len(name) + len(value) for name, value in environment.items()) > SHORT_BYTES


def checked(line: str, words: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return shell text that runs a line, and refuses it beyond the machine's limits; a short command gets no check.

    The machine that starts the command knows its limits, so the check runs there: it prints the size and the limit to standard
    error and exits with 65. What no machine accepts is not sent.

    Args:
        line: sets the environment and starts the command.
        words: the command, quoted for a shell.
        environment: the variables that the step sets.
    """
    if not is_long_command(words, environment):
        return line
    size = measure(words, environment)
    if size.largest_bytes > MAX_WORD_BYTES:
        seen = f"{size.largest_bytes:,} bytes in {size.largest}, on {_MARK}"
        return _refusal(seen, f"at most {MAX_WORD_BYTES:,} bytes in each argument and environment variable", "hostname")
    seen = (
        f"{size.total_bytes:,} bytes in {size.num_words:,} arguments and environment variables of the step, on {_MARK}"
    )
    if size.total_bytes > MAX_BYTES:
        return _refusal(seen, f"at most {MAX_BYTES:,} bytes together", "hostname")
    expected = f"at most {_MARK} bytes together with the environment of the site (a quarter of `ulimit -s`)"
    limit = (
        f"limit=$(ulimit -s); case $limit in *[!0-9]*) limit={MAX_BYTES};; *) limit=$((limit * 256));; esac; "
        f"[ $limit -le {MAX_BYTES} ] || limit={MAX_BYTES}; [ $limit -ge {MIN_BYTES} ] || limit={MIN_BYTES}; "
        "others=$(env | wc -c)"
    )
    refuse = _refusal(seen, expected, "hostname", 'echo "$limit"')
    return f"{limit}; if [ $(({size.total_bytes} + others)) -gt $limit ]; then {refuse}; fi; {line}"


def _refusal(seen: str, expected: str, *values: str) -> str:
    """Return shell text that prints the error, with the outputs of commands in the places of the marks, and exits."""
    error = UserInputError(
        "medweave: the command of this step is too long.",
        seen=seen,
        expected=expected,
        do="pass the values in a file (InitialWorkDirRequirement), or use one Directory instead of many Files",
    )
    parts = str(error).split(_MARK)
    words = [shlex.quote(parts[0])]
    for value, part in zip(values, parts[1:], strict=True):
        words += [f'"$({value})"', shlex.quote(part)]
    return f"printf %s {' '.join(words)} >&2; echo >&2; exit {error.exit_code}"


def _split(word: str) -> list[str]:
    try:
        return shlex.split(word)
    except ValueError:  # an open quote
        return [word]


def _num_bytes(text: str) -> int:
    return len(text.encode(errors="surrogateescape")) + 1
