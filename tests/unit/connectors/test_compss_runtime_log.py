"""What the runtime of COMPSs writes about its own failure; lines as a real COMPSs 3.3 wrote them."""

from __future__ import annotations

import pytest

from medweave_connectors.jobs.retries.policy import CLUSTER, FailureKind
from medweave_connectors.sites.compss.runtime_log import SHUTDOWN_S, RuntimeLog

WORKERS = ("r-worker-0.r-pods", "r-worker-1.r-pods")
SHUTS_DOWN = "[ERRMGR]  -  Error detected. Shutting down COMPSs"
NOT_STARTED = (
    "[ERRMGR]  -  WARNING: There was an exception when initiating worker r-worker-1.r-pods [TIMEOUT]: Could not start the NIO "
    "worker on resource r-worker-1.r-pods through user medweave."
)
NONE = ("", FailureKind.UNKNOWN)


def failure(*lines: str, after_s: float) -> tuple[str, FailureKind]:
    log = RuntimeLog(WORKERS)
    for line in lines:
        log.take(line, 100.0)
    return log.failure(100.0 + after_s)


@pytest.mark.parametrize(
    ("lines", "cause", "kind"),
    [
        ([SHUTS_DOWN], "it detected an error", FailureKind.STEP_FAILED),
        (
            ["[ERRMGR]  -  Task 7 TOTALLY FAILED.", SHUTS_DOWN],
            "a task failed in all of its attempts",
            FailureKind.STEP_FAILED,
        ),
        (
            ["[ERRMGR]  -  FATAL:   Unhandeled error in connection"],
            "the connection to the runtime of a worker broke",
            FailureKind.NODE_FAIL,
        ),
    ],
)
def test_a_runtime_that_shuts_down_gets_its_time_and_is_then_ended_for_its_own_cause(
    lines: list[str], cause: str, kind: FailureKind
) -> None:
    assert failure(*lines, after_s=SHUTDOWN_S) == NONE
    assert failure(*lines, after_s=SHUTDOWN_S + 1) == (
        f"COMPSs shuts down: {cause}; it had not ended {SHUTDOWN_S} s later",
        kind,
    )


def test_a_worker_that_does_not_start_is_a_loss_at_once() -> None:
    cause, kind = failure(NOT_STARTED, after_s=0)
    assert cause == "COMPSs did not start its runtime on r-worker-1.r-pods: 'Could not start the NIO worker'"
    assert kind is FailureKind.NODE_FAIL


@pytest.mark.parametrize("lines", [[SHUTS_DOWN], [NOT_STARTED], ["[ERRMGR] FATAL: error in connection"]])
def test_each_of_these_failures_may_be_tried_again(lines: list[str]) -> None:
    assert CLUSTER[failure(*lines, after_s=SHUTDOWN_S + 1)[1]].do == "again"


@pytest.mark.parametrize(
    "line",
    [
        "[ERRMGR]  -  WARNING: Task 7 failed, it is tried again",
        "train-distributed: Shutting down COMPSs is not what this says",
        "Could not start the NIO worker",
        "FATAL: error in connection",
        "",
    ],
)
def test_other_lines_say_nothing_of_the_runtime(line: str) -> None:
    assert failure(line, after_s=SHUTDOWN_S + 1) == NONE


def test_the_text_of_a_job_does_not_enter_the_cause() -> None:
    cause, _ = failure(f"[ERRMGR] {SHUTS_DOWN} case Doe^Jane TOTALLY FAILED", after_s=SHUTDOWN_S + 1)
    assert "Doe" not in cause
