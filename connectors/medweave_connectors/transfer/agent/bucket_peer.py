"""One end of a copy by a bucket: an agent that a site runs by a bare python3 (3.8 or later). The driver sends it as text.

The stream is cut into pieces, and each piece is an object: a piece is fetched while the next one is stored. Each piece is
encrypted by AES-256-GCM, with its number as the nonce. Only the two ends and the driver have the key: the owner of the bucket
sees no more than the sizes of the pieces. The last piece ends with the number of bytes and tar's exit status.

Standard input has a line of JSON with the settings, then one line for each piece: the URL to store it at, or to fetch it from.
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
PAUSES_S = (0.5, 2.0, 8.0)  # none for the probe: the copy may take another route
GARBLED = "a fetched object differs from the stored one"
_FINAL = (
    "peer certificate does not match",
    "connection refused",
    "the host name cannot be resolved there",
)  # a retry within seconds does not help
_TAG = 16
_GET_TAG, _SET_TAG = 0x10, 0x11  # of OpenSSL's evp.h
_END = struct.Struct(">Qi")
_CODE = re.compile(rb"<Code>([A-Za-z]{3,40})</Code>")
_lines: queue.Queue[Any] = queue.Queue()  # from the driver


# ---- encryption


def _openssl() -> Any:
    """Return the library of this python's ssl, which is loaded already."""
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
    raise direct_peer.PeerFailed("its python3 has no OpenSSL for encryption")


class PieceCipher:
    """Encrypts and decrypts the pieces of one copy; each number is used for one piece."""

    def __init__(self, key: bytes) -> None:
        self._library, self._key = _openssl(), key

    def encrypt(self, number: int, last: bool, data: bytes) -> bytes:
        """Return a piece as the bucket gets it."""
        encrypted, tag = self._cipher(number, last, data, None)
        return encrypted + tag

    def decrypt(self, number: int, last: bool, encrypted: bytes) -> bytes:
        """Return the content of a piece.

        Raises:
            PeerFailed: it is another piece, or damaged.
        """
        return self._cipher(number, last, encrypted[:-_TAG], encrypted[-_TAG:])[0]

    def _cipher(self, number: int, last: bool, data: bytes, tag: bytes | None) -> tuple[bytes, bytes]:
        library, length = self._library, ctypes.c_int()
        at, made = ctypes.byref(length), ctypes.create_string_buffer(len(data) + _TAG)
        nonce, header = number.to_bytes(12, "big"), b"last" if last else b"more"
        context = library.EVP_CIPHER_CTX_new()
        try:
            encrypts = int(tag is None)
            steps = [library.EVP_CipherInit_ex(context, library.EVP_aes_256_gcm(), None, self._key, nonce, encrypts)]
            steps.append(library.EVP_CipherUpdate(context, None, at, header, len(header)))
            steps.append(library.EVP_CipherUpdate(context, made, at, data, len(data)))
            if tag is not None:
                steps.append(len(tag) == _TAG and library.EVP_CIPHER_CTX_ctrl(context, _SET_TAG, _TAG, tag))
            end = ctypes.create_string_buffer(_TAG)
            steps.append(library.EVP_CipherFinal_ex(context, end, at))
            if tag is None:
                steps.append(library.EVP_CIPHER_CTX_ctrl(context, _GET_TAG, _TAG, end))
            if not all(step == 1 for step in steps):
                raise direct_peer.PeerFailed(GARBLED)
            return made.raw[: len(data)], end.raw
        finally:
            library.EVP_CIPHER_CTX_free(context)


# ---- the bucket


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None  # a signed URL is for one machine


class BucketClient:
    """Stores and fetches objects by signed URLs."""

    def __init__(self, ca: str) -> None:
        context = ssl.create_default_context(cadata=ca or None)
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirects)

    def store(self, url: str, data: bytes, probes: bool = False) -> None:
        """Store an object."""
        self._request(urllib.request.Request(url, data=data, method="PUT"), 2**16, probes)

    def fetch(self, url: str, probes: bool = False) -> bytes:
        """Return the content of an object."""
        return self._request(urllib.request.Request(url), PIECE + _END.size + _TAG + 1, probes)

    def _request(self, request: urllib.request.Request, most_bytes: int, probes: bool) -> bytes:
        for pause_s in (*(() if probes else PAUSES_S), None):
            try:
                with self._opener.open(request, timeout=PROBE_S if probes else REQUEST_S) as answer:
                    return bytes(answer.read(most_bytes))
            except urllib.error.HTTPError as error:
                why = "the bucket responds with status %d%s" % (error.code, _code(error))  # noqa: UP031
                if error.code < 500 or pause_s is None:
                    raise direct_peer.PeerFailed(why) from None
            except urllib.error.URLError as error:
                why = "the bucket cannot be reached: " + _why(error.reason)
            except (OSError, http.client.HTTPException):
                why = "the connection to the bucket was lost"
            if pause_s is None or why.endswith(_FINAL):
                raise direct_peer.PeerFailed(why)
            time.sleep(pause_s)
        raise AssertionError


