"""The verdict about one injected fault: the scheduler's report compared with medweave's."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from medweave_connectors.jobs.retries.policy import FailureKind

LAST_LINES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedOutcome:
    """medweave's report about a run of one job.

    Attributes:
        exit_code: exit code of the driver; None if it did not end in time.
        state: state of the run in its last event; empty without one.
        job: state of the job; empty if it never ended.
        failure: the kind of its failure; empty for none.
        job_exit_code: exit code of the job's command in its event.
        message: first line of the cause.
        at: time of the job's last event, s since 1970.
        last_lines: last lines of the driver's output.
    """

    exit_code: int | None
    state: str = ""
    job: str = ""
    failure: str = ""
    job_exit_code: int | None = None
    message: str = ""
    at: float | None = None
    last_lines: tuple[str, ...] = ()

    @property
    def success(self) -> bool:
        """Return whether the driver or its event log reports success."""
        return self.exit_code == 0 or self.state == "completed"


def read_reported(events: Sequence[Mapping[str, Any]], stderr: str, exit_code: int | None) -> ReportedOutcome:
    """Return the outcome of a run from its event log and its driver."""
    jobs = [event for event in events if event["type"] == "job.ended"]
    ends = [event for event in events if event["type"] == "run.ended"]
    last = jobs[-1] if jobs else None
    data = last["data"] if last else {}
    return ReportedOutcome(
        exit_code=exit_code,
        state=ends[-1]["data"]["state"] if ends else "",
        job=data.get("state", ""),
        failure=data.get("site", {}).get("failure", ""),
        job_exit_code=data.get("exit_code"),
        message=data.get("message", "").partition("\n")[0],
        at=datetime.datetime.fromisoformat(last["time"]).timestamp() if last else None,
        last_lines=tuple(stderr.splitlines()[-LAST_LINES:]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All facts about one injected fault after its run.

    Attributes:
        fault: name of the kind.
        injected: the fault and its time.
        happened: whether the scheduler or another authority recorded the fault.
        scheduler: that record in words.
        completed: whether the scheduler reports success.
        right: correct kinds of failure; empty if the job must complete.
        right_code: the exit code that a failure must report; None for any.
        whole: whether the output has the bytes of a complete run.
        submissions: number of jobs that the scheduler received.
        executions: number of starts, counted by the command.
        replaced: number of restarts by the scheduler.
        alive: traces of the job that remained after its run.
        since: time from which medweave could know, s since 1970; None if unknown.
        trouble: why the campaign could not inject the fault, or empty.
    """

    fault: str
    injected: str
    happened: bool
    scheduler: str
    completed: bool
    right: frozenset[FailureKind]
    right_code: int | None = None
    whole: bool
    submissions: int
    executions: int
    replaced: int = 0
    alive: Sequence[str] = ()
    since: float | None = None
    reported: ReportedOutcome
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict about one fault.

    Attributes:
        counts: whether the fault happened.
        why: a line for each wrong result.
    """

    counts: bool
    false_success: bool
    lost: bool
    doubled: bool
    orphans: tuple[str, ...]
    why: tuple[str, ...] = field(default=())

    @property
    def good(self) -> bool:
        """Return whether the fault counts and nothing is wrong."""
        return self.counts and not (self.false_success or self.lost or self.doubled or self.orphans)


def judge(facts: Facts) -> Verdict:
    """Return the verdict about one fault."""
    reported, why = facts.reported, []
    counts = facts.happened and not facts.trouble
    if facts.trouble:
        why.append(f"not played: {facts.trouble}")
    elif not facts.happened:
        why.append(f"it did not happen: the scheduler reported {facts.scheduler or 'nothing'}")
    false_success = reported.success and not (facts.completed and facts.whole)
    if false_success:
        why.append(
            "false success: "
            + (f"the scheduler reported {facts.scheduler}" if not facts.completed else "its output is not complete")
        )
    lost = not reported.success and not _typed(facts)
    if lost:
        outcome = f"{reported.failure or 'no kind of failure'}, exit code {reported.job_exit_code}"
        expected = " or ".join(sorted(facts.right)) or "a success"
        code = "" if facts.right_code is None else f" with exit code {facts.right_code}"
        why.append(f"lost: medweave reported {outcome}; expected {expected}{code}")
    doubled = facts.submissions > 1 or facts.executions > 1 + facts.replaced
    if doubled:
        why.append(
            f"doubled: {facts.submissions} jobs, {facts.executions} executions, {facts.replaced} by the scheduler"
        )
    why += [f"orphan: {trace}" for trace in facts.alive]
    return Verdict(
        counts=counts,
        false_success=false_success,
        lost=lost,
        doubled=doubled,
        orphans=tuple(facts.alive),
        why=tuple(why),
    )


def seconds_to_know(facts: Facts) -> float | None:
    """Return the time from the scheduler's record, or the injection, to our event, s; at least 0, as sacct has whole seconds."""
    if facts.since is None or facts.reported.at is None:
        return None
    return round(max(facts.reported.at - facts.since, 0.0), 1)


def row(facts: Facts) -> dict[str, Any]:
    """Return the row of the summary."""
    verdict, reported = judge(facts), facts.reported
    return {
        "fault": facts.fault,
        "injected": facts.injected,
        "scheduler": facts.scheduler,
        "medweave": {
            "run": reported.state,
            "driver_exit_code": reported.exit_code,
            "job": reported.job,
            "failure": reported.failure,
            "exit_code": reported.job_exit_code,
            "message": reported.message,
            "last_lines": list(reported.last_lines),
        },
        "seconds_to_know": seconds_to_know(facts),
        "output_whole": facts.whole,
        "submissions": facts.submissions,
        "executions": facts.executions,
        "replaced": facts.replaced,
        "counts": verdict.counts,
        "false_success": verdict.false_success,
        "lost": verdict.lost,
        "doubled": verdict.doubled,
        "orphans": list(verdict.orphans),
        "why": list(verdict.why),
    }


def _typed(facts: Facts) -> bool:
    """Return whether the reported failure is of a correct kind."""
    reported = facts.reported
    if reported.exit_code is None or reported.job != "failed" or reported.failure not in facts.right:
        return False
    return facts.right_code is None or reported.job_exit_code == facts.right_code
