"""The C library's allocator, set for programs that take and free the same large blocks thousands of times."""

from __future__ import annotations

import ctypes
import platform

# <malloc.h> of the GNU C library.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_THRESHOLD_BYTES = 32 * 2**20  # the largest that the GNU C library takes
_TRIM_THRESHOLD_BYTES = 512 * 2**20


def keep_freed_memory() -> bool:
    """Let the process keep up to 512 MiB that it freed, instead of giving it back to the system and asking again.

    Each training step takes about 50 MiB of activations; as pages fresh from the system, they cost a fault per 4 KiB.

    Returns:
        False where the C library is another one; nothing is changed there.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES) and mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES))
