"""One end of a direct copy: an agent that a site runs by a bare python3 (3.8 or later) with ssl. The driver sends it as text.

It imports nothing of medweave, and writes nothing but what tar unpacks or the tree that arrives (see `tree_stream`). Standard
input has one line of JSON with the settings and the certificates. Lines with a new `rate` may follow; anything else, and the end
of the input, ends the agent and its tar. Standard output has messages for the driver, each behind a mark. They name no file,
except for the end of tar's standard error.

On the wire, within TLS 1.3: a greeting of each side, the receiver's codecs, blocks (see `encoding`), an empty block with the
number of bytes and tar's exit status, and an answer with the other tar's exit status. TLS authenticates each byte, and a stream
without the last block was cut, so the stream needs no digest. The driver compares the digests of the files afterwards.
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

PeerFailed, report = peer_link.PeerFailed, peer_link.report
read_exactly, describe_error = peer_link.read_exactly, peer_link.describe_error
CUT = peer_link.CUT

BLOCK = 2**20
IDLE_S, BEAT_S = 120.0, 5.0
TAIL = 2000
_F_SETPIPE_SZ = 1031  # fcntl has it from 3.10 on
_END = struct.Struct(">Qi")
moved_bytes = [0]  # of the stream, so far
_wire_bytes = [0]  # of the same as blocks on the wire
_rate = [0.0]  # of the wire, bytes/s; 0 for no limit
_tars: list[subprocess.Popen[bytes]] = []


def leave() -> NoReturn:
    """End tar and this agent."""
    for tar in _tars:
        with contextlib.suppress(OSError):
            if tar.poll() is None:
                os.killpg(tar.pid, signal.SIGKILL)
    os._exit(1)


def _read_rates() -> None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        while True:
            _rate[0] = json.loads(sys.stdin.buffer.readline())["rate"] or 0.0
    leave()


def send_beats() -> None:
    """Report the bytes so far, every few seconds."""
    while True:
        time.sleep(BEAT_S)
        try:
            report(beat=moved_bytes[0])
        except OSError:
            leave()


# ---- tar


def start_tar(words: list[str], **pipe: int) -> subprocess.Popen[bytes]:
    """Start a command with a pipe at one end."""
    environment = dict(os.environ, LC_ALL="C")
    tar = subprocess.Popen(words, stderr=subprocess.PIPE, env=environment, start_new_session=True, **pipe)  # type: ignore[call-overload]
    _tars.append(tar)
    with contextlib.suppress(OSError):
        fcntl.fcntl(tar.stdin or tar.stdout, _F_SETPIPE_SZ, BLOCK)
    return tar  # type: ignore[no-any-return]


def read_errors(tar: subprocess.Popen[bytes]) -> tuple[threading.Thread, bytearray]:
    """Read the end of tar's standard error while tar runs."""
    tail = bytearray()
    assert tar.stderr is not None
    errors = tar.stderr.fileno()

    def read() -> None:
        for data in iter(lambda: os.read(errors, 65536), b""):
            tail.extend(data)
            del tail[:-TAIL]

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    return reader, tail


def tar_report(exit_status: int, errors: tuple[threading.Thread, bytearray]) -> dict[str, Any]:
    """Return tar's exit status and its last messages, as bytes: the driver looks for known reasons in them."""
    errors[0].join(peer_link.GREET_S)
    return {"exit_status": exit_status, "told": base64.b64encode(bytes(errors[1])).decode()}


def _system_report(message: str) -> dict[str, Any] | None:
    """Return the system's message about a tree in the form of tar's."""
    return {"exit_status": 1, "told": base64.b64encode(message.encode()).decode()} if message else None


# ---- sending


