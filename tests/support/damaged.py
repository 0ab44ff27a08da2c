"""Checkpoints whose bytes changed after they were written."""

from __future__ import annotations

import io
import zipfile


def with_a_flipped_bit(content: bytes) -> bytes:
    """Return the archive with one flipped bit in the middle of its largest record: in the weights or in Adam's moments."""
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        largest = file.read(max(file.infolist(), key=lambda record: record.file_size))
    changed = bytearray(content)
    changed[content.index(largest) + len(largest) // 2] ^= 1
    return bytes(changed)
