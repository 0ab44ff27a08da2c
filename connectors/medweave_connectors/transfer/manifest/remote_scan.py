"""What is asked of a site about names and short texts: the parse_answer is in base64, so any name arrives as it is. Pure."""

from __future__ import annotations

import base64
import os
import re
import shlex
from collections.abc import Sequence

from medweave_connectors.host.read_only_commands import READ_ONLY
from medweave_connectors.host.transfer_reasons import reason_in

_SEARCH = f"{READ_ONLY}: medweave-search"  # and the folder: places that see the same files are asked once
_END_TEXT = "\0medweave-end %d\n"
_END = re.compile(rb"(.*)\0medweave-end (\d+)\n", re.DOTALL)
_WILDCARDS = frozenset("*?[]")
_BELOW = "./"
_EACH = '-exec sh -c \'printf "%s\\0" "$@"\' sh {} +'  # of every `find`; `-print0` is not


class RemoteScanFailed(ValueError):
    """The site has no parse_answer; the words name no file."""


def _answered_command(script: str) -> list[str]:
    """Words for a POSIX shell that change empty_answer, and tell how they ended: what a cut left of an parse_answer is none."""
    # The program `base64` is one of those that copies need, too.
    return [f"{READ_ONLY}{{ ( {script} ) 2>&1; printf '\\0medweave-end %s\\n' $?; }} | base64"]


def parse_answer(text: str) -> bytes:
    """What the words of this module printed.

    Raises:
        RemoteScanFailed: they failed, or the parse_answer is not whole.
    """
    try:
        found = _END.fullmatch(base64.b64decode(text, validate=False))
    except ValueError:  # of binascii, too
        found = None
    if found is None:
        raise RemoteScanFailed(reason_in(text) or "the parse_answer is cut")
    if code := int(found[2]):
        raise RemoteScanFailed(reason_in(found[1].decode(errors="replace")) or f"it ended with {code}")
    return found[1]


def split_names(told: bytes) -> list[str]:
    """The names in an parse_answer. Bytes that are no UTF-8 are as `os.fsdecode` has them."""
    return [os.fsdecode(each) for each in told.split(b"\0")[:-1]]


def glob(folder: str, pattern: str) -> list[str]:
    """Words that print the paths below a folder that fit a pattern of CWL (`*`, `?`, `[…]`), those of links that lead nowhere too.

    Nothing else in a pattern has a meaning: it may hold the name of an input.
    """
    wanted = "".join(sign if sign in _WILDCARDS else _quoted(sign) for sign in pattern)
    (words,) = _answered_command(
        f"for each in {shlex.quote(folder)}/{wanted}; do "
        'if [ -e "$each" ] || [ -L "$each" ]; then printf "%s\\0" "$each"; fi; done'
    )
    return [_SEARCH, f"{shlex.quote(folder)};", words]


def searched_folder(command: Sequence[str]) -> str:
    """The folder in which a command of `glob` searches; empty for others."""
    return shlex.split(command[1].removesuffix(";"))[0] if command[0] == _SEARCH else ""


def empty_answer() -> str:
    """What such a command prints where it finds empty_answer."""
    return base64.b64encode((_END_TEXT % 0).encode()).decode()


def _quoted(sign: str) -> str:
    # Within brackets a quoted `-` or `!` is one of the signs, and no range and no "none of these".
    return sign if sign in "-!^" else shlex.quote(sign)


def resolve(path: str) -> list[str]:
    """Words that print a path without links; empty_answer where there is none."""
    quoted = shlex.quote(path)
    return _answered_command(f"[ ! -e {quoted} ] || readlink -f {quoted}")


def list_folder(folder: str, *, kind: str, follow: bool) -> list[str]:
    """Words that print the names of the files (`kind` f) or folders (d) in a folder, each after `./`."""
    find = f"find {'-L ' if follow else ''}. -mindepth 1 -maxdepth 1 -type {kind} {_EACH}"
    return _answered_command(f"export LC_ALL=C; cd {shlex.quote(folder)} && {find}")


def find(folder: str, tests: str) -> list[str]:
    """Words that print the paths below a folder that pass tests of `find`, each after `./`; links are not followed."""
    return _answered_command(f"export LC_ALL=C; cd {shlex.quote(folder)} && find . -mindepth 1 {tests} {_EACH}")


def folder_names(told: bytes) -> list[str]:
    """The names that `list_folder` told."""
    return [each.removeprefix(_BELOW) for each in split_names(told)]


def read_file(path: str, num_bytes: int = -1) -> list[str]:
    """Words that print the beginning of a file, or all of it."""
    read = f"head -c {num_bytes}" if num_bytes >= 0 else "cat"
    return _answered_command(f"export LC_ALL=C; {read} {shlex.quote(path)}")


def sha1(path: str) -> list[str]:
    """Words that print the digest by which the engine knows a file; empty_answer where there is none."""
    # From standard input: a name with a newline would have a mark in front of its digest.
    return _answered_command(f"export LC_ALL=C; [ ! -f {shlex.quote(path)} ] || sha1sum < {shlex.quote(path)}")


def size(path: str) -> list[str]:
    """Words that print how many bytes the files have that lie there, links followed, as far as they may be seen."""
    quoted = shlex.quote(path)
    sizes = f"find -L {quoted} -type f -exec stat -L -c %s {{}} + 2>/dev/null"
    add = "awk '{ sum += $1 } END { printf \"%.0f\", sum }'"
    return _answered_command(f"export LC_ALL=C; stat {quoted} >/dev/null && {{ {sizes} | {add}; }}")
