"""What a site's shell does with the outputs of a step: they become the store's, and the store's become outputs. Pure.

Work goes on in a folder of its own beside the output folder: `out` in there is the output folder (a link), or will be.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterator

from medweave_connectors.transfer.manifest import remote_scan
from medweave_connectors.transfer.shell_commands import staging_name

NAME = "out"
MOST_CHARACTERS = 60_000  # Linux takes 128 KiB in one word, and quotes may double some


def aside(outputs: str, token: str) -> str:
    """The folder of the work, whose name nobody else has."""
    return posixpath.join(posixpath.dirname(outputs), staging_name(token))


def make(part: str, outputs: str = "") -> str:
    """A line that makes it.

    Args:
        outputs: the output folder that shall be in there; empty for none.
    """
    link = f" && ln -s {shlex.quote(outputs)} {shlex.quote(posixpath.join(part, NAME))}" if outputs else ""
    return f"mkdir -m 700 {shlex.quote(part)}{link}"


def put(part: str, outputs: str) -> list[str]:
    """Words that put what was assembled into the output folder, beside what the workflow has staged there."""
    new, into = shlex.quote(posixpath.join(part, NAME)), shlex.quote(outputs)
    # Into an empty folder by one rename; beside what lies there already by further names of the same files.
    return [f"( rmdir {into} 2>/dev/null && mv {new} {into} || cp -Rl {new}/. {into}/ )"]


def drop(part: str) -> list[str]:
    """Words that remove the folder of the work; what a link in there leads to stays."""
    quoted = shlex.quote(part)
    return [f"( find {quoted} -type d ! -perm -700 -exec chmod u+rwx {{}} \\; 2>/dev/null; rm -rf {quoted} )"]


def together(*commands: list[str]) -> Iterator[list[str]]:
    """The same commands, as many of them in one as a shell takes in one word: each costs a way there and back."""
    held: list[str] = []
    for words in commands:
        line = " ".join(words)
        if held and sum(map(len, held)) + len(line) > MOST_CHARACTERS:
            yield ["{ " + "; ".join(held) + "; }"]
            held = []
        held.append(line)
    if held:
        yield ["{ " + "; ".join(held) + "; }"]


def links(outputs: str) -> list[str]:
    """Words that print the names of all that is neither file nor folder, below the output folder (`looking.names`)."""
    return remote_scan.find(outputs, "! -type f ! -type d")
