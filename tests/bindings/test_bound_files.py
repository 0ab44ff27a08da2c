"""Committed bound files are what `medweave bind` writes today, one for each workflow at each site."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from medweave.cli.main_command import build_parser
from medweave.placement.bind import bind
from medweave.project.sites import read_site, schema
from medweave_core.errors import UsageError
from medweave_steps.cli import VERBS
from support.cwl_files import PIPELINES, ROOT, load, step_paths

SITES = sorted(ROOT.glob("deployments/sites/*.yml"))
LUNG = "lung"
OF_THE_LUNG = [pipeline for pipeline in PIPELINES if pipeline.parent.name.startswith(LUNG)]
WORKSTATIONS = "workstations"  # hosts that train as one node group: one workflow is an example
BOUND = sorted(ROOT.glob("deployments/bindings/*.yml"))


def command_of(path: Path) -> list[str]:
    """Return the words of the command in the header of a bound file, without its name."""
    line = next(line for line in path.read_text().splitlines() if line.startswith("#   medweave bind "))
    return shlex.split(line.lstrip("# "))[2:]


def expected_name(site: str, pipeline: Path) -> str:
    """Return the name of a bound file; the lung pipelines and the first workflow of a folder add no word to it."""
    folder = pipeline.parent.name.partition("-")[0].replace(LUNG, "")
    return f"streamflow.{'-'.join([site, *([folder] if folder else []), *_further(pipeline, folder)])}.yml"


def _further(pipeline: Path, folder: str) -> list[str]:
    return [] if pipeline.stem in ("train", folder) else [pipeline.stem]


def placed(path: Path) -> dict[str, Any]:
    """Return the target of each step of a file's workflow."""
    (workflow,) = load(path)["workflows"].values()
    targets = {binding["step"]: binding["target"] for binding in workflow["bindings"] if "step" in binding}
    return {step: targets.get(step, targets.get("/")) for step in step_paths(path.parent / workflow["config"]["file"])}


@pytest.mark.parametrize("path", BOUND, ids=lambda path: path.name)
def test_bound_file_equals_output_of_its_command(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    arguments = build_parser("bind").parse_args(command_of(path))
    assert arguments.output.resolve() == path
    text = bind(arguments.workflow, arguments.site, arguments.output, arguments.job, arguments.role)
    assert text == path.read_text(), f"run it again: medweave bind {shlex.join(command_of(path))}"


def test_scans_of_the_hospital_cannot_be_placed_at_the_university() -> None:
    train = next(pipeline for pipeline in OF_THE_LUNG if pipeline.stem == "train")
    job = ROOT / "deployments" / "jobs" / "university-hpc-and-hospital-train.yml"
    with pytest.raises(UsageError, match=r"the data rules do not allow step /evaluate at 'hpc'") as caught:
        bind(train, "university-hpc-and-hospital", ROOT / "x.yml", job, ["evaluate=hpc/cpu"])
    assert caught.value.do == "bind role 'evaluate' to workstation or hospital"


def test_each_workflow_is_bound_at_each_site() -> None:
    sites = [site for site in SITES if site.stem != WORKSTATIONS]
    expected = {expected_name(site.stem, flow) for site in sites for flow in PIPELINES}
    hybrid = {f"streamflow.{site}-hybrid.yml" for site in ("laptop", "testbed")}  # what `make hybrid` runs
    data_parallel = {f"streamflow.{site.stem}-brain-data-parallel-search.yml" for site in sites}  # DistMIS' other mode
    hosts = {f"streamflow.{WORKSTATIONS}-provider.yml"}
    assert {path.name for path in BOUND} == expected | hybrid | data_parallel | hosts


@pytest.mark.parametrize("pipeline", OF_THE_LUNG, ids=lambda path: path.stem)
def test_files_at_the_root_are_bound_to_the_laptop(pipeline: Path) -> None:
    root = ROOT / ("streamflow.yml" if pipeline.stem == "train" else f"streamflow-{pipeline.stem}.yml")
    bound = ROOT / "deployments" / "bindings" / expected_name("laptop", pipeline)
    assert placed(root) == placed(bound)
    for section in ("deployments", "scheduling", "dataManager", "database"):
        assert load(root)[section] == load(bound)[section]


@pytest.mark.parametrize("path", SITES, ids=lambda path: path.stem)
def test_site_file_is_valid_and_names_its_schema_for_editors(path: Path) -> None:
    assert read_site(path).name == path.stem
    first = path.read_text().splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=")
    assert (path.parent / first.partition("=")[2]).resolve() == ROOT / "driver/medweave/site.schema.json"


@pytest.mark.parametrize("path", sorted(ROOT.glob("deployments/jobs/*.yml")), ids=lambda path: path.stem)
def test_a_job_of_a_site_is_bound_and_holds_no_absolute_path(path: Path) -> None:
    site, _, workflow = path.stem.rpartition("-")
    words = command_of(ROOT / "deployments" / "bindings" / expected_name(site, Path(workflow)))
    assert f"deployments/jobs/{path.name}" in words
    for value in load(path).values():
        assert not isinstance(value, dict) or not Path(value["path"]).is_absolute()


def test_the_schema_of_site_files_is_closed_and_described() -> None:
    document = schema()
    jsonschema.Draft202012Validator.check_schema(document)

    def look(node: Any, where: str) -> None:
        if isinstance(node, dict):
            if "properties" in node:
                assert node.get("additionalProperties") is False, where
                for name, described in node["properties"].items():
                    assert "description" in described or "$ref" in described, f"{where}.{name}"
            for key, value in node.items():
                look(value, f"{where}.{key}")

    look(document, "site")


def test_the_roles_of_a_site_are_those_that_steps_can_have() -> None:
    roles = set(schema()["properties"]["roles"]["properties"])
    # Synthetic data is created next to a workflow, not in it.
    assert roles | {"phantom"} == set(VERBS) | {"train-distributed"}
    for pipeline in PIPELINES:
        assert set(load(pipeline.parent / "roles.yml")[pipeline.name].values()) <= roles
