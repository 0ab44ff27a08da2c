"""Shell commands that link a step's outputs into a site's store, and stored files into an output folder. Pure.

They use a temporary folder next to the output folder: its entry `out` is a link to the output folder, or becomes the new one.
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
    """Return the path of the temporary folder, unique by its token."""
    return posixpath.join(posixpath.dirname(outputs), staging_name(token))


def make(part: str, outputs: str = "") -> str:
    """Return a shell line that creates the temporary folder.

    Args:
        outputs: the output folder to link in it; empty for none.
    """
    link = f" && ln -s {shlex.quote(outputs)} {shlex.quote(posixpath.join(part, NAME))}" if outputs else ""
    return f"mkdir -m 700 {shlex.quote(part)}{link}"


def put(part: str, outputs: str) -> list[str]:
    """Return the command that moves the assembled outputs into the output folder, next to staged files."""
    new, into = shlex.quote(posixpath.join(part, NAME)), shlex.quote(outputs)
    # By one rename if the output folder is empty; otherwise by hard links.
    return [f"( rmdir {into} 2>/dev/null && mv {new} {into} || cp -Rl {new}/. {into}/ )"]


def drop(part: str) -> list[str]:
    """Return the command that removes the temporary folder; targets of its links stay."""
    quoted = shlex.quote(part)
    return [f"( find {quoted} -type d ! -perm -700 -exec chmod u+rwx {{}} \\; 2>/dev/null; rm -rf {quoted} )"]


def together(*commands: list[str]) -> Iterator[list[str]]:
    """Yield the commands joined into as few lines as one shell word can hold: each line costs a round trip."""
    lines: list[str] = []
    for words in commands:
        line = " ".join(words)
        if lines and sum(map(len, lines)) + len(line) > MOST_CHARACTERS:
            yield ["{ " + "; ".join(lines) + "; }"]
            lines = []
        lines.append(line)
    if lines:
        yield ["{ " + "; ".join(lines) + "; }"]


def links(outputs: str) -> list[str]:
    """Return the command that prints the names of all paths below the output folder that are neither file nor folder."""
    return remote_scan.find(outputs, "! -type f ! -type d")
