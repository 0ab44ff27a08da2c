"""Failures that the COMPSs runtime reports on the standard error of runcompss. Pure.

The runtime may hang after each of these: nothing but these lines shows it. Only fixed phrases are used from them, no text of a job.
"""

from __future__ import annotations

from collections.abc import Sequence

from medweave_connectors.jobs.retries.policy import FailureKind

SHUTDOWN_S = 60  # the runtime may end within this time after it has announced its end
_PREFIX = "[ERRMGR]"
_NOT_STARTED = "Could not start the NIO worker"
_SHUTS_DOWN = ("Shutting down COMPSs", "FATAL")
# Phrase that the runtime writes before it shuts down, the cause for our message, and the kind of the failure.
_CAUSES = (
    ("TOTALLY FAILED", "a task failed in all of its attempts", FailureKind.STEP_FAILED),
    ("error in connection", "the connection to the runtime of a worker broke", FailureKind.NODE_FAIL),
)
_UNSTATED = ("it detected an error", FailureKind.STEP_FAILED)


class RuntimeLog:
    """The failure that the runtime of one application reports.

    Args:
        workers: host names of the workers, to name the one of a line.
    """

    def __init__(self, workers: Sequence[str] = ()) -> None:
        self._workers = workers
        self._not_started = ""
        self._cause: tuple[str, FailureKind] | None = None
        self._shutdown_s: float | None = None

    def take(self, line: str, now_s: float) -> None:
        """Read a line of standard error; `now_s` on the monotonic clock."""
        if _PREFIX not in line:
            return
        if _NOT_STARTED in line and not self._not_started:
            worker = next((name for name in self._workers if name in line), "a worker")
            self._not_started = f"COMPSs did not start its runtime on {worker}: '{_NOT_STARTED}'"
        for phrase, cause, kind in _CAUSES:
            if phrase in line and self._cause is None:
                self._cause = cause, kind
        if self._shutdown_s is None and any(phrase in line for phrase in _SHUTS_DOWN):
            self._shutdown_s = now_s

    def failure(self, now_s: float) -> tuple[str, FailureKind]:
        """Return the cause and kind of a failure after which the runtime hangs; an empty cause if it has not failed."""
        if self._not_started:
            return self._not_started, FailureKind.NODE_FAIL
        if self._shutdown_s is None or now_s - self._shutdown_s <= SHUTDOWN_S:
            return "", FailureKind.UNKNOWN
        cause, kind = self._cause or _UNSTATED
        return f"COMPSs shuts down: {cause}; it had not ended {SHUTDOWN_S} s later", kind
