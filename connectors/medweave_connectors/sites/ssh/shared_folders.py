"""Hosts that share a folder: one host makes a file with a random name there, and the others see it.

A common path proves nothing: two machines both have a `/tmp`.
"""

from __future__ import annotations

import asyncio
import posixpath
import secrets
import shlex
from collections.abc import Awaitable, Callable, Sequence

SEEN = "medweave-seen"
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
        """Return one host for each folder that the folder of a path is: the first of those that share it.

        A host on which the folder is missing, or cannot be written to, shares it with none.

        Args:
            path: of a file or folder that need not exist yet, in a folder that does.
        """
        if len(hosts) < 2:
            return list(hosts)
        folder = posixpath.dirname(path.rstrip("/")) or "/"
        for (names, known), chosen in self._known.items():
            # Nothing else is mounted below a folder that the run has made.
            if names == tuple(hosts) and f"{folder}/".startswith(f"{known}/"):
                return chosen
        chosen, others = list[str](), list(hosts)
        while others:
            first, *others = others
            chosen.append(first)
            sharing = await self._sharing(first, others, folder) if others else set()
            others = [host for host in others if host not in sharing]
        self._known[tuple(hosts), folder] = chosen
        return chosen

    async def _sharing(self, first: str, others: Sequence[str], folder: str) -> set[str]:
        mark = shlex.quote(posixpath.join(folder, f".medweave-{secrets.token_hex(8)}"))
        if (await self._run_at(first, f"touch {mark} 2>/dev/null"))[1]:
            return set()
        try:
            # A file server may show changes to other hosts late, but not a name that was never looked up.
            answers = await asyncio.gather(*(self._run_at(host, f"[ ! -e {mark} ] || echo {SEEN}") for host in others))
            return {host for host, (text, _) in zip(others, answers, strict=True) if SEEN in text}
        finally:
            await self._run_at(first, f"rm -f {mark}")
