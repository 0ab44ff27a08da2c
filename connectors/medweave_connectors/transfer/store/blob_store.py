"""A site's own store of what was copied to it, by content: what is there is linked, not sent. Pure.

A blob is a file that arrived and was verified, under its SHA-256; a copy made of it is one more name of the same file (a hard
link). So a blob that only one name has left is used by nobody, and a blob that is removed stays whole for those who use it.

What is of one data class lies in a folder of its own, and is never given to a copy of another class: whoever sends a model cannot
find out by it which scans are there. What has no class (a site without data rules) has a folder, too.

Links are made by an archive that holds nothing but links: one `tar`, which every site has, makes thousands at once.
"""

from __future__ import annotations

import base64
import gzip
import io
import posixpath
import shlex
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from medweave_connectors.policy.data_classes import in_order
from medweave_connectors.transfer.agent import files as far_files
from medweave_connectors.transfer.manifest.manifest import ROOT, Kind, Manifest, ManifestEntry
from medweave_connectors.transfer.store.folder_commands import STORE

_BLOBS = ".medweave-blobs"  # a name of the store's folder, beside a copy that is put together
_LINKS = ".medweave-links"
# Names are parts of digests, so that an archive of many links is small. Content is always verified by the whole digest.
_KEY_CHARACTERS = 32
NO_CLASS = "unclassified"
_CHUNK_BYTES = 45_000  # of one command: Linux takes 128 KiB in one word, and base64 makes 4 of 3
_GIB = 2**30
_EXECUTABLE = 0o111
_OWNER_ALL = 0o700


class StoreState(StrEnum):
    """Whether there is a store, and anything in it."""

    NONE = "none"
    NEW = "new"
    USED = "used"


@dataclass(frozen=True, slots=True)
class Store:
    """Where a site keeps it.

    Attributes:
        root: its folder, mode 0700.
        limit_gib: what it may hold when a run begins, GiB, of all classes together.
        kind: the data class of what is looked for and kept; several are one of their own.
    """

    root: str
    limit_gib: float
    kind: str = NO_CLASS

    @property
    def blobs(self) -> str:
        """The folder of this class, mode 0700."""
        return posixpath.join(self.root, self.kind)


def store_at(path: str, run_id: str, limit_gib: float, classes: Iterable[str] = ()) -> Store | None:
    """The store for a path in the folder of a run; None where it lies elsewhere, or nothing is to be stored.

    Args:
        classes: of the data; none where they are not known.
    """
    workdir, found, _ = path.partition(f"/{run_id}/")
    if not found or limit_gib <= 0:
        return None
    return Store(posixpath.join(workdir, STORE), limit_gib, "+".join(in_order(classes)) or NO_CLASS)


def blob_key(entry: ManifestEntry) -> str:
    """A file's name in the store. Two names of one file have the same permission bits, so what can be run is another file."""
    mark = "x" if entry.mode & _EXECUTABLE else ""
    return f"{entry.sha256[:2]}/{entry.sha256[2:_KEY_CHARACTERS]}{mark}"


# ---- words for a POSIX shell


def evict(store: Store, *, needed_bytes: int = 0) -> str:
    """A line that removes blobs that nobody uses, those first whose last use is longest ago.

    The inode's time of change is the last use: a link that is made or removed sets it.

    Args:
        needed_bytes: as much goes, however little there is.
    """
    limit = round(store.limit_gib * _GIB)
    files = "find . -type f -exec stat -c"
    total = f"{files} %s {{}} + 2>/dev/null | awk '{{ total += $1 }} END {{ printf \"%.0f\", total }}'"
    # Whose other name goes has changed: the order is that before, and who is used by nobody is asked after it.
    choose = (
        "NF == 5 { name[++count] = $5; size[count] = $4; total += $4 } NF == 1 { free[$1] = 1 } END { for (i = 1; i <= count; i++) "
        f"if (name[i] in free && (total > {limit} || gone < {needed_bytes})) "
        "{ total -= size[i]; gone += size[i]; print name[i] } }"
    )
    return (
        f"( export LC_ALL=C TZ=UTC; [ ! -L {shlex.quote(store.root)} ] && cd {shlex.quote(store.root)} 2>/dev/null || exit 0; "
        f'[ {needed_bytes} -gt 0 ] || [ "$({total})" -gt {limit} ] || exit 0; '
        f"seen=$({files} '%z %s %n' {{}} + 2>/dev/null | sort); "
        f"{{ printf '%s\\n' \"$seen\"; find . -type f -links 1; }} 2>/dev/null | awk '{choose}' | xargs rm -f -- )"
    )


