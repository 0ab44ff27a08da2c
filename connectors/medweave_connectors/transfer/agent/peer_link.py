"""The TLS connection between the two ends of a direct copy. `direct_peer` embeds this text."""

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
CUT = "the stream was cut"  # which says nothing of the cause
GREETING = b"medweave-direct 2\n"
GREET_S = 5.0
MOST_STRANGERS = 16  # connections that may authenticate at the same time
TRY_S = 2.0  # one of several addresses
_output = threading.Lock()


class PeerFailed(Exception):
    """Why there is no copy, in a message that names no file; `tar` has tar's exit status and last messages where tar failed."""

    def __init__(self, why: str, tar: dict[str, Any] | None = None) -> None:
        super().__init__(why)
        self.tar = tar


def report(**facts: Any) -> None:
    """Send a message to the driver."""
    with _output:
        sys.stdout.write(MARK + json.dumps(facts) + "\n")
        sys.stdout.flush()


def read_exactly(source: ssl.SSLSocket, size: int) -> bytearray:
    """Return so many bytes; fail where the stream ends before."""
    data, done = bytearray(size), 0
    with memoryview(data) as view:
        while done < size:
            count = source.recv_into(view[done:])
            if not count:
                raise PeerFailed(CUT)
            done += count
    return data


# ---- authentication


def _from_memory(context: ssl.SSLContext, pem: bytes) -> None:
    """Load a key by pipes: OpenSSL reads files only, and the key is never written to one."""
    ends = [os.pipe(), os.pipe()]  # one for the certificate, one for the key
    try:
        for _, writing in ends:
            os.write(writing, pem)
            os.close(writing)
        context.load_cert_chain(*("/dev/fd/%d" % reading for reading, _ in ends))  # noqa: UP031
    except OSError:
        raise PeerFailed("its python3 cannot load a certificate from memory") from None
    finally:
        for reading, _ in ends:
            os.close(reading)


def _context(settings: dict[str, Any]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if settings["listen"] else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate itself is compared
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=settings["peer"])
    _from_memory(context, settings["own"].encode())
    return context


def _authenticated(context: ssl.SSLContext, plain: socket.socket, settings: dict[str, Any]) -> ssl.SSLSocket:
    """Return the connection, once both ends are authenticated."""
    plain.settimeout(GREET_S)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    secured = context.wrap_socket(plain, server_side=settings["listen"])
    if secured.getpeercert(binary_form=True) != ssl.PEM_cert_to_DER_cert(settings["peer"]):
        raise ssl.SSLError("unexpected certificate")
    secured.sendall(GREETING)  # it also confirms to the peer that its certificate was accepted
    if read_exactly(secured, len(GREETING)) != GREETING:
        raise ssl.SSLError("unexpected greeting")
    return secured


def _listen(settings: dict[str, Any]) -> socket.socket:
    """Return a listener at a free port of the range, at the address, or at all addresses."""
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
    raise PeerFailed("no port from %d to %d is free there" % (first, last))  # noqa: UP031


def accept_peer(settings: dict[str, Any]) -> ssl.SSLSocket:
    """Return the connection of the peer with the expected certificate. Other connections are dropped."""
    context = _context(settings)
    strangers = threading.Semaphore(MOST_STRANGERS)
    peers: queue.Queue[ssl.SSLSocket] = queue.Queue()

    def authenticate(plain: socket.socket) -> None:
        try:
            peers.put(_authenticated(context, plain, settings))
        except (OSError, ValueError, PeerFailed):
            plain.close()
        finally:
            strangers.release()

    def accept() -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                plain, _ = listener.accept()
                if strangers.acquire(blocking=False):
                    threading.Thread(target=authenticate, args=(plain,), daemon=True).start()
                else:
                    plain.close()

    with _listen(settings) as listener:
        threading.Thread(target=accept, daemon=True).start()
        report(listening=listener.getsockname()[1], addresses=_addresses())
        try:
            return peers.get(timeout=settings["wait_s"])
        except queue.Empty:
            raise PeerFailed("no peer connected within %.0f s" % settings["wait_s"]) from None  # noqa: UP031


def _addresses() -> list[str]:
    """Return this machine's addresses, by its routes and its name."""
    addresses = []
    for family, remote in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):  # nothing is sent there
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((remote, 9))
            addresses.append(probe.getsockname()[0])
    with contextlib.suppress(OSError):
        addresses += [str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None)]
    return [address for address in dict.fromkeys(addresses) if not address.startswith(("127.", "::1", "fe80"))]


def connect_to_peer(settings: dict[str, Any]) -> ssl.SSLSocket:
    """Connect to the first address at which the peer authenticates."""
    context, reasons = _context(settings), []
    deadline = time.monotonic() + settings["connect_s"]
    for host in settings["hosts"]:
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            break
        try:
            plain = socket.create_connection((host, settings["port"]), timeout=min(remaining_s, TRY_S))
        except OSError as error:
            reasons.append(describe_error(error))
            continue
        try:
            return _authenticated(context, plain, settings)
        except (OSError, ValueError, PeerFailed):
            plain.close()
            reasons.append("peer certificate does not match")
    raise PeerFailed(", ".join(dict.fromkeys(reasons)) or "no address is known")


def describe_error(error: OSError) -> str:
    """Return why a connection was not made."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, socket.timeout):
        return "no answer"
    if isinstance(error, socket.gaierror):
        return "the host name cannot be resolved there"
    return error.strerror or "no connection"
