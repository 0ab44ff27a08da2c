"""Digests and links of many files, by several processes.

A site runs this text by a bare python3 (3.8 or later), see `store.many_files`. A failure ends it without its last line; then the
shell does the same work file by file, and reports the cause.

The listing of a folder is a text: a line for each file (SHA-256, `x` or `-` for executable or not, path), and after a slash a line
for each folder (mode, path). The store keeps the listing of each folder whose files it has, under the SHA-256 of that text.
"""

# For many small files, a Path would cost more than the digest.
# ruff: noqa: PTH100, PTH101, PTH102, PTH103, PTH105, PTH116, PTH118, PTH120, PTH123, PTH208
from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
import time
from collections.abc import Callable
from functools import partial

BLOCK_BYTES = 2**20
MOST_PROCESSES = 4  # a login node has other users
FILES_OF_A_PROCESS = 250  # fewer are not worth a process
SHARES_OF_A_PROCESS = 8
MODE_CHARACTERS = 5
NO_ATIME = getattr(os, "O_NOATIME", 0)
KEY_CHARACTERS = 32
DIGEST_CHARACTERS = 64
LISTS = b"lists"
WAITING = b".new"  # of a listing in the store: its files are not added yet
WAITS_S, PAUSE_S = 20.0, 0.05
_ODD = (b"\\", b"\n", b"\r")  # listings cannot hold a name with these
_view = memoryview(bytearray(BLOCK_BYTES))
_made: set[bytes] = set()


def main(verb: str, *arguments: bytes) -> None:
    """Run one of the verbs."""
    if verb == "sum":
        sys.stdout.buffer.write(_sum(0) + b"  -\n")
    elif verb == "sums":
        sys.stdout.buffer.write(b"".join(shared(sums, sys.stdin.buffer.read().split(b"\0")[:-1])))
    else:
        verbs: dict[str, Callable[..., str]] = {
            "digest": digest,
            "add": add,
            "link": link,
        }
        print(verbs[verb](*arguments))


# ---- the work


def sums(names: list[bytes]) -> bytes:
    """Return the lines of `sha256sum`, with unescaped names."""
    return b"".join(_read(name)[0] + b"  " + name + b"\n" for name in names)


def digest(path: bytes, note: bytes) -> str:
    """Read every file below a folder, write its listing for `add`, and return the digest that `tree_digest.command` prints."""
    note = os.path.abspath(note)
    os.chdir(path)
    folders, files, others = _entries()
    if any(sign in b"/".join((*folders, *files, *others)) for sign in _ODD):
        raise ValueError
    lines = b"".join(shared(_lines, files)).splitlines()
    with open(note, "wb") as file:
        file.write(text_of(lines, [b"%04o %s" % (_mode(folder), folder) for folder in folders]))
    named = [line[:DIGEST_CHARACTERS] + b" " + line[DIGEST_CHARACTERS + 1 :] for line in lines]
    return f"medweave-seal {hashlib.sha256(text_of(others, folders, named)).hexdigest()}."


def add(path: bytes, note: bytes, blobs: bytes, wanted: bytes) -> str:
    """Add the files of a verified folder to the store, read-only from now on, and its listing."""
    text = _known(note, wanted)
    note, blobs = os.path.abspath(note), os.path.abspath(blobs)
    os.chdir(path)
    files, _ = parsed(text)

    def add_files(lines: list[bytes]) -> bytes:
        for name, key, _ in map(file_of, lines):
            mode = _mode(name)
            if mode & 0o222:
                os.chmod(name, mode & ~0o222)
            with contextlib.suppress(FileExistsError):  # it came from the store, or the same content came before
                link_blob(name, os.path.join(blobs, key))
        return b""

    shared(add_files, files)
    place = place_of(blobs, wanted)
    os.makedirs(os.path.dirname(place), 0o700, exist_ok=True)
    os.replace(note, place)
    return "medweave-kept."


def link(path: bytes, blobs: bytes, wanted: bytes) -> str:
    """Make a folder of links to the store's files, by its listing, and verify every file."""
    blobs, path = os.path.abspath(blobs), os.path.abspath(path)
    place = place_of(blobs, wanted)
    _wait_for_files(place)
    text = _known(place, wanted)
    _linked(path, blobs, text)
    _verified(path, text)
    os.utime(place)  # the last use
    return "medweave-took."


# ---- internal


def _linked(path: bytes, blobs: bytes, text: bytes) -> None:
    """Make a folder of links to the store's files."""
    files, folders = parsed(text)
    for line in folders:  # a folder before its entries
        name = line[MODE_CHARACTERS:]
        folder = os.path.join(path, name) if name != b"." else path
        os.mkdir(folder, 0o700)
        os.chmod(folder, int(line[: MODE_CHARACTERS - 1], 8) | 0o700)
    os.chdir(path)

    def linked(lines: list[bytes]) -> bytes:
        for name, key, _ in map(file_of, lines):
            os.link(os.path.join(blobs, key), name)
        return b""

    shared(linked, files)


def _verified(path: bytes, text: bytes) -> None:
    """Read each file of a folder, and fail where there are more entries than listed."""
    files, folders = _parts_of(text)
    os.chdir(path)

    def verify(lines: list[bytes]) -> bytes:
        for line in lines:
            file = _opened(line[DIGEST_CHARACTERS + 2 :])
            sha256 = _sum(file)
            os.close(file)
            if sha256 != line[:DIGEST_CHARACTERS]:
                raise ValueError
        return b""

    shared(verify, files)
    if sum(len(os.listdir(line[MODE_CHARACTERS:])) for line in folders) != len(files) + len(folders) - 1:
        raise ValueError


