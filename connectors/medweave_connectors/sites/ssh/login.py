"""The start of a session: a POSIX shell behind any login shell, whatever the account's start-up files print or do.

The login shell gets two words, `exec sh`, which each shell understands. The rest goes through standard input. The shell prints a
mark to both outputs before it reads the script. Output before the marks is the login's, and is dropped. The script is sent after
the marks, so a session that was refused, or hangs in a login, has started nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass
from typing import Any

from medweave_connectors.host.deadlines import UNRESPONSIVE_S
from medweave_connectors.host.job_processes import ProcessGroup, start_time
from medweave_connectors.host.stdin_script import READ_AND_RUN, encode
from medweave_connectors.sites.ssh.control_master import MasterProcess

COMMAND = "exec sh"
READ_BYTES = 2**16
SHOWN_BYTES, KEPT_BYTES = 400, 2**14
DRAIN_S = 2.0
_MARK = "medweave-begin"
_START_TIME = start_time("$$")
# Options that an exported SHELLOPTS brings along, and a folder list for `cd`, do not reach a script.
_CLEAN = "set +euCfxv; unset CDPATH"


class LoginFailed(ConnectionError):
    """A session ended, or timed out, before its shell answered; the script was not started.

    Attributes:
        printed: the end of what the login printed.
    """

    def __init__(self, what: str, printed: str) -> None:
        self.what, self.printed = what, printed
        super().__init__(
            f"the login account runs no commands: {what}.\n"
            f"  seen:     {printed or 'no output'}\n"
            "  expected: an account whose login shell runs commands: `ssh HOST echo ok` prints ok\n"
            "  do:       check the account's login shell and start-up files, an expired password, and ForceCommand in the "
            "server's sshd_config"
        )


@dataclass(frozen=True, slots=True)
class StartedSession:
    """A session whose shell waits for the script.

    Attributes:
        group: process group of the shell and its script.
        noise: the end of what the login printed to standard output.
    """

    process: Any
    group: ProcessGroup
    noise: str

    def run(self, script: str) -> None:
        """Send the script, which begins at once."""
        if isinstance(self.process, MasterProcess):
            script = self.process.with_end_mark(script)
        self.process.stdin.write(encode(script))


async def start(process: Any) -> StartedSession:
    """Return a session whose `sh` is ready for a script.

    Args:
        process: a session that was opened with `COMMAND`; it is closed where its shell does not answer.

    Raises:
        LoginFailed: the session ended without an answer, or nothing came for `UNRESPONSIVE_S`.
        asyncssh.Error, OSError: the connection was lost.
    """
    token = secrets.token_hex(8)
    mark = f"{_MARK} {token} ".encode()
    try:
        with contextlib.suppress(OSError):  # the session has ended; its output has the reason
            process.stdin.write(_first_line(token))
        errors = asyncio.ensure_future(_until(process.stderr, mark))
        try:
            noise, rest = await _until(process.stdout, mark)
            await errors
        except _Ended as ended:
            raise await _failure(process, ended, errors) from None
        finally:
            errors.cancel()
        number, _, started = rest.decode(errors="replace").partition(" ")
        group = ProcessGroup(int(number), started if started.isdecimal() else "")
        return StartedSession(process, group, _shown(noise))
    except BaseException:
        process.close()
        raise


def _first_line(token: str) -> bytes:
    """Return the first input line; a start-up file may have replaced `sh` by a shell of any kind."""
    marks = f'echo "{_MARK} {token} $$ ${_START_TIME}"; echo "{_MARK} {token} " >&2'
    return f"exec sh -c '{_CLEAN}; {marks}; {READ_AND_RUN}; exit'\n".encode()


class _Ended(Exception):
    """The stream ended, or was silent, before the mark."""

    def __init__(self, printed: bytes, *, is_silent: bool) -> None:
        super().__init__()
        self.printed, self.is_silent = printed, is_silent


async def _until(stream: Any, mark: bytes) -> tuple[bytes, bytes]:
    """Return the last output before a mark, and the rest of the mark's line. No output of the script follows yet."""
    seen = bytearray()
    while True:
        try:
            async with asyncio.timeout(UNRESPONSIVE_S):
                data = await stream.read(READ_BYTES)
        except TimeoutError:
            raise _Ended(bytes(seen), is_silent=True) from None
        if not data:
            raise _Ended(bytes(seen), is_silent=False)
        seen += data
        place = seen.find(mark)
        if place < 0:
            del seen[:-KEPT_BYTES]
        elif (end := seen.find(b"\n", place)) >= 0:
            return bytes(seen[:place]), bytes(seen[place + len(mark) : end])


async def _failure(process: Any, ended: _Ended, errors: asyncio.Future[tuple[bytes, bytes]]) -> Exception:
    """Return the reason: the login ended or hangs, or the connection was lost."""
    printed = ended.printed
    with contextlib.suppress(TimeoutError, _Ended):
        async with asyncio.timeout(DRAIN_S):
            try:
                await errors
            except _Ended as more:
                printed += b"\n" + more.printed
            await process.wait_closed()
    if ended.is_silent:
        return LoginFailed(f"no output for {UNRESPONSIVE_S:.0f} s before its shell answered", _shown(printed))
    if process.exit_status is None and process.exit_signal is None:
        text = _shown(printed)
        return ConnectionError(f"the session was lost before its shell answered{': ' + text if text else ''}")
    return LoginFailed(
        f"the session ended with exit status {process.exit_status} before its shell answered", _shown(printed)
    )


def _shown(printed: bytes) -> str:
    """Return the end of a login's output in one line, for people."""
    lines = printed.decode(errors="replace").split()
    return " ".join(lines)[-SHOWN_BYTES:]
