"""The interface of what starts the runs of a schedule: Kubernetes, systemd or cron."""

from __future__ import annotations

from typing import Any, Protocol

from medweave.project.schedules import Schedule
from medweave_core.documents.field_errors import fault_at


class ScheduleBackend(Protocol):
    """What creates, changes and shows one schedule."""

    def create(self) -> str:
        """Create the schedule, or change the one of that name; return a sentence for people."""

    def pause(self, *, paused: bool) -> None:
        """Pause the schedule, or resume it."""

    def remove(self) -> str:
        """Remove the schedule and cancel its current run; return a sentence for people."""

    def state(self) -> dict[str, Any]:
        """Return `state`, one word, and `last`, the last firing if it is known."""


def backend_of(schedule: Schedule) -> ScheduleBackend:
    """Return the backend that a schedule's file names.

    Raises:
        UserInputError: the file names none.
    """
    if schedule.place == "kubernetes":
        from medweave.schedule.kubernetes import Kubernetes

        return Kubernetes(schedule)
    if schedule.place is not None:
        from medweave.schedule.cron import Cron
        from medweave.schedule.systemd import Systemd

        return Systemd(schedule) if schedule.place == "systemd" else Cron(schedule)
    raise fault_at(
        schedule.path, (), "the key 'place' is missing.", seen="a schedule that runs only by hand",
        expected="place: {kubernetes: {values: …}}, {systemd: {}} or {cron: {}}", do="add `place`",
    )  # fmt: skip
