"""The actions of `medweave schedule`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from medweave.project.schedules import Schedule, read_schedule
from medweave.schedule import registry
from medweave.schedule.backends import ScheduleBackend, backend_of
from medweave.schedule.state import secret_of
from medweave.schedule.tick import fire, say
from medweave.schedule.watching import received_in
from medweave_core.documents.field_errors import fault_at
from medweave_core.errors import UsageError


def do(namespace: argparse.Namespace) -> int:
    """Run an action and return the exit code.

    Raises:
        UsageError: no schedule is named, or an option belongs to another action.
    """
    action, named = namespace.action, namespace.named
    if (named is None) != (action == "list"):
        raise UsageError(
            f"{action}: no schedule given." if named is None else "list accepts no schedule.",
            expected="medweave schedule list, or medweave schedule ACTION FILE", do="see `medweave schedule --help`",
        )  # fmt: skip
    if (namespace.folder and action not in ("run", "receive")) or (namespace.json and action != "list"):
        raise UsageError(
            f"{action} does not accept this option.", seen="--folder" if namespace.folder else "--json",
            expected="--folder with run and receive, --json with list", do="remove the option",
        )  # fmt: skip
    if action in ("run", "receive"):
        schedule = read_schedule(named)
        folder = (namespace.folder or schedule.folder).absolute()
        return fire(schedule, folder) if action == "run" else _receive(schedule, folder)
    if action == "list":
        return _list(as_json=namespace.json)
    return _change(action, named)


def _change(action: str, named: Path) -> int:
    file = named if action == "create" else registry.file_of(str(named))
    schedule = read_schedule(file)
    backend: ScheduleBackend = backend_of(schedule)
    if action == "create":
        message = backend.create()
        registry.register(schedule)
    elif action == "remove":
        message = backend.remove()
        registry.unregister(schedule.name)
    else:
        backend.pause(paused=action == "pause")
        message = "is paused; a running run continues" if action == "pause" else "is resumed"
    print(f"medweave: schedule {schedule.name}: {message}")
    return 0


def _receive(schedule: Schedule, folder: Path) -> int:
    """Listen until a signal ends it."""
    from medweave.schedule.receiver import Receiver, receive_until_ended

    if schedule.watch is None or "receive" not in schedule.watch:
        raise fault_at(
            schedule.path, (), "this schedule receives no studies.", seen="no key watch.receive",
            expected="watch: {receive: {callers: [PACS]}}", do="add watch.receive",
        )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    settings = schedule.watch["receive"]
    receiver = Receiver(settings, received_in(folder), secret_of(folder))
    message = f"listening on port {settings['port']} as {settings['title']}, for {', '.join(settings['callers'])}"
    receive_until_ended(receiver, lambda: say(schedule, message))
    say(schedule, f"received {receiver.num_received} instances")
    return 0


def _list(*, as_json: bool) -> int:
    rows = [registry.row(name, file) for name, file in registry.registered().items()]
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        for line in registry.table(rows):
            print(line)
    return 0
