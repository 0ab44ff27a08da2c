"""SHA-256 of files at a site: by `sha256sum`, or by python3 for large and many files where the site has it. Pure.

coreutils does not use the processor's SHA-256 instructions, OpenSSL behind python3 does: 1.3 GiB/s instead of 0.2 GiB/s. Python
needs some hundredths of a second to start, and reads many files in several processes.
"""

from __future__ import annotations

import shlex

from medweave_connectors.transfer.agent import program_text

_LARGE_BLOCKS = 16384  # of 512 bytes: 8 MiB
_NAMES = """-exec sh -c 'printf "%s\\0" "$@"' sh {} +"""  # of every `find`; `-print0` is not
_PYTHON = 'python3 -I -S -c "$medweave_files"'


def choose(found: str, *, many: bool = False) -> str:
    """Return the shell line that has to precede `of_files` and `of_one`.

    Args:
        found: arguments of `find` that select the files.
        many: there are many files, whatever their size.
    """
    large = f'[ -n "$(find -L {found} -type f -size +{_LARGE_BLOCKS} 2>/dev/null | head -n 1)" ] && '
    return (
        f"medweave_files=; if {'' if many else large}command -v python3 >/dev/null; "
        f"then medweave_files={shlex.quote(program_text.of('files'))}; fi"
    )


def of_files(found: str) -> str:
    """Return a command that prints lines of `sha256sum`, in any order.

    Where python3 fails, it prints nothing, and sha256sum does the same work. Python does not escape names: `manifest` parses both
    forms, and names that `tree_digest` accepts need no escaping.

    Args:
        found: arguments of `find` that select the files.
    """
    return (
        f'{{ [ -n "$medweave_files" ] && ( find {found} {_NAMES} | {_PYTHON} sums ) 2>/dev/null || '
        f"find {found} -exec sha256sum {{}} +; }}"
    )


def of_one(path: str) -> str:
    """Return a command that does so for one file, as standard input.

    Args:
        path: a word of the shell.
    """
    return f'{{ [ -n "$medweave_files" ] && ( {_PYTHON} sum < {path} ) 2>/dev/null || sha256sum < {path}; }}'
