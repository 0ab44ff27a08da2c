"""Messages about jobs, the rate of Slurm queries, and refused options. Pure."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medweave.project.deployments import faults_of_deployments
from medweave_connectors.host.token_bucket import TokenBucket
from medweave_connectors.sites.slurm import messages
from medweave_connectors.sites.slurm.connector import MedweaveSlurmConnector
from medweave_connectors.sites.slurm.service import Allocation, check_service
from medweave_connectors.sites.slurm.states import SchedulerState
from medweave_connectors.sites.slurm.submission import SubmissionRate
from medweave_connectors.sites.slurm.watch import QueryRate, interval_s
from medweave_core.errors import UsageError
from support.slurm_words import ALLOCATION, reported

SERVICE = messages.ServiceLabel(name="hpc/gpu4", setting="deployments.hpc.config.services.gpu4")


@pytest.mark.parametrize(
    ("word", "problem", "do"),
    [
        ("TIMEOUT", "hit its time limit of 720 min", "raise deployments.hpc.config.services.gpu4.time"),
        ("PREEMPTED", "was preempted", "run again"),
        ("NODE_FAIL", "lost a node", "run again"),
        ("CANCELLED by 1000", "was canceled at the site", "sacct"),
        ("UNKNOWN", "is lost", "check its files"),
    ],
)
def test_the_message_about_a_failure(word: str, problem: str, do: str) -> None:
    allocation = Allocation(num_nodes=1, cores=4, memory_mib=3072, gpus=0, minutes=720)
    seen = SchedulerState(
        source="sacct", word=word, signal_number=15, seconds=43219.0, time_limit="12:00:00", nodes="n1"
    )
    lines = messages.site_word("17", seen, allocation, SERVICE, out_of_memory=False).splitlines()
    assert lines[0].startswith("hpc/gpu4: Slurm job 17 ")
    assert problem in lines[0]
    assert lines[1].startswith(f"  seen:     sacct State={word} ExitCode=0:15, 43219 s")
    assert lines[2] == "  expected: State=COMPLETED and ExitCode=0:0"
    assert do in lines[3]


def test_a_success_has_no_message() -> None:
    assert messages.site_word("17", reported("sacct", "COMPLETED"), ALLOCATION, SERVICE, out_of_memory=False) == ""


KILLED = ["slurmstepd: error: StepId=11.batch exceeded memory limit (376328192 > 104857600), being killed"]


@pytest.mark.parametrize(
    ("seen", "stderr", "expected"),
    [
        (reported("sacct", "OUT_OF_MEMORY", 0, 125), [], True),
        (reported("sacct", "FAILED", 0, 9), KILLED, True),
        (reported("sacct", "FAILED", 137), ["slurmstepd: error: Detected 1 oom-kill event(s)"], True),
        (reported("sacct", "FAILED", 0, 9), ["killed"], False),
        (reported("sacct", "FAILED", 3), KILLED, False),
    ],
)
def test_out_of_memory_needs_evidence(seen: SchedulerState, stderr: Sequence[str], expected: bool) -> None:
    assert messages.looks_out_of_memory(seen, stderr) is expected


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("sbatch: error: invalid partition specified: zz", "partition"),
        ("error: Batch job submission failed: Invalid account or account/partition combination specified", "account"),
        ("Batch job submission failed: Invalid qos specification", "qos"),
        ("Batch job submission failed: Invalid generic resource (gres) specification", "gres"),
        ("Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)", "time"),
        ("Batch job submission failed: Invalid feature specification", "constraint"),
        ("Batch job submission failed: Memory specification can not be satisfied", "partition"),
        ("something else", "partition"),
    ],
)
def test_a_refusal_names_its_setting(text: str, setting: str) -> None:
    assert messages.refused_setting(text)[0] == setting
    assert not messages.is_unanswered(text)


@pytest.mark.parametrize(
    ("reason", "setting"),
    [
        ("PartitionTimeLimit", "time"), ("QOSMaxWallDurationPerJobLimit", "time"), ("InvalidAccount", "account"),
        ("QOSNotAllowed", "qos"), ("BadConstraints", "constraint"), ("PartitionNodeLimit", "partition"),
    ],
)  # fmt: skip
def test_a_permanent_reason_names_its_setting(reason: str, setting: str) -> None:
    assert messages.blocking_setting(reason)[0] == setting


def test_an_unreachable_controller_is_not_a_refusal() -> None:
    assert messages.is_unanswered("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")
    assert messages.is_unanswered("sbatch: error: Unable to contact slurm controller (connect failure)")


def test_the_rank_that_failed_first_is_found() -> None:
    assert messages.lost_rank({0: (143, 120, "n1"), 1: (70, 105, "n2"), 2: (0, 90, "n3")}) == 1
    assert messages.lost_rank({0: (0, 1, "n1")}) is None


def test_queries_become_rare_when_nothing_changes() -> None:
    assert interval_s(0, 10) == 0.5
    assert interval_s(30, 10) == 3
    assert interval_s(3600, 10) == 10
    assert interval_s(3600, 2) == 2


@given(pauses=st.lists(st.floats(0.01, 20), min_size=1, max_size=400))
def test_the_controller_gets_at_most_30_queries_in_any_30_s(pauses: list[float]) -> None:
    rate, now, queries = QueryRate(), 1000.0, []
    for pause in pauses:
        now += pause
        if rate.take(now):
            queries.append(now)
    assert all(sum(start <= time <= start + 30 for time in queries) <= 30 for start in queries)


def test_queries_of_a_busy_site_continue() -> None:
    rate = QueryRate()
    assert sum(rate.take(1000 + step / 10) for step in range(600)) == pytest.approx(10 + 60 * 2 / 3, abs=1)


def test_queries_and_submissions_stay_within_the_default_limit_of_slurm() -> None:
    moments = [1000 + step / 10 for step in range(600)]
    queries, submissions = QueryRate(), SubmissionRate()
    calls = [moment for moment in moments for rate in (queries, submissions) if rate.take(moment)]
    assert calls.count(1000) == 2
    for begin in (1000, 1020, 1040):  # a bucket of 30, refilled by 2 per second
        assert sum(begin <= moment < begin + 15 for moment in calls) <= 30 + 15 * 2


def test_submissions_wait_for_their_turn_in_order() -> None:
    async def go() -> tuple[list[int], float]:
        bucket, order = TokenBucket(burst=2, per_second=50), list[int]()

        async def one(number: int) -> None:
            await bucket.wait()
            order.append(number)

        since = time.monotonic()
        await asyncio.gather(*(one(number) for number in range(7)))
        return order, time.monotonic() - since

    order, seconds = asyncio.run(go())
    assert order == list(range(7))
    assert seconds >= 5 / 50 - 0.01


SCHEMA = json.loads(MedweaveSlurmConnector.get_schema())


@pytest.mark.parametrize(
    ("option", "owned"),
    [
        ("--exclude=n7", ""),
        ("--mail-type=FAIL", ""),
        ("--exclusive", ""),
        ("--time-min=1", ""),
        ("--mem-bind=local", ""),
        ("--wait-all-nodes=1", ""),
        ("--output=x", "--output"),
        ("--requeue", "--requeue"),
        ("--time=1", "--time"),
        ("--arr=0-2", "--array"),
        ("--a=0-2", "--array"),
        ("--test-only", "--test-only"),
        ("--test", "--test-only"),
        ("--mem-per-cpu=1", "--mem-per-cpu"),
        ("--cluster=x", "--clusters"),
        ("--wrap=rm", "--wrap"),
        ("-p", "long option"),
        ("-a0-2", "long option"),
        ("exclusive", "long option"),
        ("--exclude n7", "long option"),
    ],
)
def test_options_that_medweave_sets_are_refused_also_abbreviated(option: str, owned: str) -> None:
    if not owned:
        check_service({"options": [option]}, where="s")
        return
    with pytest.raises(UsageError, match=r"^s\.options\[1\]: ") as error:
        check_service({"options": ["--exclusive", option]}, where="s")
    assert owned in str(error.value)


def test_a_time_limit_of_zero_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^s\.time: the time limit is zero"):
        check_service({"time": "00:00:00"}, where="s")
    check_service({"time": "00:00:01"}, where="s")


def test_a_site_file_is_checked_by_the_same_rules(tmp_path: Path) -> None:
    config = {"services": {"gpu": {"options": ["--exclusive", "--arr=0-2"]}, "cpu": {"time": "0-00:00:00"}}}
    deployments = {
        "hpc": {"type": "medweave.slurm", "wraps": "login", "config": config},
        "login": {"type": "medweave.local", "config": {}},
    }
    fields = [fault.field for fault in faults_of_deployments(deployments, tmp_path / "site.yml")]
    services = ("deployments", "hpc", "config", "services")
    assert fields == [(*services, "gpu", "options", 1), (*services, "cpu", "time")]
