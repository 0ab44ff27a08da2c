"""How the two ends of a direct copy come together: part of `far_end`, which has this text within it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import socket
import ssl
import sys
import threading
import time
from typing import Any

MARK = "medweave-direct "
CUT = "the stream was cut"  # which tells nothing of why
GREETING = b"medweave-direct 2\n"
GREET_S = 5.0
MOST_STRANGERS = 16  # that may be greeted at the same time
TRY_S = 2.0  # one of several addresses
_output = threading.Lock()


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


def exactly(source: ssl.SSLSocket, size: int) -> bytearray:
    data, done = bytearray(size), 0
    with memoryview(data) as view:
        while done < size:
            count = source.recv_into(view[done:])
            if not count:
                raise Failed(CUT)
            done += count
    return data


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
    if exactly(secured, len(GREETING)) != GREETING:
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
            reasons.append(why_not(error))
            continue
        try:
            return _greeted(context, plain, settings)
        except (OSError, ValueError, Failed):
            plain.close()
            reasons.append("another one answers")
    raise Failed(", ".join(dict.fromkeys(reasons)) or "no address is known")


def why_not(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, socket.timeout):
        return "no answer"
    if isinstance(error, socket.gaierror):
        return "the name is not known there"
    return error.strerror or "no connection"
