"""Placement of jobs on real pods, and data rules: pods are chosen by the files they hold, or are never created."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.engine_file import LOCAL
from support.helm_release import Tenant
from support.placed import at, placed, step, write
from support.pod_runs import WORKDIR, go, pods_of

NAME = "placement-test"


@pytest.fixture(autouse=True)
def clean(tenant: Tenant) -> Iterator[None]:
    yield
    tenant.ended("kubectl", "delete", f"deployment/{NAME}", "--ignore-not-found", "--wait=false")


def pods(folder: Path) -> dict[str, Any]:
    """Return two pods, which work in folders that no other pod sees."""
    (folder / "pods.yaml").write_text(yaml.safe_dump(pods_of(NAME)))
    config = {"files": ["pods.yaml"], "timeout": 60, "pendingTimeout": 8}
    return {"type": "medweave.kubernetes", "workdir": WORKDIR, "config": config}


def test_a_job_runs_in_the_pod_that_has_most_of_its_data(tmp_path: Path, tenant: Tenant) -> None:
    # Many files and one large one below folders, whose sizes only the pods know.
    many = "mkdir out/below; for n in $(seq 50); do echo $n > out/below/$n; done; sleep 4"
    large = "mkdir out/below; head -c 1000000 /dev/zero > out/below/x; sleep 4"
    steps = {"many": step(many), "large": step(large), "both": step("true", reads={"x": "many", "y": "large"})}
    write(tmp_path, steps, dict.fromkeys(steps, at("pods")), {"pods": pods(tmp_path)})
    pod_of_step = placed(go(tmp_path, tenant))
    assert pod_of_step["many"] != pod_of_step["large"], "one job at a time in each pod"
    assert pod_of_step["both"] == pod_of_step["large"]


def test_data_rules_are_enforced_before_any_deployment(tmp_path: Path, tenant: Tenant) -> None:
    rules = {
        "holds": {"/scan": ["identified"], "/learn": ["derived"]},
        "mayHold": {"here": ["identified"], "pods": ["model"]},
    }
    filters = {"data-rules": {"type": "medweave.filter", "config": rules}}
    steps = {"scan": step("true"), "learn": step("true", reads={"x": "scan"})}
    sites = {"here": LOCAL, "pods": pods(tmp_path)}
    write(tmp_path, steps, {"scan": at("here"), "learn": at("pods")}, sites, filters=filters)
    before = tenant.get("deployments,pods,events", "")  # pods of the test before may still be ending
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 1
    assert "bindingFilters.data-rules.config.mayHold.pods: step /learn must not run there" in ended.stderr
    earlier_uids = {item["metadata"]["uid"] for item in before}
    made = [item for item in tenant.get("deployments,pods", "") if item["metadata"]["uid"] not in earlier_uids]
    assert not [item for item in made if NAME in item["metadata"]["name"]]
    new = [item for item in tenant.get("events", "") if item["metadata"]["uid"] not in earlier_uids]
    assert not [item for item in new if NAME in item["involvedObject"]["name"]], "nothing was created and deleted again"
