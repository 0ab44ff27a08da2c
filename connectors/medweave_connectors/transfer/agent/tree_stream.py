"""A folder, or a file, as one stream: a file is read and hashed once where it lies, and hashed and written once where it goes.

With tar a file is read twice at its source, to be sent and for its digest, and at the other end it is written and read again. Here
the digest at the other end is that of the bytes which its file system has taken, and the end of a copy asks that they are on the
disk. It is compared with that of the bytes which were read at the source: what a line has changed is noticed.

Both ends run this text by a bare python3 (3.8 or later), with `far_files` in the place of its import. Each entry is a head
(`HEAD`), its path, and a file's content; after the last one comes an empty head. A file that is sent alone has the path of a
folder. What was sent, and what has arrived, is noted as the tree of `far_files`.
"""

# A Path for each of many files would cost more than its digest.
# ruff: noqa: PTH100, PTH101, PTH102, PTH112, PTH116, PTH118, PTH120, PTH123
from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import re
import stat
import struct
import sys
import threading
from typing import Iterable, Iterator  # noqa: UP035 (3.8)

from medweave_connectors.transfer.agent import files

HEAD = struct.Struct(">BHIqQ")  # kind, length of the path, mode, time of the last modification in ns, size
FILE, FOLDER, END = 1, 2, 0
ROOT = b"."  # the path of what is sent itself
BLOCK_BYTES = 2**20
CHANGED = "a file was written to while it was read"
_READ_ONLY = ~0o222
_OUT = re.compile(rb"^/|(^|/)\.\.(/|$)|[\\\n\r]")  # of a name that leads out, or that no tree holds
_F_SETPIPE_SZ = 1031  # fcntl names it from 3.10 on
_SYNC_FILE_RANGE_WRITE = 2  # of Linux's fcntl.h
ASK_BYTES = 2**25
WRITE_BYTES = 2**18  # Linux 6.18 has taken ten times as long for each byte of some whole blocks


class NotSent(Exception):
    """The stream ends before its end. Its words name no file.

    Attributes:
        said: what the system said of it; empty where it did not.
    """

    def __init__(self, why: str, said: str | None = "") -> None:
        super().__init__(why)
        self.said = said or ""


class NotPlanted(NotSent):
    """The stream is no tree, or another one than was asked for, or cannot be written."""

    def __init__(self, why: str = "a stream was refused: it is no tree", said: str | None = "") -> None:
        super().__init__(why, said)


# ---- where it lies


class Sender:
    """Reads a folder or file.

    Attributes:
        num_bytes: of files, so far.

    Args:
        path: without links.
    """

    def __init__(self, path: bytes) -> None:
        self._path, self.num_bytes = path, 0
        self._held = bytearray()  # what is no block yet
        self._files: list[bytes] = []
        self._folders: list[bytes] = []

    @property
    def tree(self) -> bytes:
        """What was sent, once all of it was."""
        return files.text_of(self._files, self._folders)

    def pieces(self) -> Iterator[bytes | bytearray]:
        """The stream, in blocks of `BLOCK_BYTES` at most.

        Raises:
            NotSent: a file was written to while it was read, or the file system does not give it.
        """
        try:
            if os.path.isdir(self._path):
                os.chdir(self._path)
                yield from self._all()
            else:
                yield from self._sent(ROOT, self._path)
        except OSError as error:
            raise NotSent("the files cannot be read", error.strerror) from None
        self._held += HEAD.pack(END, 0, 0, 0, 0)
        yield from self._blocks(1)

    def _all(self) -> Iterator[bytes | bytearray]:
        folders = [ROOT]
        for folder in folders:
            mode = stat.S_IMODE(os.stat(folder).st_mode)
            self._folders.append(b"%04o %s" % (mode, folder))
            self._held += HEAD.pack(FOLDER, len(folder), mode, 0, 0) + folder
            with os.scandir(folder) as found:
                for each in found:
                    if each.is_dir():
                        folders.append(each.path)  # and is looked into
                    else:
                        yield from self._sent(each.path, each.path)

    def _sent(self, name: bytes, path: bytes) -> Iterator[bytes | bytearray]:
        """Sends a file, and notes its line in the tree."""
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # nobody may ever write to a pipe
        try:
            before = os.fstat(file)
            if not stat.S_ISREG(before.st_mode):
                raise NotSent(CHANGED)
            mode = stat.S_IMODE(before.st_mode)
            self._held += HEAD.pack(FILE, len(name), mode, before.st_mtime_ns, before.st_size) + name
            digest, left = hashlib.sha256(), before.st_size
            if left >= BLOCK_BYTES:
                yield from self._blocks(1)
            while left:
                data = os.read(file, min(left, BLOCK_BYTES))
                if not data:
                    raise NotSent(CHANGED)
                digest.update(data)
                left -= len(data)
                if len(data) == BLOCK_BYTES and not self._held:
                    yield data  # as it is
                    continue
                self._held += data
                if len(self._held) >= BLOCK_BYTES:
                    yield from self._blocks(BLOCK_BYTES)
            self.num_bytes += before.st_size
            after = os.fstat(file)
        finally:
            os.close(file)
        if _stamp(before) != _stamp(after):
            raise NotSent(CHANGED)
        self._files.append(files.line_of(digest.hexdigest().encode(), mode, name))

    def _blocks(self, least: int) -> Iterator[bytearray]:
        """What is held, as long as it is so many bytes."""
        while len(self._held) >= least:
            piece, self._held = self._held[:BLOCK_BYTES], self._held[BLOCK_BYTES:]
            yield piece


