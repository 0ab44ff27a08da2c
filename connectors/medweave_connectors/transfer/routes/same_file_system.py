"""Two deployments that see the same files: the proof that they do, and a copy without sending. Pure.

A common path proves nothing: two machines both have a `/tmp`. The staging folder of a copy has a random name: a source that sees a
folder of this name, with the same inode, sees the destination's files. In the other direction, the destination has to see the same
inode, size and time at the source's path as the source.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from medweave_connectors.host.read_only_commands import READ_ONLY
from medweave_connectors.transfer.shell_commands import REFUSED, pack_files, unpack_files

_FACTS = "stat -L -c '%i %s %Y'"  # device numbers differ between machines
_SEEN = re.compile(r"^medweave-sees ([0-9]+) of ([0-9]+ [0-9]+ -?[0-9]+)\.$", re.MULTILINE)
_TAKEN = re.compile(r"^medweave-took ([a-z]+)\.$", re.MULTILINE)
# Read-only files may be shared, as in the store; writable files are copied, since a link shares each change.
_OPEN = '\\( -perm -200 -o -perm -020 -o -perm -002 -o ! -user "$(id -u)" \\)'
_COUNT = "awk '{ n++; sum += $1 } END { printf \"%d %.0f\", n, sum }'"

_REMOVE = 'find "$new" -type d ! -perm -700 -exec chmod u+rwx {} \\; 2>/dev/null; rm -rf "$new";'  # incomplete links


class SharedCopyResult(StrEnum):
    """The result of a copy at a location that may see the source's files."""

    LINKED = "linked"
    COPIED = "copied"
    SHARED = "shared"  # another location has made the copy in the same folder
    APART = "apart"  # it does not see the files, or not in the same state


@dataclass(frozen=True, slots=True)
class SourceView:
    """The destination's folder and the source path, as the source sees them.

    Attributes:
        part: inode of the destination's folder.
        facts: inode, size in bytes, and time in s of the path that is copied.
    """

    part: str
    facts: str


def probe(path: str, part: str) -> list[str]:
    """Return the command for the source that prints whether it sees the destination's staging folder."""
    own = f"own=$({_FACTS} {shlex.quote(path)} 2>/dev/null)"
    return [
        f"{READ_ONLY}( part=$(stat -c %i {shlex.quote(part)} 2>/dev/null); {own}; "
        '[ -z "$part" ] || [ -z "$own" ] || echo "medweave-sees $part of $own." )'
    ]


def parse_probe(text: str) -> SourceView | None:
    """Return the result in the output of `probe`; None where the source sees no such folder."""
    match = _SEEN.search(text)
    return None if match is None else SourceView(match[1], match[2])


def copy_or_link(seen: SourceView, path: str, target: str, *, holds: tuple[int, int], links: bool) -> list[str]:
    """Return the command for the destination that copies the source's path, if it sees the same file or folder.

    It ends with `REFUSED`, after the reason, where the copy fails; then nothing of it is left.

    Args:
        holds: files, and their bytes, of the source. A file server may show something older for some seconds.
        links: hard links will do, for files that are owned by the account and read-only.
    """
    script = f"""
        how={SharedCopyResult.COPIED};
        if [ -e "$new" ]; then echo medweave-took {SharedCopyResult.SHARED}.; exit 0; fi;
        if {_only_read("$from") if links else "false"} && cp -RLlp "$from" "$new" 2>/dev/null; then how={SharedCopyResult.LINKED};
        else {_REMOVE}
        fast=; cp --reflink=auto /dev/null "$new" 2>/dev/null && fast=--reflink=auto; rm -f "$new";
        cp -RLp $fast "$from" "$new" || {{ {_REMOVE} exit {REFUSED}; }};
        find "$new" \\( -perm -4000 -o -perm -2000 \\) -exec chmod u-s,g-s {{}} +; fi;
        if [ "$(find "$new" -type f -exec stat -c %s {{}} + | {_COUNT})" != "{holds[0]} {holds[1]}" ]; then
        how={SharedCopyResult.APART}; {_REMOVE} fi;
        echo medweave-took $how.
    """
    return _if_same(seen, " ".join(line.strip() for line in script.strip().splitlines()), path, target)


def copy_some(seen: SourceView, folder: str, names: Sequence[str], part: str) -> list[str]:
    """Return the command for some files of a folder whose other files have been copied.

    Args:
        folder: the one above it.
        names: relative to that one.
    """
    sending, getting = (" ".join(map(shlex.quote, words)) for words in (pack_files(folder, names), unpack_files(part)))
    path = posixpath.join(folder, names[0].partition("/")[0])
    script = f"{sending} | {getting} || exit {REFUSED}; echo medweave-took {SharedCopyResult.COPIED}."
    return _if_same(seen, script, path, posixpath.join(part, "any"))


def parse_result(text: str) -> SharedCopyResult:
    """Return the result in the output of these commands."""
    match = _TAKEN.search(text)
    return SharedCopyResult.APART if match is None else SharedCopyResult(match[1])


def _only_read(path: str) -> str:
    """Return a shell condition: all files are read-only and owned by the account."""
    return f'[ -z "$(find -L "{path}" -type f {_OPEN} 2>&1 | head -n 1)" ]'


def _if_same(seen: SourceView, script: str, path: str, target: str) -> list[str]:
    same = (
        f'[ "$(stat -c %i "${{new%/*}}" 2>/dev/null)" = {shlex.quote(seen.part)} ] && '
        f'[ "$({_FACTS} "$from" 2>/dev/null)" = {shlex.quote(seen.facts)} ] || '
        f"{{ echo medweave-took {SharedCopyResult.APART}.; exit 0; }}"
    )
    return [f"( export LC_ALL=C; from={shlex.quote(path)}; new={shlex.quote(target)}; {same}; {script} )"]
