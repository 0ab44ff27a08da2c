"""What follows from a failed job in pods: runs of the engine over the small API server. The real cluster's are in tests/hybrid."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from medweave_connectors.jobs.retries.attempt_script import SIGNAL_LEAD_S
from medweave_connectors.jobs.retries.policy import (
    CLUSTER,
    DEFAULTS,
    STANDING,
    FailedAttempt,
    FailureKind,
    Retry,
    Stop,
    Table,
    decide,
    read_table,
)
from medweave_connectors.sites.compss.connector import MedweaveCompssConnector
from medweave_connectors.sites.helm.connector import MedweaveHelmConnector
from medweave_connectors.sites.kubernetes.connector import MedweaveKubernetesConnector
from support.engine import Run, run, start, wait_until
from support.job_server import JobServer, job_cluster
from support.small_cluster import write

JOB = "selector: app=w, mode: job"
STANDING_PODS = "selector: app=w"
AT_ONCE = {kind: {"wait": 0} for kind in ("StepFailed", "Preempted", "NodeFail")}
SAVES = {"hints": {"urn:medweave:cwl#Checkpoint": {"folder": "saved"}}}
# The second start must not find what the first has left.
TWICE = (
    "echo x >> {folder}/starts; [ ! -e half ] || exit 65; touch half; "
    "[ $(wc -l < {folder}/starts) = 2 ] || {{ {end}; }}; echo done > result.txt"
)
# It counts to 35, ten a second, and saves on a signal.
COUNTS = """
at=0; [ -z "$MEDWEAVE_RESUME_FROM" ] || at=$(cat "$MEDWEAVE_RESUME_FROM/at"); echo from $at >> {folder}/starts
trap 'mkdir -p saved; echo $at > saved/at' USR1
while [ $at -lt 35 ]; do sleep 0.1; at=$((at+1)); done; echo $at > result.txt
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[JobServer]:
    with job_cluster(tmp_path) as serving:
        yield serving


def prepare(folder: Path, script: str, *, config: str, keys: dict[str, Any] | None = None, **words: str) -> None:
    at_once = AT_ONCE if config == JOB else {"StepFailed": AT_ONCE["StepFailed"]}
    text = script.format(folder=folder, **words)
    write(folder, {"works": (text, keys or {})}, config=f"{config}, reactions: {json.dumps(at_once)}")


def reactions(ended: Run) -> list[dict[str, Any]]:
    return [dict(event["data"]) for event in ended.of_type("job.reaction")]


def ends(ended: Run) -> list[tuple[int, str]]:
    return [(event["data"]["attempt"], event["data"]["state"]) for event in ended.of_type("job.ended")]


def memory(server: JobServer) -> list[str]:
    return [job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] for job in server.made]


