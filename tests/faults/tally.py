"""The summary of a campaign and its table."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]
_FLAGS = {"false_successes": "false_success", "lost": "lost", "doubled": "doubled"}


def summary(rows: Sequence[Row], *, seed: int, jobs_per_kind: int, seconds: float) -> dict[str, Any]:
    """Return the content of the summary file: `jobs` counts faults that happened, the other counts include all rows."""
    flags = {name: sum(row[flag] for row in rows) for name, flag in _FLAGS.items()}
    counted = [row for row in rows if row["counts"]]
    return {
        "seed": seed,
        "jobs_per_kind": jobs_per_kind,
        "jobs": len(counted),
        "kinds": len({row["fault"] for row in counted}),
        "not_counted": len(rows) - len(counted),
        **flags,
        "orphans": sum(len(row["orphans"]) for row in rows),
        "seconds": round(seconds, 1),
        "rows": list(rows),
    }


def is_good(result: dict[str, Any]) -> bool:
    """Return whether every fault happened without a wrong result."""
    return bool(result["jobs"]) and not any(result[name] for name in (*_FLAGS, "orphans", "not_counted"))


def table(result: dict[str, Any]) -> str:
    """Return the summary as a table: a line per kind of fault, then the wrong results."""
    rows: list[Row] = result["rows"]
    head = ("fault", "jobs", "false", "lost", "doubled", "orphans", "s to know", "scheduler; medweave")
    lines = [head]
    for fault in dict.fromkeys(row["fault"] for row in rows):
        own = [row for row in rows if row["fault"] == fault]
        counted = sum(row["counts"] for row in own)
        lines.append(
            (
                fault,
                str(counted) if counted == len(own) else f"{counted} of {len(own)}",
                *(str(sum(row[flag] for row in own)) for flag in _FLAGS.values()),
                str(sum(len(row["orphans"]) for row in own)),
                _seconds([row["seconds_to_know"] for row in own]),
                _words(own),
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(head) - 1)]
    text = ["  ".join((*map(str.ljust, line, widths), line[-1])).rstrip() for line in lines]
    text += [f"! {row['fault']} ({row['injected']}): {text}" for row in rows for text in row["why"]]
    return "\n".join((*text, "", _last_line(result)))


def _last_line(result: dict[str, Any]) -> str:
    flags = ", ".join(f"{result[name]} {name.replace('_', ' ')}" for name in (*_FLAGS, "orphans"))
    missing = f", {result['not_counted']} not counted" if result["not_counted"] else ""
    return f"{result['jobs']} jobs of {result['kinds']} kinds: {flags}{missing}; seed {result['seed']}, {result['seconds']:.0f} s"


def _seconds(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    return f"{statistics.median(known):.1f} to {max(known):.1f}" if len(known) > 1 else f"{known[0]:.1f}"


def _words(rows: Sequence[Row]) -> str:
    pairs = Counter(f"{_short(row['scheduler'])}; {_ours(row)}" for row in rows)
    return " | ".join(pair if count == 1 else f"{count} x {pair}" for pair, count in pairs.most_common(3))


def _short(word: str) -> str:
    return word.partition(",")[0] or "nothing"


def _ours(row: Row) -> str:
    return str(row["medweave"]["failure"] or row["medweave"]["job"] or "nothing")