def send(link: ssl.SSLSocket, settings: dict[str, Any], encoding: dict[str, Any]) -> dict[str, Any]:
    """Send what a command writes, or a tree; return further facts for the last message."""
    encoding["keep_memory"]()
    encoder = encoding["Encoder"](read_exactly(link, read_exactly(link, 1)[0]))
    if settings["tree"]:
        return _send_tree(link, settings["tree"], encoder, encoding)
    tar = start_tar(settings["words"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    errors, source = read_errors(tar), tar.stdout
    assert source is not None
    _send_blocks(link, encoder.blocks(encoding["read_pieces"](source.fileno())))
    code = tar.wait()
    link.sendall(encoding["HEAD"].pack(0, 0, 0) + _END.pack(moved_bytes[0], code))
    if code:
        raise PeerFailed("tar failed at the source", tar_report(code, errors))
    _wait_for_answer(link)
    return {}


def _send_tree(link: ssl.SSLSocket, task: dict[str, Any], encoder: Any, encoding: dict[str, Any]) -> dict[str, Any]:
    tree_stream = _module("tree_stream", task["program"])
    sender = tree_stream["TreeSender"](os.fsencode(task["path"]))
    try:
        _send_blocks(link, encoder.blocks(sender.pieces()))
    except tree_stream["TreeNotSent"] as error:
        raise PeerFailed(str(error), _system_report(error.system_message)) from None
    link.sendall(encoding["HEAD"].pack(0, 0, 0) + _END.pack(moved_bytes[0], 0))
    _wait_for_answer(link)
    return {"tree": base64.b64encode(zlib.compress(tree_stream["listing_of"](sender), 1)).decode()}


def _send_blocks(link: ssl.SSLSocket, blocks: Iterator[Any]) -> None:
    free_at = 0.0
    for head, body, size in blocks:
        link.sendall(head)
        link.sendall(body)
        moved_bytes[0] += size
        _wire_bytes[0] += len(head) + len(body)
        if _rate[0]:
            free_at = max(free_at, time.monotonic()) + (len(head) + len(body)) / _rate[0]
            time.sleep(max(free_at - time.monotonic(), 0.0))


def _wait_for_answer(link: ssl.SSLSocket) -> None:
    if struct.unpack(">i", read_exactly(link, 4))[0]:
        raise PeerFailed("tar failed at the peer")


def _module(name: str, text: str) -> dict[str, Any]:
    module: dict[str, Any] = {"__name__": name}
    exec(compile(text, name, "exec"), module)
    return module


# ---- receiving


def checker_of(settings: dict[str, Any] | None) -> Callable[[Any], Any]:
    """Return a function that checks an archive: it returns what passes of a piece; without a piece, the archive must have ended."""
    if not settings:
        return lambda piece: piece
    archive = _module("archive", settings["program"])
    root, num_bytes = settings["root"], settings["num_bytes"]
    checker = archive["LengthChecker"](num_bytes) if root is None else archive["ArchiveChecker"](root, num_bytes)

    def check(piece: Any) -> Any:
        try:
            return checker.passed(piece) if piece else checker.end()
        except archive["ArchiveRefused"] as error:
            raise PeerFailed("an archive was refused: " + str(error)) from None

    return check


def _contents(link: ssl.SSLSocket, encoding: dict[str, Any]) -> Iterator[bytearray]:
    """Yield the decoded content, up to its end."""
    encoding["keep_memory"]()
    decoder, head = encoding["Decoder"](), encoding["HEAD"]
    link.sendall(bytes([len(decoder.known)]) + decoder.known)
    while True:
        try:
            how, length, size = decoder.head(read_exactly(link, head.size))
            if not length:
                return
            content = decoder.content(how, read_exactly(link, length), size)
        except encoding["NotDecoded"] as error:
            raise PeerFailed(str(error)) from None
        moved_bytes[0] += size
        _wire_bytes[0] += head.size + length
        yield content


def receive(link: ssl.SSLSocket, settings: dict[str, Any], encoding: dict[str, Any]) -> None:
    """Write checked content to a command; or write the tree that arrives."""
    if settings["tree"]:
        return _receive_tree(link, settings["tree"], encoding)
    check = checker_of(settings["guard"])
    tar = start_tar(settings["words"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    errors = read_errors(tar)
    for content in _contents(link, encoding):
        write_to_tar(tar, check(content), errors)
    _check_end(link)
    check(b"")
    assert tar.stdin is not None
    tar.stdin.close()
    code = tar.wait()
    link.sendall(struct.pack(">i", code))
    if code:
        raise PeerFailed("tar failed at the destination", tar_report(code, errors))


def write_to_tar(tar: subprocess.Popen[bytes], data: Any, errors: tuple[threading.Thread, bytearray]) -> None:
    """Write to the command's standard input. Readers of an archive may stop before its padding."""
    assert tar.stdin is not None
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(tar.stdin.fileno(), rest) :]
    except BrokenPipeError:
        code = tar.wait()
        if code:
            raise PeerFailed("tar failed at the destination", tar_report(code, errors)) from None


def _receive_tree(link: ssl.SSLSocket, task: dict[str, Any], encoding: dict[str, Any]) -> None:
    tree_stream = _module("tree_stream", task["program"])
    path, note, blobs = (os.fsencode(task[key]) for key in ("path", "note", "blobs"))
    os.umask(0)  # modes are those of the source
    receiver = tree_stream["TreeReceiver"](path, note, task["num_bytes"], blobs, later=task["later"])
    try:
        for content in encoding["read_ahead"](_contents(link, encoding)):
            receiver.take(content)
        _check_end(link)
        receiver.end()
    except tree_stream["TreeRefused"] as error:
        raise PeerFailed(str(error), _system_report(error.system_message)) from None
    link.sendall(struct.pack(">i", 0))


def _check_end(link: ssl.SSLSocket) -> None:
    count, code = _END.unpack(read_exactly(link, _END.size))
    if code or count != moved_bytes[0]:
        raise PeerFailed("tar failed at the peer" if code else CUT)


def main() -> None:
    """Do what the first line of standard input says."""
    settings: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    _rate[0] = settings.get("rate") or 0.0
    for work in (_read_rates, send_beats):
        threading.Thread(target=work, daemon=True).start()
    try:
        try:
            link = (peer_link.accept_peer if settings["listen"] else peer_link.connect_to_peer)(settings)
            report(connected=True)
            link.settimeout(IDLE_S)
            encoding = _module("encoding", settings["encoding"])
            if settings["send"]:
                facts = send(link, settings, encoding)
            else:
                receive(link, settings, encoding)
                facts = {}
        except PeerFailed as error:
            report(failed=str(error), tar=error.tar, moved=moved_bytes[0])
        except socket.timeout:  # noqa: UP041 (before 3.10 it was no TimeoutError)
            report(failed="the peer stopped", tar=None, moved=moved_bytes[0])
        except OSError:  # of ssl, too
            report(failed=CUT, tar=None, moved=moved_bytes[0])
        else:
            report(ended=moved_bytes[0], wire=_wire_bytes[0], **facts)
    except BrokenPipeError:
        pass  # the driver has gone
    leave()


if __name__ == "__main__":
    main()