@pytest.mark.slow
@pytest.mark.parametrize("config", [JOB, STANDING_PODS])
def test_a_step_with_exit_code_75_is_retried_in_a_clean_folder(tmp_path: Path, server: JobServer, config: str) -> None:
    prepare(tmp_path, TWICE, end="exit 75", config=config)
    ended = run(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    assert ends(ended) == [(1, "failed"), (2, "completed")]
    (reaction,) = reactions(ended)
    assert (reaction["failure"], reaction["exit_code"], reaction["again"]) == ("StepFailed", 75, True)
    assert "note: StepFailed: attempt 2" in ended.stderr
    assert len({job["metadata"]["name"] for job in server.made}) == (2 if config == JOB else 0)
    assert not list((tmp_path / "in-pods").rglob("half"))


@pytest.mark.slow
@pytest.mark.parametrize("config", [JOB, STANDING_PODS])
def test_any_other_exit_code_is_the_end(tmp_path: Path, server: JobServer, config: str) -> None:
    prepare(tmp_path, "exit 65", config=config)
    ended = run(tmp_path)
    assert ended.exit_code == 1
    assert ends(ended) == [(1, "failed")]
    assert [(reaction["failure"], reaction["again"]) for reaction in reactions(ended)] == [("StepFailed", False)]


@pytest.mark.slow
def test_a_job_without_memory_gets_more(tmp_path: Path, server: JobServer) -> None:
    asks = {"requirements": {"ResourceRequirement": {"ramMin": 700}}}
    prepare(tmp_path, TWICE, end="exec sleep 60", config=JOB, keys=asks)
    going = start(tmp_path)
    wait_until(lambda: (tmp_path / "starts").exists(), 60)
    (pod,) = server.pods_of_jobs()
    server.kill(pod, ended="OOMKilled")
    ended = going.wait()
    assert ended.exit_code == 0, ended.stderr
    assert memory(server) == ["700Mi", "1050Mi"]
    (reaction,) = reactions(ended)
    assert (reaction["failure"], reaction["memory_mib"]) == ("OutOfMemory", 1050)
    assert "note: OutOfMemory: attempt 2 with 1050 MiB" in ended.stderr
    assert [event["data"]["memory_mib"] for event in ended.of_type("job.scheduled")] == [700, 1050]


@pytest.mark.slow
def test_a_pod_that_was_pushed_out_is_tried_again(tmp_path: Path, server: JobServer) -> None:
    prepare(tmp_path, TWICE, end="exec sleep 60", config=JOB)
    going = start(tmp_path)
    wait_until(lambda: (tmp_path / "starts").exists(), 60)
    (pod,) = server.pods_of_jobs()
    server.kill(pod, reason="Evicted", message="it must go")
    ended = going.wait()
    assert ended.exit_code == 0, ended.stderr
    assert [reaction["failure"] for reaction in reactions(ended)] == ["Preempted"]
    assert len(server.made) == 2


@pytest.mark.slow
@pytest.mark.parametrize("config", [JOB, STANDING_PODS])
def test_a_step_goes_on_past_its_time_limit(tmp_path: Path, server: JobServer, config: str) -> None:
    limit = {"requirements": {"ToolTimeLimit": {"timelimit": 3}}, **SAVES}
    prepare(tmp_path, COUNTS, config=config, keys=limit)
    ended = run(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    starts = [int(line.split()[1]) for line in (tmp_path / "starts").read_text().splitlines()]
    assert starts[0] == 0
    assert starts == sorted(set(starts)), "every attempt resumes from the checkpoint of the one before"
    assert [(reaction["failure"], reaction["from_checkpoint"]) for reaction in reactions(ended)] == [
        ("Timeout", True)
    ] * (len(starts) - 1)
    assert (tmp_path / "results" / "result.txt").read_text() == "35\n"


@pytest.mark.slow
@pytest.mark.parametrize("config", [JOB, STANDING_PODS])
def test_a_time_limit_without_a_checkpoint_is_the_end(tmp_path: Path, server: JobServer, config: str) -> None:
    prepare(tmp_path, "sleep 60", config=config, keys={"requirements": {"ToolTimeLimit": {"timelimit": 1}}})
    ended = run(tmp_path)
    assert ended.exit_code == 1
    assert [(reaction["failure"], reaction["again"]) for reaction in reactions(ended)] == [("Timeout", False)]
    assert len(server.made) == (1 if config == JOB else 0)


@pytest.mark.slow
def test_a_step_that_could_have_written_a_checkpoint_and_has_not_is_told_so(tmp_path: Path, server: JobServer) -> None:
    keys = {"requirements": {"ToolTimeLimit": {"timelimit": 2}}, **SAVES}
    prepare(tmp_path, "trap '' USR1; sleep 60", config=STANDING_PODS, keys=keys)
    ended = run(tmp_path)
    assert ended.exit_code == 1
    (reaction,) = reactions(ended)
    assert reaction["text"] == "not retried: the attempt has written no checkpoint to continue from"


@pytest.mark.slow
def test_a_job_that_the_cluster_does_not_take_is_asked_for_again_where_the_file_says_so(
    tmp_path: Path, server: JobServer
) -> None:
    server.refuse[("POST", "/jobs")] = 422, "exceeded quota: count/jobs.batch=2"
    again = {"SubmitRejected": {"do": "again", "wait": 1}}
    write(tmp_path, {"works": "echo done > result.txt"}, config=f"{JOB}, reactions: {json.dumps(again)}")
    going = start(tmp_path)
    going.wait_for_line("note: SubmitRejected: attempt 2 in 1 s")
    server.refuse.clear()
    ended = going.wait()
    assert ended.exit_code == 0, ended.stderr
    assert ended.stderr.count("exceeded quota: count/jobs.batch=2") == 1
    assert len(server.made) == 1


@pytest.mark.slow
def test_a_standing_pod_gets_no_more_memory_and_the_decision_says_why(tmp_path: Path, server: JobServer) -> None:
    prepare(tmp_path, "touch {folder}/works; exec sleep 60", config=STANDING_PODS)
    going = start(tmp_path)
    wait_until(lambda: (tmp_path / "works").exists(), 60)
    killed = {"lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}, "restartCount": 1}
    server.pods["w-0"]["status"]["containerStatuses"][0] |= killed
    ended = going.wait()
    assert ended.exit_code == 1
    (reaction,) = reactions(ended)
    assert (reaction["failure"], reaction["again"]) == ("OutOfMemory", False)
    assert "not retried: the memory of a standing pod is fixed; raise resources.limits.memory" in ended.stderr


@pytest.mark.slow
def test_what_a_standing_pod_cannot_follow_is_no_setting(tmp_path: Path, server: JobServer) -> None:
    write(tmp_path, {"works": "true"}, config=f"{STANDING_PODS}, reactions: {{OutOfMemory: {{factor: 2}}}}")
    stderr = run(tmp_path).stderr
    assert "deployments.pods.config.reactions.OutOfMemory: its pods cannot be used." in stderr
    assert "in standing pods, Timeout or StepFailed" in stderr


@pytest.mark.parametrize("kind", [kind for kind in FailureKind if kind not in ("Timeout", "StepFailed")])
def test_whatever_takes_a_standing_pod_is_the_end(kind: FailureKind) -> None:
    assert isinstance(decide([FailedAttempt(kind=kind, exit_code=75)], read_table({}, STANDING)), Stop)


@pytest.mark.parametrize("kind", list(FailureKind))
def test_what_takes_a_pod_of_a_cluster_is_the_end_only_where_no_other_one_helps(kind: FailureKind) -> None:
    follows = decide([FailedAttempt(kind=kind, exit_code=75)], read_table({}, CLUSTER))
    again = ("Preempted", "NodeFail", "Cancelled", "StepFailed")  # Timeout: only from a checkpoint
    assert isinstance(follows, Retry) is (kind in again)


@pytest.mark.parametrize(
    ("connector", "table"),
    [(MedweaveKubernetesConnector, DEFAULTS), (MedweaveHelmConnector, STANDING), (MedweaveCompssConnector, CLUSTER)],
)
def test_the_schemas_are_closed_and_tell_the_defaults(connector: Any, table: Table) -> None:
    schema = json.loads(connector.get_schema())["properties"]
    kinds = schema["reactions"]["properties"]
    # In the table of jobs a row that stops can be changed; in that of standing pods it cannot.
    assert set(kinds) == {kind for kind, row in table.items() if table is DEFAULTS or row.do != "stop"}
    for kind, row in kinds.items():
        keys = row["properties"]
        defaults = {name: getattr(table[FailureKind(kind)], name) for name in keys}
        assert {name: key["default"] for name, key in keys.items()} == defaults
    assert schema["signalLeadTime"]["default"] == SIGNAL_LEAD_S
    assert list(Draft202012Validator(schema["reactions"]).iter_errors({"Unknown": {"do": "again"}}))
