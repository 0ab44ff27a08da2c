"""The key, and everything that follows from it: new UIDs, pseudonyms, names of folders and files, date shifts."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from medweave_core.errors import UserInputError

KEY_BYTES = 32
LARGEST_KEY_BYTES = 4096  # a larger file was surely not meant
SHORTEST_SHIFT_DAYS, LONGEST_SHIFT_DAYS = 365, 3652
_STANDARD_ROOT = "1.2.840.10008."


class Pseudonyms:
    """Pseudonyms by HMAC-SHA256 (RFC 2104): reproducible with the key; without the key, names cannot be tested."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def _digest(self, purpose: str, value: str) -> bytes:
        return hmac.new(self._key, f"{purpose}\0{value}".encode("utf-8", "surrogateescape"), hashlib.sha256).digest()

    def token(self, purpose: str, value: str, *, digits: int) -> str:
        """Return hex digits for a value; the digits differ between purposes."""
        return self._digest(purpose, value).hex()[:digits]

    def uid(self, uid: str) -> str:
        """Return the UID that replaces a UID: 2.25 and a UUID (DICOM PS3.5, B.2) of version 8 (RFC 9562)."""
        number = int.from_bytes(self._digest("uid", uid)[:16], "big")
        number = number & ~(0xF << 76) | 8 << 76
        number = number & ~(0x3 << 62) | 2 << 62
        return f"2.25.{number}"

    def patient(self, identity: str) -> str:
        """Return the pseudonym of a patient, used as PatientID, PatientName and name of the patient's folder."""
        return f"patient-{self.token('patient', identity, digits=12)}"

    def date_shift_days(self, identity: str) -> int:
        """Return the days to add to a patient's dates: one to ten years into the past; times of day do not change."""
        span = LONGEST_SHIFT_DAYS - SHORTEST_SHIFT_DAYS + 1
        return -(SHORTEST_SHIFT_DAYS + int.from_bytes(self._digest("dates", identity)[:8], "big") % span)


def is_standard_uid(uid: str) -> bool:
    """Return whether DICOM itself defines a UID (classes, transfer syntaxes, well-known instances): it identifies no person."""
    return uid.startswith(_STANDARD_ROOT)


def new_key() -> bytes:
    """Return a key from the operating system's source of randomness."""
    return secrets.token_bytes(KEY_BYTES)


def read_key(path: Path) -> bytes:
    """Return the key in a file.

    Raises:
        UserInputError: it is no ordinary file, too short to be a key, or too large.
        OSError: it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a named pipe must not stop the step
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _no_key("a path that is not a regular file")
        key = stream.read(LARGEST_KEY_BYTES + 1)
    if not KEY_BYTES <= len(key) <= LARGEST_KEY_BYTES:
        raise _no_key(
            f"a file of {'more than ' if len(key) > LARGEST_KEY_BYTES else ''}{min(len(key), LARGEST_KEY_BYTES)} bytes"
        )
    if len(set(key)) < 8:
        raise _no_key("a file with few distinct bytes")
    return key


def is_open_to_others(path: Path) -> bool:
    """Return True where group or others may read the key."""
    return bool(path.stat().st_mode & 0o077)


def _no_key(seen: str) -> UserInputError:
    return UserInputError(
        "--key is not a valid key file.",
        seen=seen,
        expected=f"{KEY_BYTES} random bytes, or up to {LARGEST_KEY_BYTES}",
        do="use the key of an earlier run, or a path that does not exist, to create a new key",
    )


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner may read (mode 0600).

    Raises:
        FileExistsError: the file exists.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(descriptor)
