"""One end of a copy by way of a bucket. It runs at a site, by a bare python3 (3.8 or later): `commands.program` sends it as text.

The stream is cut into pieces, each an object of its own: a piece is fetched while the next one is stored, and nothing is ever half
there. Each is sealed by AES-256-GCM under a key that only the two ends and the driver have, with its number as the nonce: what the
bucket's owner sees is the size of the pieces. The last one ends with the number of bytes and tar's exit status.

Standard input gives a line of JSON to begin with, then one for each piece: the URL to store it by, or to fetch it from.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import ctypes
import http.client
import json
import os
import queue
import re
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import Any

from medweave_connectors.transfer.agent import direct_peer

PIECE = 8 * 2**20
PARALLEL = 3
REQUEST_S, PROBE_S = 120.0, 10.0
PAUSES_S = (0.5, 2.0, 8.0)  # none for the probe: who waits for it may go another way
GARBLED = "what the bucket gave is not what was stored"
_FINAL = ("another one answers", "connection refused", "the name is not known there")  # that does not pass in seconds
_TAG = 16
_GET_TAG, _SET_TAG = 0x10, 0x11  # of OpenSSL's evp.h
_END = struct.Struct(">Qi")
_CODE = re.compile(rb"<Code>([A-Za-z]{3,40})</Code>")
_told: queue.Queue[Any] = queue.Queue()  # lines from the driver


# ---- sealing


def _openssl() -> Any:
    """The library behind this python's ssl; it is loaded already."""
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:  # noqa: PTH123
        for line in maps:
            if "libcrypto" in line and "/" in line:
                library = ctypes.CDLL(line[line.index("/") :].rstrip("\n"))
                pointer, number = ctypes.c_void_p, ctypes.c_int
                for name, result, *arguments in (
                    ("CIPHER_CTX_new", pointer),
                    ("CIPHER_CTX_free", None, pointer),
                    ("aes_256_gcm", pointer),
                    ("CipherInit_ex", number, pointer, pointer, pointer, pointer, pointer, number),
                    ("CipherUpdate", number, pointer, pointer, pointer, pointer, number),
                    ("CipherFinal_ex", number, pointer, pointer, pointer),
                    ("CIPHER_CTX_ctrl", number, pointer, number, number, pointer),
                ):
                    function = getattr(library, "EVP_" + name)
                    function.restype, function.argtypes = result, arguments
                return library
    raise direct_peer.Failed("its python3 has no OpenSSL to seal with")


class Sealing:
    """Seals and opens the pieces of one copy; each number is used for one piece."""

    def __init__(self, key: bytes) -> None:
        self._library, self._key = _openssl(), key

    def seal(self, number: int, last: bool, data: bytes) -> bytes:
        """A piece as the bucket gets it."""
        sealed, tag = self._ciphered(number, last, data, None)
        return sealed + tag

    def open(self, number: int, last: bool, sealed: bytes) -> bytes:
        """What was sealed.

        Raises:
            Failed: it is another piece, or not whole.
        """
        return self._ciphered(number, last, sealed[:-_TAG], sealed[-_TAG:])[0]

    def _ciphered(self, number: int, last: bool, data: bytes, tag: bytes | None) -> tuple[bytes, bytes]:
        library, length = self._library, ctypes.c_int()
        at, made = ctypes.byref(length), ctypes.create_string_buffer(len(data) + _TAG)
        nonce, beside = number.to_bytes(12, "big"), b"last" if last else b"more"
        context = library.EVP_CIPHER_CTX_new()
        try:
            seals = int(tag is None)
            steps = [library.EVP_CipherInit_ex(context, library.EVP_aes_256_gcm(), None, self._key, nonce, seals)]
            steps.append(library.EVP_CipherUpdate(context, None, at, beside, len(beside)))
            steps.append(library.EVP_CipherUpdate(context, made, at, data, len(data)))
            if tag is not None:
                steps.append(len(tag) == _TAG and library.EVP_CIPHER_CTX_ctrl(context, _SET_TAG, _TAG, tag))
            end = ctypes.create_string_buffer(_TAG)
            steps.append(library.EVP_CipherFinal_ex(context, end, at))
            if tag is None:
                steps.append(library.EVP_CIPHER_CTX_ctrl(context, _GET_TAG, _TAG, end))
            if not all(step == 1 for step in steps):
                raise direct_peer.Failed(GARBLED)
            return made.raw[: len(data)], end.raw
        finally:
            library.EVP_CIPHER_CTX_free(context)


# ---- the bucket


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None  # a signed URL is for that machine


class Bucket:
    """What signed URLs allow: to store an object, or to fetch one."""

    def __init__(self, ca: str) -> None:
        context = ssl.create_default_context(cadata=ca or None)
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirects)

    def store(self, url: str, data: bytes, probes: bool = False) -> None:
        """Stores an object, which is there wholly or not at all."""
        self._asked(urllib.request.Request(url, data=data, method="PUT"), 2**16, probes)

    def fetch(self, url: str, probes: bool = False) -> bytes:
        """An object's content."""
        return self._asked(urllib.request.Request(url), PIECE + _END.size + _TAG + 1, probes)

    def _asked(self, request: urllib.request.Request, most_bytes: int, probes: bool) -> bytes:
        for pause_s in (*(() if probes else PAUSES_S), None):
            try:
                with self._opener.open(request, timeout=PROBE_S if probes else REQUEST_S) as answer:
                    return bytes(answer.read(most_bytes))
            except urllib.error.HTTPError as error:
                why = "the bucket answers %d%s" % (error.code, _code(error))  # noqa: UP031
                if error.code < 500 or pause_s is None:
                    raise direct_peer.Failed(why) from None
            except urllib.error.URLError as error:
                why = "the bucket is not reached: " + _why(error.reason)
            except (OSError, http.client.HTTPException):
                why = "the connection to the bucket was lost"
            if pause_s is None or why.endswith(_FINAL):
                raise direct_peer.Failed(why)
            time.sleep(pause_s)
        raise AssertionError