def in_background(*lines: str) -> str:
    """A line that begins others and does not wait for them: nothing that uses the copy does. They end by themselves, and a job of
    the site comes before them."""
    return f"( trap '' HUP; nice sh -c {shlex.quote('; '.join(lines))} </dev/null >/dev/null 2>&1 & )"


def make_store(store: Store) -> str:
    """A line that makes the store's folders, and prints its state (`parse_state`)."""
    folders, blobs = [store.root, store.blobs], shlex.quote(store.blobs)
    made = " && ".join(
        f"mkdir -p -m 700 {each} && [ ! -L {each} ] && [ -O {each} ]" for each in map(shlex.quote, folders)
    )
    return (
        f"{made} && "
        f'{{ state=new; for each in {blobs}/?? {blobs}/{far_files.LISTS.decode()}/??; do [ ! -d "$each" ] || state=used; done; '
        'echo "medweave-store $state."; }'
    )


def parse_state(answer: str) -> StoreState:
    """What `make` printed: a folder that is not ours is no store."""
    return next((each for each in StoreState if f"medweave-store {each}." in answer), StoreState.NONE)


def query(store: Store, part: str, sent: Manifest, paths: Iterable[str]) -> Iterator[list[str]]:
    """Commands of which the last one prints the keys of files that the store has."""
    keys = gzip.compress("".join(f"{blob_key(sent.entries[path])}\n" for path in paths).encode(), mtime=0)
    there = f"gzip -dc < {shlex.quote(posixpath.join(part, _LINKS))} | xargs ls -d 2>/dev/null"
    yield from _delivered(part, keys, f"cd {shlex.quote(store.blobs)} && {there}")


def link_files(
    store: Store, part: str, sent: Manifest, name: str, paths: Iterable[str], then: list[str]
) -> Iterator[list[str]]:
    """Commands that make the folders of a copy and, of some of its files, all that the store has. The last one does more `then`."""
    folders = {path: mode | _OWNER_ALL for path, mode in _folders(sent).items()}
    blobs = {_beside(name, path): posixpath.join(_BLOBS, blob_key(sent.entries[path])) for path in paths}
    last = f"{_unpack(store, part)}; {' '.join(then)}"
    yield from _delivered(part, _archive({_beside(name, path): mode for path, mode in folders.items()}, blobs), last)


def stopped_early(answer: str) -> bool:
    """Of `link`: the tar of busybox ends with 1, and at the first link that cannot be made; GNU's goes on, and ends with 2."""
    return "medweave-tar 1." in answer


def add_files(store: Store, part: str, sent: Manifest, name: str, paths: Iterable[str]) -> Iterator[list[str]]:
    """Commands that make blobs of files of a copy which has been verified, and give its folders the modes of the source.

    Nobody writes to a file that others use: from here on its permission bits say so.
    """
    blobs = {posixpath.join(_BLOBS, blob_key(sent.entries[path])): _beside(name, path) for path in paths}
    if blobs:
        new = shlex.quote(posixpath.join(part, name))
        last = f"find {new} -type f -exec chmod a-w {{}} + && {{ {_unpack(store, part)}; }}"
        yield from _delivered(part, _archive({}, blobs), last)
    folders = {_beside(name, path): mode for path, mode in _folders(sent).items() if mode & _OWNER_ALL != _OWNER_ALL}
    if folders:
        yield from _delivered(part, _archive(folders, {}), _unpack(store, part))


