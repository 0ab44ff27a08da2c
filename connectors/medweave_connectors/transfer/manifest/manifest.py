"""The entries below a path: kind, size, mode, times and SHA-256 of each, listed at its site. No streamflow in here."""

from __future__ import annotations

import base64
import functools
import os
import re
import shlex
import stat
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from medweave_connectors.host.read_only_commands import READ_ONLY
from medweave_connectors.host.transfer_reasons import reason_in
from medweave_connectors.transfer.manifest import file_digests

ROOT = "."  # the scanned path
# Paths that `find` prints below `.//` have two slashes nowhere else: no name can look like the start of a record.
_HEAD = b".//"
_ENTRY = re.compile(rb"(?:\A|\n)([0-9a-f]{1,8}) (\d{1,19}) (-?\d{1,19}) ([0-9:.+ -]+) (?=\.//)")
_DIGEST = re.compile(rb"(?:\A|\n)(\\?)([0-9a-f]{64}) [ *](?=\.//)")  # a backslash in front: the name is escaped
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"r": b"\r", b"\\": b"\\"}
_END = re.compile(rb"end (\d{1,3})\n")
_NOT_THERE = 44
_STEPS = frozenset(("", ".", ".."))  # components that are no names
TOOLS = ("readlink", "find", "stat", "sha256sum", "gzip", "base64")
MOST_BYTES = 2**30  # of a listing; ten million files have less
_LACKS = "medweave-lacks-"


class Kind(StrEnum):
    """The kind of an entry with links followed; a symlink is a dangling one."""

    FILE = "file"
    FOLDER = "folder"
    SYMLINK = "symlink"
    SPECIAL = "special"


_KINDS = {stat.S_IFREG: Kind.FILE, stat.S_IFDIR: Kind.FOLDER, stat.S_IFLNK: Kind.SYMLINK}


class ManifestError(ValueError):
    """The entries could not be listed; the message names none of them."""


class ManifestEntry(NamedTuple):
    """One file, folder or link. There may be millions: a tuple takes a third of a dataclass's time.

    Attributes:
        size: bytes.
        mode: permission bits.
        modified_s: time of the last modification by the site's own clock, s since 1970. Never compared between sites.
        changed: time of the last change of the inode, in the site's own words. Compared with itself only.
        sha256: hexadecimal digest of a file; empty if not requested.
    """

    kind: Kind
    size: int
    mode: int
    modified_s: int
    changed: str
    sha256: str = ""

    def with_digest(self, sha256: str) -> ManifestEntry:
        """Return the entry with a digest. `_replace` takes twice as long."""
        return ManifestEntry(*self[:-1], sha256)


class FolderState(NamedTuple):
    """The state of a folder of this machine, see `local_scan`.

    Attributes:
        folder: its device and inode.
        state: a digest of all facts that change with a file in it.
    """

    folder: str
    state: str


