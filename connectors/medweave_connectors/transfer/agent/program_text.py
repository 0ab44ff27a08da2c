"""Complete source texts of agent programs. Agents are sent to sites as text, because nothing of medweave is installed there."""

from __future__ import annotations

import functools
import re
from importlib.resources import files

_IMPORT = re.compile(r"^from medweave_connectors\.transfer\.agent import (\w+(?:, \w+)*)\n", re.MULTILINE)
_EMBEDDED = "import types\n{0} = types.ModuleType({0!r})\nexec(compile({1!r}, {0!r}, 'exec'), {0}.__dict__)\n"


@functools.cache
def of(name: str) -> str:
    """Return the text of an agent module, with the agent modules that it imports embedded instead of their imports.

    Args:
        name: of a module of this package, such as `direct_peer`.
    """
    text = files(__package__).joinpath(f"{name}.py").read_text("utf-8")
    return _IMPORT.sub(
        lambda line: "".join(_EMBEDDED.format(module, of(module)) for module in line[1].split(", ")), text
    )


@functools.cache
def framed(name: str) -> bytes:
    """Return `of` as bytes behind a line with its length, as the peers' boot line reads a program from standard input."""
    text = of(name).encode()
    return f"{len(text)}\n".encode() + text
