"""The blob store of a site: files that were copied there, by content. A file in the store is linked instead of sent. Pure.

A blob is a verified file, named by its SHA-256; a copy from the store is a hard link to it. A blob with only one name is unused,
and a blob that is removed stays complete for the copies that use it.

Each data class has a separate folder, and a blob is linked only to copies of its class: a sender of models cannot find out
which scans the store has. Data without a class (a site without data rules) has a folder, too.

Links are made by an archive that contains only links: one `tar`, which every site has, makes thousands at once.
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

from medweave_connectors.policy.data_classes import most_sensitive_first
from medweave_connectors.transfer.agent import files as agent_files
from medweave_connectors.transfer.manifest.manifest import ROOT, Kind, Manifest, ManifestEntry
from medweave_connectors.transfer.store.folder_commands import STORE

_BLOBS = ".medweave-blobs"  # a link to the store's folder, in the staging folder
_LINKS = ".medweave-links"
# Names are parts of digests: an archive of many links stays small. Content is always verified by the whole digest.
_KEY_CHARACTERS = 32
NO_CLASS = "unclassified"
_CHUNK_BYTES = 45_000  # of one command: Linux allows 128 KiB in one argument, and base64 makes 4 bytes of 3
_GIB = 2**30
_EXECUTABLE = 0o111
_OWNER_ALL = 0o700


class StoreState(StrEnum):
    """Whether a store exists, and whether it has entries."""

    NONE = "none"
    NEW = "new"
    USED = "used"


@dataclass(frozen=True, slots=True)
class Store:
    """The store of a site, for one data class.

    Attributes:
        root: its folder, mode 0700.
        limit_gib: size limit at the start of a run, GiB, of all classes together.
        kind: the data class; a combination of classes is a separate class.
    """

    root: str
    limit_gib: float
    kind: str = NO_CLASS

    @property
    def blobs(self) -> str:
        """Return the folder of this class, mode 0700."""
        return posixpath.join(self.root, self.kind)


def store_at(path: str, run_id: str, limit_gib: float, classes: Iterable[str] = ()) -> Store | None:
    """Return the store for a path in a run's folder; None for paths elsewhere, and where the store is switched off.

    Args:
        classes: data classes; empty where they are not known.
    """
    workdir, separator, _ = path.partition(f"/{run_id}/")
    if not separator or limit_gib <= 0:
        return None
    return Store(posixpath.join(workdir, STORE), limit_gib, "+".join(most_sensitive_first(classes)) or NO_CLASS)


def blob_key(entry: ManifestEntry) -> str:
    """Return a file's name in the store. Hard links share permission bits, so an executable file has a separate blob."""
    mark = "x" if entry.mode & _EXECUTABLE else ""
    return f"{entry.sha256[:2]}/{entry.sha256[2:_KEY_CHARACTERS]}{mark}"


# ---- shell commands


def evict(store: Store, *, needed_bytes: int = 0) -> str:
    """Return a shell line that removes unused blobs, the least recently used first, until the store is within its limit.

    The inode's time of change is the last use: making or removing a link sets it.

    Args:
        needed_bytes: so many bytes are removed in any case.
    """
    limit = round(store.limit_gib * _GIB)
    files = "find . -type f -exec stat -c"
    total = f"{files} %s {{}} + 2>/dev/null | awk '{{ total += $1 }} END {{ printf \"%.0f\", total }}'"
    # The order is taken first: a removed link changes the time of its blob.
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
    """Return a shell line that starts others in the background, at low priority. Nothing that uses the copy waits for them."""
    return f"( trap '' HUP; nice sh -c {shlex.quote('; '.join(lines))} </dev/null >/dev/null 2>&1 & )"


def make_store(store: Store) -> str:
    """Return a shell line that makes the store's folders, and prints its state for `parse_state`."""
    folders, blobs = [store.root, store.blobs], shlex.quote(store.blobs)
    made = " && ".join(
        f"mkdir -p -m 700 {folder} && [ ! -L {folder} ] && [ -O {folder} ]" for folder in map(shlex.quote, folders)
    )
    return (
        f"{made} && "
        f'{{ state=new; for dir in {blobs}/?? {blobs}/{agent_files.LISTS.decode()}/??; do [ ! -d "$dir" ] || state=used; done; '
        'echo "medweave-store $state."; }'
    )


def parse_state(answer: str) -> StoreState:
    """Return the state in the output of `make_store`. A folder that is not ours is no store."""
    return next((state for state in StoreState if f"medweave-store {state}." in answer), StoreState.NONE)


def query(store: Store, part: str, sent: Manifest, paths: Iterable[str]) -> Iterator[list[str]]:
    """Yield commands of which the last one prints the keys of files that the store has."""
    keys = gzip.compress("".join(f"{blob_key(sent.entries[path])}\n" for path in paths).encode(), mtime=0)
    listing = f"gzip -dc < {shlex.quote(posixpath.join(part, _LINKS))} | xargs ls -d 2>/dev/null"
    yield from _delivered(part, keys, f"cd {shlex.quote(store.blobs)} && {listing}")


