"""What was found, for people and for programs. Pure."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from medweave.doctor.hop import Health, Hop

SIGNS = {Health.OK: "✓", Health.WARNING: "!", Health.UNKNOWN: "?", Health.FAULT: "✗"}
LEAST_COLUMNS = 40


def line(hop: Hop) -> str:
    """One hop as it becomes known."""
    return f"{SIGNS[hop.health]} {hop.place}: {hop.name}: {hop.seen}"


def table(hops: Sequence[Hop]) -> str:
    """The table: one hop a line, what to do below it, and a line that sums it up."""
    places = max((len(hop.place) for hop in hops), default=0)
    names = max((len(hop.name) for hop in hops), default=0)
    indent = " " * (2 + places + 2 + names + 2)
    columns = max(shutil.get_terminal_size((120, 24)).columns - len(indent), LEAST_COLUMNS)
    lines, before = list[str](), ""
    for hop in hops:
        place = hop.place if hop.place != before else ""
        before = hop.place
        head = f"{SIGNS[hop.health]} {place:<{places}}  {hop.name:<{names}}  "
        told = _wrapped(hop.seen, columns) + (_wrapped(f"→ {hop.do}", columns) if hop.do else [])
        lines += [head + told[0], *(indent + each for each in told[1:])]
    counts = Counter(hop.health for hop in hops)
    words = {Health.FAULT: "wrong", Health.UNKNOWN: "unknown", Health.WARNING: "to be looked at"}
    told = [f"{counts[health]} {word}" for health, word in words.items() if counts[health]]
    return "\n".join([*lines, "", f"{len(hops)} hops tried: {', '.join(told) or 'all is well'}"])


def as_json(hops: Sequence[Hop]) -> str:
    """A list of objects."""
    return json.dumps([asdict(hop) for hop in hops], indent=2, ensure_ascii=False)


def _wrapped(text: str, columns: int) -> list[str]:
    return textwrap.wrap(text, columns, subsequent_indent="  ") or [""]
