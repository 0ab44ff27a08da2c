"""A run of a schedule that goes on in a pod, shown here as one of this machine is."""

from __future__ import annotations

import datetime

from medweave.project.schedules import read_schedule
from medweave.runs.follow.displays import Display
from medweave.schedule import registry
from medweave_core.errors import UsageError
from medweave_core.runlog.history import read_events
from medweave_core.runlog.run_state import State, fold


def follow(named: str, display: Display, state: State) -> None:
    """Shows it until it ends.

    Args:
        named: a schedule's name, or its file.
        state: the empty state of a run, which is filled.

    Raises:
        UsageError: there is no such schedule, or it is none of a cluster.
        UserInputError: no run of it goes on, or the cluster refuses.
    """
    schedule = read_schedule(registry.file_of(named))
    if schedule.place != "kubernetes":
        raise UsageError(
            f"schedule {schedule.name} runs on no cluster.", seen=f"place: {schedule.place}",
            expected="a schedule whose place is kubernetes", do=f"medweave attach --runs {schedule.folder / 'runs'}",
        )  # fmt: skip
    from medweave.schedule.kubernetes import Kubernetes

    for line in Kubernetes(schedule).following():
        if line is not None:
            event = next(iter(read_events(f"{line}\n")), None)
            if event is not None:
                fold(state, event)
            display.take(line, event, state)
        display.show(state, state.at(datetime.datetime.now(datetime.UTC)))
