"""Where a run places its jobs: by GPUs, data, load and the data rules of the file. Local deployments represent sites."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from streamflow.core.deployment import DeploymentConfig, Target
from streamflow.core.workflow import Job

from medweave_connectors.engine.scheduling.filter import MedweaveFilter
from medweave_connectors.host.errors import PlacementForbidden
from support.engine import run, write_workflow
from support.engine_file import LOCAL, STOCK
from support.fake_cluster import fake_cluster
from support.placed import at, placed, step, write

GPUS = {"hints": {"urn:medweave:cwl#GPURequest": {"gpusMin": 1}}}
FILTER = {"near": {"type": "medweave.filter", "config": {}}}
# Site b has a GPU, as connectors of real sites report it: they are deployed before the first job is placed.
ONE_GPU = """
from medweave_connectors.sites.local.connector import MedweaveLocalConnector
from medweave_connectors.jobs.job_requests import LocationSize
async def sizes(self, service):
    return {"__LOCAL__": LocationSize(gpus=1 if self.deployment_name == "b" else 0)}
MedweaveLocalConnector.sizes, MedweaveLocalConnector.CHECKED_AT_START = sizes, True
"""
# One deployment of two locations with four slots each, which differ only in their data and their load.
TWO_LOCATIONS = """
from streamflow.core.scheduling import AvailableLocation
from medweave_connectors.sites.local.connector import MedweaveLocalConnector
async def two_locations(self, service=None):
    return {
        name: AvailableLocation(
            name=name, deployment=self.deployment_name, hostname="localhost", local=True, service=service, slots=4
        )
        for name in ("one", "two")
    }
MedweaveLocalConnector.get_available_locations = two_locations
"""
RECORD = """
from streamflow.scheduling.scheduler import DefaultScheduler
stock = DefaultScheduler._allocate_job
def record(self, job, hardware, connector, selected_locations, target):
    if connector.deployment_name == "a":
        with open("{folder}/places", "a") as file:
            print(*(place.name for place in selected_locations), file=file)
    return stock(self, job, hardware, connector, selected_locations, target)
