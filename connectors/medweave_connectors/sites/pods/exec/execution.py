"""Commands in containers, through the API server: `kubectl exec`, with the end of the command never lost."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any

import aiohttp
from streamflow.core.data import StreamWrapper

from medweave_connectors.host.command_log import CommandLog
from medweave_connectors.host.stdin_command import stdin_of
from medweave_connectors.host.transfer_reasons import known_reason
from medweave_connectors.sites.pods.api.channels import PROTOCOL, STATUS, STDERR, STDOUT, Channels
from medweave_connectors.sites.pods.errors import PodLost, StreamLost
from medweave_connectors.sites.pods.exec.commands import MARK, telling_its_end
from medweave_core.untrusted_text import load_json, plain_line, whole_number

_TAIL_BYTES = 2000


class Execution:
    """One command in one container.

    Attributes:
        exit_code: None until it is known; it stays None when the connection broke first.
        over: set when the command has ended, or can no longer be heard. The API server may tell it a minute later where
            input is still on its way.
        message: what the kubelet says about a command that could not be started.
    """

    def __init__(self, channels: Channels, place: str, mark: bytes) -> None:
        """`mark` is what the command's shell writes before its exit code, as the last thing on its standard error."""
        self._channels, self._place = channels, place
        self._own_end = OwnEnd(mark)
        self.exit_code: int | None = None
        self.over = asyncio.Event()
        self.message = ""

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """Each piece of its output: (STDOUT or STDERR, bytes), until it ends."""
        try:
            async for channel, data in self._channels.pieces():
                if channel == STATUS:
                    code, self.message = read_status(data)
                    # The API server calls the end of a stream a success, also where a killed kubelet has cut it.
                    self.exit_code = code or self._own_end.exit_code
                    self.over.set()
                elif piece := self._own_end.feed(data) if channel == STDERR else data:
                    yield channel, piece
                if self._own_end.exit_code is not None:
                    self.over.set()
        finally:
            self.over.set()

    async def collect(self) -> tuple[bytes, int]:
        """Standard output and error together, and the exit code.

        Raises:
            PodLost: the connection broke before the command ended.
        """
        pieces = [data async for _, data in self.output()]
        return b"".join(pieces), self.ended()

    async def write(self, data: bytes) -> None:
        """Sends to its standard input."""
        await self._channels.send(data)

    async def close_input(self) -> None:
        """No more input."""
        await self._channels.close_input()

    def ended(self) -> int:
        """Its exit code.

        Raises:
            PodLost: it is not known, because the connection broke.
        """
        code = self._own_end.exit_code if self.exit_code is None else self.exit_code
        if code is None:
            raise PodLost(f"the connection to {self._place} broke before the command had ended. {self.message}".strip())
        return code

    async def close(self) -> None:
        """Hangs up. A command that still runs goes on."""
        await self._channels.close()


class OwnEnd:
    """Takes what a command's shell says about its end out of the command's standard error."""

    def __init__(self, mark: bytes) -> None:
        self._mark, self._held = mark, b""

    @property
    def exit_code(self) -> int | None:
        """What the shell said; None where it has not."""
        said = self._held.removeprefix(self._mark) if self._held.startswith(self._mark) else b""
        return whole_number(said.strip().decode("ascii", errors="replace")) if said.endswith(b"\n") else None

    def feed(self, data: bytes) -> bytes:
        """The part of it that is the command's own; a piece that may be the beginning of the mark waits for the next."""
        self._held += data
        place = self._held.find(self._mark)
        if place < 0:
            begun = (
                n for n in range(min(len(self._mark), len(self._held)), 0, -1) if self._held.endswith(self._mark[:n])
            )
            place = len(self._held) - next(begun, 0)
        own, self._held = self._held[:place], self._held[place:]
        return own


def read_status(data: bytes) -> tuple[int | None, str]:
    """Exit code and message of what the API server says at a command's end; the code is None where it is not known."""
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        status = load_json(data)
        if status.get("status") == "Success":
            return 0, ""
        causes = (status.get("details") or {}).get("causes") or []
        code = next((cause.get("message") for cause in causes if cause.get("reason") == "ExitCode"), None)
        return whole_number(str(code)), plain_line(str(status.get("message") or ""))
    return None, "the API server's word about its end cannot be read"


async def execute(
    client: Any,
    namespace: str,
    place: str,
    command: Sequence[str],
    *,
    takes_input: bool = False,
    much: bool = False,
) -> Execution:
    """Starts a command in a container.

    Args:
        client: a CoreV1Api over a websocket client.
        place: `pod:container`.
        much: it takes or gives much data, and goes by SPDY where that is let through.

    Raises:
        PodLost: the API server or the kubelet refuses; the message has their reason.
    """
    pod, _, container = place.partition(":")
    mark = f"{MARK}end {secrets.token_hex(4)} "
    words = {
        "name": pod,
        "namespace": namespace,
        "container": container,
        "command": telling_its_end(command, mark),
        "stdin": takes_input,
        "stdout": True,
        "stderr": True,
        "tty": False,
        "_preload_content": False,
    }
    if much:
        # A proxy on the way may know websockets only. Nothing was started then, and the websocket's refusal has the better words.
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
            channels = await (await client.connect_post_namespaced_pod_exec(**words))
            await channels.open(takes_input=takes_input)
            return Execution(channels, place, mark.encode())
    try:
        request = await client.connect_get_namespaced_pod_exec(**words, _headers=PROTOCOL)
        return Execution(await request, place, mark.encode())
    except aiohttp.WSServerHandshakeError as error:
        raise PodLost(f"no command can be started in {place}: {_refusal(error.status)}") from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise PodLost(f"no command can be started in {place}: {error}") from error