def link_files(
    store: Store, part: str, sent: Manifest, name: str, paths: Iterable[str], then: list[str]
) -> Iterator[list[str]]:
    """Yield commands that make the folders of a copy and link the files that the store has. The last one also runs `then`."""
    folders = {path: mode | _OWNER_ALL for path, mode in _folders(sent).items()}
    blobs = {_beside(name, path): posixpath.join(_BLOBS, blob_key(sent.entries[path])) for path in paths}
    last = f"{_unpack(store, part)}; {' '.join(then)}"
    yield from _delivered(part, _archive({_beside(name, path): mode for path, mode in folders.items()}, blobs), last)


def stopped_early(answer: str) -> bool:
    """Return whether `link_files` stopped at its first missing file: busybox's tar does, with status 1; GNU's continues, with 2."""
    return "medweave-tar 1." in answer


def add_files(store: Store, part: str, sent: Manifest, name: str, paths: Iterable[str]) -> Iterator[list[str]]:
    """Yield commands that make blobs of the files of a verified copy, and set its folders' modes.

    Files that are shared become read-only.
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
    """Return a command that removes damaged blobs, and the links that a copy has to them."""
    names = [posixpath.join(part, name, path) if path != ROOT else posixpath.join(part, name) for path in wrong]
    blobs = [posixpath.join(store.blobs, blob_key(entry)) for entry in wrong.values()]
    return [f"rm -f -- {' '.join(shlex.quote(path) for path in (*names, *blobs))}"]


def missing_files(sent: Manifest, linked: Manifest) -> list[str]:
    """Return the paths of files of which the store has no intact copy."""
    return [path for path, entry in _files(sent) if not _same(entry, linked.entries.get(path))]


def damaged_files(sent: Manifest, linked: Manifest) -> dict[str, ManifestEntry]:
    """Return the files whose blobs have other content than their name says."""
    return {path: sent.entries[path] for path in missing_files(sent, linked) if path in linked.entries}


# ---- internal


def _same(entry: ManifestEntry, other: ManifestEntry | None) -> bool:
    return other is not None and (other.kind, other.size, other.sha256) == (entry.kind, entry.size, entry.sha256)


def _files(manifest: Manifest) -> list[tuple[str, ManifestEntry]]:
    return [(path, manifest.entries[path]) for path in manifest.files]


def _folders(manifest: Manifest) -> dict[str, int]:
    return {path: entry.mode for path, entry in manifest.entries.items() if entry.kind is Kind.FOLDER}


def _beside(name: str, path: str) -> str:
    return name if path == ROOT else posixpath.join(name, path)


def _archive(folders: Mapping[str, int], links: Mapping[str, str]) -> bytes:
    """Return a compressed archive without any content: folders with their modes, and links."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=1, mtime=0) as packed:
        entry = tarfile.TarInfo()
        entry.type = tarfile.DIRTYPE
        for entry.name, entry.mode in sorted(folders.items()):  # a folder before its entries
            packed.write(_header(entry))
        entry = tarfile.TarInfo()
        entry.type = tarfile.LNKTYPE
        for entry.name, entry.linkname in links.items():
            packed.write(_header(entry))
        packed.write(bytes(2 * tarfile.BLOCKSIZE))  # the end of an archive
    return buffer.getvalue()


def _header(entry: tarfile.TarInfo) -> bytes:
    return entry.tobuf(tarfile.GNU_FORMAT, errors="surrogateescape")


def _delivered(part: str, archive: bytes, last: str) -> Iterator[list[str]]:
    """Yield commands that write an archive in pieces, and a line after the last piece."""
    file = shlex.quote(posixpath.join(part, _LINKS))
    chunks = [archive[first : first + _CHUNK_BYTES] for first in range(0, len(archive), _CHUNK_BYTES)]
    for number, chunk in enumerate(chunks, 1):
        piece = f"printf %s {base64.b64encode(chunk).decode()} | base64 -d >{'>' if number > 1 else ''} {file}"
        yield [f"( {piece} )" if number < len(chunks) else f"( {piece}; {last} )"]


def _unpack(store: Store, part: str) -> str:
    """Return a shell line that makes all links of an archive that can be made."""
    folder, blobs = shlex.quote(part), shlex.quote(posixpath.join(part, _BLOBS))
    return (
        f"{{ [ -L {blobs} ] || ln -s {shlex.quote(store.blobs)} {blobs}; }}; "
        f"tar xzpf {folder}/{_LINKS} -C {folder} 2>/dev/null; echo medweave-tar $?.; rm -f {folder}/{_LINKS}"
    )
