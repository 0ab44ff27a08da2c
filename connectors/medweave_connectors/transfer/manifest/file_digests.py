"""How a site's files get their SHA-256: by `sha256sum`; where they are large or many, by python3 if it is there. Pure.

coreutils' own code does not know the processor's instructions for SHA-256, OpenSSL's behind python3 does: 1.3 GiB/s instead of
0.2 GiB/s, which is more than the rest of a copy takes. Python needs some hundredths of a second to begin, and reads many files in
several processes.
"""

from __future__ import annotations

import shlex

from medweave_connectors.transfer.agent import program_text

_LARGE_BLOCKS = 16384  # of 512 bytes: 8 MiB
_NAMES = """-exec sh -c 'printf "%s\\0" "$@"' sh {} +"""  # of every `find`; `-print0` is not
_PYTHON = 'python3 -I -S -c "$medweave_files"'


def choose(found: str, *, many: bool = False) -> str:
    """Words of a POSIX shell before `of_files` and `of_one`.

    Args:
        found: arguments of `find`, for a POSIX shell, by which the files will be looked up.
        many: there are so many of them that nobody looks whether they are large.
    """
    large = f'[ -n "$(find -L {found} -type f -size +{_LARGE_BLOCKS} 2>/dev/null | head -n 1)" ] && '
    return (
        f"medweave_files=; if {'' if many else large}command -v python3 >/dev/null; "
        f"then medweave_files={shlex.quote(program_text.of('files'))}; fi"
    )


def of_files(found: str) -> str:
    """A command that prints lines of `sha256sum`, in any order.

    All or nothing is written by python3: where it fails, sha256sum does the same work, and says why it cannot. Python does not
    escape names: `manifest` reads both, and no name that `seal` takes would be.

    Args:
        found: arguments of `find` that tell the files.
    """
    return (
        f'{{ [ -n "$medweave_files" ] && ( find {found} {_NAMES} | {_PYTHON} sums ) 2>/dev/null || '
        f"find {found} -exec sha256sum {{}} +; }}"
    )


def of_one(path: str) -> str:
    """A command that does so for one file, as if it were its standard input.

    Args:
        path: a word of the shell.
    """
    return f'{{ [ -n "$medweave_files" ] && ( {_PYTHON} sum < {path} ) 2>/dev/null || sha256sum < {path}; }}'
