"""The schedules that this account has created: name and path of the file, in the user's state folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from medweave.project.files import write_atomically
from medweave.project.schedules import Schedule, read_schedule
from medweave.schedule.backends import backend_of
from medweave_core.documents.closest_match import closest
from medweave_core.documents.line_numbers import shown
from medweave_core.errors import StepError, UsageError

COLUMNS = ("NAME", "PLACE", "WHEN", "STATE", "LAST", "OUTCOME")


def register(schedule: Schedule) -> None:
    """Add a schedule to the registry."""
    write_atomically(_folder() / f"{schedule.name}.json", json.dumps({"file": str(schedule.path)}) + "\n")


def unregister(name: str) -> None:
    """Remove a schedule from the registry."""
    (_folder() / f"{name}.json").unlink(missing_ok=True)


def registered() -> dict[str, Path]:
    """Return the path of the file of entry schedule, by name."""
    schedules = {}
    for note in sorted(_folder().glob("*.json")):
        try:
            schedules[note.stem] = Path(json.loads(note.read_text(encoding="utf-8"))["file"])
        except (ValueError, KeyError, TypeError):
            continue
    return schedules


def file_of(named: str) -> Path:
    """Return the file of a schedule.

    Args:
        named: a name, or the path of the file itself.

    Raises:
        UsageError: there is no such schedule.
    """
    known = registered()
    if named in known:
        return known[named]
    if Path(named).is_file():
        return Path(named)
    raise UsageError(
        f"there is no schedule '{named}'.",
        seen=f"'{named}'",
        expected=f"one of {', '.join(known)}, or the path of its file"
        if known
        else "a schedule that was created from this account",
        do=closest(named, list(known)) or "see `medweave schedule list`",
    )


def row(name: str, file: Path) -> dict[str, Any]:
    """Return the entry of a schedule in the list. An unreachable cluster or missing file is an entry, too, not an error."""
    try:
        schedule = read_schedule(file)
        state = backend_of(schedule).state()
    except StepError as error:
        return {"name": name, "place": None, "when": None, "state": "unknown", "why": error.what, "last": None}
    return {"name": name, "place": schedule.place, "when": schedule.when, **state}


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table."""
    if not rows:
        yield f"no schedules were created from this account ({shown(_folder())})"
        return
    lines = [COLUMNS, *(_cells(entry) for entry in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    for line in lines:
        yield "  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip()


def _cells(entry: dict[str, Any]) -> tuple[str, ...]:
    last = entry.get("last") or {}
    state = f"{entry['state']}: {entry['why']}" if entry.get("why") else entry["state"]
    outcome = f"{last['outcome']}: {last['why']}" if last.get("why") else last.get("outcome") or "-"
    return entry["name"], entry["place"] or "-", entry["when"] or "-", state, last.get("moment") or "-", outcome


def _folder() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()) / "medweave" / "schedules"
