"""A folder of many files as one stream: a file is read and hashed once where it lies, and hashed and written once where it goes.

With tar a file is read twice at its source, to be sent and for its digest, and at the other end it is written and read again. Here
the digest at the other end is that of the bytes which its file system has taken, and the end of a copy asks that they are on the
disk. It is compared with that of the bytes which were read at the source: what a line has changed is noticed.

Both ends run this text by a bare python3 (3.8 or later), with `far_files` in the place of its import. Each entry is a head
(`HEAD`), its path, and a file's content; after the last one comes an empty head. What was sent, and what has arrived,
is noted as the tree of `far_files`.
"""

# A Path for each of many files would cost more than its digest.
# ruff: noqa: PTH100, PTH101, PTH102, PTH116, PTH118, PTH123
from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import stat
import struct
import sys
from typing import Iterable  # noqa: UP035 (3.8)

from medweave_connectors.transfer import far_files

HEAD = struct.Struct(">BHIqQ")  # kind, length of the path, mode, time of the last modification in ns, size
FILE, FOLDER, END = 1, 2, 0
BLOCK_BYTES = 2**20
CHANGED = 75  # the sender's exit status where a file was written to while it was read
_READ_ONLY = ~0o222
_OUT = re.compile(rb"^/|(^|/)\.\.(/|$)|[\\\n\r]")  # of a name that leads out, or that no tree holds
_F_SETPIPE_SZ = 1031  # fcntl names it from 3.10 on


class NotPlanted(ValueError):
    """A stream is no tree."""


# ---- where it lies


def send(path: str, note: str) -> int:
    """Writes the folder to standard output, and to a file the number of its bytes and its tree: 0, or `CHANGED`."""
    with contextlib.suppress(OSError):  # no pipe
        fcntl.fcntl(sys.stdout.fileno(), _F_SETPIPE_SZ, BLOCK_BYTES)
    note = os.path.abspath(note)
    os.chdir(path)
    out = _Out(sys.stdout.fileno())
    files: list[bytes] = []
    folders = [b"."]
    told = []
    for folder in folders:
        mode = stat.S_IMODE(os.stat(folder).st_mode)
        told.append(b"%04o %s" % (mode, folder))
        out.put(HEAD.pack(FOLDER, len(folder), mode, 0, 0) + folder)
        with os.scandir(folder) as found:
            for each in found:
                if each.is_dir():
                    folders.append(each.path)  # and is looked into
                elif (line := _sent(each.path, out)) is None:
                    return CHANGED
                else:
                    files.append(line)
    out.put(HEAD.pack(END, 0, 0, 0, 0))
    out.flush()
    with open(note, "wb") as file:
        file.write(b"%d\n" % out.num_bytes + far_files.text_of(files, told))
    return 0


def _sent(path: bytes, out: _Out) -> bytes | None:
    """Sends a file; its line in the tree, or None where it was written to meanwhile."""
    file = os.open(path, os.O_RDONLY)
    try:
        before = os.fstat(file)
        mode = stat.S_IMODE(before.st_mode)
        out.put(HEAD.pack(FILE, len(path), mode, before.st_mtime_ns, before.st_size) + path)
        digest, left = hashlib.sha256(), before.st_size
        while left:
            data = os.read(file, min(left, BLOCK_BYTES))
            if not data:
                return None
            digest.update(data)
            out.put(data)
            left -= len(data)
        out.num_bytes += before.st_size
        after = os.fstat(file)
    finally:
        os.close(file)
    if _stamp(before) != _stamp(after):
        return None
    return far_files.line_of(digest.hexdigest().encode(), mode, path)


def _stamp(said: os.stat_result) -> tuple[int, int, int]:
    return said.st_size, said.st_mtime_ns, said.st_ctime_ns


class _Out:
    """Pieces that are written a block at a time.

    Attributes:
        num_bytes: of files.
    """

    def __init__(self, file: int) -> None:
        self._file, self._size, self.num_bytes = file, 0, 0
        self._held: list[bytes] = []

    def put(self, data: bytes) -> None:
        self._held.append(data)
        self._size += len(data)
        if self._size >= BLOCK_BYTES:
            self.flush()

    def flush(self) -> None:
        rest = memoryview(b"".join(self._held))
        self._held, self._size = [], 0
        while rest:
            rest = rest[os.write(self._file, rest) :]


