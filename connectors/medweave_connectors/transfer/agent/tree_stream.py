"""A folder, or a file, as one tree stream: the sender reads and hashes each file once, the receiver hashes and writes it once.

With tar, each file is read twice at its source, for the stream and for its digest; at the destination it is written and read
again. The receiver's digest is that of the bytes that its file system has accepted; at the end of the copy they are flushed to
the disk. The driver compares it with the digest of the bytes that the sender has read.

Both ends run this text by a bare python3 (3.8 or later), with `files` embedded. Each entry is a head (`HEAD`), its path, and a
file's content; an empty head ends the stream. A file that is sent alone has the path of a folder. Sender and receiver write
listings of the sent and received files, in the format of `files`.
"""

# For many small files, a Path would cost more than the digest.
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
ROOT = b"."  # the path of the folder or file that is sent
BLOCK_BYTES = 2**20
CHANGED = "a file changed while it was read"
_READ_ONLY = ~0o222
_OUT = re.compile(rb"^/|(^|/)\.\.(/|$)|[\\\n\r]")  # a name that leads out of the folder, or that listings cannot hold
_F_SETPIPE_SZ = 1031  # fcntl has it from 3.10 on
_SYNC_FILE_RANGE_WRITE = 2  # of Linux's fcntl.h
FLUSH_BYTES = 2**25
WRITE_BYTES = 2**18  # Linux 6.18 takes ten times as long per byte for some larger writes


class TreeNotSent(Exception):
    """The source could not be sent. The message names no file.

    Attributes:
        system_message: of the operating system; may be empty.
    """

    def __init__(self, why: str, system_message: str | None = "") -> None:
        super().__init__(why)
        self.system_message = system_message or ""


class TreeRefused(TreeNotSent):
    """The stream is no tree, or is larger than announced, or cannot be written."""

    def __init__(
        self, why: str = "a stream was refused: it is not a tree stream", system_message: str | None = ""
    ) -> None:
        super().__init__(why, system_message)


# ---- the sender


class TreeSender:
    """Reads a folder or file.

    Attributes:
        num_bytes: of the files that were read so far.

    Args:
        path: without links.
    """

    def __init__(self, path: bytes) -> None:
        self._path, self.num_bytes = path, 0
        self._buffer = bytearray()  # less than a block
        self._files: list[bytes] = []
        self._folders: list[bytes] = []

    @property
    def tree(self) -> bytes:
        """Return the listing of the sent files, at the end of the stream."""
        return files.text_of(self._files, self._folders)

    def pieces(self) -> Iterator[bytes | bytearray]:
        """Yield the stream, in blocks of `BLOCK_BYTES` at most.

        Raises:
            TreeNotSent: a file changed while it was read, or cannot be read.
        """
        try:
            if os.path.isdir(self._path):
                os.chdir(self._path)
                yield from self._folder()
            else:
                yield from self._file(ROOT, self._path)
        except OSError as error:
            raise TreeNotSent("the files cannot be read", error.strerror) from None
        self._buffer += HEAD.pack(END, 0, 0, 0, 0)
        yield from self._blocks(1)

    def _folder(self) -> Iterator[bytes | bytearray]:
        folders = [ROOT]
        for folder in folders:
            mode = stat.S_IMODE(os.stat(folder).st_mode)
            self._folders.append(b"%04o %s" % (mode, folder))
            self._buffer += HEAD.pack(FOLDER, len(folder), mode, 0, 0) + folder
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir():
                        folders.append(entry.path)  # the loop comes to it
                    else:
                        yield from self._file(entry.path, entry.path)

    def _file(self, name: bytes, path: bytes) -> Iterator[bytes | bytearray]:
        """Yield a file, and add its line to the listing."""
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a named pipe would block
        try:
            before = os.fstat(file)
            if not stat.S_ISREG(before.st_mode):
                raise TreeNotSent(CHANGED)
            mode = stat.S_IMODE(before.st_mode)
            self._buffer += HEAD.pack(FILE, len(name), mode, before.st_mtime_ns, before.st_size) + name
            digest, remaining = hashlib.sha256(), before.st_size
            if remaining >= BLOCK_BYTES:
                yield from self._blocks(1)
            while remaining:
                data = os.read(file, min(remaining, BLOCK_BYTES))
                if not data:
                    raise TreeNotSent(CHANGED)
                digest.update(data)
                remaining -= len(data)
                if len(data) == BLOCK_BYTES and not self._buffer:
                    yield data
                    continue
                self._buffer += data
                if len(self._buffer) >= BLOCK_BYTES:
                    yield from self._blocks(BLOCK_BYTES)
            self.num_bytes += before.st_size
            after = os.fstat(file)
        finally:
            os.close(file)
        if _stamp(before) != _stamp(after):
            raise TreeNotSent(CHANGED)
        self._files.append(files.line_of(digest.hexdigest().encode(), mode, name))

    def _blocks(self, least: int) -> Iterator[bytearray]:
        """Yield blocks while the buffer has so many bytes."""
        while len(self._buffer) >= least:
            piece, self._buffer = self._buffer[:BLOCK_BYTES], self._buffer[BLOCK_BYTES:]
            yield piece


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def send(path: str, note: str) -> int:
    """Write the stream to standard output and the listing to a file; return an exit status."""
    out = sys.stdout.fileno()
    with contextlib.suppress(OSError):  # it is no pipe
        fcntl.fcntl(out, _F_SETPIPE_SZ, BLOCK_BYTES)
    note, sender = os.path.abspath(note), TreeSender(os.fsencode(path))
    try:
        for piece in sender.pieces():
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(out, rest) :]
    except TreeNotSent as error:
        sys.stderr.write(f"medweave: {error}: {error.system_message}\n")
        return 1
    with open(note, "wb") as file:
        file.write(listing_of(sender))
    return 0


