"""One end of a direct copy. It runs at a site, by a bare python3 (3.8 or later) with ssl: `program` sends it there as text.

Nothing of medweave is imported, nothing is written but what tar unpacks. Standard input gives one line of JSON (see `words`), and
holds the certificates. After it may come lines with the `rate` at which to send; whatever else comes, also its end, ends this
program and its tar. Standard output has lines for the
driver, each behind a mark, and no name of a file but in the last words of tar.

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
import queue
import random
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Iterator, NoReturn  # noqa: UP035 (3.8)

MARK = "medweave-direct "
CUT = "the stream was cut"  # which tells nothing of why
BLOCK = 2**20
GREETING = b"medweave-direct 2\n"
GREET_S, IDLE_S, BEAT_S = 5.0, 120.0, 5.0
MOST_STRANGERS = 16  # that may be greeted at the same time
TRY_S = 2.0  # one of several addresses
TAIL = 2000
_F_SETPIPE_SZ = 1031  # fcntl names it from 3.10 on
_END = struct.Struct(">Qi")
_output = threading.Lock()
_moved = [0]  # bytes so far
_wire = [0]  # and those of blocks on the wire
_rate = [0.0]  # what may go over the wire, bytes/s; 0 for all there is
_tars: list[subprocess.Popen[bytes]] = []


class Failed(Exception):
    """Why there is no copy, in words that name no file; `tar` has its exit status and last words where it was tar."""

    def __init__(self, why: str, tar: dict[str, Any] | None = None) -> None:
        super().__init__(why)
        self.tar = tar


def say(**facts: Any) -> None:
    """One line for the driver."""
    with _output:
        sys.stdout.write(MARK + json.dumps(facts) + "\n")
        sys.stdout.flush()


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


# ---- who the other one is


def _from_memory(context: ssl.SSLContext, pem: bytes) -> None:
    """Gives a key to OpenSSL, which reads files only, by pipes: it never lies in one."""
    ends = [os.pipe(), os.pipe()]  # one for the certificate, one for the key
    try:
        for _, writing in ends:
            os.write(writing, pem)
            os.close(writing)
        context.load_cert_chain(*("/dev/fd/%d" % reading for reading, _ in ends))  # noqa: UP031
    except OSError:
        raise Failed("its python3 cannot take a certificate from memory") from None
    finally:
        for reading, _ in ends:
            os.close(reading)


def _context(settings: dict[str, Any]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if settings["listen"] else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate itself is known
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=settings["peer"])
    _from_memory(context, settings["own"].encode())
    return context


def _greeted(context: ssl.SSLContext, plain: socket.socket, settings: dict[str, Any]) -> ssl.SSLSocket:
    """The connection, once both have proved who they are."""
    plain.settimeout(GREET_S)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    secured = context.wrap_socket(plain, server_side=settings["listen"])
    if secured.getpeercert(binary_form=True) != ssl.PEM_cert_to_DER_cert(settings["peer"]):
        raise ssl.SSLError("another certificate")
    secured.sendall(GREETING)  # after it the other side knows, too, that its certificate was taken
    if _exactly(secured, len(GREETING)) != GREETING:
        raise ssl.SSLError("another greeting")
    return secured


def _listen(settings: dict[str, Any]) -> socket.socket:
    """A free port of the range, at the address, or at all of them."""
    first, last = settings["ports"]
    ports = list(range(first, last + 1))
    random.shuffle(ports)
    host = settings["host"]
    everywhere = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if everywhere or ":" in host else socket.AF_INET
    for port in ports:
        try:
            return socket.create_server((host, port), family=family, backlog=64, dualstack_ipv6=everywhere)
        except OSError:
            continue
    raise Failed("no port from %d to %d is free there" % (first, last))  # noqa: UP031


def listened(settings: dict[str, Any]) -> ssl.SSLSocket:
    """The one connection from a peer with the right certificate. Others are dropped, and do not end it."""
    context = _context(settings)
    strangers = threading.Semaphore(MOST_STRANGERS)
    right: queue.Queue[ssl.SSLSocket] = queue.Queue()

    def greet(plain: socket.socket) -> None:
        try:
            right.put(_greeted(context, plain, settings))
        except (OSError, ValueError, Failed):
            plain.close()
        finally:
            strangers.release()

    def accept() -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                plain, _ = listener.accept()
                if strangers.acquire(blocking=False):
                    threading.Thread(target=greet, args=(plain,), daemon=True).start()
                else:
                    plain.close()

    with _listen(settings) as listener:
        threading.Thread(target=accept, daemon=True).start()
        say(listening=listener.getsockname()[1], addresses=_addresses())
        try:
            return right.get(timeout=settings["wait_s"])
        except queue.Empty:
            raise Failed("nobody has connected") from None


def _addresses() -> list[str]:
    """This machine's own, as its routes and its name have them."""
    found = []
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):  # nothing is sent there
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))
            found.append(probe.getsockname()[0])
    with contextlib.suppress(OSError):
        found += [str(each[4][0]) for each in socket.getaddrinfo(socket.gethostname(), None)]
    return [each for each in dict.fromkeys(found) if not each.startswith(("127.", "::1", "fe80"))]


