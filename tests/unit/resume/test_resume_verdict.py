"""Repeated and doubled work in event logs and Slurm's accounting, and the moments at which drivers are killed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from resume.campaign import moments, summary
from resume.cases import Case
from resume.drivers import nth, nth_progress
from resume.pod_watch import PodState, judge_releases
from resume.verdict import boundaries, doubled, repeated, submitted


def ended(job: str, *, state: str = "completed", **data: Any) -> dict[str, Any]:
    return {"type": "job.ended", "job": job, "step": job.rpartition("/")[0], "data": {"state": state, **data}}


def test_a_step_is_repeated_where_two_runs_did_it() -> None:
    first = [ended("/check/0"), ended("/train/0", state="cancelled"), ended("/segment/0.0")]
    second = [ended("/check/0", reused_from="run-1"), ended("/train/0"), ended("/segment/0.0"), ended("/segment/0.1")]
    assert repeated(first, second) == {"/segment/0.0": 1}
    assert repeated(first) == {}
    reattached = ended("/train/0", site={"slurm_job_id": "42"})
    assert repeated([reattached], [reattached]) == {}
    assert repeated([reattached], [ended("/train/0", site={"slurm_job_id": "43"})]) == {"/train/0": 1}
    assert repeated(first, first, first) == {"/check/0": 2, "/segment/0.0": 2}


def test_a_job_is_doubled_if_slurm_has_received_two() -> None:
    sacct = "\n".join(
        (
            "medweave.preprocess|/scratch/a/run-1/x.slurm-1",
            "medweave.preprocess|/scratch/a/run-2/y.slurm-2",
            "medweave.train|/scratch/a/run-2/z.slurm-3",
            "medweave.train|/scratch/ab/run-2/z.slurm-4",
            "other|/home",
        )
    )
    assert doubled(sacct, "/scratch/a") == {"medweave.preprocess": 1}
    assert (submitted(sacct, "/scratch/a"), submitted(sacct, "/scratch/ab"), submitted("", "/x")) == (3, 1, 0)


def test_moments_are_spread_and_seeded() -> None:
    drawn = moments(random.Random(1), 20, 40)
    assert drawn == moments(random.Random(1), 20, 40) != moments(random.Random(2), 20, 40)
    assert all(1 + 2 * number <= moment <= 2 + 2 * number for number, moment in enumerate(drawn))


def test_moments_are_events_that_each_run_has() -> None:
    kinds = ["run.started", "job.progress", "job.scheduled", "transfer.progress", "notice", "job.started", "run.ended"]
    events = [{"type": kind, "step": "/train"} for kind in kinds]
    assert boundaries(events) == 3
    is_it = nth(2)
    assert [is_it(event) for event in events].index(True) == 2
    is_it = nth_progress(1, "/train")
    assert [is_it(event) for event in events].index(True) == 1


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"exit_code": 1},
        {"same_result": False},
        {"doubled_jobs": 1},
        {"doubled_pods": 1},
        {"repeated_steps": 2},
        {"killed_after": ("",)},
    ],
)
def test_only_a_case_that_is_correct_in_all_is_good(change: dict[str, Any]) -> None:
    values: dict[str, Any] = {
        "name": "kill-0",
        "killed_after": ("job.started /train/0",),
        "resumed_by": "streamflow run",
        "exit_code": 0,
        "same_result": True,
        "doubled_jobs": 0,
        "repeated_steps": 0,
        "slurm_jobs": 1,
        "releases": 2,
        "doubled_pods": 0,
        "seconds": 1.0,
    }
    case = Case(**values | change)
    assert case.is_good == (not change)
    result = summary([case], seed=1, warm_s=2.0, seconds=3.0)
    counts = (
        result["kills"],
        result["same_result"],
        result["doubled_jobs"],
        result["repeated_steps"],
        result["ended_well"],
    )
    assert counts == (
        1,
        int(case.same_result),
        case.doubled_jobs + case.doubled_pods,
        case.repeated_steps,
        int(case.is_good),
    )


def test_pods_are_doubled_if_two_releases_are_ready_at_the_same_time() -> None:
    def state(pod: str, release: str, *, is_ready: bool = True) -> PodState:
        return PodState(pod=pod, release=release, is_ready=is_ready)

    first = [state("a1", "r-kill-1-00000a"), state("a2", "r-kill-1-00000a"), state("a1", "r-kill-1-00000a")]
    ends = [state("a1", "r-kill-1-00000a", is_ready=False), state("a2", "r-kill-1-00000a", is_ready=False)]
    second = [state("b1", "r-kill-1-00000b"), state("b2", "r-kill-1-00000b"), state("x", "r-kill-10-00000c")]
    one_by_one = judge_releases([*first, *ends, *second], "r-kill-1", replicas=2)
    assert (len(one_by_one.releases), one_by_one.doubled) == (2, 0)
    assert judge_releases([*first, *second, *ends], "r-kill-1", replicas=2).doubled == 2
    assert judge_releases([*first, state("a3", "r-kill-1-00000a")], "r-kill-1", replicas=2).doubled == 1
    assert judge_releases(second, "r-kill-10", replicas=2).releases == ("r-kill-10-00000c",)
