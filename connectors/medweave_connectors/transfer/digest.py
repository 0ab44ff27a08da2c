"""How a site's files get their SHA-256: by `sha256sum`; where files are large, by python3 if it is there. Pure.

coreutils' own code does not know the processor's instructions for SHA-256, OpenSSL's behind python3 does: 1.3 GiB/s instead of
0.2 GiB/s, which is more than the rest of a copy takes. Python needs some hundredths of a second to begin.
"""

from __future__ import annotations

import shlex

_LARGE_BLOCKS = 16384  # of 512 bytes: 8 MiB
# All or nothing is written: where it fails, sha256sum does the same work, and says why it cannot.
_PYTHON = """
import hashlib, os, sys
view, lines = memoryview(bytearray(2**20)), []
for name in sys.argv[1:] or [0]:
    digest = hashlib.sha256()
    with open(os.fsencode(name) if name else 0, "rb", 0) as file:
        for count in iter(lambda: file.readinto(view), 0):
            digest.update(view[:count])
    lines.append(digest.hexdigest().encode() + b"  " + (os.fsencode(name) if name else b"-") + b"\\n")
sys.stdout.buffer.write(b"".join(lines))
"""
_FAST = 'python3 -I -S -c "$medweave_digests" "$@" 2>/dev/null || exec sha256sum "$@"'
SUMS = 'sh -c "$medweave_sums" sums'


def choose(found: str) -> str:
    """Words after which `SUMS` is a command like `sha256sum`, with names of files, or for its input.

    Names are not escaped where python3 writes them: `manifest` reads both, and no name that `seal` takes would be.

    Args:
        found: arguments of `find`, for a POSIX shell, by which the files will be looked up.
    """
    return (
        f"medweave_sums='exec sha256sum \"$@\"'; "
        f'if [ -n "$(find -L {found} -type f -size +{_LARGE_BLOCKS} 2>/dev/null | head -n 1)" ] && '
        f"command -v python3 >/dev/null; then medweave_sums={shlex.quote(_FAST)}; "
        f"medweave_digests={shlex.quote(_PYTHON)}; export medweave_digests; fi"
    )
