"""Where a schedule lives, whatever kind of place that is."""

from __future__ import annotations

from typing import Any, Protocol

from medweave.project.schedules import Schedule
from medweave_core.documents.field_errors import fault_at


class Place(Protocol):
    """What makes, changes and shows one schedule."""

    def create(self) -> str:
        """Makes it, or changes the one of that name; says what it is now, for people."""

    def pause(self, *, paused: bool) -> None:
        """Starts no run from now on, or goes on."""

    def remove(self) -> str:
        """Takes it away, and says so; a run that goes on is ended."""

    def state(self) -> dict[str, Any]:
        """`state` in a word, and `last`, the last firing, as far as the place knows."""


def place_of(schedule: Schedule) -> Place:
    """The place that a schedule's file names.

    Raises:
        UserInputError: it names none.
    """
    if schedule.place == "kubernetes":
        from medweave.schedule.kubernetes import Kubernetes

        return Kubernetes(schedule)
    if schedule.place is not None:
        from medweave.schedule.local_timer import Cron, Systemd

        return Systemd(schedule) if schedule.place == "systemd" else Cron(schedule)
    raise fault_at(
        schedule.path, (), "the key 'place' is missing.", seen="a schedule that runs only when it is asked to",
        expected="place: {kubernetes: {values: …}}, {systemd: {}} or {cron: {}}", do="write where it runs",
    )  # fmt: skip
