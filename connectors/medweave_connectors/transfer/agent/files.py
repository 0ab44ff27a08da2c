"""What a python3 at a site does with many files at once: reads them, and gives them further names, in several processes.

It runs there by a bare python3 (3.8 or later): `many.program` sends this text. Whatever fails ends it without its last line, and
the shell does the same work file by file, and says why it cannot.

The tree of a folder is a text: a line for each file (SHA-256, `x` or `-` for whether it can be run, path), and after a slash one
for each folder (mode, path). A site's store keeps the tree of each folder that it has the files of, under the SHA-256 of that
text.
"""

# A Path for each of many files would cost more than its digest.
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
MOST_PROCESSES = 4  # a login node is not ours alone
FILES_OF_A_PROCESS = 250  # for fewer it is not worth its start
SHARES_OF_A_PROCESS = 8
MODE_CHARACTERS = 5
NOT_NOTED = getattr(os, "O_NOATIME", 0)
KEY_CHARACTERS = 32
DIGEST_CHARACTERS = 64
LISTS = b"lists"
WAITING = b".new"  # of a tree in the store: the names of its files are not made yet
WAITS_S, PAUSE_S = 20.0, 0.05
_ODD = (b"\\", b"\n", b"\r")  # no seal or tree holds a name with these
_view = memoryview(bytearray(BLOCK_BYTES))
_made: set[bytes] = set()


def main(verb: str, *given: bytes) -> None:
    """Does what the words of `many` ask for."""
    if verb == "sum":
        sys.stdout.buffer.write(_sum(0) + b"  -\n")
    elif verb == "sums":
        sys.stdout.buffer.write(b"".join(shared(sums, sys.stdin.buffer.read().split(b"\0")[:-1])))
    else:
        verbs: dict[str, Callable[..., str]] = {
            "seal": seal,
            "keep": keep,
            "take": take,
        }
        print(verbs[verb](*given))


# ---- the work


def sums(names: list[bytes]) -> bytes:
    """The lines of `sha256sum`, with names as they are."""
    return b"".join(_read(name)[0] + b"  " + name + b"\n" for name in names)


def seal(path: bytes, note: bytes) -> str:
    """Reads every file below a folder. Its tree is noted, for `keep`."""
    note = os.path.abspath(note)
    os.chdir(path)
    folders, files, others = _entries()
    if any(sign in b"/".join((*folders, *files, *others)) for sign in _ODD):
        raise ValueError
    lines = b"".join(shared(_lines, files)).splitlines()
    with open(note, "wb") as file:
        file.write(text_of(lines, [b"%04o %s" % (_mode(each), each) for each in folders]))
    named = [line[:DIGEST_CHARACTERS] + b" " + line[DIGEST_CHARACTERS + 1 :] for line in lines]
    return f"medweave-seal {hashlib.sha256(text_of(others, folders, named)).hexdigest()}."


def keep(path: bytes, note: bytes, blobs: bytes, wanted: bytes) -> str:
    """Makes blobs of the files of a verified folder, to which nobody may write from here on, and keeps its tree."""
    text = _known(note, wanted)
    note, blobs = os.path.abspath(note), os.path.abspath(blobs)
    os.chdir(path)
    files, _ = parsed(text)

    def kept(lines: list[bytes]) -> bytes:
        for name, key, _ in map(file_of, lines):
            mode = _mode(name)
            if mode & 0o222:
                os.chmod(name, mode & ~0o222)
            with contextlib.suppress(FileExistsError):  # it came from there, or the same file came before
                link(name, os.path.join(blobs, key))
        return b""

    shared(kept, files)
    place = place_of(blobs, wanted)
    os.makedirs(os.path.dirname(place), 0o700, exist_ok=True)
    os.replace(note, place)
    return "medweave-kept."


def take(path: bytes, blobs: bytes, wanted: bytes) -> str:
    """Makes a folder of the store's files, by its tree, and reads every one of them: each is what its name says."""
    blobs, path = os.path.abspath(blobs), os.path.abspath(path)
    place = place_of(blobs, wanted)
    _wait(place)
    text = _known(place, wanted)
    _linked(path, blobs, text)
    _verified(path, text)
    os.utime(place)  # its last use
    return "medweave-took."


# ---- inside


def _linked(path: bytes, blobs: bytes, text: bytes) -> None:
    """Makes a folder by its tree, of the store's files."""
    files, folders = parsed(text)
    for line in folders:  # a folder before what lies in it
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
    """Reads each file of a folder, and looks for what is too much."""
    files, folders = _parts_of(text)
    os.chdir(path)

    def right(lines: list[bytes]) -> bytes:
        for line in lines:
            file = _opened(line[DIGEST_CHARACTERS + 2 :])
            found = _sum(file)
            os.close(file)
            if found != line[:DIGEST_CHARACTERS]:
                raise ValueError
        return b""

    shared(right, files)
    if sum(len(os.listdir(line[MODE_CHARACTERS:])) for line in folders) != len(files) + len(folders) - 1:
        raise ValueError


