"""The one connection to a machine of `medweave.ssh`."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from typing import Any

from streamflow.deployment.connector.ssh import SSHContext

from medweave_connectors.ssh.master import MasterConnection
from medweave_connectors.ssh.way import connect

CLOSE_S = 2.0


class CheckedContext(SSHContext):  # type: ignore[misc]
    """A connection whose host key is checked, made again where it was lost."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._one_at_a_time = asyncio.Lock()
        self._ssh_connection: Any = None

    async def close(self) -> None:
        """Closes the connection, without a word about channels that the other side still holds."""
        if self._ssh_connection is not None:
            self._ssh_connection.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ssh_connection.wait_closed(), CLOSE_S)
            self._ssh_connection = None

    async def get_connection(self) -> Any:
        """The connection; a new one where the last was lost."""
        async with self._one_at_a_time:
            if self._ssh_connection is None or self._ssh_connection.is_closed():
                self._ssh_connection = await connect(self._config.target)
            return self._ssh_connection


async def start(connection: Any, script: str) -> Any:
    """Runs a script by the machine's `sh`, whose process group has the number `$$` (sshd gives each command its own)."""
    if isinstance(connection, MasterConnection):
        return await connection.create_process(script)
    return await connection.create_process(f"exec sh -c {shlex.quote(script)}", encoding=None)
