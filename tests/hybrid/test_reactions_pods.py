"""What a real cluster does to jobs in pods, and what follows: more memory, another try in a clean folder, on from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.engine import Run
from support.helm_release import Tenant
from support.pod_runs import decisions, go, pods_of, pods_on_claim, write

NAME = "reactions-test"
SAVES = {"hints": {"urn:medweave:cwl#Checkpoint": {"folder": "saved"}}}
AT_ONCE = {"StepFailed": {"wait": 0}}
# The second start must not find the first one's files in its folder; starts are counted next to it.
TWICE = (
    "echo x >> ../starts; [ ! -e half ] || exit 65; touch half; "
    "[ $(wc -l < ../starts) = 2 ] || exit 75; cp ../starts result.txt"
)
# It counts to 12, two a second, and saves on a signal.
COUNTS = """
at=0; [ -z "$MEDWEAVE_RESUME_FROM" ] || at=$(cat "$MEDWEAVE_RESUME_FROM/at"); echo $at >> ../starts
trap 'mkdir -p saved; echo $at > saved/at' USR1
while [ $at -lt 12 ]; do sleep 0.5; at=$((at+1)); done; cp ../starts result.txt
"""


@pytest.fixture(autouse=True)
def clean(tenant: Tenant) -> Iterator[None]:
    yield
    tenant.ended("kubectl", "delete", f"deployment/{NAME}", "--ignore-not-found", "--wait=false")
    tenant.ended("kubectl", "delete", "jobs", "--selector=medweave.dev/deployment=pods", "--wait=false")


def prepare(folder: Path, tool: tuple[str, dict[str, Any]], mode: str, **reactions: Any) -> None:
    pods = (pods_on_claim if mode == "job" else pods_of)(NAME, replicas=1)
    (folder / "pods.yaml").write_text(yaml.safe_dump(pods))
    config = {"files": ["pods.yaml"], "mode": mode, "timeout": 60, "reactions": {**AT_ONCE, **reactions}}
    write(folder, {"works": tool}, kind="medweave.kubernetes", config=config)


def attempts(ended: Run) -> list[dict[str, Any]]:
    """Return the site's facts of each attempt, in order."""
    return [dict(event["data"]["site"]) for event in ended.of_type("job.ended")]


def test_a_job_killed_for_memory_gets_more(tmp_path: Path, tenant: Tenant) -> None:
    greedy = 'python3 -c "x = bytearray(150 * 2**20)" && echo done > result.txt'
    asks = {"requirements": {"ResourceRequirement": {"ramMin": 100}}}
    prepare(tmp_path, (greedy, asks), "job", OutOfMemory={"factor": 2.5})
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 0, ended.stderr
    assert decisions(ended) == [("OutOfMemory", True)]
    first, second = attempts(ended)
    assert first["failure"] == "OutOfMemory"
    assert first["kubernetes_job"] != second["kubernetes_job"]
    assert [event["data"]["memory_mib"] for event in ended.of_type("job.scheduled")] == [100, 250]
    assert not tenant.get("jobs", "medweave.dev/submission")


@pytest.mark.parametrize("mode", ["job", "exec"])
def test_a_step_with_exit_code_75_is_retried_in_a_clean_folder(tmp_path: Path, tenant: Tenant, mode: str) -> None:
    prepare(tmp_path, (TWICE, {}), mode)
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 0, ended.stderr
    assert decisions(ended) == [("StepFailed", True)]
    pods = [site["pods"][0]["pod"] for site in attempts(ended)]
    assert len(set(pods)) == (2 if mode == "job" else 1)
    assert (tmp_path / "results" / "result.txt").read_text() == "x\nx\n"


@pytest.mark.parametrize("mode", ["job", "exec"])
def test_step_continues_past_its_time_limit(tmp_path: Path, tenant: Tenant, mode: str) -> None:
    limit = {"requirements": {"ToolTimeLimit": {"timelimit": 6}}, **SAVES}
    prepare(tmp_path, (COUNTS, limit), mode)
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 0, ended.stderr
    starts = [int(word) for word in (tmp_path / "results" / "result.txt").read_text().split()]
    assert starts[0] == 0
    assert len(starts) > 1
    assert starts == sorted(set(starts)), "each attempt resumes where the one before had saved"
    assert decisions(ended) == [("Timeout", True)] * (len(starts) - 1)


@pytest.mark.parametrize("mode", ["job", "exec"])
def test_step_exit_code_is_final(tmp_path: Path, tenant: Tenant, mode: str) -> None:
    prepare(tmp_path, ("exit 65", {}), mode)
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 1
    assert decisions(ended) == [("StepFailed", False)]
    assert len(attempts(ended)) == 1


def test_a_standing_pod_gets_no_more_memory(tmp_path: Path, tenant: Tenant) -> None:
    prepare(tmp_path, ('python3 -c "x = bytearray(10**9)" && touch result.txt', {}), "exec")
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 1
    assert decisions(ended) == [("OutOfMemory", False)]
    assert "not retried: the memory of a standing pod is fixed; raise resources.limits.memory" in ended.stderr
