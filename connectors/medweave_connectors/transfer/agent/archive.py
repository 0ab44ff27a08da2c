"""A check of archives in transit, before they are unpacked: the site that sends one may be broken, or compromised. Pure.

An archive that tar makes with links followed has files, folders, and further names of files. Nothing else passes, and nothing
outside the requested name. So the receiver's tar never gets a hostile archive.

The agents of direct and bucket copies run this text by their own python3 (3.8 or later): see `streams.pieces.checker_settings`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum

BLOCK_BYTES = 512
NAME_BYTES = 2**16  # of a name in a separate header; Linux has 4096
_MODES = 0o777
_MODE, _SIZE, _SUM, _LINK = slice(100, 108), slice(124, 136), slice(148, 156), slice(157, 257)
_NAME, _MAGIC, _PREFIX, _TYPE = slice(0, 100), slice(257, 265), slice(345, 500), 156
_OCTAL = re.compile(rb" *([0-7]+)[ \0]*")
_RECORD = re.compile(rb"([1-9][0-9]{0,5}) ([^=\0]+)=")
_BINARY, _WIDE_BYTES = 0x80, 8**11  # a size that octal digits have no room for is written in binary
_USTAR = b"ustar\x0000"
_MAGICS = (_USTAR, b"ustar  \0", bytes(8))  # of POSIX, GNU and older formats


class RefusalReason(str, Enum):  # noqa: UP042 (3.8)
    """The reason to refuse an archive; the message names no file."""

    __str__ = str.__str__
    NAME = "an entry lies outside of the requested path"
    KIND = "an entry is neither a file nor a folder"
    LINK = "an entry is a hard link to a file that was not sent before"
    TWICE = "an entry occurs twice"
    SIZE = "it has more bytes than the source"
    FORM = "it is not a tar archive"
    CUT = "it is truncated"


class ArchiveRefused(ValueError):
    """An archive is unpacked no further.

    Attributes:
        reason: why.
    """

    def __init__(self, reason: RefusalReason) -> None:
        super().__init__(str(reason))
        self.reason = reason


class LengthChecker:
    """Lets an exact number of bytes pass: the missing end of a file."""

    def __init__(self, num_bytes: int) -> None:
        self._left_bytes = num_bytes

    def passed(self, data: bytes) -> bytes:
        """Return the data.

        Raises:
            ArchiveRefused: there are too many bytes.
        """
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            raise ArchiveRefused(RefusalReason.SIZE)
        return data

    def end(self) -> None:
        """Check that the stream has ended at its length.

        Raises:
            ArchiveRefused: it is too short.
        """
        if self._left_bytes:
            raise ArchiveRefused(RefusalReason.CUT)


class ArchiveChecker:
    """Checks one archive.

    Args:
        root: the only name at its top.
        num_bytes: the most bytes of all its files; None for no limit.
    """

    def __init__(self, root: str | bytes, num_bytes: int | None = None) -> None:
        self._root = root if isinstance(root, bytes) else root.encode(errors="surrogateescape")
        self._left_bytes = num_bytes
        self._buffer = bytearray()  # an incomplete header, or a name in a separate header
        self._skip = 0  # bytes of content that pass
        self._named: dict[bytes, bytes] = {}  # from special headers, for the next entry
        self._special, self._special_bytes = b"", 0
        self._files: set[bytes] = set()
        self._others: set[bytes] = set()
        self._ended = False

    def passed(self, data: bytes) -> bytes:
        """Return the bytes that may be unpacked; an incomplete header is buffered for the next call.

        Set-user-id, set-group-id and sticky bits are removed from modes.

        Raises:
            ArchiveRefused: the archive is not what was requested.
        """
        if len(data) <= self._skip:
            self._skip -= len(data)
            return data
        out, at = [], 0
        while at < len(data):
            if self._skip:
                piece = data[at : at + self._skip]
                self._skip -= len(piece)
                out.append(piece)
            else:
                wanted = (self._special_bytes or BLOCK_BYTES) - len(self._buffer)
                piece = data[at : at + wanted]
                self._buffer += piece
                if len(piece) == wanted:
                    out.append(self._whole(bytes(self._buffer)))
                    self._buffer.clear()
            at += len(piece)
        return b"".join(out)

    def end(self) -> None:
        """Check that the archive is complete.

        Raises:
            ArchiveRefused: it is not.
        """
        if self._buffer or self._skip or not self._ended:
            raise ArchiveRefused(RefusalReason.CUT)

    # ---- internal

    def _whole(self, block: bytes) -> bytes:
        """Return a header, or the content of a special one, as it may pass."""
        if self._special_bytes:
            self._note(block)
            return block
        if not any(block):
            self._ended = True
            return block
        if self._ended:
            raise ArchiveRefused(RefusalReason.FORM)
        return self._header(block)

    def _header(self, block: bytes) -> bytes:
        without = block[: _SUM.start] + b" " * 8 + block[_SUM.stop :]
        if sum(without) != _number(block[_SUM]) or block[_MAGIC] not in _MAGICS:
            raise ArchiveRefused(RefusalReason.FORM)
        kind, size = block[_TYPE : _TYPE + 1], _number(block[_SIZE])
        if kind in (b"L", b"K", b"x"):
            if not 0 < size <= NAME_BYTES or kind in self._named:
                raise ArchiveRefused(RefusalReason.FORM)
            self._special, self._special_size = kind, size
            self._special_bytes = padded(size)
            return block
        self._entry(block, kind, size)
        self._named.clear()
        if (all_bits := _number(block[_MODE])) & ~_MODES == 0:
            return block
        mode = b"%07o\0" % (all_bits & _MODES)
        changed = without[: _MODE.start] + mode + without[_MODE.stop :]
        return changed[: _SUM.start] + b"%06o\0 " % sum(changed) + changed[_SUM.stop :]

    def _note(self, block: bytes) -> None:
        content, self._special_bytes = block[: self._special_size], 0
        self._named[self._special] = b""
        if self._special in (b"L", b"K"):
            if content.find(b"\0") not in (-1, len(content) - 1):
                raise ArchiveRefused(RefusalReason.FORM)
            self._named[self._special] = content.rstrip(b"\0")
            return
        for key, value in _records(content):
            if key.startswith(b"GNU.sparse") or key in self._named:
                raise ArchiveRefused(RefusalReason.KIND if key.startswith(b"GNU.sparse") else RefusalReason.FORM)
            self._named[key] = value

    def _entry(self, block: bytes, kind: bytes, size: int) -> None:
        name = self._named_or(block, b"L", b"path", _prefixed(block))
        link = self._named_or(block, b"K", b"linkpath", _text(block[_LINK]))
        size = self._sized(size)
        if kind == b"5":
            name = _folder(name)
        self._check_name(name)
        if name in self._files or name in self._others:
            raise ArchiveRefused(RefusalReason.TWICE)
        if kind in (b"0", b"\0"):
            self._take(size)
            self._files.add(name)
            self._skip = padded(size)
        elif kind == b"1":
            if size or link not in self._files:
                raise ArchiveRefused(RefusalReason.LINK)
            self._files.add(name)
        elif kind == b"5" and size == 0:
            self._others.add(name)
        else:
            raise ArchiveRefused(RefusalReason.KIND)

    def _named_or(self, block: bytes, gnu: bytes, posix: bytes, plain: bytes) -> bytes:
        """Return a name: of a special header where it is too long for the entry's own. Some tars ignore the headers of POSIX."""
        long_names = [self._named[key] for key in (gnu, posix) if key in self._named]
        if len(long_names) > 1 or any(b"\0" in name for name in long_names):
            raise ArchiveRefused(RefusalReason.FORM)
        if b"path" in self._named and posix == b"path" and not self._root.startswith(plain):  # a long one is cut off
            self._check_name(_folder(plain))
        return long_names[0] if long_names else plain

    def _sized(self, size: int) -> int:
        digits = self._named.get(b"size")
        if digits is None:
            return size
        if not digits.isdigit() or (int(digits) != size and int(digits) < _WIDE_BYTES):
            raise ArchiveRefused(RefusalReason.FORM)
        return int(digits)

    def _check_name(self, name: bytes) -> None:
        parts = name.split(b"/")
        if parts[0] != self._root or any(part in (b"", b".", b"..") for part in parts):
            raise ArchiveRefused(RefusalReason.NAME)

    def _take(self, size: int) -> None:
        if self._left_bytes is not None:
            self._left_bytes -= size
            if self._left_bytes < 0:
                raise ArchiveRefused(RefusalReason.SIZE)


def padded(size: int) -> int:
    """Return the bytes that a file's content has in an archive."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def _folder(name: bytes) -> bytes:
    return name[:-1] if name.endswith(b"/") else name


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _prefixed(block: bytes) -> bytes:
    prefix = _text(block[_PREFIX]) if block[_MAGIC] == _USTAR else b""
    return b"/".join(filter(None, (prefix, _text(block[_NAME]))))


def _number(field: bytes) -> int:
    if field[0] == _BINARY:
        return int.from_bytes(field[1:], "big")
    match = _OCTAL.fullmatch(field)
    if match is None:
        raise ArchiveRefused(RefusalReason.FORM)
    return int(match[1], 8)


def _records(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of a header of POSIX."""
    while content:
        head = _RECORD.match(content)
        length = int(head[1]) if head else 0
        if head is None or not head.end() < length <= len(content) or content[length - 1 : length] != b"\n":
            raise ArchiveRefused(RefusalReason.FORM)
        yield head[2], content[head.end() : length - 1]
        content = content[length:]
