"""Hosts that share a folder: one host makes a file with a random name there, and the others see it.

A common path proves nothing: two machines both have a `/tmp`.
"""

from __future__ import annotations

import asyncio
import posixpath
import re
import secrets
import shlex
from collections.abc import Awaitable, Callable, Sequence

_SEEN = "medweave-seen"
# Prints how many levels above the folder the mark is.
_MARK = (
    'at={folder}; n=0; while [ -n "$at" ] && [ ! -d "$at" ]; do at=${{at%/*}}; n=$((n + 1)); done; '
    'touch "$at/{name}" 2>/dev/null && echo "medweave-levels $n."'
)
_LEVELS = re.compile(r"medweave-levels ([0-9]+)\.")
RunAt = Callable[[str, str], Awaitable[tuple[str, int]]]  # host and line to output and exit code


class SharedFolders:
    """The folders of a run that its hosts share, tested once each.

    Args:
        run_at: runs a line on a host.
    """

    def __init__(self, run_at: RunAt) -> None:
        self._run_at = run_at
        self._known: dict[tuple[tuple[str, ...], str], list[str]] = {}  # hosts and folder

    async def one_host_each(self, hosts: Sequence[str], path: str) -> list[str]:
        """Return the hosts, but only the first of those that share the folder of a path.

        A host on which that folder cannot be written to shares it with none.

        Args:
            path: of a file or folder that need not exist yet; the nearest folder that exists on a host is tested.
        """
        if len(hosts) < 2:
            return list(hosts)
        for (names, known), chosen in self._known.items():
            # Nothing else is mounted below a folder that the run has made.
            if names == tuple(hosts) and path.startswith(f"{known}/"):
                return chosen
        chosen, others = list[str](), list(hosts)
        folder = path
        while others:
            first, *others = others
            chosen.append(first)
            if others:
                folder, sharing = await self._sharing(first, others, path)
                others = [host for host in others if host not in sharing]
        self._known[tuple(hosts), folder] = chosen
        return chosen

    async def _sharing(self, first: str, others: Sequence[str], path: str) -> tuple[str, set[str]]:
        """Return the tested folder, and the hosts that share it with the first."""
        name, folder = f".medweave-{secrets.token_hex(8)}", posixpath.dirname(path.rstrip("/"))
        text, code = await self._run_at(first, _MARK.format(folder=shlex.quote(folder), name=name))
        levels = _LEVELS.search(text)
        if code or levels is None:
            return folder, set()
        for _ in range(int(levels[1])):
            folder = posixpath.dirname(folder)
        mark = shlex.quote(posixpath.join(folder, name))
        try:
            # A file server may show changes to other hosts late, but not a name that was never looked up.
            answers = await asyncio.gather(*(self._run_at(host, f"[ ! -e {mark} ] || echo {_SEEN}") for host in others))
            return folder, {host for host, (text, _) in zip(others, answers, strict=True) if _SEEN in text}
        finally:
            await self._run_at(first, f"rm -f {mark}")
