"""Parts of the testbed, and the tools that are passed to their functions."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .commands import Commands
from .daemons import Daemons
from .errors import TestbedError
from .layout import Layout
from .walls import Walls

_POLL_s = 0.1


@dataclass(frozen=True, kw_only=True)
class Testbed:
    """One testbed with its tools.

    Attributes:
        environment: the variables that `up` was called with.
        existing_kubeconfig: of the user's own cluster, where that is used; None for the testbed's own.
    """

    __test__ = False  # pytest collects classes whose name begins with "Test"

    layout: Layout
    commands: Commands
    walls: Walls
    daemons: Daemons
    environment: Mapping[str, str]
    existing_kubeconfig: Path | None = None

    @property
    def kubeconfig(self) -> Path:
        """The administrator's, of the cluster that is used."""
        return self.existing_kubeconfig or self.layout.admin_kubeconfig

    def kubectl(self, *words: str, text: str | None = None, timeout_s: float = 60) -> str:
        """Standard output of kubectl as the administrator; raises `TestbedError` when it fails."""
        return self.commands.run(self.kubectl_words(*words), text=text, timeout_s=timeout_s)

    def kubectl_words(self, *words: str) -> list[str]:
        """Return the command line of kubectl as the administrator."""
        return [str(self.layout.bin / "kubectl"), f"--kubeconfig={self.kubeconfig}", "--request-timeout=10s", *words]


def as_list(documents: Sequence[Mapping[str, Any]]) -> str:
    """Kubernetes objects as one document for `kubectl apply -f -`."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(documents)})


@dataclass(frozen=True, kw_only=True)
class Part:
    """One thing that `up` brings up and `status` shows.

    Attributes:
        name: one word, also of its log.
        needs: names of the parts that must be healthy before it starts.
        trouble: says why it is not healthy, or None; quick (seconds), changes nothing.
        start: brings it up; returns at once (a daemon) or when all is made.
        patience_s: how long it may take from `start`'s return until it is healthy.
        daemon: name of its process, if it has one.
        port: TCP port on which it listens inside the testbed's network.
        slow: work that takes minutes, for the progress lines.
    """

    name: str
    needs: tuple[str, ...] = ()
    trouble: Callable[[Testbed], str | None]
    start: Callable[[Testbed], None]
    patience_s: float = 60
    daemon: str | None = None
    port: int | None = None
    slow: str = field(default="", compare=False)


def reason(part: Part, testbed: Testbed) -> str | None:
    """Return why a part is not healthy; a check that itself fails is a reason too."""
    try:
        gone = testbed.daemons.trouble(part.daemon) if part.daemon is not None else None
        if gone is None:
            return part.trouble(testbed)
        taker = port_taker(part, testbed)
        return f"{gone}; its port {part.port} is taken by {taker}" if taker else gone
    except TestbedError as problem:
        return " ".join(f"{problem.what} {problem.seen}".split())[:300]
    except OSError as problem:
        return str(problem)


def bring_up(part: Part, testbed: Testbed) -> bool:
    """Start a part unless it is healthy, and wait until it is; return whether it had to be started.

    Raises:
        TestbedError: it did not become healthy in time, or its port is taken.
    """
    why = reason(part, testbed)
    if why is None:
        return False
    if part.port is not None:
        check_port(part, testbed)
    part.start(testbed)
    deadline = time.monotonic() + part.patience_s
    while (why := reason(part, testbed)) is not None:
        if part.daemon is not None and testbed.daemons.pid(part.daemon) is None:
            raise testbed.daemons.ended_early(part.daemon).about(part.name)
        if time.monotonic() > deadline:
            raise TestbedError(
                f"{part.name}: it is not healthy {part.patience_s:.0f} s after its start.",
                seen=why,
                expected="a healthy answer within that time",
                do=f"read {testbed.daemons.log(part.daemon or part.name)}",
            )
        testbed.commands.sleep(_POLL_s)
    return True


def check_port(part: Part, testbed: Testbed) -> None:
    """Raises: TestbedError: another program listens on the part's port."""
    taker = port_taker(part, testbed)
    if taker is None:
        return
    raise TestbedError(
        f"{part.name}: its port {part.port} is taken.",
        seen=taker,
        expected=f"port {part.port} free inside the testbed's own network",
        do="end that program, or take all down by `make testbed-down`, then run `make testbed` again",
    )


def port_taker(part: Part, testbed: Testbed) -> str | None:
    """Which other program listens on a part's port inside the testbed's network, as `ss` names it; None if it is free."""
    if part.port is None or testbed.walls.base is None:
        return None
    words = [*testbed.walls.inside(), "ss", "-H", "-l", "-n", "-p", "-t", "sport", "=", f":{part.port}"]
    lines = testbed.commands.outcome(words)[1].splitlines()
    own = f"pid={testbed.daemons.pid(part.daemon)}," if part.daemon else ""
    others = [line for line in lines if not own or own not in line]
    return " ".join(others[0].split()) if others else None
