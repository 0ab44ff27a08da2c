"""Runs over all sites of the testbed at once: the committed site file, with small pods, bound to a workflow of four steps."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from medweave.placement.bind import bind
from support.cwl_files import ROOT
from support.engine import Run, start
from support.processes import processes_with
from support.testbed import BASE_IMAGE, Sites, unique

SITE = ROOT / "deployments" / "sites" / "testbed.yml"
# Names of the pods' deployments that are unique to this test process: no other releases in the tenant have this prefix.
OWN_BEGINNING = f"faults-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}-"
TRAINING, INFERENCE = f"{OWN_BEGINNING}training", f"{OWN_BEGINNING}inference"
OWN_NAMES = {"training-ddp": TRAINING, "inference": INFERENCE}
PROGRESS = """echo 'medweave-progress {"unit":"step","done":1,"total":2,"detail":"x"}' >&2"""
SMALL = {
    "requests": {"cpu": "20m", "memory": "64Mi", "ephemeral-storage": "64Mi"},
    "limits": {"cpu": "1", "memory": "512Mi", "ephemeral-storage": "1Gi"},
}
WORKFLOW = """\
cwlVersion: v1.2
class: Workflow
inputs: {}
outputs: {masks: {type: File, outputSource: segment/result}}
steps:
  check: {run: tools/check.cwl, in: {}, out: [result]}
  train: {run: tools/train.cwl, in: {data: check/result}, out: [result]}
  train_distributed: {run: tools/train_distributed.cwl, in: {data: train/result}, out: [result]}
  segment: {run: tools/segment.cwl, in: {data: train_distributed/result}, out: [result]}
"""
TOOL = """\
cwlVersion: v1.2
class: CommandLineTool
$namespaces: {medweave: "urn:medweave:cwl#"}
hints: {medweave:Gang: {}}
requirements: {ResourceRequirement: {coresMin: 1, ramMin: 256}}
inputs: {data: {type: File?}}
outputs: {result: {type: File, outputBinding: {glob: result.txt}}}
"""
WRITES = '[ "${MEDWEAVE_NODE_RANK:-0}" = 0 ] || exit 0; hostname > result.txt'


def run_workflow(
    folder: Path, testbed: Sites, workflow: Path, *, site: Mapping[str, Any], job: Mapping[str, Any]
) -> Run:
    """Bind a workflow to a site and run it as the laptop's user, in a new folder."""
    folder.mkdir()
    (folder / "site.yml").write_text(yaml.safe_dump(dict(site)))
    (folder / "job.yml").write_text(json.dumps(job))
    bound = folder / "streamflow.yml"
    bound.write_text(bind(workflow, str(folder / "site.yml"), bound, folder / "job.yml"))
    ended = start(folder, environment=laptop(testbed)).wait(600)
    assert ended.exit_code == 0, ended.stderr
    return ended


def results_named(ended: Run, *names: str) -> dict[str, bytes]:
    """Return the delivered files of these names, by their path."""
    folder = ended.folder / "results"
    return {str(path.relative_to(folder)): path.read_bytes() for name in names for path in sorted(folder.rglob(name))}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A run that can be started: its folder, its id, its folder on the cluster's scratch, and what every process of it inherits."""

    folder: Path
    testbed: Sites
    run_id: str

    @property
    def scratch(self) -> str:
        return f"{self.testbed.layout.hpc}/scratch/{self.run_id}"

    def begin(self) -> Run:
        """Start the engine as the laptop's user has it."""
        return start(self.folder, environment=laptop(self.testbed) | {"MEDWEAVE_RUN_ID": self.run_id})


def shape(
    folder: Path, testbed: Sites, *, change: Mapping[str, Any] | None = None, scripts: Mapping[str, str] | None = None
) -> Shape:
    """Write the workflow, the site and the bound file.

    Args:
        change: dotted path in the site file to the value that it gets; None takes the key away.
        scripts: step to what /bin/sh runs; otherwise it writes its host's name.
    """
    made = Shape(folder=folder, testbed=testbed, run_id=unique("faults"))
    site = _with_small_pods(committed_site())
    site["deployments"]["login"]["workdir"] = "${MEDWEAVE_TESTBED_SCRATCH}/" + made.run_id
    for path, value in (change or {}).items():
        _put(site, path, value)
    files = {
        "small/train.cwl": WORKFLOW,
        "small/roles.yml": "train.cwl: {/check: check, /train: train, /train_distributed: train-distributed, /segment: segment}\n",
        "small/job.yml": "{}\n",
        "sites/testbed.yml": yaml.safe_dump(site),
    }
    for step in ("check", "train", "train_distributed", "segment"):
        script = (scripts or {}).get(step, WRITES)
        files[f"small/tools/{step}.cwl"] = TOOL + yaml.safe_dump({"baseCommand": ["sh", "-c", script]})
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    bound = folder / "streamflow.yml"
    bound.write_text(
        bind(folder / "small/train.cwl", str(folder / "sites/testbed.yml"), bound, folder / "small/job.yml")
    )
    return made


