"""Server for one ssh session, used by a driver without the engine: `python -m medweave_connectors.sites.ssh.session_server`.

It reads one JSON document a line and answers each with one or more; the driver, which does not import StreamFlow, starts it as a
process. The first line is {"deployment", "config"}, with absolute paths in `config`. The others are
{"ask": SCRIPT}              -> {"code", "output"}: a short script for `sh`, with all its output
{"work": SCRIPT, "in": DIR}  -> {"code", "output"}: a long script, ended with its processes by "stop"; its last lines if it failed
{"send": PATH, "to": PATH}   -> {"sent": BYTES} as progress, then {"code": 0}: a file, complete or absent
{"stop": true}               -> {"stopped": true}: the current request was ended, and gets no answer
If the machine cannot be used the answer is {"error": TEXT, "again": whether a retry may help}. The end of its input ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import posixpath
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from streamflow.core.deployment import ExecutionLocation
from streamflow.core.exception import WorkflowDefinitionException

from medweave_connectors.sites.ssh.connector import MedweaveSSHConnector
from medweave_connectors.sites.ssh.host_group import HostStep

SEND_BYTES, REPORT_S = 2**18, 1.0
LINE_BYTES = 2**24
JOB = "/medweave/0"

Say = Callable[[Mapping[str, Any]], None]


class Session:
    """The connection and its current request: one at a time."""

    def __init__(self, deployment: str, config: Mapping[str, Any], say: Say) -> None:
        self._connector = MedweaveSSHConnector(deployment, "/", **config)
        self._location = ExecutionLocation(name=next(iter(self._connector.nodes)), deployment=deployment)
        self._say = say
        self._request: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect to the site; raise the same errors as the connector's `deploy`."""
        await self._connector.deploy(False)

    async def close(self) -> None:
        """End the current request, and close the connection."""
        await self._end()
        await self._connector.undeploy(False)

    def take(self, request: Mapping[str, Any]) -> None:
        """Start a request."""
        self._request = asyncio.create_task(self._do(request))

    async def stop(self) -> None:
        """End the current request."""
        await self._end()
        self._say({"stopped": True})

    async def _end(self) -> None:
        if self._request is not None:
            self._request.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._request

    async def _do(self, request: Mapping[str, Any]) -> None:
        try:
            self._say(await self._answer(request))
        except Exception as error:  # after any failure, the driver waits for an answer
            self._say(_error(error))

    async def _answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if "send" in request:
            await self._send(Path(request["send"]), request["to"])
            return {"code": 0}
        result: tuple[str, int] | None
        if "work" in request:
            words = ["sh", "-c", shlex.quote(request["work"])]
            # Without attempts: those would recreate the folder.
            step = HostStep(name=JOB, words=words, environment={}, output_directory=request["in"])
            result = await self._connector.run_once(step, [self._location], {})
        else:
            result = await self._connector.run(self._location, [request["ask"]], capture_output=True)
        assert result is not None
        return {"output": result[0], "code": result[1]}

    async def _send(self, source: Path, target: str) -> None:
        part = shlex.quote(posixpath.join(posixpath.dirname(target), f".{posixpath.basename(target)}.part"))
        script = f"cat > {part} && mv {part} {shlex.quote(target)} || {{ rm -f {part}; exit 1; }}"
        sent, reported = 0, time.monotonic()
        writer = await self._connector.get_stream_writer(["sh", "-c", script], self._location)
        with source.open("rb") as stream:
            async with writer as channel:
                while data := stream.read(SEND_BYTES):
                    await channel.write(data)
                    sent += len(data)
                    if time.monotonic() - reported > REPORT_S:
                        reported = time.monotonic()
                        self._say({"sent": sent})


def _error(error: Exception) -> Mapping[str, Any]:
    text = str(error) or type(error).__name__
    return {"error": text, "again": not isinstance(error, WorkflowDefinitionException)}


def _say(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


async def main() -> None:
    """Serve the requests on standard input until it ends."""
    requests = asyncio.StreamReader(limit=LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    first = json.loads(await requests.readline())
    try:
        session = Session(first["deployment"], first["config"], _say)
        await session.open()
    except Exception as error:
        _say(_error(error))
        return
    _say({"code": 0})
    try:
        while line := await requests.readline():
            request = json.loads(line)
            if "stop" in request:
                await session.stop()
            else:
                session.take(request)
    finally:
        await session.close()


if __name__ == "__main__":
    asyncio.run(main())
