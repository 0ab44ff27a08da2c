"""`events.jsonl`: append-only, one JSON object per line, complete lines only."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medweave_connectors.runlog import whole_lines
from medweave_core.contracts.events import EventType
from medweave_core.errors import StorageError, UsageError
from medweave_core.untrusted_text import plain_value

SYNC_INTERVAL_S = 1.0


class EventLog:
    """Writes the events of one run.

    It syncs to the disk at most once a second, and at the end: only a power failure
    loses lines, those of the last half minute or so.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        """Create the file, and lock it until it is closed.

        Raises:
            UsageError: the run has a log already; a log is never continued by another process.
        """
        self.path, self.run_id = path, run_id
        self._sequence, self._last_sync = 0, 0.0
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._descriptor: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except FileExistsError:
            raise UsageError(
                f"the run '{run_id}' exists already.",
                seen=f"{run_id}/events.jsonl in the folder of runs",
                expected="an unused run id: the event log of an earlier run is never changed",
                do="unset MEDWEAVE_RUN_ID, or choose another",
            ) from None
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def append(
        self,
        event_type: EventType,
        *,
        job: str | None = None,
        step: str | None = None,
        deployment: str | None = None,
        service: str | None = None,
        location: str | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Write one event. Its data become plain text and finite numbers; JSON has no NaN.

        Raises:
            StorageError: the disk is full; the log still ends with a complete line.
        """
        # The fields of `contracts.event.Event`, in its order; hundreds of jobs may end in a second.
        event = {
            "sequence": self._sequence + 1,
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            "run_id": self.run_id,
            "type": event_type,
            "job": job,
            "step": step,
            "deployment": deployment,
            "service": service,
            "location": location,
            "data": plain_value(dict(data or {})),
        }
        text = json.dumps(event, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        assert self._descriptor is not None, "an event after the end of the run"
        whole_lines.append(
            self._descriptor, (text + "\n").encode(), otherwise="the event log of the run could not be written."
        )
        self._sequence += 1
        self._sync(at_once=event_type == "run.ended")

    def close(self) -> None:
        """Close the log. Further events are an internal error."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _sync(self, *, at_once: bool) -> None:
        now = time.monotonic()
        if at_once or now - self._last_sync >= SYNC_INTERVAL_S:
            assert self._descriptor is not None
            self._last_sync = now
            try:
                os.fsync(self._descriptor)
            except OSError as error:
                raise StorageError(
                    "the event log of the run could not be written.",
                    seen=str(error.strerror),
                    expected="a writable disk with free space",
                    do="check the disk that holds the folder of runs, and run again",
                ) from error