def _code(error: urllib.error.HTTPError) -> str:
    """S3's own word, which names nothing."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        found = _CODE.search(error.read(65536))
        if found:
            return " " + found.group(1).decode()
    return ""


def _why(reason: Any) -> str:
    if isinstance(reason, ssl.SSLError):
        return "another one answers"
    return direct_peer.why_not(reason) if isinstance(reason, OSError) else "no connection"


# ---- the stream


def _listen() -> None:
    with contextlib.suppress(OSError, ValueError):
        for line in sys.stdin.buffer:
            _told.put(json.loads(line))
    direct_peer.leave()  # the driver has gone, or said `stop`


def _read(source: Any) -> bytes:
    pieces, left = [], PIECE
    while left:
        data = os.read(source.fileno(), min(left, 2**20))
        if not data:
            break
        pieces.append(data)
        left -= len(data)
    return b"".join(pieces)


def send(bucket: Bucket, sealing: Sealing, command: list[str]) -> None:
    """Stores what a command writes."""
    tar = direct_peer._tar(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    words, code, number, last = direct_peer._last_words(tar), 0, 0, False
    waiting: collections.deque[tuple[int, bool, Any]] = collections.deque()
    pool = concurrent.futures.ThreadPoolExecutor(PARALLEL)  # nobody waits for its end where something fails
    while not last:
        data = _read(tar.stdout)
        direct_peer._moved[0] += len(data)
        last = len(data) < PIECE
        if last:
            code = tar.wait()
            data += _END.pack(direct_peer._moved[0], code)
        while waiting and (len(waiting) >= PARALLEL or _told.empty()):  # what is told makes room for the next one
            _stored(*waiting.popleft())
        told = _told.get()
        waiting.append((number, last, pool.submit(bucket.store, told["url"], sealing.seal(number, last, data))))
        number += 1
    while waiting:
        _stored(*waiting.popleft())
    if code:
        raise direct_peer.Failed("tar failed where the files are", direct_peer._told(code, words))


def _stored(number: int, last: bool, done: Any) -> None:
    done.result()
    direct_peer.say(now="stored", number=number, last=last)


def receive(bucket: Bucket, sealing: Sealing, command: list[str], passed: Any) -> None:
    """Fetches, and gives what may pass to a command."""
    tar = direct_peer._tar(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    words, last = direct_peer._last_words(tar), False
    waiting: collections.deque[tuple[dict[str, Any], Any]] = collections.deque()
    pool = concurrent.futures.ThreadPoolExecutor(PARALLEL)
    while not last:
        while not waiting or (len(waiting) < PARALLEL and not _told.empty()):
            told = _told.get()
            waiting.append((told, pool.submit(bucket.fetch, told["url"])))
        told, fetched = waiting.popleft()
        last = told["last"]
        data = sealing.open(told["number"], last, fetched.result())
        if last:
            data, end = data[: -_END.size], _END.unpack(data[-_END.size :])
        direct_peer._moved[0] += len(data)
        _give(tar, passed(data) if data else b"", words)
        direct_peer.say(now="took", number=told["number"])
    if end != (direct_peer._moved[0], 0):
        raise direct_peer.Failed("tar failed at the other end" if end[1] else direct_peer.CUT)
    passed(b"")
    assert tar.stdin is not None
    tar.stdin.close()
    if code := tar.wait():
        raise direct_peer.Failed("tar failed where they should go", direct_peer._told(code, words))


def _give(tar: Any, data: bytes, words: Any) -> None:
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(tar.stdin.fileno(), rest) :]
    except BrokenPipeError:  # an archive's readers stop before its padding
        if code := tar.wait():
            raise direct_peer.Failed("tar failed where they should go", direct_peer._told(code, words)) from None


def _reached(bucket: Bucket, settings: dict[str, Any]) -> None:
    """Stores a tiny object, or finds it: the way is there before anything is begun."""
    if settings["send"]:
        bucket.store(settings["probe"], settings["content"].encode(), probes=True)
    elif bucket.fetch(settings["probe"], probes=True) != settings["content"].encode():
        raise direct_peer.Failed(GARBLED)
    direct_peer.say(reached=True)


def main() -> None:
    """Does what the lines of standard input say."""
    settings: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    for work in (_listen, direct_peer._beat):
        threading.Thread(target=work, daemon=True).start()
    try:
        try:
            sealing, bucket = Sealing(bytes.fromhex(settings["key"])), Bucket(settings["ca"])
            _reached(bucket, settings)
            if settings["send"]:
                send(bucket, sealing, settings["words"])
            else:
                receive(bucket, sealing, settings["words"], direct_peer._guard(settings["guard"]))
        except direct_peer.Failed as error:
            direct_peer.say(failed=str(error), tar=error.tar)
        except OSError:
            direct_peer.say(failed=direct_peer.CUT, tar=None)
        else:
            direct_peer.say(now="ended", bytes=direct_peer._moved[0])
    except BrokenPipeError:
        pass  # nobody listens
    direct_peer.leave()


if __name__ == "__main__":
    main()
