"""One end of a copy through the driver: an agent that encodes a command's output, decodes a command's input, or writes a tree
stream.

A site runs it by a bare python3 (3.8 or later): `streams.transcoding.agent_command` sends this text, with its imports embedded.
The stream is standard output or standard input. The command's standard error and exit status are the agent's. An empty block and
the number of bytes end the stream: a stream without them was cut.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import sys
from typing import Any, Callable, Iterator, NoReturn  # noqa: UP035 (3.8)

from medweave_connectors.transfer.agent import encoding, tree_stream

COUNT = struct.Struct(">Q")
CUT = "the stream was cut"
FAILED = 1
_SIGNALLED = 128
_F_SETPIPE_SZ = 1031  # fcntl has it from 3.10 on


def send(codecs: str, *command: str) -> int:
    """Write a command's output, encoded."""
    encoding.keep_memory()
    tar = _start_command(command, reads=False)
    _widen(tar.stdout.fileno(), sys.stdout.fileno())
    out, count = sys.stdout.buffer, 0
    for head, body, size in encoding.Encoder(map(int, codecs.split(","))).blocks(
        encoding.read_pieces(tar.stdout.fileno())
    ):
        out.write(head)
        out.write(body)
        out.flush()
        count += size
    code = _wait(tar)
    if not code:
        out.write(encoding.HEAD.pack(0, 0, 0) + COUNT.pack(count))
        out.flush()
    return code


def receive(_: str, *command: str) -> int:
    """Write the decoded input to a command."""
    encoding.keep_memory()
    tar = _start_command(command, reads=True)
    _widen(tar.stdin.fileno(), sys.stdin.fileno())
    why = ""
    try:
        for content in _contents():
            rest = memoryview(content)
            try:
                while rest:
                    rest = rest[os.write(tar.stdin.fileno(), rest) :]
            except BrokenPipeError:  # readers of an archive may stop before its padding
                if code := _wait(tar):
                    return code
    except encoding.NotDecoded as error:
        why = str(error)
    tar.stdin.close()
    code = _wait(tar)
    if why:
        sys.stderr.write("medweave: " + why + "\n")
        sys.stderr.flush()
    return code or (FAILED if why else 0)


def receive_tree(path: str, note: str, num_bytes: str, blobs: str, later: str) -> int:
    """Write the decoded input as a folder or file: see `tree_stream`."""
    encoding.keep_memory()
    os.umask(0)  # modes are those of the source
    _widen(sys.stdin.fileno())
    try:
        tree_stream.receive_tree(encoding.read_ahead(_contents()), path, note, int(num_bytes), blobs, later=bool(later))
    except (encoding.NotDecoded, tree_stream.TreeRefused) as error:
        sys.stderr.write(f"medweave: {error}: {getattr(error, 'system_message', '')}\n")
        return FAILED
    return 0


def _contents() -> Iterator[bytearray]:
    """Yield the decoded content, up to its end."""
    decoder, count = encoding.Decoder(), 0
    while True:
        how, length, size = decoder.head(_exactly(encoding.HEAD.size))
        if not length:
            break
        yield decoder.content(how, _exactly(length), size)
        count += size
    if COUNT.unpack(_exactly(COUNT.size))[0] != count:
        raise encoding.NotDecoded(CUT)


def _exactly(size: int) -> bytearray:
    data, done = bytearray(size), 0
    with memoryview(data) as view:
        while done < size:
            got = sys.stdin.buffer.readinto(view[done:])  # type: ignore[union-attr]
            if not got:
                raise encoding.NotDecoded(CUT)
            done += got
    return data


def _widen(*ends: int) -> None:
    """Let pipes hold a block: with less, the processes at their ends wait for each other all the time."""
    for end in ends:
        with contextlib.suppress(OSError):  # no pipe, or the account's limit is reached
            fcntl.fcntl(end, _F_SETPIPE_SZ, encoding.BLOCK)


def _start_command(command: tuple[str, ...], *, reads: bool) -> Any:
    import subprocess  # the import takes as long as the start of python, and `receive_tree` has no command

    if reads:
        return subprocess.Popen(command, stdin=subprocess.PIPE)
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)


def _wait(tar: Any) -> int:
    """Return the exit status, as a shell reports it."""
    code: int = tar.wait()
    return code if code >= 0 else _SIGNALLED - code


def main(verb: str, *arguments: str) -> NoReturn:
    """Run one of the verbs."""
    verbs: dict[str, Callable[..., int]] = {"send": send, "receive": receive, "receive-tree": receive_tree}
    try:
        code = verbs[verb](*arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the other end has gone
        code = FAILED
    os._exit(code)  # a thread may still wait for a block


if __name__ == "__main__":
    main(*sys.argv[1:])
