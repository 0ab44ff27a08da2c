"""The values of the chart helm/runner for a schedule. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medweave.project.schedules import Schedule
from medweave_core.documents.field_errors import fault_at

POLICIES = {"forbid": "Forbid", "replace": "Replace", "allow": "Allow"}
LEAST_DEADLINE_S = 10  # the CronJob controller looks every 10 s


def values_of(
    schedule: Schedule, *, archive: str, file: str, rights: list[dict[str, Any]], suspended: bool
) -> dict[str, Any]:
    """What helm is given.

    Args:
        archive: the pipeline's files; empty where a claim holds them.
        file: path of the schedule's file in it.
        rights: of the run's account; none where the values name an account.

    Raises:
        UserInputError: the values say something that the schedule's file says by its own keys.
    """
    given: Mapping[str, Any] = schedule.settings["values"]
    definition = {"file": file} | dict(given.get("definition") or {}) | ({"archive": archive} if archive else {})
    own = {
        "cron": schedule.when or "",
        "timeZone": schedule.time_zone or "",
        "concurrencyPolicy": POLICIES[schedule.overlap],
        "startingDeadlineSeconds": max(schedule.start_within_s, LEAST_DEADLINE_S),
        "suspend": suspended,
        "successfulJobsHistoryLimit": schedule.history["succeeded"],
        "failedJobsHistoryLimit": schedule.history["failed"],
    }
    for key in own:
        if key in given:
            raise fault_at(
                schedule.path, ("place", "kubernetes", "values", key), "this stands in the schedule's own keys.",
                seen=f"values.{key}", expected="when, timeZone, overlap, startWithin, history", do="take it out of the values",
            )  # fmt: skip
    granted = {} if given.get("serviceAccountName") or "rights" in given else {"rights": rights}
    receives = (schedule.watch or {}).get("receive")
    receiver = dict(given.get("receiver") or {}) | {"enabled": True, "port": receives["port"]} if receives else None
    return {**given, **granted, **own, "definition": definition} | ({"receiver": receiver} if receiver else {})