def _code(error: urllib.error.HTTPError) -> str:
    """Return S3's error code, which names no object."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        match = _CODE.search(error.read(65536))
        if match:
            return " " + match.group(1).decode()
    return ""


def _why(reason: Any) -> str:
    if isinstance(reason, ssl.SSLError):
        return "peer certificate does not match"
    return direct_peer.describe_error(reason) if isinstance(reason, OSError) else "no connection"


# ---- the stream


def _read_lines() -> None:
    with contextlib.suppress(OSError, ValueError):
        for line in sys.stdin.buffer:
            _lines.put(json.loads(line))
    direct_peer.leave()  # the driver has gone, or sent `stop`


def _read_piece(source: Any) -> bytes:
    parts, missing = [], PIECE
    while missing:
        data = os.read(source.fileno(), min(missing, 2**20))
        if not data:
            break
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)


def send(bucket: BucketClient, cipher: PieceCipher, command: list[str]) -> None:
    """Store what a command writes."""
    tar = direct_peer.start_tar(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    errors, code, number, last = direct_peer.read_errors(tar), 0, 0, False
    waiting: collections.deque[tuple[int, bool, Any]] = collections.deque()
    pool = concurrent.futures.ThreadPoolExecutor(PARALLEL)  # after a failure nothing waits for its threads
    while not last:
        data = _read_piece(tar.stdout)
        direct_peer.moved_bytes[0] += len(data)
        last = len(data) < PIECE
        if last:
            code = tar.wait()
            data += _END.pack(direct_peer.moved_bytes[0], code)
        while waiting and (len(waiting) >= PARALLEL or _lines.empty()):  # a report makes room for the next piece
            _report_stored(*waiting.popleft())
        line = _lines.get()
        waiting.append((number, last, pool.submit(bucket.store, line["url"], cipher.encrypt(number, last, data))))
        number += 1
    while waiting:
        _report_stored(*waiting.popleft())
    if code:
        raise direct_peer.PeerFailed("tar failed at the source", direct_peer.tar_report(code, errors))


def _report_stored(number: int, last: bool, storing: Any) -> None:
    storing.result()
    direct_peer.report(now="stored", number=number, last=last)


def receive(bucket: BucketClient, cipher: PieceCipher, command: list[str], check: Any) -> None:
    """Fetch, check, and write to a command."""
    tar = direct_peer.start_tar(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    errors, last = direct_peer.read_errors(tar), False
    waiting: collections.deque[tuple[dict[str, Any], Any]] = collections.deque()
    pool = concurrent.futures.ThreadPoolExecutor(PARALLEL)
    while not last:
        while not waiting or (len(waiting) < PARALLEL and not _lines.empty()):
            line = _lines.get()
            waiting.append((line, pool.submit(bucket.fetch, line["url"])))
        line, fetching = waiting.popleft()
        last = line["last"]
        data = cipher.decrypt(line["number"], last, fetching.result())
        if last:
            data, end = data[: -_END.size], _END.unpack(data[-_END.size :])
        direct_peer.moved_bytes[0] += len(data)
        direct_peer.write_to_tar(tar, check(data) if data else b"", errors)
        direct_peer.report(now="took", number=line["number"])
    if end != (direct_peer.moved_bytes[0], 0):
        raise direct_peer.PeerFailed("tar failed at the peer" if end[1] else direct_peer.CUT)
    check(b"")
    assert tar.stdin is not None
    tar.stdin.close()
    code = tar.wait()
    if code:
        raise direct_peer.PeerFailed("tar failed at the destination", direct_peer.tar_report(code, errors))


def _probe(bucket: BucketClient, settings: dict[str, Any]) -> None:
    """Store a small object, or fetch it, before anything is sent."""
    if settings["send"]:
        bucket.store(settings["probe"], settings["content"].encode(), probes=True)
    elif bucket.fetch(settings["probe"], probes=True) != settings["content"].encode():
        raise direct_peer.PeerFailed(GARBLED)
    direct_peer.report(reached=True)


def main() -> None:
    """Do what the lines of standard input say."""
    settings: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    for work in (_read_lines, direct_peer.send_beats):
        threading.Thread(target=work, daemon=True).start()
    try:
        try:
            cipher, bucket = PieceCipher(bytes.fromhex(settings["key"])), BucketClient(settings["ca"])
            _probe(bucket, settings)
            if settings["send"]:
                send(bucket, cipher, settings["words"])
            else:
                receive(bucket, cipher, settings["words"], direct_peer.checker_of(settings["guard"]))
        except direct_peer.PeerFailed as error:
            direct_peer.report(failed=str(error), tar=error.tar)
        except OSError:
            direct_peer.report(failed=direct_peer.CUT, tar=None)
        else:
            direct_peer.report(now="ended", bytes=direct_peer.moved_bytes[0])
    except BrokenPipeError:
        pass  # the driver has gone
    direct_peer.leave()


if __name__ == "__main__":
    main()
