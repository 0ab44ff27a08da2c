"""The hops of a site as a table and as JSON."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from medweave.doctor.hop_result import Health, HopResult

SIGNS = {Health.OK: "✓", Health.WARNING: "!", Health.UNKNOWN: "?", Health.FAULT: "✗"}
LEAST_COLUMNS = 40


def line(hop: HopResult) -> str:
    """Return one hop as a line of progress."""
    return f"{SIGNS[hop.health]} {hop.place}: {hop.name}: {hop.seen}"


def table(hops: Sequence[HopResult]) -> str:
    """Return the table: one line per hop, its fix below it, and a summary."""
    places = max((len(hop.place) for hop in hops), default=0)
    names = max((len(hop.name) for hop in hops), default=0)
    indent = " " * (2 + places + 2 + names + 2)
    columns = max(shutil.get_terminal_size((120, 24)).columns - len(indent), LEAST_COLUMNS)
    lines, before = list[str](), ""
    for hop in hops:
        place = hop.place if hop.place != before else ""
        before = hop.place
        head = f"{SIGNS[hop.health]} {place:<{places}}  {hop.name:<{names}}  "
        text = _wrapped(hop.seen, columns) + (_wrapped(f"→ {hop.do}", columns) if hop.do else [])
        lines += [head + text[0], *(indent + more for more in text[1:])]
    counts = Counter(hop.health for hop in hops)
    words = {Health.FAULT: "failed", Health.UNKNOWN: "unknown", Health.WARNING: "warning"}
    summary = [
        f"{counts[health]} {word}{'s' * (health is Health.WARNING and counts[health] > 1)}"
        for health, word in words.items()
        if counts[health]
    ]
    return "\n".join(
        [*lines, "", f"{len(hops)} check{'s' if len(hops) != 1 else ''}: {', '.join(summary) or 'all OK'}"]
    )


def as_json(hops: Sequence[HopResult]) -> str:
    """Return the hops as a JSON list of objects."""
    return json.dumps([asdict(hop) for hop in hops], indent=2, ensure_ascii=False)


def _wrapped(text: str, columns: int) -> list[str]:
    return textwrap.wrap(text, columns, subsequent_indent="  ") or [""]
