"""What `medweave schedule` does, by the word."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from medweave.schedule import kept
from medweave.schedule.document import read_schedule
from medweave.schedule.firing import fire
from medweave.schedule.places import Place, place_of
from medweave_steps.contracts.errors import UsageError


def do(namespace: argparse.Namespace) -> int:
    """Does it; returns the exit code.

    Raises:
        UsageError: a schedule is not named, or an option is of another word.
    """
    action, named = namespace.action, namespace.named
    if (named is None) != (action == "list"):
        raise UsageError(
            f"{action}: no schedule is named." if named is None else "list: it lists them all.",
            expected="medweave schedule list, or medweave schedule ACTION FILE", do="see medweave schedule --help",
        )  # fmt: skip
    if (namespace.folder and action != "run") or (namespace.json and action != "list"):
        raise UsageError(
            f"{action} has no such option.", seen="--folder" if namespace.folder else "--json",
            expected="--folder with run, --json with list", do="leave it out",
        )  # fmt: skip
    if action == "run":
        schedule = read_schedule(named)
        return fire(schedule, (namespace.folder or schedule.folder).absolute())
    if action == "list":
        return _list(as_json=namespace.json)
    return _change(action, named)


def _change(action: str, named: Path) -> int:
    file = named if action == "create" else kept.file_of(str(named))
    schedule = read_schedule(file)
    place: Place = place_of(schedule)
    if action == "create":
        place.create()
        kept.keep(schedule)
    elif action == "remove":
        place.remove()
        kept.forget(schedule.name)
    else:
        place.pause(paused=action == "pause")
    print(f"medweave: schedule {schedule.name}: {place.said(action)}")
    return 0


def _list(*, as_json: bool) -> int:
    rows = [kept.row(name, file) for name, file in kept.all_of_them().items()]
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        for line in kept.table(rows):
            print(line)
    return 0
