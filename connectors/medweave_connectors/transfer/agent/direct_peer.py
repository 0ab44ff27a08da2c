"""One end of a direct copy. It runs at a site, by a bare python3 (3.8 or later) with ssl: `program` sends it there as text.

Nothing of medweave is imported, nothing is written but what tar unpacks, or the tree that comes (see `tree_stream`). Standard input
gives one line of JSON (see `words`), and holds the certificates. After it may come lines with the `rate` at which to send; whatever
else comes, also its end, ends this program and its tar. Standard output has lines for the driver, each behind a mark, and no name
of a file but in the last words of tar.

On the wire, within TLS 1.3: a greeting of each side, the codecs of who gets it, blocks (see `encoding`), one of no length that
tells the number of bytes and tar's exit status, and an answer that tells the status of the other tar. TLS authenticates each
byte, and a stream that ends without that last block was cut; so the stream has no digest of its own. Each file's is compared
afterwards, by the driver.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import zlib
from typing import Any, Callable, Iterator, NoReturn  # noqa: UP035 (3.8)

from medweave_connectors.transfer.agent import peer_link

Failed, say, exactly, why_not = peer_link.Failed, peer_link.say, peer_link.exactly, peer_link.why_not
CUT = peer_link.CUT

BLOCK = 2**20
IDLE_S, BEAT_S = 120.0, 5.0
TAIL = 2000
_F_SETPIPE_SZ = 1031  # fcntl names it from 3.10 on
_END = struct.Struct(">Qi")
_moved = [0]  # bytes so far
_wire = [0]  # and those of blocks on the wire
_rate = [0.0]  # what may go over the wire, bytes/s; 0 for all there is
_tars: list[subprocess.Popen[bytes]] = []


def leave() -> NoReturn:
    """Ends tar, and this."""
    for tar in _tars:
        with contextlib.suppress(OSError):
            if tar.poll() is None:
                os.killpg(tar.pid, signal.SIGKILL)
    os._exit(1)


def _watch() -> None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        while True:
            _rate[0] = json.loads(sys.stdin.buffer.readline())["rate"] or 0.0
    leave()


def _beat() -> None:
    while True:
        time.sleep(BEAT_S)
        try:
            say(beat=_moved[0])
        except OSError:
            leave()


# ---- what is sent


def _tar(words: list[str], **pipe: int) -> subprocess.Popen[bytes]:
    environment = dict(os.environ, LC_ALL="C")
    tar = subprocess.Popen(words, stderr=subprocess.PIPE, env=environment, start_new_session=True, **pipe)  # type: ignore[call-overload]
    _tars.append(tar)
    with contextlib.suppress(OSError):
        fcntl.fcntl(tar.stdin or tar.stdout, _F_SETPIPE_SZ, BLOCK)
    return tar  # type: ignore[no-any-return]


def _last_words(tar: subprocess.Popen[bytes]) -> tuple[threading.Thread, bytearray]:
    """What tar says, read while it runs."""
    said = bytearray()
    assert tar.stderr is not None
    errors = tar.stderr.fileno()

    def read() -> None:
        for data in iter(lambda: os.read(errors, 65536), b""):
            said.extend(data)
            del said[:-TAIL]

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    return reader, said


def _told(code: int, words: tuple[threading.Thread, bytearray]) -> dict[str, Any]:
    words[0].join(peer_link.GREET_S)
    # As bytes: the driver decides what of it is known.
    return {"exit_status": code, "told": base64.b64encode(bytes(words[1])).decode()}


def send(link: ssl.SSLSocket, settings: dict[str, Any], encoding: dict[str, Any]) -> dict[str, Any]:
    """Sends what a command writes, or a tree; what else there is to tell of it."""
    encoding["hold_memory"]()
    known = encoding["Encoder"](exactly(link, exactly(link, 1)[0]))
    if settings["tree"]:
        return _send_tree(link, settings["tree"], known, encoding)
    tar = _tar(settings["words"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    words, source = _last_words(tar), tar.stdout
    assert source is not None
    _send_blocks(link, known.blocks(encoding["pieces"](source.fileno())))
    code = tar.wait()
    link.sendall(encoding["HEAD"].pack(0, 0, 0) + _END.pack(_moved[0], code))
    if code:
        raise Failed("tar failed where the files are", _told(code, words))
    _answered(link)
    return {}


def _send_tree(link: ssl.SSLSocket, given: dict[str, Any], known: Any, encoding: dict[str, Any]) -> dict[str, Any]:
    tree = _module("tree_stream", given["program"])
    sender = tree["Sender"](os.fsencode(given["path"]))

    try:
        _send_blocks(link, known.blocks(sender.pieces()))
    except tree["NotSent"] as error:
        raise Failed(str(error), _said(error.said)) from None
    link.sendall(encoding["HEAD"].pack(0, 0, 0) + _END.pack(_moved[0], 0))
    _answered(link)
    return {"tree": base64.b64encode(zlib.compress(tree["noted"](sender), 1)).decode()}


def _send_blocks(link: ssl.SSLSocket, blocks: Iterator[Any]) -> None:
    free_at = 0.0
    for head, body, size in blocks:
        link.sendall(head)
        link.sendall(body)
        _moved[0] += size
        _wire[0] += len(head) + len(body)
        if _rate[0]:
            free_at = max(free_at, time.monotonic()) + (len(head) + len(body)) / _rate[0]
            time.sleep(max(free_at - time.monotonic(), 0.0))


def _answered(link: ssl.SSLSocket) -> None:
    if struct.unpack(">i", exactly(link, 4))[0]:
        raise Failed("tar failed at the other end")


def _said(words: str) -> dict[str, Any] | None:
    """What the system said of a tree, as if it had been tar."""
    return {"exit_status": 1, "told": base64.b64encode(words.encode()).decode()} if words else None


def _module(name: str, text: str) -> dict[str, Any]:
    module: dict[str, Any] = {"__name__": name}
    exec(compile(text, name, "exec"), module)
    return module


def _guard(given: dict[str, Any] | None) -> Callable[[Any], Any]:
    """What may be unpacked of an archive: given a piece, what passes of it; given nothing, it must have come to its end."""
    if not given:
        return lambda piece: piece
    module = _module("archive", given["program"])
    root, num_bytes = given["root"], given["num_bytes"]
    guard = module["Exactly"](num_bytes) if root is None else module["Guard"](root, num_bytes)

    def passed(piece: Any) -> Any:
        try:
            return guard.passed(piece) if piece else guard.end()
        except module["ArchiveRefused"] as error:
            raise Failed("an archive was refused: " + str(error)) from None

    return passed


def _contents(link: ssl.SSLSocket, encoding: dict[str, Any]) -> Iterator[bytearray]:
    """What comes, decoded, up to its end."""
    encoding["hold_memory"]()
    decoder, head = encoding["Decoder"](), encoding["HEAD"]
    link.sendall(bytes([len(decoder.known)]) + decoder.known)
    while True:
        try:
            how, length, size = decoder.head(exactly(link, head.size))
            if not length:
                return
            content = decoder.content(how, exactly(link, length), size)
        except encoding["NotDecoded"] as error:
            raise Failed(str(error)) from None
        _moved[0] += size
        _wire[0] += head.size + length
        yield content


def receive(link: ssl.SSLSocket, settings: dict[str, Any], encoding: dict[str, Any]) -> None:
    """Gives what comes, and may pass, to a command; or writes the tree that it is."""
    if settings["tree"]:
        return _receive_tree(link, settings["tree"], encoding)
    passed = _guard(settings["guard"])
    tar = _tar(settings["words"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    words, target = _last_words(tar), tar.stdin
    assert target is not None
    for content in _contents(link, encoding):
        rest = memoryview(passed(content))
        try:
            while rest:
                rest = rest[os.write(target.fileno(), rest) :]
        except BrokenPipeError:  # an archive's readers stop before its padding
            if code := tar.wait():
                raise Failed("tar failed where they should go", _told(code, words)) from None
    _all_came(link)
    passed(b"")
    target.close()
    code = tar.wait()
    link.sendall(struct.pack(">i", code))
    if code:
        raise Failed("tar failed where they should go", _told(code, words))


def _receive_tree(link: ssl.SSLSocket, given: dict[str, Any], encoding: dict[str, Any]) -> None:
    tree = _module("tree_stream", given["program"])
    path, note, blobs = (os.fsencode(given[each]) for each in ("path", "note", "blobs"))
    os.umask(0)  # modes are those of the source
    planter = tree["Planter"](path, note, given["num_bytes"], blobs, later=given["later"])
    try:
        for content in encoding["read_ahead"](_contents(link, encoding)):
            planter.take(content)
        _all_came(link)
        planter.end()
    except tree["NotPlanted"] as error:
        raise Failed(str(error), _said(error.said)) from None
    link.sendall(struct.pack(">i", 0))


def _all_came(link: ssl.SSLSocket) -> None:
    count, sent = _END.unpack(exactly(link, _END.size))
    if sent or count != _moved[0]:
        raise Failed("tar failed at the other end" if sent else CUT)


def main() -> None:
    """Does what the line of standard input says."""
    settings: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    _rate[0] = settings.get("rate") or 0.0
    for work in (_watch, _beat):
        threading.Thread(target=work, daemon=True).start()
    try:
        try:
            link = (peer_link.listened if settings["listen"] else peer_link.connected)(settings)
            say(connected=True)
            link.settimeout(IDLE_S)
            encoding = _module("encoding", settings["encoding"])
            if settings["send"]:
                facts = send(link, settings, encoding)
            else:
                receive(link, settings, encoding)
                facts = {}
        except Failed as error:
            say(failed=str(error), tar=error.tar, moved=_moved[0])
        except socket.timeout:  # noqa: UP041 (before 3.10 it was no TimeoutError)
            say(failed="the other end has stopped", tar=None, moved=_moved[0])
        except OSError:  # ssl's are such
            say(failed=CUT, tar=None, moved=_moved[0])
        else:
            say(ended=_moved[0], wire=_wire[0], **facts)
    except BrokenPipeError:
        pass  # nobody listens
    leave()


if __name__ == "__main__":
    main()
