"""One end of a copy through the driver: a command that writes, whose output is encoded, or one that reads what is decoded for it.
Or a folder of many files, or a large file, which this program writes by itself.

It runs at a site by a bare python3 (3.8 or later): `wire.words` sends this text, with modules in the places of their imports. The
stream is standard output, or standard input; the command's last words and its exit status are this program's, too. After its blocks
comes one of no length, and the number of bytes: what ends without it was cut.
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
_F_SETPIPE_SZ = 1031  # fcntl names it from 3.10 on


def send(codecs: str, *command: str) -> int:
    """Writes what a command writes, encoded."""
    encoding.hold_memory()
    tar = _begun(command, reads=False)
    _widen(tar.stdout.fileno(), sys.stdout.fileno())
    out, count = sys.stdout.buffer, 0
    for head, body, size in encoding.Encoder(map(int, codecs.split(","))).blocks(encoding.pieces(tar.stdout.fileno())):
        out.write(head)
        out.write(body)
        out.flush()
        count += size
    code = _ended(tar)
    if not code:
        out.write(encoding.HEAD.pack(0, 0, 0) + COUNT.pack(count))
        out.flush()
    return code


def receive(_: str, *command: str) -> int:
    """Gives what it reads to a command, decoded."""
    encoding.hold_memory()
    tar = _begun(command, reads=True)
    _widen(tar.stdin.fileno(), sys.stdin.fileno())
    why = ""
    try:
        for content in _contents():
            rest = memoryview(content)
            try:
                while rest:
                    rest = rest[os.write(tar.stdin.fileno(), rest) :]
            except BrokenPipeError:  # an archive's readers stop before its padding
                if code := _ended(tar):
                    return code
    except encoding.NotDecoded as error:
        why = str(error)
    tar.stdin.close()
    code = _ended(tar)
    if why:
        sys.stderr.write("medweave: " + why + "\n")
        sys.stderr.flush()
    return code or (FAILED if why else 0)


def plant(path: str, note: str, num_bytes: str, blobs: str, later: str) -> int:
    """Makes a folder or file of what it reads, decoded: see `tree_stream`."""
    encoding.hold_memory()
    os.umask(0)  # modes are those of the source
    _widen(sys.stdin.fileno())
    try:
        tree_stream.plant(encoding.read_ahead(_contents()), path, note, int(num_bytes), blobs, later=bool(later))
    except (encoding.NotDecoded, tree_stream.NotPlanted) as error:
        sys.stderr.write(f"medweave: {error}: {getattr(error, 'said', '')}\n")
        return FAILED
    return 0


def _contents() -> Iterator[bytearray]:
    """What comes, decoded, up to its end."""
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
    """Pipes hold a block: with less, the processes at their ends wait for each other all the time."""
    for each in ends:
        with contextlib.suppress(OSError):  # it is none, or an account has too many
            fcntl.fcntl(each, _F_SETPIPE_SZ, encoding.BLOCK)


def _begun(command: tuple[str, ...], *, reads: bool) -> Any:
    import subprocess  # it takes as long as the start of python, and `plant` has no command

    if reads:
        return subprocess.Popen(command, stdin=subprocess.PIPE)
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)


def _ended(tar: Any) -> int:
    """Its exit status, as a shell has it."""
    code: int = tar.wait()
    return code if code >= 0 else _SIGNALLED - code


def main(verb: str, *given: str) -> NoReturn:
    """Does what the words of `wire` ask for."""
    verbs: dict[str, Callable[..., int]] = {"send": send, "receive": receive, "plant": plant}
    try:
        code = verbs[verb](*given)
        sys.stdout.flush()
    except BrokenPipeError:  # nobody listens
        code = FAILED
    os._exit(code)  # a thread may wait for a block that nobody wants


if __name__ == "__main__":
    main(*sys.argv[1:])