def connected(settings: dict[str, Any]) -> ssl.SSLSocket:
    """A connection to the first address at which the right one answers."""
    context, reasons = _context(settings), []
    deadline = time.monotonic() + settings["connect_s"]
    for host in settings["hosts"]:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        try:
            plain = socket.create_connection((host, settings["port"]), timeout=min(left, TRY_S))
        except OSError as error:
            reasons.append(_why(error))
            continue
        try:
            return _greeted(context, plain, settings)
        except (OSError, ValueError, Failed):
            plain.close()
            reasons.append("another one answers")
    raise Failed(", ".join(dict.fromkeys(reasons)) or "no address is known")


def _why(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, socket.timeout):
        return "no answer"
    if isinstance(error, socket.gaierror):
        return "the name is not known there"
    return error.strerror or "no connection"


# ---- what is sent


def _exactly(source: ssl.SSLSocket, size: int) -> bytearray:
    data, done = bytearray(size), 0
    with memoryview(data) as view:
        while done < size:
            count = source.recv_into(view[done:])
            if not count:
                raise Failed(CUT)
            done += count
    return data


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
    words[0].join(GREET_S)
    # As bytes: the driver decides what of it is known.
    return {"exit_status": code, "told": base64.b64encode(bytes(words[1])).decode()}


def send(link: ssl.SSLSocket, command: list[str], encoding: dict[str, Any]) -> None:
    """Sends what a command writes."""
    encoding["hold_memory"]()
    known = _exactly(link, _exactly(link, 1)[0])
    tar = _tar(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    words, source = _last_words(tar), tar.stdout
    assert source is not None
    free_at = 0.0
    for head, body, size in encoding["Encoder"](known).blocks(encoding["pieces"](source.fileno())):
        link.sendall(head)
        link.sendall(body)
        _moved[0] += size
        _wire[0] += len(head) + len(body)
        if _rate[0]:
            free_at = max(free_at, time.monotonic()) + (len(head) + len(body)) / _rate[0]
            time.sleep(max(free_at - time.monotonic(), 0.0))
    code = tar.wait()
    link.sendall(encoding["HEAD"].pack(0, 0, 0) + _END.pack(_moved[0], code))
    if code:
        raise Failed("tar failed where the files are", _told(code, words))
    if struct.unpack(">i", _exactly(link, 4))[0]:
        raise Failed("tar failed at the other end")


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
            how, length, size = decoder.head(_exactly(link, head.size))
            if not length:
                return
            content = decoder.content(how, _exactly(link, length), size)
        except encoding["NotDecoded"] as error:
            raise Failed(str(error)) from None
        _moved[0] += size
        _wire[0] += head.size + length
        yield content


def receive(link: ssl.SSLSocket, command: list[str], passed: Callable[[Any], Any], encoding: dict[str, Any]) -> None:
    """Gives what comes, and may pass, to a command."""
    tar = _tar(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
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
    count, sent = _END.unpack(_exactly(link, _END.size))
    if sent or count != _moved[0]:
        raise Failed("tar failed at the other end" if sent else CUT)
    passed(b"")
    target.close()
    code = tar.wait()
    link.sendall(struct.pack(">i", code))
    if code:
        raise Failed("tar failed where they should go", _told(code, words))


def main() -> None:
    """Does what the line of standard input says."""
    settings: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    _rate[0] = settings.get("rate") or 0.0
    for work in (_watch, _beat):
        threading.Thread(target=work, daemon=True).start()
    try:
        try:
            link = (listened if settings["listen"] else connected)(settings)
            say(connected=True)
            link.settimeout(IDLE_S)
            encoding = _module("encoding", settings["encoding"])
            if settings["send"]:
                send(link, settings["words"], encoding)
            else:
                receive(link, settings["words"], _guard(settings["guard"]), encoding)
        except Failed as error:
            say(failed=str(error), tar=error.tar, moved=_moved[0])
        except socket.timeout:  # noqa: UP041 (before 3.10 it was no TimeoutError)
            say(failed="the other end has stopped", tar=None, moved=_moved[0])
        except OSError:  # ssl's are such
            say(failed=CUT, tar=None, moved=_moved[0])
        else:
            say(ended=_moved[0], wire=_wire[0])
    except BrokenPipeError:
        pass  # nobody listens
    leave()


if __name__ == "__main__":
    main()