def shared(work: Callable[[list[bytes]], bytes], items: list[bytes]) -> list[bytes]:
    """Return the results for all items, of each process. A process takes the next share when it has finished one."""
    count = min(MOST_PROCESSES, len(os.sched_getaffinity(0)), 1 + len(items) // FILES_OF_A_PROCESS)
    if count == 1:
        return [work(items)]
    turns = os.pipe()
    # Neighboring items in one share: two processes that make links in one folder wait for each other.
    num = SHARES_OF_A_PROCESS * count
    shares = [items[number * len(items) // num : (number + 1) * len(items) // num] for number in range(num)]
    os.write(turns[1], bytes(range(num)))
    os.close(turns[1])
    processes = [_start(work, shares, turns[0]) for _ in range(count)]
    os.close(turns[0])
    results = [_read_all(reading) for _, reading in processes]
    codes = [os.waitpid(process, 0)[1] for process, _ in processes]  # waits for all
    if any(codes):
        raise OSError("a worker process failed")
    return results


def _start(work: Callable[[list[bytes]], bytes], shares: list[list[bytes]], turns: int) -> tuple[int, int]:
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    try:
        with open(writing, "wb") as file:
            file.write(b"".join(work(shares[turn[0]]) for turn in iter(partial(os.read, turns, 1), b"")))
        os._exit(0)
    finally:
        os._exit(1)


def _read_all(reading: int) -> bytes:
    with open(reading, "rb") as file:
        return file.read()


def _lines(names: list[bytes]) -> bytes:
    return b"".join(line_of(*_read(name), name) + b"\n" for name in names)


def _read(name: bytes) -> tuple[bytes, int]:
    """Return the digest of a file, and its mode."""
    file = os.open(name, os.O_RDONLY)
    try:
        return _sum(file), os.fstat(file).st_mode
    finally:
        os.close(file)


def _opened(name: bytes) -> int:
    """Open a file without updating its access time, which takes as long as opening it after a new link was made."""
    try:
        return os.open(name, os.O_RDONLY | NO_ATIME)
    except PermissionError:  # owned by another account
        return os.open(name, os.O_RDONLY)


def _sum(file: int) -> bytes:
    digest = hashlib.sha256()
    while True:
        count = os.readv(file, [_view])
        if not count:
            return digest.hexdigest().encode()
        digest.update(_view[:count])


def _entries() -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Return folders, files and other entries below the current folder, as `find` names them."""
    folders: list[bytes] = [b"."]
    files: list[bytes] = []
    others: list[bytes] = []
    for folder in folders:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)  # the loop comes to it
                else:
                    (files if entry.is_file(follow_symlinks=False) else others).append(entry.path)
    return folders, files, others


def _mode(name: bytes) -> int:
    return stat.S_IMODE(os.lstat(name).st_mode)


def place_of(blobs: bytes, tree: bytes) -> bytes:
    """Return the path of a listing in a store."""
    return os.path.join(blobs, LISTS, tree[:2], tree[2:])


def _wait_for_files(place: bytes) -> None:
    """Wait for a running `add` of the same listing, but not for one that was ended."""
    until = time.monotonic() + WAITS_S
    with contextlib.suppress(FileNotFoundError):
        while time.time() - os.stat(place + WAITING).st_mtime < WAITS_S and time.monotonic() < until:
            time.sleep(PAUSE_S)


def _known(file: bytes, wanted: bytes) -> bytes:
    """Return a listing, verified by its digest."""
    with open(file, "rb") as opened:
        text = opened.read()
    if hashlib.sha256(text).hexdigest().encode() != wanted:
        raise ValueError
    return text


def text_of(*parts: list[bytes]) -> bytes:
    """Return the text of a listing: parts of sorted lines, with a slash between the parts."""
    return b"/\n".join(b"".join(line + b"\n" for line in sorted(part)) for part in parts)


def parsed(text: bytes) -> tuple[list[bytes], list[bytes]]:
    """Return the file and folder lines of a listing, sorted by path."""
    files, folders = _parts_of(text)
    return (
        sorted(files, key=lambda line: line[DIGEST_CHARACTERS + 2 :]),
        sorted(folders, key=lambda line: line[MODE_CHARACTERS:]),
    )


def _parts_of(text: bytes) -> tuple[list[bytes], list[bytes]]:
    files, _, folders = (b"\n" + text).partition(b"\n/\n")
    return files.splitlines()[1:], folders.splitlines()


def line_of(digest: bytes, mode: int, name: bytes) -> bytes:
    """Return a file's line in a listing."""
    return b"%s%s %s" % (digest, b"x" if mode & 0o111 else b"-", name)


def file_of(line: bytes) -> tuple[bytes, bytes, bytes]:
    """Return a file's name, its name in the store, and its digest."""
    digest, mark = line[:DIGEST_CHARACTERS], line[DIGEST_CHARACTERS : DIGEST_CHARACTERS + 1]
    return (
        line[DIGEST_CHARACTERS + 2 :],
        b"%s/%s%s" % (digest[:2], digest[2:KEY_CHARACTERS], b"x" if mark == b"x" else b""),
        digest,
    )


def link_blob(name: bytes, blob: bytes) -> None:
    """Add a file to the store."""
    folder = os.path.dirname(blob)
    if folder not in _made:
        os.makedirs(folder, 0o700, exist_ok=True)
        _made.add(folder)
    os.link(name, blob)


if __name__ == "__main__":
    main(sys.argv[1], *map(os.fsencode, sys.argv[2:]))
