"""Commands that list names and read short texts at a site. Their output is in base64, so any name arrives unchanged. Pure."""

from __future__ import annotations

import base64
import os
import re
import shlex
from collections.abc import Sequence

from medweave_connectors.host.read_only_commands import READ_ONLY
from medweave_connectors.host.transfer_reasons import reason_in

_SEARCH = f"{READ_ONLY}: medweave-search"  # and the folder: locations that share files are searched once
_END_TEXT = "\0medweave-end %d\n"
_END = re.compile(rb"(.*)\0medweave-end (\d+)\n", re.DOTALL)
_WILDCARDS = frozenset("*?[]")
_BELOW = "./"
_EACH = '-exec sh -c \'printf "%s\\0" "$@"\' sh {} +'  # of every `find`; `-print0` is not


class RemoteScanFailed(ValueError):
    """The site gave no complete answer; the message names no file."""


def _answered_command(script: str) -> list[str]:
    """Return a read-only command with an end mark: an answer that was cut off is recognized."""
    # Copies need the program `base64`, too.
    return [f"{READ_ONLY}{{ ( {script} ) 2>&1; printf '\\0medweave-end %s\\n' $?; }} | base64"]


def parse_answer(text: str) -> bytes:
    """Return the output of a command of this module.

    Raises:
        RemoteScanFailed: the command failed, or its output is incomplete.
    """
    try:
        match = _END.fullmatch(base64.b64decode(text, validate=False))
    except ValueError:  # of binascii, too
        match = None
    if match is None:
        raise RemoteScanFailed(reason_in(text) or "the answer is truncated")
    if code := int(match[2]):
        raise RemoteScanFailed(reason_in(match[1].decode(errors="replace")) or f"it ended with {code}")
    return match[1]


def split_names(answer: bytes) -> list[str]:
    """Return the names in an answer. Bytes that are no UTF-8 are as `os.fsdecode` has them."""
    return [os.fsdecode(name) for name in answer.split(b"\0")[:-1]]


def glob(folder: str, pattern: str) -> list[str]:
    """Return a command that prints the paths below a folder that match a pattern of CWL (`*`, `?`, `[…]`), dangling links included.

    Other characters of a pattern have no special meaning: it may contain the name of an input.
    """
    glob_pattern = "".join(sign if sign in _WILDCARDS else _quoted(sign) for sign in pattern)
    (words,) = _answered_command(
        f"for file in {shlex.quote(folder)}/{glob_pattern}; do "
        'if [ -e "$file" ] || [ -L "$file" ]; then printf "%s\\0" "$file"; fi; done'
    )
    return [_SEARCH, f"{shlex.quote(folder)};", words]


def searched_folder(command: Sequence[str]) -> str:
    """Return the folder in which a command of `glob` searches; empty for other commands."""
    return shlex.split(command[1].removesuffix(";"))[0] if command[0] == _SEARCH else ""


def empty_answer() -> str:
    """Return the output of such a command that finds nothing."""
    return base64.b64encode((_END_TEXT % 0).encode()).decode()


class OutputWriters:
    """The location that writes the outputs of each job: node 0 of a node group.

    The engine searches every location of a job for outputs, and would count files in a shared folder once per location.
    """

    def __init__(self) -> None:
        self._locations: dict[str, str] = {}

    def note(self, folder: str, location: str) -> None:
        """Store the name of the location that writes to an output folder."""
        self._locations[folder.rstrip("/")] = location

    def are_elsewhere(self, command: Sequence[str], location: str) -> bool:
        """Return whether a command searches at this location for outputs that another one writes."""
        folder = searched_folder(command).rstrip("/")
        while folder and folder not in self._locations:
            folder = folder.rpartition("/")[0]
        return self._locations.get(folder, location) != location


def _quoted(sign: str) -> str:
    # Within brackets, a quoted `-` or `!` is an ordinary character, neither a range nor a negation.
    return sign if sign in "-!^" else shlex.quote(sign)


def resolve(path: str) -> list[str]:
    """Return a command that prints a path without links; nothing where the path does not exist."""
    quoted = shlex.quote(path)
    return _answered_command(f"[ ! -e {quoted} ] || readlink -f {quoted}")


def list_folder(folder: str, *, kind: str, follow: bool) -> list[str]:
    """Return a command that prints the names of the files (`kind` f) or folders (d) in a folder, each after `./`."""
    find = f"find {'-L ' if follow else ''}. -mindepth 1 -maxdepth 1 -type {kind} {_EACH}"
    return _answered_command(f"export LC_ALL=C; cd {shlex.quote(folder)} && {find}")


def find(folder: str, tests: str) -> list[str]:
    """Return a command that prints the paths below a folder that pass tests of `find`, each after `./`; links are not followed."""
    return _answered_command(f"export LC_ALL=C; cd {shlex.quote(folder)} && find . -mindepth 1 {tests} {_EACH}")


def folder_names(answer: bytes) -> list[str]:
    """Return the names in an answer to `list_folder`."""
    return [name.removeprefix(_BELOW) for name in split_names(answer)]


def read_file(path: str, num_bytes: int = -1) -> list[str]:
    """Return a command that prints the beginning of a file, or all of it."""
    read = f"head -c {num_bytes}" if num_bytes >= 0 else "cat"
    return _answered_command(f"export LC_ALL=C; {read} {shlex.quote(path)}")


def sha1(path: str) -> list[str]:
    """Return a command that prints the SHA-1 by which StreamFlow identifies a file; nothing where the file does not exist."""
    # From standard input: sha1sum marks the digest of a name with a newline.
    return _answered_command(f"export LC_ALL=C; [ ! -f {shlex.quote(path)} ] || sha1sum < {shlex.quote(path)}")


def size(path: str) -> list[str]:
    """Return a command that prints the bytes of all readable files below a path, links followed."""
    quoted = shlex.quote(path)
    sizes = f"find -L {quoted} -type f -exec stat -L -c %s {{}} + 2>/dev/null"
    add = "awk '{ sum += $1 } END { printf \"%.0f\", sum }'"
    return _answered_command(f"export LC_ALL=C; stat {quoted} >/dev/null && {{ {sizes} | {add}; }}")