def _stamp(said: os.stat_result) -> tuple[int, int, int]:
    return said.st_size, said.st_mtime_ns, said.st_ctime_ns


def send(path: str, note: str) -> int:
    """Writes it to standard output, and to a file what has been sent; an exit status."""
    out = sys.stdout.fileno()
    with contextlib.suppress(OSError):  # no pipe
        fcntl.fcntl(out, _F_SETPIPE_SZ, BLOCK_BYTES)
    note, sender = os.path.abspath(note), Sender(os.fsencode(path))
    try:
        for piece in sender.pieces():
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(out, rest) :]
    except NotSent as error:
        sys.stderr.write(f"medweave: {error}: {error.said}\n")
        return 1
    with open(note, "wb") as file:
        file.write(noted(sender))
    return 0


def noted(sender: Sender) -> bytes:
    """What has been sent: the number of bytes in a line, and the tree."""
    return b"%d\n" % sender.num_bytes + sender.tree


# ---- where it goes


class Planter:
    """Writes a folder or file that comes in pieces; what is whole may be a blob of the site's store at once, since its name is its
    content.

    Args:
        path: what is written, in a folder that is there.
        note: a file for the tree of what was written.
        num_bytes: what it may hold, in all its files together.
        blobs: the store's folder; empty where there is none.
        later: the store gets names of the files once the copy stands (`far_files.keep`); nobody may write to them until then.
    """

    def __init__(self, path: bytes, note: bytes, num_bytes: int, blobs: bytes = b"", *, later: bool = False) -> None:
        self._path, self._note = os.path.abspath(path), os.path.abspath(note)
        self._blobs = blobs and not later and os.path.abspath(blobs)
        self._rights = _READ_ONLY if blobs else ~0  # nobody writes to a file that others use
        self._may_come = num_bytes
        self._held = b""  # the beginning of a head and its path
        self._file, self._left_bytes, self._unasked_bytes = -1, 0, 0  # of a file that is not whole
        self._digest = hashlib.sha256()
        self._name, self._mode, self._time_ns = b"", 0, 0
        self._files: list[bytes] = []
        self._folders: list[bytes] = []
        self._disk = Disk(os.path.dirname(self._path))
        self.ended = False

    def take(self, data: bytes | bytearray) -> None:
        """The next piece.

        Raises:
            NotPlanted: it is no part of a tree, or cannot be written.
        """
        try:
            self._take(data)
        except OSError as error:
            raise NotPlanted("the files cannot be written", error.strerror) from None
        except ValueError:  # a NUL in a name
            raise NotPlanted from None

    def _take(self, data: bytes | bytearray) -> None:
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
        try:
            self._disk.end()
            with open(self._note, "wb") as file:
                file.write(files.text_of(self._files, self._folders))
        except OSError as error:
            raise NotPlanted("the files cannot be written", error.strerror) from None

    # ---- inside

    def _entry(self, kind: int, name: bytes, mode: int, time_ns: int, size: int) -> None:
        if kind == END:
            self.ended = True
        elif mode & ~0o7777 or _OUT.search(name):
            raise NotPlanted
        elif kind == FOLDER and (self._folders or not self._files):
            self._folder(name, mode)
        elif kind == FILE and (self._folders or (name == ROOT and not self._files)):  # in a folder, or alone
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

    def _at(self, name: bytes) -> bytes:
        """The path of a file: in the folder, or that of what came alone."""
        return name if self._folders else self._path

    def _begin(self, name: bytes, mode: int, time_ns: int, size: int) -> None:
        self._may_come -= size
        if self._may_come < 0:
            raise NotPlanted("a stream was refused: it holds more than there was")
        self._file = os.open(self._at(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode & self._rights)
        self._name, self._mode, self._time_ns = name, mode, time_ns
        self._left_bytes, self._unasked_bytes = size, 0
        self._digest = hashlib.sha256()
        if not size:
            self._whole()

    def _write(self, piece: memoryview) -> None:
        self._left_bytes -= len(piece)
        self._unasked_bytes += len(piece)
        self._disk.has_more(len(piece))
        while piece:
            count = os.write(self._file, piece[:WRITE_BYTES])
            self._digest.update(piece[:count])
            piece = piece[count:]
        if not self._left_bytes:
            self._whole()
        elif self._unasked_bytes >= ASK_BYTES:
            self._unasked_bytes = 0
            # It may wait, where the disk has much to do.
            threading.Thread(target=begin_to_write, args=(self._file,), daemon=True).start()

    def _whole(self) -> None:
        os.utime(self._file, ns=(self._time_ns, self._time_ns))
        os.close(self._file)
        self._file = -1
        line = files.line_of(self._digest.hexdigest().encode(), self._mode, self._name)
        if self._blobs:
            _, key, _ = files.file_of(line)
            with contextlib.suppress(OSError):  # the same file has come before; or the file system has no further names
                files.link(self._at(self._name), os.path.join(self._blobs, key))
        self._files.append(line)


class Disk:
    """Asked now and then to have all that it was given, beside the work: what is left to wait for in the end is little.

    Args:
        folder: on it.
    """

    def __init__(self, folder: bytes) -> None:
        self._folder, self._unasked_bytes, self._code = folder, 0, 0
        self._asking: threading.Thread | None = None

    def has_more(self, num_bytes: int) -> None:
        """So much was written."""
        self._unasked_bytes += num_bytes
        if self._unasked_bytes >= ASK_BYTES and not (self._asking and self._asking.is_alive()):
            self._unasked_bytes = 0
            self._asking = threading.Thread(target=self._ask, daemon=True)
            self._asking.start()

    def end(self) -> None:
        """Nobody is asked any more.

        Raises:
            OSError: the disk could not write. It says so to the first who asks, and to nobody after that.
        """
        if self._asking:
            self._asking.join()
        if self._code:
            raise OSError(self._code, os.strerror(self._code))

    def _ask(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # a C library without it
            library = ctypes.CDLL(None, use_errno=True)
            file = os.open(self._folder, os.O_RDONLY)
            if library.syncfs(file):
                self._code = ctypes.get_errno()
            os.close(file)


def begin_to_write(file: int) -> None:
    """Asks that what a file has taken goes to the disk, and does not wait: at the end, little is left to wait for."""
    with contextlib.suppress(OSError, AttributeError):  # a C library without it
        library = ctypes.CDLL(None)
        library.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong, ctypes.c_uint]
        library.sync_file_range(file, 0, 0, _SYNC_FILE_RANGE_WRITE)


def plant(
    pieces: Iterable[bytes | bytearray], path: str, note: str, num_bytes: int, blobs: str, *, later: bool = False
) -> None:
    """Writes a whole folder or file.

    Raises:
        NotPlanted: what comes is no tree, or cannot be written.
    """
    planter = Planter(os.fsencode(path), os.fsencode(note), num_bytes, os.fsencode(blobs), later=later)
    for each in pieces:
        planter.take(each)
    planter.end()


if __name__ == "__main__":
    sys.exit(send(*sys.argv[1:]))
