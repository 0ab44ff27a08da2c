"""Which schedules were made from this account: a name and the path of its file each, in the state folder of the user."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from medweave.project.files import write_atomically
from medweave.project.schedules import Schedule, read_schedule
from medweave.schedule.hosts import place_of
from medweave_core.documents.closest_match import closest
from medweave_core.documents.line_numbers import shown
from medweave_core.errors import StepError, UsageError

COLUMNS = ("NAME", "PLACE", "WHEN", "STATE", "LAST", "OUTCOME")


def keep(schedule: Schedule) -> None:
    """Remembers that a schedule was made."""
    write_atomically(_folder() / f"{schedule.name}.json", json.dumps({"file": str(schedule.path)}) + "\n")


def forget(name: str) -> None:
    """It is there no more."""
    (_folder() / f"{name}.json").unlink(missing_ok=True)


def all_of_them() -> dict[str, Path]:
    """Name to the path of its file."""
    found = {}
    for note in sorted(_folder().glob("*.json")):
        try:
            found[note.stem] = Path(json.loads(note.read_text(encoding="utf-8"))["file"])
        except (ValueError, KeyError, TypeError):
            continue
    return found


def file_of(named: str) -> Path:
    """The file of a schedule.

    Args:
        named: a name, or the path of the file itself.

    Raises:
        UsageError: there is no such schedule.
    """
    known = all_of_them()
    if named in known:
        return known[named]
    if Path(named).is_file():
        return Path(named)
    raise UsageError(
        f"there is no schedule '{named}'.",
        seen=f"'{named}'",
        expected=f"one of {', '.join(known)}, or the path of its file"
        if known
        else "one that was made from this account",
        do=closest(named, list(known)) or "medweave schedule list shows them",
    )


def row(name: str, file: Path) -> dict[str, Any]:
    """What the list tells of a schedule. A cluster or file that is not there makes no error: the others are told."""
    try:
        schedule = read_schedule(file)
        told = place_of(schedule).state()
    except StepError as error:
        return {"name": name, "place": None, "when": None, "state": "unknown", "why": error.what, "last": None}
    return {"name": name, "place": schedule.place, "when": schedule.when, **told}


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The lines of the list."""
    if not rows:
        yield f"no schedule was made from this account ({shown(_folder())})"
        return
    lines = [COLUMNS, *(_cells(each) for each in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    for line in lines:
        yield "  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip()


def _cells(each: dict[str, Any]) -> tuple[str, ...]:
    last = each.get("last") or {}
    state = f"{each['state']}: {each['why']}" if each.get("why") else each["state"]
    outcome = f"{last['outcome']}: {last['why']}" if last.get("why") else last.get("outcome") or "-"
    return each["name"], each["place"] or "-", each["when"] or "-", state, last.get("moment") or "-", outcome


def _folder() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()) / "medweave" / "schedules"
