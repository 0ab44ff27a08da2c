"""The data rules of a run, asked for each copy before anything of it is sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.host.errors import TransferForbidden
from medweave_connectors.policy.data_classes import DEFINITION, WORKFLOW, Known, Port, Rules

DRIVER = ""  # the place of all deployments that are this machine
_carrying: ContextVar[Port | None] = ContextVar("carrying", default=None)

Copies = Iterable[tuple[ExecutionLocation, str]]


@contextmanager
def carrying(port: Port | None) -> Iterator[None]:
    """What is transferred in here goes through this port."""
    before = _carrying.set(port)
    try:
        yield
    finally:
        _carrying.reset(before)


def delivers() -> bool:
    """Whether what is transferred is a result of the workflow."""
    port = _carrying.get()
    return port is not None and port.step == WORKFLOW


class Guard:
    """Refuses what may not lie where it is to go, and remembers of which class a file was.

    Without rules it refuses nothing, and knows nothing.
    """

    def __init__(self, settings: Mapping[str, Any] | None = None, wraps: Mapping[str, str] | None = None) -> None:
        self._rules = None
        if settings is not None:
            carries = {
                step: {name: [of_it] if isinstance(of_it, str) else of_it for name, of_it in ports.items()}
                for step, ports in (settings.get("carries") or {}).items()
            }
            self._rules = Rules(
                carries=carries,
                may_hold=settings.get("mayHold") or {},
                driver=settings.get("driver") or (),
                wraps=wraps or {},
            )
        self._known = Known()

    def admit(self, copies: Copies, destinations: Sequence[ExecutionLocation]) -> frozenset[str]:
        """The classes of a file or folder, which may go to each destination.

        Args:
            copies: where it lies; none where it is written from the driver's memory.

        Raises:
            TransferForbidden: it may not go to one of them.
        """
        if self._rules is None:
            return frozenset()
        port, found = _carrying.get(), list(copies)
        classes = frozenset().union(*(self._known.of(self._place(location), path) for location, path in found))
        if port is not None:
            classes = classes | self._rules.carried(port) or self._rules.around(port)
        here = {self._place(location) for location, _ in found} or {DRIVER}
        for each in destinations:
            if not classes and self._place(each) in here:
                continue  # nothing leaves the place
            names = [place.deployment for place in _inwards(each)]
            fault = self._rules.fault(port, classes, names, on_driver=self._place(each) == DRIVER)
            if fault is not None:
                raise TransferForbidden(fault.what, seen=fault.seen, expected=fault.expected, do=fault.do)
        return classes

    def note(self, copies: Copies, classes: Iterable[str]) -> None:
        """Add these classes to those of the files; a folder that holds a program is not itself part of a definition."""
        if self._rules is not None and (of_it := frozenset(classes) - {DEFINITION}):
            for location, path in copies:
                self._known.note(self._place(location), path, of_it)

    def made_by(self, step: str, outputs: Iterable[str]) -> frozenset[str]:
        """The classes of all that a step writes; empty without rules."""
        if self._rules is None:
            return frozenset()
        return frozenset().union(*(self._rules.carried(Port(step, name)) for name in outputs))

    def note_made(self, port: Port, copies: Copies) -> None:
        """What lies there came out of a step, or into the workflow, through this port."""
        if self._rules is not None:
            self.note(copies, self._rules.carried(port))

    def _place(self, location: ExecutionLocation) -> str:
        innermost = _inwards(location)[-1]
        if innermost.local or self._rules is None:
            return DRIVER
        return self._rules.root(innermost.deployment)


def _inwards(location: ExecutionLocation) -> list[ExecutionLocation]:
    chain = [location]
    while (inner := chain[-1].wraps) is not None:
        chain.append(inner)
    return chain
