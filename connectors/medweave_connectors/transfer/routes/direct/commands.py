"""The command that starts an agent, its settings, and its messages. Pure."""

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
    """The identity of one end, for one copy.

    Attributes:
        certificate: PEM, self-signed; the other end gets it from the driver.
        key: PEM.
    """

    certificate: str
    key: str


def parse_ports(ports: Sequence[int]) -> tuple[int, int]:
    """Return the first and last port at which an end may listen.

    Raises:
        UsageError: the ports are no range.
    """
    if len(ports) == 2 and 1024 <= ports[0] <= ports[1] <= 65535:
        return ports[0], ports[1]
    raise UsageError(
        "dataManager.config.directPorts: invalid range of ports.",
        seen=", ".join(map(str, ports)),
        expected="the first and the last, from 1024 to 65535",
        do="write directPorts: [47000, 47099], or remove the key",
    )


def boot_command() -> list[str]:
    """Return the command that starts an agent. It reads the program text from standard input: process lists show command lines."""
    script = (
        f"command -v python3 >/dev/null || {{ echo {shlex.quote(_LACKS)}; exit 1; }}; "
        f"exec python3 -I -S -c {shlex.quote(_BOOT)} 2>/dev/null"
    )
    return ["sh", "-c", script]


def to_listen(*, bind: str, own: Identity, peer: Identity, ports: tuple[int, int] = PORTS) -> dict[str, Any]:
    """Return the settings of the end that listens.

    Args:
        ports: the first and the last port that it may take.
    """
    return {"listen": True, "host": bind, "ports": list(ports), "wait_s": WAIT_S, **_identities(own, peer)}


def to_connect(*, hosts: Sequence[str], port: int, own: Identity, peer: Identity) -> dict[str, Any]:
    """Return the settings of the end that connects: it takes the first address at which the peer authenticates."""
    distinct = list(dict.fromkeys(hosts))
    return {"listen": False, "hosts": distinct, "port": port, "connect_s": CONNECT_S, **_identities(own, peer)}


def _identities(own: Identity, peer: Identity) -> dict[str, str]:
    return {"own": own.certificate + own.key, "peer": peer.certificate}


def task_line(settings: Mapping[str, Any], *, sends: bool) -> bytes:
    """Return the line that starts the task."""
    return json.dumps({**settings, "send": sends, "encoding": program_text.of("encoding")}).encode() + b"\n"


def parse_message(text: bytes) -> dict[str, Any] | None:
    """Return the message in a line; None where the agent has not written it (a login prints text)."""
    _, mark, message = text.partition(MARK.encode())
    if not mark:
        return None
    try:
        facts = json.loads(message)
    except ValueError:
        return None
    return facts if isinstance(facts, dict) else None


def parse_listing(message: Mapping[str, Any]) -> bytes | None:
    """Return the listing of the tree that an agent has sent; None where the message has none."""
    try:
        return zlib.decompressobj().decompress(base64.b64decode(message["tree"]), MOST_BYTES)
    except (KeyError, TypeError, ValueError, zlib.error):
        return None


def tar_errors(tar: Mapping[str, Any]) -> str:
    """Return the end of tar's standard error, which may name files."""
    return base64.b64decode(tar["told"]).decode(errors="replace").strip()