def shared(work: Callable[[list[bytes]], bytes], items: list[bytes]) -> list[bytes]:
    """What is returned for all of the items, by each process. Each takes the next share when it is done with one: a processor may
    have other work."""
    count = min(MOST_PROCESSES, len(os.sched_getaffinity(0)), 1 + len(items) // FILES_OF_A_PROCESS)
    if count == 1:
        return [work(items)]
    turns = os.pipe()
    # Neighbours at once: two processes that make names in one folder wait for each other.
    num = SHARES_OF_A_PROCESS * count
    shares = [items[number * len(items) // num : (number + 1) * len(items) // num] for number in range(num)]
    os.write(turns[1], bytes(range(num)))
    os.close(turns[1])
    begun = [_begun(work, shares, turns[0]) for _ in range(count)]
    os.close(turns[0])
    done = [_told(reading) for _, reading in begun]
    codes = [os.waitpid(process, 0)[1] for process, _ in begun]  # all of them have ended, then
    if any(codes):
        raise OSError("a process has failed")
    return done


def _begun(work: Callable[[list[bytes]], bytes], shares: list[list[bytes]], turns: int) -> tuple[int, int]:
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


def _told(reading: int) -> bytes:
    with open(reading, "rb") as file:
        return file.read()


def _lines(names: list[bytes]) -> bytes:
    return b"".join(line_of(*_read(name), name) + b"\n" for name in names)


def _read(name: bytes) -> tuple[bytes, int]:
    """Digest of a file, and its mode."""
    file = os.open(name, os.O_RDONLY)
    try:
        return _sum(file), os.fstat(file).st_mode
    finally:
        os.close(file)


def _opened(name: bytes) -> int:
    """A file, to be read. A new name of a file makes the disk note the next time that it is read: of thousands, that takes as long
    as to open them."""
    try:
        return os.open(name, os.O_RDONLY | NOT_NOTED)
    except PermissionError:  # somebody else's
        return os.open(name, os.O_RDONLY)


def _sum(file: int) -> bytes:
    digest = hashlib.sha256()
    while True:
        count = os.readv(file, [_view])
        if not count:
            return digest.hexdigest().encode()
        digest.update(_view[:count])


def _entries() -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Folders, files and others below the folder where it works, as `find` names them."""
    folders: list[bytes] = [b"."]
    files: list[bytes] = []
    others: list[bytes] = []
    for folder in folders:
        with os.scandir(folder) as found:
            for each in found:
                if each.is_dir(follow_symlinks=False):
                    folders.append(each.path)  # and is looked into
                else:
                    (files if each.is_file(follow_symlinks=False) else others).append(each.path)
    return folders, files, others


def _mode(name: bytes) -> int:
    return stat.S_IMODE(os.lstat(name).st_mode)


def place_of(blobs: bytes, tree: bytes) -> bytes:
    """Where a store keeps a tree."""
    return os.path.join(blobs, LISTS, tree[:2], tree[2:])


def _wait(place: bytes) -> None:
    """For the names of a copy that stands since a moment ago. One whose `keep` was ended is not waited for again."""
    until = time.monotonic() + WAITS_S
    with contextlib.suppress(FileNotFoundError):
        while time.time() - os.stat(place + WAITING).st_mtime < WAITS_S and time.monotonic() < until:
            time.sleep(PAUSE_S)


def _known(file: bytes, wanted: bytes) -> bytes:
    """A tree, if it is the one that is wanted."""
    with open(file, "rb") as held:
        text = held.read()
    if hashlib.sha256(text).hexdigest().encode() != wanted:
        raise ValueError
    return text


def text_of(*parts: list[bytes]) -> bytes:
    """A tree, or what a seal is made of: parts of sorted lines, with a slash between them."""
    return b"/\n".join(b"".join(line + b"\n" for line in sorted(part)) for part in parts)


def parsed(text: bytes) -> tuple[list[bytes], list[bytes]]:
    """The lines of a tree: files of a folder side by side, and folders with each after the one that it lies in."""
    files, folders = _parts_of(text)
    return (
        sorted(files, key=lambda line: line[DIGEST_CHARACTERS + 2 :]),
        sorted(folders, key=lambda line: line[MODE_CHARACTERS:]),
    )


def _parts_of(text: bytes) -> tuple[list[bytes], list[bytes]]:
    files, _, folders = (b"\n" + text).partition(b"\n/\n")
    return files.splitlines()[1:], folders.splitlines()


def line_of(digest: bytes, mode: int, name: bytes) -> bytes:
    """A file's line in a tree."""
    return b"%s%s %s" % (digest, b"x" if mode & 0o111 else b"-", name)


def file_of(line: bytes) -> tuple[bytes, bytes, bytes]:
    """Name, name in the store, and digest."""
    digest, mark = line[:DIGEST_CHARACTERS], line[DIGEST_CHARACTERS : DIGEST_CHARACTERS + 1]
    return (
        line[DIGEST_CHARACTERS + 2 :],
        b"%s/%s%s" % (digest[:2], digest[2:KEY_CHARACTERS], b"x" if mark == b"x" else b""),
        digest,
    )


def link(name: bytes, blob: bytes) -> None:
    """Makes a blob of a file."""
    folder = os.path.dirname(blob)
    if folder not in _made:
        os.makedirs(folder, 0o700, exist_ok=True)
        _made.add(folder)
    os.link(name, blob)


if __name__ == "__main__":
    main(sys.argv[1], *map(os.fsencode, sys.argv[2:]))
