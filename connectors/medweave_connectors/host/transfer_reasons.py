"""Reasons of failed transfers, extracted from error output without the file names in it. Pure."""

from __future__ import annotations

NO_ROOM = ("No space left on device", "Disk quota exceeded", "Quota exceeded")
_SHORT = "Wrote only "  # GNU tar, of a disk that fills up within a file: "Wrote only 1536 of 10240 bytes"
READ_ONLY = ("Read-only file system",)
NOT_ALLOWED = ("Permission denied", "Operation not permitted")
GONE = ("No such file or directory", "Not a directory", "file changed as we read it")
_OTHERS = (
    *GONE,
    "Is a directory",
    "File exists",
    "Directory not empty",
    "File name too long",
    "File too large",
    "Too many levels of symbolic links",
    "File system loop detected",
    "Too many open files",
    "Input/output error",
    "Stale file handle",
    "Transport endpoint is not connected",
    "File removed before we read it",
    "File shrank",
    "Unexpected EOF",
    "This does not look like a tar archive",
    "Cannot allocate memory",
    "Argument list too long",
    "not found",  # a shell's message about a missing program
)


def known_reason(text: str) -> str:
    """Return the reason in a program's error output, as `reason_in` does; `no known reason` without one."""
    return reason_in(text) or "no known reason"


def reason_in(text: str) -> str:
    """Return the first known reason in a text (in LC_ALL=C, of glibc or musl); empty without one.

    Only fixed words are returned, never the text: it names files, and names may identify patients.
    """
    if _SHORT in text:
        return NO_ROOM[0]
    return next((words for words in (*NO_ROOM, *READ_ONLY, *NOT_ALLOWED, *_OTHERS) if words in text), "")
