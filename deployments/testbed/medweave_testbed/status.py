"""`status`: which part is healthy, which is not, and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from .part import Part, Testbed, reason


@dataclass(frozen=True, slots=True)
class PartState:
    """How one part is.

    Attributes:
        reason: why it is not healthy; None if it is.
    """

    name: str
    reason: str | None


def states_of(parts: Sequence[Part], testbed: Testbed) -> list[PartState]:
    """Return all parts, judged at once; a part that is down because another one is says so first."""
    with ThreadPoolExecutor(max_workers=16) as pool:
        reasons = dict(
            zip([part.name for part in parts], pool.map(lambda part: reason(part, testbed), parts), strict=True)
        )
    return [PartState(part.name, with_cause(part, reasons)) for part in parts]


def with_cause(part: Part, reasons: dict[str, str | None]) -> str | None:
    """Return the reason of a part, after the names of the parts that it needs and that are down themselves."""
    own = reasons[part.name]
    down = [need for need in part.needs if reasons.get(need) is not None]
    return own if own is None or not down else f"needs {', '.join(down)}; {own}"


def table(states: Sequence[PartState], folder: str) -> str:
    """Return the states as a person reads them."""
    rows = [f"  {state.name:<14} {'up' if state.reason is None else 'DOWN  ' + state.reason}" for state in states]
    down = [state.name for state in states if state.reason is not None]
    if not down:
        return "\n".join([f"testbed in {folder}: all {len(states)} parts are up", *rows])
    first = f"testbed in {folder}: {len(down)} of {len(states)} parts are down"
    return "\n".join([first, *rows, "  `make testbed` starts the parts that are down"])


def as_json(states: Sequence[PartState], folder: str) -> str:
    """Return the states as machines read them."""
    parts = [{"name": state.name, "up": state.reason is None, "reason": state.reason} for state in states]
    return json.dumps({"folder": folder, "up": all(part["up"] for part in parts), "parts": parts}, indent=2)