def listing_of(sender: TreeSender) -> bytes:
    """Return the sender's listing, behind a line with the number of bytes."""
    return b"%d\n" % sender.num_bytes + sender.tree


# ---- the receiver


class TreeReceiver:
    """Writes a folder or file that arrives in pieces. A complete file becomes a blob of the site's store at once.

    Args:
        path: of the folder or file, in an existing folder.
        note: a file for the listing of the written files.
        num_bytes: the most bytes of all files together.
        blobs: the store's folder; empty without a store.
        later: the files are added to the store after the copy has its final path (`files.add`); they are read-only until then.
    """

    def __init__(self, path: bytes, note: bytes, num_bytes: int, blobs: bytes = b"", *, later: bool = False) -> None:
        self._path, self._note = os.path.abspath(path), os.path.abspath(note)
        self._blobs = blobs and not later and os.path.abspath(blobs)
        self._mode_mask = _READ_ONLY if blobs else ~0  # files of the store are read-only
        self._allowed_bytes = num_bytes
        self._buffer = b""  # an incomplete head, with its path
        self._file, self._left_bytes, self._unflushed_bytes = -1, 0, 0  # of an incomplete file
        self._digest = hashlib.sha256()
        self._name, self._mode, self._time_ns = b"", 0, 0
        self._files: list[bytes] = []
        self._folders: list[bytes] = []
        self._disk = DiskFlusher(os.path.dirname(self._path))
        self.ended = False

    def take(self, data: bytes | bytearray) -> None:
        """Write the next piece.

        Raises:
            TreeRefused: it is no part of a tree, or cannot be written.
        """
        try:
            self._take(data)
        except OSError as error:
            raise TreeRefused("the files cannot be written", error.strerror) from None
        except ValueError:  # a NUL in a name
            raise TreeRefused from None

    def _take(self, data: bytes | bytearray) -> None:
        if self._buffer:
            data = self._buffer + data
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
            raise TreeRefused
        self._buffer = bytes(view[at:])

    def end(self) -> None:
        """Write the listing at the end of the stream.

        Raises:
            TreeRefused: the stream is incomplete.
        """
        if not self.ended or self._buffer:
            raise TreeRefused
        try:
            self._disk.end()
            with open(self._note, "wb") as file:
                file.write(files.text_of(self._files, self._folders))
        except OSError as error:
            raise TreeRefused("the files cannot be written", error.strerror) from None

    # ---- internal

    def _entry(self, kind: int, name: bytes, mode: int, time_ns: int, size: int) -> None:
        if kind == END:
            self.ended = True
        elif mode & ~0o7777 or _OUT.search(name):
            raise TreeRefused
        elif kind == FOLDER and (self._folders or not self._files):
            self._folder(name, mode)
        elif kind == FILE and (self._folders or (name == ROOT and not self._files)):  # in a folder, or alone
            self._begin(name, mode & 0o777, time_ns, size)
        else:
            raise TreeRefused

    def _folder(self, name: bytes, mode: int) -> None:
        if not self._folders:
            os.mkdir(self._path, 0o700)
            os.chdir(self._path)  # it has only entries that are made here: no name leads out
        else:
            os.mkdir(name, 0o700)
        if mode & 0o777 != 0o700:
            os.chmod(name, mode & 0o777 | 0o700)
        self._folders.append(b"%04o %s" % (mode, name))

    def _at(self, name: bytes) -> bytes:
        """Return the path of a file: in the folder, or of the file that was sent alone."""
        return name if self._folders else self._path

    def _begin(self, name: bytes, mode: int, time_ns: int, size: int) -> None:
        self._allowed_bytes -= size
        if self._allowed_bytes < 0:
            raise TreeRefused("a stream was refused: it has more bytes than the source")
        self._file = os.open(
            self._at(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode & self._mode_mask
        )
        self._name, self._mode, self._time_ns = name, mode, time_ns
        self._left_bytes, self._unflushed_bytes = size, 0
        self._digest = hashlib.sha256()
        if not size:
            self._complete()

    def _write(self, piece: memoryview) -> None:
        self._left_bytes -= len(piece)
        self._unflushed_bytes += len(piece)
        self._disk.add(len(piece))
        while piece:
            count = os.write(self._file, piece[:WRITE_BYTES])
            self._digest.update(piece[:count])
            piece = piece[count:]
        if not self._left_bytes:
            self._complete()
        elif self._unflushed_bytes >= FLUSH_BYTES:
            self._unflushed_bytes = 0
            # The call may block on a busy disk.
            threading.Thread(target=begin_to_write, args=(self._file,), daemon=True).start()

    def _complete(self) -> None:
        os.utime(self._file, ns=(self._time_ns, self._time_ns))
        os.close(self._file)
        self._file = -1
        line = files.line_of(self._digest.hexdigest().encode(), self._mode, self._name)
        if self._blobs:
            _, key, _ = files.file_of(line)
            with contextlib.suppress(OSError):  # the same content came before; or the file system has no hard links
                files.link_blob(self._at(self._name), os.path.join(self._blobs, key))
        self._files.append(line)


class DiskFlusher:
    """Flushes the disk in the background from time to time: little is left to flush at the end.

    Args:
        folder: on the disk.
    """

    def __init__(self, folder: bytes) -> None:
        self._folder, self._unflushed_bytes, self._code = folder, 0, 0
        self._flushing: threading.Thread | None = None

    def add(self, num_bytes: int) -> None:
        """Count bytes that were written."""
        self._unflushed_bytes += num_bytes
        if self._unflushed_bytes >= FLUSH_BYTES and not (self._flushing and self._flushing.is_alive()):
            self._unflushed_bytes = 0
            self._flushing = threading.Thread(target=self._flush, daemon=True)
            self._flushing.start()

    def end(self) -> None:
        """Wait for the last flush.

        Raises:
            OSError: the disk could not write. Linux reports this once, to the first flush after it.
        """
        if self._flushing:
            self._flushing.join()
        if self._code:
            raise OSError(self._code, os.strerror(self._code))

    def _flush(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # a C library without it
            library = ctypes.CDLL(None, use_errno=True)
            file = os.open(self._folder, os.O_RDONLY)
            if library.syncfs(file):
                self._code = ctypes.get_errno()
            os.close(file)


def begin_to_write(file: int) -> None:
    """Start to write a file's pages to the disk, without waiting."""
    with contextlib.suppress(OSError, AttributeError):  # a C library without it
        library = ctypes.CDLL(None)
        library.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong, ctypes.c_uint]
        library.sync_file_range(file, 0, 0, _SYNC_FILE_RANGE_WRITE)


def receive_tree(
    pieces: Iterable[bytes | bytearray], path: str, note: str, num_bytes: int, blobs: str, *, later: bool = False
) -> None:
    """Write a whole folder or file.

    Raises:
        TreeRefused: the stream is no tree, or cannot be written.
    """
    receiver = TreeReceiver(os.fsencode(path), os.fsencode(note), num_bytes, os.fsencode(blobs), later=later)
    for piece in pieces:
        receiver.take(piece)
    receiver.end()


if __name__ == "__main__":
    sys.exit(send(*sys.argv[1:]))
