"""Two deployments that see the same files: what shows that they do, and a copy that only one of them makes. Pure.

A path that both have proves nothing: two machines have a `/tmp` each. The folder in which the destination puts a copy together has
a random name; a source that sees a folder of this name, with the same inode, sees the destination's files. And what the destination
sees under the source's path has to be the inode, size and time that the source sees there.
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

_FACTS = "stat -L -c '%i %s %Y'"  # device numbers are each machine's own
_SEEN = re.compile(r"^medweave-sees ([0-9]+) of ([0-9]+ [0-9]+ -?[0-9]+)\.$", re.MULTILINE)
_TAKEN = re.compile(r"^medweave-took ([a-z]+)\.$", re.MULTILINE)
# What nobody may write to is shared by a store already; what its owner may write to is copied, since a link shares each change.
_OPEN = '\\( -perm -200 -o -perm -020 -o -perm -002 -o ! -user "$(id -u)" \\)'
_COUNT = "awk '{ n++; sum += $1 } END { printf \"%d %.0f\", n, sum }'"

_REMOVE = (
    'find "$new" -type d ! -perm -700 -exec chmod u+rwx {} \\; 2>/dev/null; rm -rf "$new";'  # what links have begun
)


class SharedCopyResult(StrEnum):
    """What became of a copy at a place that sees the source's files."""

    LINKED = "linked"
    COPIED = "copied"
    SHARED = "shared"  # another place of the same copy has it in the same folder
    APART = "apart"  # it does not see them, or not as they are


@dataclass(frozen=True, slots=True)
class SourceView:
    """What the source sees.

    Attributes:
        part: inode of the destination's folder.
        facts: inode, size in bytes, and time in s of the path that is copied.
    """

    part: str
    facts: str


def probe(path: str, part: str) -> list[str]:
    """Words for the source: does it see the folder in which the destination puts its copy together?"""
    own = f"own=$({_FACTS} {shlex.quote(path)} 2>/dev/null)"
    return [
        f"{READ_ONLY}( part=$(stat -c %i {shlex.quote(part)} 2>/dev/null); {own}; "
        '[ -z "$part" ] || [ -z "$own" ] || echo "medweave-sees $part of $own." )'
    ]


def parse_probe(text: str) -> SourceView | None:
    """What `ask` printed; None where it sees no such folder."""
    found = _SEEN.search(text)
    return None if found is None else SourceView(found[1], found[2])


def copy_or_link(seen: SourceView, path: str, target: str, *, holds: tuple[int, int], links: bool) -> list[str]:
    """Words for the destination: a copy of the source's path under its own, if it sees the very same.

    They end with `REFUSED`, after the reason, where it could not be made; then nothing of it is left.

    Args:
        holds: files, and their bytes, of the source. A file server may show something older for some seconds.
        links: a further name of each file will do, if it is the user's own and nobody may write to it.
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
    """The same for some files of a folder whose other files are in place.

    Args:
        folder: the one above it.
        names: relative to that one.
    """
    sending, getting = (" ".join(map(shlex.quote, words)) for words in (pack_files(folder, names), unpack_files(part)))
    path = posixpath.join(folder, names[0].partition("/")[0])
    script = f"{sending} | {getting} || exit {REFUSED}; echo medweave-took {SharedCopyResult.COPIED}."
    return _if_same(seen, script, path, posixpath.join(part, "any"))


def parse_result(text: str) -> SharedCopyResult:
    """What they printed."""
    found = _TAKEN.search(text)
    return SharedCopyResult.APART if found is None else SharedCopyResult(found[1])


def _only_read(path: str) -> str:
    """A test that succeeds where nobody may write to any of the files, and all are the user's own."""
    return f'[ -z "$(find -L "{path}" -type f {_OPEN} 2>&1 | head -n 1)" ]'


def _if_same(seen: SourceView, script: str, path: str, target: str) -> list[str]:
    same = (
        f'[ "$(stat -c %i "${{new%/*}}" 2>/dev/null)" = {shlex.quote(seen.part)} ] && '
        f'[ "$({_FACTS} "$from" 2>/dev/null)" = {shlex.quote(seen.facts)} ] || '
        f"{{ echo medweave-took {SharedCopyResult.APART}.; exit 0; }}"
    )
    return [f"( export LC_ALL=C; from={shlex.quote(path)}; new={shlex.quote(target)}; {same}; {script} )"]
