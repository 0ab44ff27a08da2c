"""Where jobs go over real pods, and data rules before them: real pods are chosen by what lies in them, or never made."""

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
    """Two pods, which work in folders that no other pod sees."""
    (folder / "pods.yaml").write_text(yaml.safe_dump(pods_of(NAME)))
    config = {"files": ["pods.yaml"], "timeout": 60, "pendingTimeout": 8}
    return {"type": "medweave.kubernetes", "workdir": WORKDIR, "config": config}


def test_a_job_runs_in_the_pod_that_has_most_of_its_data(tmp_path: Path, tenant: Tenant) -> None:
    # Many files and one large one below folders, whose sizes only the pods know.
    many = "mkdir out/below; for n in $(seq 50); do echo $n > out/below/$n; done; sleep 4"
    large = "mkdir out/below; head -c 1000000 /dev/zero > out/below/x; sleep 4"
    steps = {"many": step(many), "large": step(large), "both": step("true", reads={"x": "many", "y": "large"})}
    write(tmp_path, steps, dict.fromkeys(steps, at("pods")), {"pods": pods(tmp_path)})
    found = placed(go(tmp_path, tenant))
    assert found["many"] != found["large"], "one job at a time in each pod"
    assert found["both"] == found["large"]


def test_data_rules_are_held_before_anything_is_deployed(tmp_path: Path, tenant: Tenant) -> None:
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
    known = {each["metadata"]["uid"] for each in before}
    made = [each for each in tenant.get("deployments,pods", "") if each["metadata"]["uid"] not in known]
    assert not [each for each in made if NAME in each["metadata"]["name"]]
    new = [each for each in tenant.get("events", "") if each["metadata"]["uid"] not in known]
    assert not [each for each in new if NAME in each["involvedObject"]["name"]], "nothing was made and taken away again"