@dataclass(frozen=True)
class Manifest:
    """The entries below a path.

    Attributes:
        real: the path itself, without links.
        entries: by path, relative to the scanned path, which is `ROOT`. Bytes that are no UTF-8 are in there as
            `os.fsdecode` has them.
        known_by: the state by which its digests are found again; None where that is not possible.
        tree: the listing digest of a folder whose digests were found again, see `tree_digest.listing_digest`.
    """

    real: str
    entries: dict[str, ManifestEntry]
    known_by: FolderState | None = field(default=None, compare=False)
    tree: str | None = field(default=None, compare=False)

    @functools.cached_property
    def files(self) -> list[str]:
        """Return the paths of the files."""
        return [path for path, entry in self.entries.items() if entry.kind is Kind.FILE]

    @functools.cached_property
    def num_bytes(self) -> int:
        """Return the bytes of all files together."""
        return sum(self.entries[path].size for path in self.files)

    @property
    def num_files(self) -> int:
        """Return the number of files."""
        return len(self.files)

    def count(self, kind: Kind) -> int:
        """Return the number of entries of a kind."""
        return self._kinds.count(kind)

    @functools.cached_property
    def _kinds(self) -> list[Kind]:
        return [entry.kind for entry in self.entries.values()]

    def unsendable(self) -> str:
        """Return what cannot be copied, in counts only; empty where everything can."""
        words = {
            Kind.SYMLINK: "broken links",
            Kind.SPECIAL: "entries that are neither files nor folders nor links",
        }
        counts = {kind: self.count(kind) for kind in words}
        seen = ", ".join(f"{count} {words[kind]}" for kind, count in counts.items() if count)
        return seen and f"{seen}, of {len(self.entries)}"

    def difference(self, arrived: Manifest) -> str:
        """Return how a copy differs, in counts only (file names may identify patients); empty where it does not.

        Times and modes are not compared: clocks differ, and not every file system has modes.
        """
        pairs = [(mine, arrived.entries.get(path)) for path, mine in self.entries.items()]
        missing = [mine.kind for mine, other in pairs if other is None]
        other_kind = sum(other is not None and other.kind != mine.kind for mine, other in pairs)
        changed = sum(
            other is not None and other.kind == mine.kind == Kind.FILE and _content(mine) != _content(other)
            for mine, other in pairs
        )
        total = f"of {self.num_files} files"
        folders = sum(kind != Kind.FILE for kind in missing)
        strange = len(arrived.entries.keys() - self.entries.keys())
        counts = (
            (len(missing) - folders, f"{len(missing) - folders} {total} missing"),
            (folders, f"{folders} of {self.count(Kind.FOLDER)} folders missing"),
            (other_kind, f"{other_kind} of {len(self.entries)} are of another kind"),
            (changed, f"{changed} {total} with other content"),
            (strange, f"{strange} unexpected entries"),
        )
        return ", ".join(words for count, words in counts if count)

    def unchanged(self, later: Manifest) -> bool:
        """Return whether a later manifest of the same site has the same entries, and no file was written to."""
        return {path: _stamp(entry) for path, entry in self.entries.items()} == {
            path: _stamp(entry) for path, entry in later.entries.items()
        }


def _content(entry: ManifestEntry) -> tuple[int, str]:
    return entry.size, entry.sha256


def _stamp(entry: ManifestEntry) -> tuple[object, ...]:
    # The times of a folder change with its entries, which are compared themselves.
    return (entry.kind,) if entry.kind == Kind.FOLDER else (entry.kind, entry.size, entry.modified_s, entry.changed)


def command(path: str, *, digests: bool = True, many: bool = False) -> list[str]:
    """Return the command that prints the manifest of an absolute path, with links followed.

    It needs `TOOLS`, of GNU or of busybox. Its output is compressed and in base64, since connectors may strip or decode text.
    Sections end with a NUL: the path, the entries, the digests, the end.

    Args:
        digests: without them, no file is read.
        many: there are many files.
    """
    entry = "stat {follow} -c '%f %s %Y %z %n' {{}} +"
    listing = f'find -L "$@" ! -type l -exec {entry.format(follow="-L")}'
    # The path itself has been resolved: only below a folder can a link lead nowhere.
    dangling = f'{{ [ ! -d "$root" ] || find -L "$@" -type l -exec {entry.format(follow="")}; }}'
    hashing = (
        f""" && {{ {file_digests.choose('"$@"', many=many)}; {file_digests.of_files('-L "$@" -type f')}; }}"""
        if digests
        else ""
    )
    # A name may end in a newline, which the shell would strip.
    script = (
        f"root=$(readlink -f {shlex.quote(path)} && echo .) || exit {_NOT_THERE}; root=${{root%??}}; "
        f'[ -e "$root" ] || exit {_NOT_THERE}; printf \'%s\\0\' "$root"; '
        'if [ -d "$root" ]; then cd "$root" && set -- .//; else cd "${root%/*}/" && set -- ".//${root##*/}"; fi && '
        f"{listing} && {dangling} && printf '\\0'{hashing}"
    )
    whole = f"{{ ( {script} ) 2>&1; code=$?; printf '\\0end %s\\n' $code; }}"
    lacks = f"for tool in {' '.join(TOOLS)}; do command -v $tool >/dev/null || {{ echo {_LACKS}$tool; exit 1; }}; done"
    return [f"{READ_ONLY}( export LC_ALL=C TZ=UTC0; {lacks}; {whole} | gzip -1 | base64 )"]