def laptop(testbed: Sites) -> dict[str, str]:
    """Return the environment of the laptop's user: home, facts of the sites, helm."""
    variables = dict(line.split("=", 1) for line in testbed.laptop("env").stdout.splitlines() if "=" in line)
    facts = {name: value for name, value in variables.items() if name.startswith("MEDWEAVE_TESTBED")}
    path = f"{testbed.layout.bin}{os.pathsep}{os.environ['PATH']}"
    return facts | {"HOME": str(testbed.layout.laptop_home), "PATH": path}


def committed_site() -> dict[str, Any]:
    """Return the committed site, with the pods' deployments under the tests' own names."""
    site: dict[str, Any] = yaml.safe_load(SITE.read_text(encoding="utf-8"))
    deployments = site["deployments"]
    for name, own in OWN_NAMES.items():
        deployments[own] = deployments.pop(name)
        config = deployments[own]["config"]
        config["chart"] = str((SITE.parent / config["chart"]).resolve())
    for target in site["roles"].values():
        target["deployment"] = OWN_NAMES.get(target["deployment"], target["deployment"])
    del deployments["training-compss"]
    return site


def _with_small_pods(site: dict[str, Any]) -> dict[str, Any]:
    """Return the document with pods that need only the base image."""
    repository, _, tag = BASE_IMAGE.rpartition(":")
    small = {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "python": "/usr/bin/python3",
        "requiredModules": ["json"],
        "terminationGracePeriodSeconds": 5,
    }
    deployments = site["deployments"]
    deployments[TRAINING]["config"]["values"] = small | {"worker": {"replicas": 2, "resources": SMALL}}
    deployments[INFERENCE]["config"]["values"] = small | {"replicas": 2, "resources": SMALL}
    return site


def _put(document: Any, path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for word in parents:
        document = document[word]
    if value is None:
        del document[last]
    else:
        document[last] = value


# ---- remains of a run


def assert_undone(made: Shape, *, within_s: float, but: str = "") -> float:
    """Wait until nothing is left of a run: pods of a removed release still have their grace period. Return the seconds.

    Args:
        but: what may stay, a key of `left_over`.
    """
    started = time.monotonic()
    while there := {what: names for what, names in left_over(made).items() if what != but}:
        assert time.monotonic() - started < within_s, there
        time.sleep(0.3)
    return time.monotonic() - started


def left_over(made: Shape) -> dict[str, list[str]]:
    """Return everything that a run created and that still exists, by kind; empty when everything is removed."""
    remains = {
        "releases": _helm_releases(made.testbed),
        "objects": _objects(made.testbed),
        "jobs": jobs(made, states="PENDING,RUNNING,COMPLETING,SUSPENDED,CONFIGURING"),
        "processes": processes_with(made.run_id, "MEDWEAVE_RUN_ID"),
        "scratch": made.testbed.hpc("sh", "-c", f"ls -A {made.scratch} 2>/dev/null").stdout.split(),
    }
    return {what: there for what, there in remains.items() if there}


def jobs(made: Shape, *, states: str = "all") -> list[str]:
    """Return `id state` of the run's jobs at the controller, by the key in their comments."""
    listing = made.testbed.hpc("squeue", "--me", "--noheader", f"--states={states}", "--format=%i %T|%k").stdout
    rows = [line.partition("|") for line in listing.splitlines()]
    return [job for job, _, key in rows if f":{made.run_id}." in key]


def _helm_releases(testbed: Sites) -> list[str]:
    listed = testbed.laptop("helm", "list", "--short")
    assert listed.returncode == 0, listed.stderr
    return [name for name in listed.stdout.split() if name.startswith(OWN_BEGINNING)]


def _objects(testbed: Sites) -> list[str]:
    kinds = "pods,services,secrets,configmaps,deployments,statefulsets,networkpolicies,poddisruptionbudgets"
    listed = testbed.tenant("tenant-a", "get", kinds, "--output", "name")
    assert listed.returncode == 0, listed.stderr
    # Helm's own records are secrets `sh.helm.release.v1.<release>.v1`.
    names = {line: line.partition("/")[2].removeprefix("sh.helm.release.v1.") for line in listed.stdout.split()}
    return [line for line, name in names.items() if name.startswith(OWN_BEGINNING)]
