"""What one injected fault came to: the scheduler's word beside medweave's. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from medweave_connectors.jobs.retries.policy import FailureKind

LAST_LINES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What medweave said about a run of one job.

    Attributes:
        exit_code: of the driver; None for one that did not end in time.
        state: of the run, in its last event; empty where it has none.
        job: state of the job; empty where it never ended.
        failure: the kind of its failure; empty for none.
        job_exit_code: of the job's command, as its event tells it.
        message: first line of the cause.
        at: moment of the job's last event, s since 1970.
        last_lines: of what people read.
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
        """The driver or its event log says so; one of them is enough."""
        return self.exit_code == 0 or self.state == "completed"


def read_said(events: Sequence[Mapping[str, Any]], stderr: str, exit_code: int | None) -> Said:
    """The end of a run, from its event log and its driver."""
    jobs = [event for event in events if event["type"] == "job.ended"]
    ends = [event for event in events if event["type"] == "run.ended"]
    last = jobs[-1] if jobs else None
    data = last["data"] if last else {}
    return Said(
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
    """All that is known about one injected fault when its run is over.

    Attributes:
        fault: name of the kind.
        injected: what was done, and when.
        happened: the scheduler's own word, or another's who must know, is that the fault took place.
        scheduler: that word, as the campaign heard it.
        completed: the scheduler calls the job a success.
        right: kinds of failure that tell the truth about it; none where the job must do well.
        right_code: the exit code that a failure must tell; None for any.
        whole: the output has the bytes that only a complete run writes.
        submissions: jobs that the scheduler has had for this one.
        executions: times the command began, counted by itself.
        replaced: times that the scheduler itself says it has started the job again.
        alive: what of the job still lived when its run was over.
        since: moment from which medweave could know, s since 1970; None where it is not known.
        trouble: why the campaign could not do its part; empty when it could.
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
    said: Said
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is wrong with it.

    Attributes:
        counts: the fault really happened.
        why: a line for each thing that is wrong.
    """

    counts: bool
    false_success: bool
    lost: bool
    doubled: bool
    orphans: tuple[str, ...]
    why: tuple[str, ...] = field(default=())

    @property
    def good(self) -> bool:
        """It counts, and nothing is wrong."""
        return self.counts and not (self.false_success or self.lost or self.doubled or self.orphans)


def judge(facts: Facts) -> Verdict:
    """The verdict about one fault."""
    said, why = facts.said, []
    counts = facts.happened and not facts.trouble
    if facts.trouble:
        why.append(f"not played: {facts.trouble}")
    elif not facts.happened:
        why.append(f"it did not happen: the scheduler said {facts.scheduler or 'nothing'}")
    false_success = said.success and not (facts.completed and facts.whole)
    if false_success:
        why.append(
            "false success: "
            + (f"the scheduler said {facts.scheduler}" if not facts.completed else "its output is not whole")
        )
    lost = not said.success and not _typed(facts)
    if lost:
        told = f"{said.failure or 'no kind of failure'}, exit code {said.job_exit_code}"
        wanted = " or ".join(sorted(facts.right)) or "a success"
        code = "" if facts.right_code is None else f" with exit code {facts.right_code}"
        why.append(f"lost: medweave said {told}; right would be {wanted}{code}")
    doubled = facts.submissions > 1 or facts.executions > 1 + facts.replaced
    if doubled:
        why.append(
            f"doubled: {facts.submissions} jobs, {facts.executions} executions, {facts.replaced} by the scheduler"
        )
    why += [f"orphan: {each}" for each in facts.alive]
    return Verdict(
        counts=counts,
        false_success=false_success,
        lost=lost,
        doubled=doubled,
        orphans=tuple(facts.alive),
        why=tuple(why),
    )


def seconds_to_know(facts: Facts) -> float | None:
    """From the scheduler's word, or the injection, to our event, s; sacct knows whole seconds only, so it may say less than 0."""
    if facts.since is None or facts.said.at is None:
        return None
    return round(max(facts.said.at - facts.since, 0.0), 1)


def row(facts: Facts) -> dict[str, Any]:
    """The row of the summary."""
    verdict, said = judge(facts), facts.said
    return {
        "fault": facts.fault,
        "injected": facts.injected,
        "scheduler": facts.scheduler,
        "medweave": {
            "run": said.state,
            "driver_exit_code": said.exit_code,
            "job": said.job,
            "failure": said.failure,
            "exit_code": said.job_exit_code,
            "message": said.message,
            "last_lines": list(said.last_lines),
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
    """Whether the failure that was told is of a right kind."""
    said = facts.said
    if said.exit_code is None or said.job != "failed" or said.failure not in facts.right:
        return False
    return facts.right_code is None or said.job_exit_code == facts.right_code