def remove_blobs(store: Store, part: str, name: str, wrong: Mapping[str, ManifestEntry]) -> list[str]:
    """Words that remove blobs whose content is not what their name says, and the names that a copy has of them."""
    names = [posixpath.join(part, name, path) if path != ROOT else posixpath.join(part, name) for path in wrong]
    blobs = [posixpath.join(store.blobs, blob_key(each)) for each in wrong.values()]
    return [f"rm -f -- {' '.join(shlex.quote(each) for each in (*names, *blobs))}"]


def missing_files(sent: Manifest, there: Manifest) -> list[str]:
    """The files of which the store had no whole copy."""
    return [path for path, each in _files(sent) if not _same(each, there.entries.get(path))]


def damaged_files(sent: Manifest, there: Manifest) -> dict[str, ManifestEntry]:
    """The files that the store gave with other content than their names promise."""
    return {path: sent.entries[path] for path in missing_files(sent, there) if path in there.entries}


# ---- inside


def _same(entry: ManifestEntry, other: ManifestEntry | None) -> bool:
    return other is not None and (other.kind, other.size, other.sha256) == (entry.kind, entry.size, entry.sha256)


def _files(manifest: Manifest) -> list[tuple[str, ManifestEntry]]:
    return [(path, manifest.entries[path]) for path in manifest.files]


def _folders(manifest: Manifest) -> dict[str, int]:
    return {path: each.mode for path, each in manifest.entries.items() if each.kind is Kind.FOLDER}


def _beside(name: str, path: str) -> str:
    return name if path == ROOT else posixpath.join(name, path)


def _archive(folders: Mapping[str, int], links: Mapping[str, str]) -> bytes:
    """A compressed archive without any content: folders with their modes, and links."""
    held = io.BytesIO()
    with gzip.GzipFile(fileobj=held, mode="wb", compresslevel=1, mtime=0) as packed:
        entry = tarfile.TarInfo()
        entry.type = tarfile.DIRTYPE
        for entry.name, entry.mode in sorted(folders.items()):  # a folder before what lies in it
            packed.write(_header(entry))
        entry = tarfile.TarInfo()
        entry.type = tarfile.LNKTYPE
        for entry.name, entry.linkname in links.items():
            packed.write(_header(entry))
        packed.write(bytes(2 * tarfile.BLOCKSIZE))  # the end of an archive
    return held.getvalue()


def _header(entry: tarfile.TarInfo) -> bytes:
    return entry.tobuf(tarfile.GNU_FORMAT, errors="surrogateescape")


def _delivered(part: str, archive: bytes, last: str) -> Iterator[list[str]]:
    """Commands that bring an archive there in pieces, and a line after the last piece."""
    file = shlex.quote(posixpath.join(part, _LINKS))
    chunks = [archive[first : first + _CHUNK_BYTES] for first in range(0, len(archive), _CHUNK_BYTES)]
    for number, chunk in enumerate(chunks, 1):
        piece = f"printf %s {base64.b64encode(chunk).decode()} | base64 -d >{'>' if number > 1 else ''} {file}"
        yield [f"( {piece} )" if number < len(chunks) else f"( {piece}; {last} )"]


def _unpack(store: Store, part: str) -> str:
    """A line that makes the links of an archive, all that can be made."""
    folder, blobs = shlex.quote(part), shlex.quote(posixpath.join(part, _BLOBS))
    return (
        f"{{ [ -L {blobs} ] || ln -s {shlex.quote(store.blobs)} {blobs}; }}; "
        f"tar xzpf {folder}/{_LINKS} -C {folder} 2>/dev/null; echo medweave-tar $?.; rm -f {folder}/{_LINKS}"
    )