def parse(text: str, *, digests: bool = True) -> Manifest:
    """Return the manifest in the output of `command`.

    Raises:
        ManifestError: the output is incomplete or no listing, or the site reports a failure.
    """
    if lacks := next((tool for tool in TOOLS if f"{_LACKS}{tool}" in text), ""):
        raise ManifestError(f"the site has no program `{lacks}`")
    try:
        *sections, end = _unpacked(text).split(b"\0")
    except (ValueError, zlib.error):
        raise ManifestError(reason_in(text) or "the listing of the files cannot be parsed") from None
    ended = _END.fullmatch(end)
    if ended is None:
        raise ManifestError("the listing of the files is truncated")
    if code := int(ended[1]):
        missing = "there is no such file or folder" if code == _NOT_THERE else ""
        raise ManifestError(
            missing or reason_in(b"".join(sections).decode(errors="replace")) or f"it ended with {code}"
        )
    if len(sections) != 3:
        raise ManifestError("the listing of the files lacks one of its three parts")
    root, listing, hashes = sections
    entries, first = {}, b""
    sums = dict(_digests(hashes))
    for name, entry in _entries(listing, sums):
        first = first or name
        path = ROOT if name == first else os.fsdecode(name.removeprefix(first))
        if path in entries:
            raise ManifestError("the listing of the files has an entry twice")
        if bool(entry.sha256) != (digests and entry.kind == Kind.FILE):
            raise ManifestError("the listing and its digests name different files")
        entries[path] = entry
    if not entries or sums:
        raise ManifestError("the listing and its digests name different files")
    _check_tree(entries, first, root)
    return Manifest(os.fsdecode(root), entries)


def _unpacked(text: str) -> bytes:
    unpacking = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    listing = unpacking.decompress(base64.b64decode(text, validate=False), MOST_BYTES)
    if not unpacking.eof or unpacking.unused_data:
        raise ValueError
    return listing


def _check_tree(entries: Mapping[str, ManifestEntry], first: bytes, root: bytes) -> None:
    """Check that each entry is in a listed folder, a single file is alone, and no path leads out of its folder.

    The entries become paths at the other end, so a listing is checked like anything from an untrusted site.
    """
    if any(_STEPS.intersection(path.split("/")) for path in entries if path != ROOT) or not _is_plain(
        os.fsdecode(root)
    ):
        raise ManifestError("an entry of the listing leads out of its folder")
    named = _HEAD if entries[ROOT].kind == Kind.FOLDER else _HEAD + root.rpartition(b"/")[2]
    parents = {path.rpartition("/")[0] or ROOT for path in entries if path != ROOT}
    folders = {path for path, entry in entries.items() if entry.kind == Kind.FOLDER}
    if first != named or not parents <= folders:
        raise ManifestError("an entry of the listing has no folder")


def _is_plain(path: str) -> bool:
    return path.startswith("/") and path != "/" and not _STEPS.intersection(path.split("/")[1:])


def _records(section: bytes, head: re.Pattern[bytes]) -> Iterator[tuple[re.Match[bytes], bytes]]:
    """Yield the head of each record, and the name after it."""
    heads = list(head.finditer(section))
    ends = [match.start() for match in heads[1:]] + [len(section) - 1]
    if section and (not heads or heads[0].start() != 0 or not section.endswith(b"\n")):
        raise ManifestError("a line of the listing cannot be parsed")
    for match, end in zip(heads, ends, strict=bool(heads)):
        yield match, section[match.end() : end]


def _entries(section: bytes, sums: dict[bytes, str]) -> Iterator[tuple[bytes, ManifestEntry]]:
    for head, name in _records(section, _ENTRY):
        word, size, modified_s, changed = head.groups()
        mode = int(word, 16)
        kind = _KINDS.get(stat.S_IFMT(mode), Kind.SPECIAL)
        yield (
            name,
            ManifestEntry(kind, int(size), stat.S_IMODE(mode), int(modified_s), changed.decode(), sums.pop(name, "")),
        )


def _digests(section: bytes) -> Iterator[tuple[bytes, str]]:
    for head, name in _records(section, _DIGEST):
        yield (_unescaped(name) if head[1] else name), head[2].decode()


def _unescaped(name: bytes) -> bytes:
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[0]), name)
