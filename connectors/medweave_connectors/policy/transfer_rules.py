"""The data rules of a run, checked for each copy before any byte is sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.host.errors import TransferForbidden
from medweave_connectors.policy.data_classes import DEFINITION, WORKFLOW, FileClasses, Rules, StepPort

DRIVER = ""  # the location of all deployments on the driver's machine
_carrying: ContextVar[StepPort | None] = ContextVar("carrying", default=None)

Copies = Iterable[tuple[ExecutionLocation, str]]


@contextmanager
def carrying(port: StepPort | None) -> Iterator[None]:
    """Declare that transfers in this block are made for a port."""
    before = _carrying.set(port)
    try:
        yield
    finally:
        _carrying.reset(before)


def delivers() -> bool:
    """Return True if the current transfer delivers a result of the workflow."""
    port = _carrying.get()
    return port is not None and port.step == WORKFLOW


class TransferGuard:
    """Refuses copies that the data rules forbid, and records the classes of files. Without rules it does nothing."""

    def __init__(self, settings: Mapping[str, Any] | None = None, wraps: Mapping[str, str] | None = None) -> None:
        self._rules = None
        if settings is not None:
            carries = {
                step: {name: [classes] if isinstance(classes, str) else classes for name, classes in ports.items()}
                for step, ports in (settings.get("carries") or {}).items()
            }
            self._rules = Rules(
                carries=carries,
                may_hold=settings.get("mayHold") or {},
                driver=settings.get("driver") or (),
                wraps=wraps or {},
            )
        self._known = FileClasses()

    def admit(self, copies: Copies, destinations: Sequence[ExecutionLocation]) -> frozenset[str]:
        """Return the classes of a file or folder that may be copied to each destination.

        Args:
            copies: its existing copies; none if it is written from the driver's memory.

        Raises:
            TransferForbidden: the rules forbid one of the destinations.
        """
        if self._rules is None:
            return frozenset()
        port, copies = _carrying.get(), list(copies)
        classes = frozenset().union(*(self._known.of(self._place(location), path) for location, path in copies))
        if port is not None:
            classes = classes | self._rules.declared(port) or self._rules.declared_outside(port)
        sources = {self._place(location) for location, _ in copies} or {DRIVER}
        for destination in destinations:
            if not classes and self._place(destination) in sources:
                continue  # the data stays at its site
            names = [location.deployment for location in _inwards(destination)]
            fault = self._rules.fault(port, classes, names, on_driver=self._place(destination) == DRIVER)
            if fault is not None:
                raise TransferForbidden(fault.what, seen=fault.seen, expected=fault.expected, do=fault.do)
        return classes

    def note(self, copies: Copies, classes: Iterable[str]) -> None:
        """Add these classes to those of the files; a folder that holds a program is not itself part of a definition."""
        if self._rules is not None and (added := frozenset(classes) - {DEFINITION}):
            for location, path in copies:
                self._known.note(self._place(location), path, added)

    def made_by(self, step: str, outputs: Iterable[str]) -> frozenset[str]:
        """Return the classes of all outputs of a step; empty without rules."""
        if self._rules is None:
            return frozenset()
        return frozenset().union(*(self._rules.declared(StepPort(step, name)) for name in outputs))

    def note_made(self, port: StepPort, copies: Copies) -> None:
        """Add the declared classes of a port to a file that a step wrote to it, or that entered the workflow through it."""
        if self._rules is not None:
            self.note(copies, self._rules.declared(port))

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