def _refusal(status: int) -> str:
    reasons = {
        401: "the credentials are not accepted (401)",
        403: "the account may not create pods/exec in this namespace (403)",
        404: "there is no such pod (404)",
        500: "the container does not run (500)",
    }
    return reasons.get(status, f"the API server answers {status}")


class _Stream(StreamWrapper):
    """An execution as StreamFlow's tar streams want it. A failed command is an error, not the end of a file."""

    def __init__(self, execution: Execution, command: Sequence[str]) -> None:
        super().__init__(execution)
        self._execution, self._command = execution, command
        self._said = bytearray()
        self._closed = False

    async def close(self) -> None:
        """Lets the command do the rest of its work, and hangs up; who closes last finds it done.

        Raises:
            PodLost: the command failed, or its end is not known.
        """
        if not self._closed:
            self._closed = True
            try:
                await self._finish()
                self._check()
            finally:
                await self._execution.close()

    async def abort(self) -> None:
        """Hangs up, whatever the command does."""
        self._closed = True
        await self._execution.close()

    @abstractmethod
    async def _finish(self) -> None: ...

    def _note(self, data: bytes) -> None:
        self._said += data
        del self._said[:-_TAIL_BYTES]

    def _check(self) -> None:
        if code := self._execution.ended():
            said = self._said.decode(errors="replace").strip() or self._execution.message
            raise StreamLost(f"`{self._command[0]}` ended with {code}: {known_reason(said)}", said, code)


class Reader(_Stream):
    """Standard output of a command."""

    def __init__(self, execution: Execution, command: Sequence[str]) -> None:
        super().__init__(execution, command)
        self._pieces = execution.output()
        self._buffer = bytearray()

    async def read(self, size: int | None = None) -> bytes:
        """The next `size` bytes; fewer only at the end, where it is checked that the command ended well."""
        while size is None or len(self._buffer) < size:
            piece = await anext(self._pieces, None)
            if piece is None:
                self._check()
                break
            if piece[0] == STDOUT:
                self._buffer += piece[1]
            else:
                self._note(piece[1])
        data = bytes(self._buffer if size is None else self._buffer[:size])
        del self._buffer[: len(data)]
        return data

    async def write(self, data: bytes) -> None:
        """There is no way to write."""
        raise TypeError("a reader")

    async def _finish(self) -> None:
        while await self.read(2**20):  # tar pads its end
            pass


class Writer(_Stream):
    """Standard input of a command, whose words are read meanwhile so that it never waits for us."""

    def __init__(self, execution: Execution, command: Sequence[str]) -> None:
        super().__init__(execution, command)
        self._listener = asyncio.create_task(self._listen())
        self._listener.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # it is over, then

    async def read(self, size: int | None = None) -> bytes:
        """There is nothing to read."""
        raise TypeError("a writer")

    async def write(self, data: bytes) -> None:
        """Sends; to a command that has ended well (an archive's padding) there is nothing to send.

        Raises:
            PodLost: the command has failed (a full disk), or the connection broke.
        """
        await self._unless_over(lambda: self._execution.write(data))
        if self._execution.over.is_set():
            self._check()

    async def _finish(self) -> None:
        await self._unless_over(self._execution.close_input)
        await self._execution.over.wait()

    async def _unless_over(self, send: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Sends until the command is over: nobody reads on then, and a full connection would wait for its time limit."""
        if self._execution.over.is_set():
            return
        work, over = asyncio.ensure_future(send()), asyncio.ensure_future(self._execution.over.wait())
        try:
            await asyncio.wait({work, over}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                with contextlib.suppress(ConnectionError, aiohttp.ClientError):  # how it ended is looked at next
                    work.result()
                    return
                await self._execution.over.wait()
        finally:
            for each in (work, over):
                each.cancel()
            await asyncio.gather(work, over, return_exceptions=True)

    async def _listen(self) -> None:
        async for _, data in self._execution.output():
            self._note(data)


class StreamContext:
    """Opens a stream at the beginning of a `with`, and checks at its end that the command did all of its work."""

    def __init__(self, opening: Any, kind: type[Reader] | type[Writer], command: Sequence[str], site: str) -> None:
        self._opening, self._kind, self._command = opening, kind, command
        self._stream: Reader | Writer
        self._logging = CommandLog("pods", site).command("stream")

    async def __aenter__(self) -> StreamWrapper:
        execution = await self._opening
        self._logged = self._logging.__enter__()
        self._stream = self._kind(execution, self._command)
        if given := stdin_of(self._command):
            try:
                await execution.write(given)
                if self._kind is Reader:  # nobody writes more
                    await execution.close_input()
            except BaseException:
                await self._stream.abort()
                raise
        return self._stream

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.ExitStack() as stack:
            stack.push(self._logging)
            await (self._stream.close() if kind is None else self._stream.abort())
            self._logged.exit_code = 0 if kind is None else None