# ---- where it goes


class Planter:
    """Writes a folder that comes in pieces; what is whole may be a blob of the site's store at once, since its name is its content.

    Args:
        path: the folder, in one that is there.
        note: a file for the tree of what was written.
        blobs: the store's folder; empty where there is none.
    """

    def __init__(self, path: bytes, note: bytes, blobs: bytes = b"") -> None:
        self._path, self._note = os.path.abspath(path), os.path.abspath(note)
        self._blobs = blobs and os.path.abspath(blobs)
        self._held = b""  # the beginning of a head and its path
        self._file, self._left_bytes = -1, 0  # of a file that is not whole
        self._digest = hashlib.sha256()
        self._name, self._mode, self._time_ns = b"", 0, 0
        self._files: list[bytes] = []
        self._folders: list[bytes] = []
        self.ended = False

    def take(self, data: bytes | bytearray) -> None:
        """The next piece.

        Raises:
            NotPlanted: it is no part of a tree.
        """
        if self._held:
            data = self._held + data
        view, at, size = memoryview(data), 0, len(data)
        while at < size:
            if self._left_bytes:
                piece = view[at : at + self._left_bytes]
                self._write(piece)
                at += len(piece)
            elif size - at < HEAD.size or self.ended:
                break
            else:
                kind, length, mode, time_ns, num_bytes = HEAD.unpack_from(view, at)
                content = at + HEAD.size + length
                if content > size:
                    break
                self._entry(kind, bytes(view[at + HEAD.size : content]), mode, time_ns, num_bytes)
                at = content
        if at < size and self.ended:
            raise NotPlanted
        self._held = bytes(view[at:])

    def end(self) -> None:
        """All has come: its tree is noted.

        Raises:
            NotPlanted: it has not.
        """
        if not self.ended or self._held:
            raise NotPlanted
        with open(self._note, "wb") as file:
            file.write(far_files.text_of(self._files, self._folders))

    # ---- inside

    def _entry(self, kind: int, name: bytes, mode: int, time_ns: int, size: int) -> None:
        if kind == END:
            self.ended = True
        elif mode & ~0o7777 or _OUT.search(name):
            raise NotPlanted
        elif kind == FOLDER:
            self._folder(name, mode)
        elif kind == FILE and self._folders:
            self._begin(name, mode & 0o777, time_ns, size)
        else:
            raise NotPlanted

    def _folder(self, name: bytes, mode: int) -> None:
        if not self._folders:
            os.mkdir(self._path, 0o700)
            os.chdir(self._path)  # nothing but what is made here is below it: no name leads out
        else:
            os.mkdir(name, 0o700)
        if mode & 0o777 != 0o700:
            os.chmod(name, mode & 0o777 | 0o700)
        self._folders.append(b"%04o %s" % (mode, name))

    def _begin(self, name: bytes, mode: int, time_ns: int, size: int) -> None:
        # Nobody writes to a file that others use.
        given = mode & _READ_ONLY if self._blobs else mode
        self._file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, given)
        self._name, self._mode, self._time_ns, self._left_bytes = name, mode, time_ns, size
        self._digest = hashlib.sha256()
        if not size:
            self._whole()

    def _write(self, piece: memoryview) -> None:
        self._digest.update(piece)
        self._left_bytes -= len(piece)
        while piece:
            piece = piece[os.write(self._file, piece) :]
        if not self._left_bytes:
            self._whole()

    def _whole(self) -> None:
        os.utime(self._file, ns=(self._time_ns, self._time_ns))
        os.close(self._file)
        self._file = -1
        line = far_files.line_of(self._digest.hexdigest().encode(), self._mode, self._name)
        if self._blobs:
            name, key, _ = far_files.file_of(line)
            with contextlib.suppress(OSError):  # the same file has come before; or the file system has no further names
                far_files.link(name, os.path.join(self._blobs, key))
        self._files.append(line)


def plant(pieces: Iterable[bytes | bytearray], path: str, note: str, blobs: str) -> None:
    """Writes a whole folder.

    Raises:
        NotPlanted: what comes is no tree.
        OSError: as the file system says.
    """
    planter = Planter(os.fsencode(path), os.fsencode(note), os.fsencode(blobs))
    for each in pieces:
        planter.take(each)
    planter.end()


if __name__ == "__main__":
    sys.exit(send(*sys.argv[1:]))
