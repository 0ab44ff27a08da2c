"""What is run at the ends of a direct copy, and what they are told. Pure."""

from __future__ import annotations

import base64
import json
import shlex
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medweave_connectors.transfer.agent import program_text
from medweave_connectors.transfer.agent.peer_link import MARK
from medweave_core.errors import UsageError

PORTS = (47000, 47099)  # of the end that listens; the charts' NetworkPolicies may open them
CONNECT_S, WAIT_S = 5.0, 15.0
_OLDEST = (3, 8)
_BOOT = (
    "import sys; "
    f"sys.version_info >= {_OLDEST} or sys.exit(print({MARK + json.dumps({'failed': 'its python3 is too old'})!r})); "
    "b = sys.stdin.buffer; exec(b.read(int(b.readline())))"
)
_LACKS = MARK + json.dumps({"failed": "it has no python3"})
MOST_BYTES = 2**28  # of a tree: two million files


@dataclass(frozen=True, slots=True)
class Identity:
    """Who one end is, for one copy.

    Attributes:
        certificate: PEM, signed by its own key; the other end knows it.
        key: PEM.
    """

    certificate: str
    key: str


def read_ports(given: Sequence[int]) -> tuple[int, int]:
    """First and last port at which an end may listen.

    Raises:
        UsageError: they are none.
    """
    if len(given) == 2 and 1024 <= given[0] <= given[1] <= 65535:
        return given[0], given[1]
    raise UsageError(
        "dataManager.config.directPorts: this is no range of ports.",
        seen=", ".join(map(str, given)),
        expected="the first and the last, from 1024 to 65535",
        do="write directPorts: [47000, 47099], or leave it out",
    )


def start() -> list[str]:
    """Words that start a program at an end, which reads the program itself from its input: `program` is written there first.

    No line of a process list holds more than these words.
    """
    script = (
        f"command -v python3 >/dev/null || {{ echo {shlex.quote(_LACKS)}; exit 1; }}; "
        f"exec python3 -I -S -c {shlex.quote(_BOOT)} 2>/dev/null"
    )
    return ["sh", "-c", script]


def to_listen(*, bind: str, own: Identity, peer: Identity, ports: tuple[int, int] = PORTS) -> dict[str, Any]:
    """What the end is told that the other one connects to.

    Args:
        ports: first and last of those that it may take.
    """
    return {"listen": True, "host": bind, "ports": list(ports), "wait_s": WAIT_S, **_identities(own, peer)}


def to_connect(*, hosts: Sequence[str], port: int, own: Identity, peer: Identity) -> dict[str, Any]:
    """What the end is told that connects: it takes the first address at which the right one answers."""
    distinct = list(dict.fromkeys(hosts))
    return {"listen": False, "hosts": distinct, "port": port, "connect_s": CONNECT_S, **_identities(own, peer)}


def _identities(own: Identity, peer: Identity) -> dict[str, str]:
    return {"own": own.certificate + own.key, "peer": peer.certificate}


def line(settings: Mapping[str, Any], *, sends: bool) -> bytes:
    """The line that begins the work."""
    return json.dumps({**settings, "send": sends, "encoding": program_text.of("encoding")}).encode() + b"\n"


def read(text: bytes) -> dict[str, Any] | None:
    """What an end says in one line; None where the line is not from it (what a login prints)."""
    _, mark, said = text.partition(MARK.encode())
    if not mark:
        return None
    try:
        told = json.loads(said)
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def read_tree(told: Mapping[str, Any]) -> bytes | None:
    """Of the end that sent a tree, what it has read; None where it does not say it."""
    try:
        return zlib.decompressobj().decompress(base64.b64decode(told["tree"]), MOST_BYTES)
    except (KeyError, TypeError, ValueError, zlib.error):
        return None


def last_words(tar: Mapping[str, Any]) -> str:
    """What tar has said; it may name files."""
    return base64.b64decode(tar["told"]).decode(errors="replace").strip()