DefaultScheduler._allocate_job = record
"""
RULES = {
    "holds": {"/scan": ["identified", "derived"], "/learn": ["derived", "model"]},
    "mayHold": {"a": ["identified", "derived"], "b": ["derived", "model"]},
}


SITES = {"a": LOCAL, "b": LOCAL}


def test_the_site_with_the_data_comes_first(tmp_path: Path) -> None:
    steps = {
        "small": step("echo > out/x"),
        "large": step("mkdir out/below; head -c 100000 /dev/zero > out/below/x"),
        "both": step("echo > out/x", reads={"first": "small", "second": "large"}),
        "alone": step("true", reads={"first": "both"}),
    }
    # StreamFlow lists the folder of an output, not the folders in it: their size is measured.
    targets = {"small": at("a"), "large": at("b"), "both": at("a", "b"), "alone": at("a", "b")}
    write(tmp_path, steps, targets, SITES, filters=FILTER)
    places = placed(run(tmp_path))
    assert places == {"small": "a", "large": "b", "both": "b", "alone": "b"}


def test_gpus_are_for_jobs_that_request_them(tmp_path: Path) -> None:
    steps = {
        "asks": step("true", **GPUS),
        "asks-not": step("true"),
        "last": step("true", reads={"x": "asks", "y": "asks-not"}),
    }
    targets = {"asks": at("a", "b"), "asks-not": at("b", "a"), "last": at("a")}
    write(tmp_path, steps, targets, SITES, filters=FILTER)
    (tmp_path / "lab.py").write_text(ONE_GPU)
    assert placed(run(tmp_path, preload=tmp_path / "lab.py")) == {"asks": "b", "asks-not": "a", "last": "a"}


def test_a_location_without_the_gpus_is_not_used_without_a_filter(tmp_path: Path) -> None:
    write(tmp_path, {"asks": step("true", **GPUS)}, {"asks": at("a", "b")}, SITES)
    (tmp_path / "lab.py").write_text(ONE_GPU)
    assert placed(run(tmp_path, preload=tmp_path / "lab.py")) == {"asks": "b"}


def test_gpus_that_no_site_has_are_refused(tmp_path: Path) -> None:
    asks = {"hints": {"urn:medweave:cwl#GPURequest": {"gpusMin": 2}}}
    write(tmp_path, {"asks": step("true", **asks)}, {"asks": at("a", "b")}, SITES, filters=FILTER)
    (tmp_path / "lab.py").write_text(ONE_GPU)
    ended = run(tmp_path, preload=tmp_path / "lab.py")
    assert ended.exit_code == 1
    assert "/asks/0 requests 2 GPUs, and no location of its binding has that many." in ended.stderr
    assert "seen:     a has 0; b has 1" in ended.stderr
    assert not ended.of_type("job.scheduled")


@pytest.mark.parametrize("places", [["hpc", "here"], ["hpc"]], ids=["another", "none"])
def test_a_queue_without_gpus_gets_no_job_that_requests_them(tmp_path: Path, places: list[str]) -> None:
    with fake_cluster(tmp_path) as cluster:
        write_workflow(tmp_path, {"asks": ("touch result.txt", GPUS)}, file=cluster.file)
        file = yaml.safe_load(cluster.file)
        file["deployments"]["here"] = LOCAL
        binding = {"step": "/", "target": [{"deployment": name} for name in places], "filters": ["near"]}
        file["workflows"]["tiny"]["bindings"], file["bindingFilters"] = [binding], FILTER
        (tmp_path / "streamflow.yml").write_text(json.dumps(file))
        ended = run(tmp_path)
        assert cluster.submitted == []
    if "here" in places:
        assert placed(ended) == {"asks": "here"}
    else:
        assert ended.exit_code == 1
        assert (
            "/asks/0 requests 1 GPUs, and no location of its binding has that many.\n  seen:     hpc has 0\n"
            in ended.stderr
        )


def test_inside_a_site_a_job_runs_at_its_data_and_others_at_the_idle_location(tmp_path: Path) -> None:
    wait = f"touch {tmp_path}/$0; while [ $(ls {tmp_path} | grep -c begun) -lt 2 ]; do sleep 0.05; done"
    steps = {
        "first": step(f"{wait.replace('$0', 'begun-1')}; echo > out/x"),
        "second": step(f"{wait.replace('$0', 'begun-2')}; head -c 100000 /dev/zero > out/x"),
        "both": step("true", reads={"x": "first", "y": "second"}),
    }
    write(tmp_path, steps, dict.fromkeys(steps, at("a")), SITES)
    (tmp_path / "lab.py").write_text(TWO_LOCATIONS)
    places = placed(run(tmp_path, preload=tmp_path / "lab.py"))
    assert {places["first"], places["second"]} == {"a/one", "a/two"}, "both ran at the same time"
    assert places["both"] == places["second"], "where the larger folder lies"


def test_a_file_may_name_the_policy_with_streamflows_scheduler(tmp_path: Path) -> None:
    meet = f"echo $$ >> {tmp_path}/met; while [ $(wc -l < {tmp_path}/met) -lt 4 ]; do sleep 0.05; done"
    site = {"type": "medweave.local", "config": {}, "workdir": str(tmp_path / "work"), "scheduling_policy": "spread"}
    policies = {"policies": {"spread": {"type": "medweave.policy", "config": {}}}}
    steps = {name: step(meet) for name in "cdef"}
    targets = dict.fromkeys(steps, at("a")) | {"last": at("b")}
    steps["last"] = step("true", reads={name: name for name in steps})
    write(tmp_path, steps, targets, {"a": site, "b": site}, scheduling=policies, **STOCK)
    (tmp_path / "lab.py").write_text(TWO_LOCATIONS + RECORD.format(folder=tmp_path))
    ended = run(tmp_path, preload=tmp_path / "lab.py")
    assert ended.exit_code == 0, ended.stderr
    assert sorted((tmp_path / "places").read_text().split()) == ["one", "one", "two", "two"]


def rules(folder: Path, learn: Any, *, filtered: bool = True, changed: dict[str, Any] | None = None) -> None:
    steps = {"scan": step(f"touch {folder}/scanned"), "learn": step(f"touch {folder}/learned", reads={"x": "scan"})}
    filters = {"data-rules": {"type": "medweave.filter", "config": RULES | (changed or {})}}
    write(folder, steps, {"scan": at("a"), "learn": learn}, SITES, filters=filters)
    if not filtered:
        path = folder / "streamflow.yml"
        path.write_text(path.read_text().replace(', "filters": ["data-rules"]', ""))


@pytest.mark.parametrize("options", [(), ("--validate",)], ids=["run", "validate"])
def test_a_forbidden_placement_ends_the_run_before_it_begins(tmp_path: Path, options: tuple[str, ...]) -> None:
    rules(tmp_path, at("a"))
    ended = run(tmp_path, *options)
    assert ended.exit_code == 1
    assert "bindingFilters.data-rules.config.mayHold.a: step /learn must not run there" in ended.stderr
    assert "seen:     model (holds./learn) at deployment 'a', which may hold identified, derived" in ended.stderr
    assert "do:       bind /learn to b" in ended.stderr
    assert not (tmp_path / "scanned").exists(), "no step has begun"
    assert not list(tmp_path.glob("runs/*/events.jsonl")), "nothing was placed or deployed"


@pytest.mark.slow
def test_forbidden_targets_are_excluded_if_another_is_allowed(tmp_path: Path) -> None:
    rules(tmp_path, at("a", "b"))  # the data lie at a
    assert placed(run(tmp_path)) == {"scan": "a", "learn": "b"}


def test_a_binding_without_the_filter_may_have_no_forbidden_target(tmp_path: Path) -> None:
    rules(tmp_path, at("b", "a"), filtered=False)
    ended = run(tmp_path)
    assert ended.exit_code == 1
    assert "mayHold.a: step /learn must not run there" in ended.stderr
    assert not (tmp_path / "scanned").exists()


def test_a_step_without_declared_classes_ends_the_run_before_it_begins(tmp_path: Path) -> None:
    rules(tmp_path, at("b"), changed={"holds": {"/scan": ["identified"]}})
    ended = run(tmp_path)
    assert ended.exit_code == 1
    assert "bindingFilters.data-rules.config.holds: the data classes of step /learn are not declared." in ended.stderr
    assert not (tmp_path / "scanned").exists()


def test_the_filter_also_refuses_when_a_job_is_placed() -> None:
    def target(name: str) -> Target:
        return Target(deployment=DeploymentConfig(name=name, type="medweave.local", config={}), workdir="/w")

    async def targets_for(*names: str) -> list[str]:
        job = Job(
            name="/learn/0.1", workflow_id=1, inputs={}, input_directory="", output_directory="", tmp_directory=""
        )
        allowed = await MedweaveFilter("data-rules", **RULES).get_targets(job, [target(name) for name in names])  # type: ignore[arg-type]
        return [one.deployment.name for one in allowed]

    assert asyncio.run(targets_for("a", "b")) == ["b"]
    with pytest.raises(PlacementForbidden, match=r"mayHold\.a: step /learn must not run there"):
        asyncio.run(targets_for("a"))
