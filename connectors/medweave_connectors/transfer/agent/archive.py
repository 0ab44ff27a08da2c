"""An archive on its way through this machine, looked at before it is unpacked: a far end may be broken, or somebody else's. Pure.

What tar makes of a file or folder whose links it follows is files, folders, and further names of files. Nothing else passes, and
nothing that lies elsewhere than below the name that was asked for; so neither this machine nor the site that gets it has to trust
its own tar with what another site wrote.

The far end of a direct copy runs this text by its own python3, of 3.8 or later: see `for_far_end`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Any

BLOCK_BYTES = 512
NAME_BYTES = 2**16  # of a name that has a header of its own; Linux has 4096
_MODES = 0o777
_MODE, _SIZE, _SUM, _LINK = slice(100, 108), slice(124, 136), slice(148, 156), slice(157, 257)
_NAME, _MAGIC, _PREFIX, _TYPE = slice(0, 100), slice(257, 265), slice(345, 500), 156
_OCTAL = re.compile(rb" *([0-7]+)[ \0]*")
_RECORD = re.compile(rb"([1-9][0-9]{0,5}) ([^=\0]+)=")
_BINARY, _WIDE_BYTES = 0x80, 8**11  # a size that octal digits have no room for is written in binary
_USTAR = b"ustar\x0000"
_MAGICS = (_USTAR, b"ustar  \0", bytes(8))  # of POSIX, GNU and what came before

_expected: ContextVar[int | None] = ContextVar("expected", default=None)


class Refused(str, Enum):  # noqa: UP042 (3.8)
    """What is wrong with an archive; the words name no file."""

    __str__ = str.__str__
    NAME = "an entry lies elsewhere than below what was asked for"
    KIND = "an entry is neither a file nor a folder"
    LINK = "an entry is another name of a file that was not sent before"
    TWICE = "an entry comes twice"
    SIZE = "it holds more than there was"
    FORM = "it is no archive"
    CUT = "it ends too soon"


class ArchiveRefused(ValueError):
    """An archive is not unpacked any further.

    Attributes:
        reason: why not.
    """

    def __init__(self, reason: Refused) -> None:
        super().__init__(str(reason))
        self.reason = reason


@contextmanager
def expecting(num_bytes: int) -> Iterator[None]:
    """Archives that are sent in here hold this much at most, in all their files together."""
    token = _expected.set(num_bytes)
    try:
        yield
    finally:
        _expected.reset(token)


def for_far_end(root: str | None, num_bytes: int | None = None) -> dict[str, Any]:
    """What a far end needs for a guard of its own, as JSON: this text, the name, and how much is expected.

    Args:
        root: None for a part of a file, of `num_bytes`.
    """
    from medweave_connectors.transfer.agent import program_text  # only the driver calls this function

    expected = _expected.get() if num_bytes is None else num_bytes
    return {"program": program_text.of("archive"), "root": root, "num_bytes": expected}


class Exactly:
    """Lets so many bytes pass, no more and no fewer: what a file lacks whose beginning is there."""

    def __init__(self, num_bytes: int) -> None:
        self._left_bytes = num_bytes

    def passed(self, data: bytes) -> bytes:
        """All of it.

        Raises:
            ArchiveRefused: there is too much of it.
        """
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            raise ArchiveRefused(Refused.SIZE)
        return data

    def end(self) -> None:
        """It has ended.

        Raises:
            ArchiveRefused: too soon.
        """
        if self._left_bytes:
            raise ArchiveRefused(Refused.CUT)


class Guard:
    """Looks through one archive.

    Args:
        root: the only name on top of it.
        num_bytes: what it may hold; None for what is `expecting`.
    """

    def __init__(self, root: str | bytes, num_bytes: int | None = None) -> None:
        self._root = root if isinstance(root, bytes) else root.encode(errors="surrogateescape")
        self._left_bytes = _expected.get() if num_bytes is None else num_bytes
        self._held = bytearray()  # the beginning of a header, or a name with a header of its own
        self._skip = 0  # content that passes as it is
        self._named: dict[bytes, bytes] = {}  # what special headers say of the entry after them
        self._special, self._special_bytes = b"", 0
        self._files: set[bytes] = set()
        self._others: set[bytes] = set()
        self._ended = False

    def passed(self, data: bytes) -> bytes:
        """The part of it that may be unpacked now; the rest of a header waits for more. Nobody's rights are in it but the three of
        owner, group and others: no file runs as its owner.

        Raises:
            ArchiveRefused: what is wrong with it.
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
                wanted = (self._special_bytes or BLOCK_BYTES) - len(self._held)
                piece = data[at : at + wanted]
                self._held += piece
                if len(piece) == wanted:
                    out.append(self._whole(bytes(self._held)))
                    self._held.clear()
            at += len(piece)
        return b"".join(out)

    def end(self) -> None:
        """The archive has ended.

        Raises:
            ArchiveRefused: not where archives end.
        """
        if self._held or self._skip or not self._ended:
            raise ArchiveRefused(Refused.CUT)

    # ---- inside

    def _whole(self, block: bytes) -> bytes:
        """A header, or what belongs to a special one, as it may pass."""
        if self._special_bytes:
            self._note(block)
            return block
        if not any(block):
            self._ended = True
            return block
        if self._ended:
            raise ArchiveRefused(Refused.FORM)
        return self._header(block)

    def _header(self, block: bytes) -> bytes:
        without = block[: _SUM.start] + b" " * 8 + block[_SUM.stop :]
        if sum(without) != _number(block[_SUM]) or block[_MAGIC] not in _MAGICS:
            raise ArchiveRefused(Refused.FORM)
        kind, size = block[_TYPE : _TYPE + 1], _number(block[_SIZE])
        if kind in (b"L", b"K", b"x"):
            if not 0 < size <= NAME_BYTES or kind in self._named:
                raise ArchiveRefused(Refused.FORM)
            self._special, self._special_size = kind, size
            self._special_bytes = padded(size)
            return block
        self._entry(block, kind, size)
        self._named.clear()
        if (told := _number(block[_MODE])) & ~_MODES == 0:
            return block
        mode = b"%07o\0" % (told & _MODES)
        changed = without[: _MODE.start] + mode + without[_MODE.stop :]
        return changed[: _SUM.start] + b"%06o\0 " % sum(changed) + changed[_SUM.stop :]

    def _note(self, block: bytes) -> None:
        content, self._special_bytes = block[: self._special_size], 0
        self._named[self._special] = b""
        if self._special in (b"L", b"K"):
            if content.find(b"\0") not in (-1, len(content) - 1):
                raise ArchiveRefused(Refused.FORM)
            self._named[self._special] = content.rstrip(b"\0")
            return
        for key, value in _records(content):
            if key.startswith(b"GNU.sparse") or key in self._named:
                raise ArchiveRefused(Refused.KIND if key.startswith(b"GNU.sparse") else Refused.FORM)
            self._named[key] = value

    def _entry(self, block: bytes, kind: bytes, size: int) -> None:
        name = self._named_or(block, b"L", b"path", _prefixed(block))
        link = self._named_or(block, b"K", b"linkpath", _text(block[_LINK]))
        size = self._sized(size)
        if kind == b"5":
            name = _folder(name)
        self._check_name(name)
        if name in self._files or name in self._others:
            raise ArchiveRefused(Refused.TWICE)
        if kind in (b"0", b"\0"):
            self._take(size)
            self._files.add(name)
            self._skip = padded(size)
        elif kind == b"1":
            if size or link not in self._files:
                raise ArchiveRefused(Refused.LINK)
            self._files.add(name)
        elif kind == b"5" and size == 0:
            self._others.add(name)
        else:
            raise ArchiveRefused(Refused.KIND)

    def _named_or(self, block: bytes, gnu: bytes, posix: bytes, plain: bytes) -> bytes:
        """A name, from the header before where it is too long for its own; some tars read no headers of POSIX."""
        found = [self._named[key] for key in (gnu, posix) if key in self._named]
        if len(found) > 1 or any(b"\0" in each for each in found):
            raise ArchiveRefused(Refused.FORM)
        if b"path" in self._named and posix == b"path" and not self._root.startswith(plain):  # cut off where it is long
            self._check_name(_folder(plain))
        return found[0] if found else plain

    def _sized(self, size: int) -> int:
        told = self._named.get(b"size")
        if told is None:
            return size
        if not told.isdigit() or (int(told) != size and int(told) < _WIDE_BYTES):
            raise ArchiveRefused(Refused.FORM)
        return int(told)

    def _check_name(self, name: bytes) -> None:
        parts = name.split(b"/")
        if parts[0] != self._root or any(part in (b"", b".", b"..") for part in parts):
            raise ArchiveRefused(Refused.NAME)

    def _take(self, size: int) -> None:
        if self._left_bytes is not None:
            self._left_bytes -= size
            if self._left_bytes < 0:
                raise ArchiveRefused(Refused.SIZE)


def padded(size: int) -> int:
    """What a file's content takes in an archive."""
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
    found = _OCTAL.fullmatch(field)
    if found is None:
        raise ArchiveRefused(Refused.FORM)
    return int(found[1], 8)


def _records(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a header of POSIX."""
    while content:
        head = _RECORD.match(content)
        length = int(head[1]) if head else 0
        if head is None or not head.end() < length <= len(content) or content[length - 1 : length] != b"\n":
            raise ArchiveRefused(Refused.FORM)
        yield head[2], content[head.end() : length - 1]
        content = content[length:]
