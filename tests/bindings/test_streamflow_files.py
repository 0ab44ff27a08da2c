"""Committed StreamFlow files: every bound step exists, every type is ours, nothing belongs to one machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from streamflow.config.validator import SfValidator
from streamflow.ext.utils import load_extensions

from medweave.project.deployments import connector_schemas
from support.cwl_files import ROOT, load, step_paths, strings

FILES = sorted([*ROOT.glob("streamflow*.yml"), *ROOT.glob("deployments/bindings/*.yml")])


def bindings(document: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]]:
    """Return (workflow, binding, its targets) of a file."""
    files = []
    for workflow in document["workflows"].values():
        for binding in workflow.get("bindings", []):
            target = binding["target"]
            files.append((workflow, binding, target if isinstance(target, list) else [target]))
    return files


def services(path: Path, deployment: dict[str, Any]) -> set[str]:
    """Return the names of sets of options, or of the containers in the chart's templates."""
    if "chart" not in deployment["config"]:
        return set(deployment["config"].get("services", {}))
    templates = (path.parent / deployment["config"]["chart"] / "templates").rglob("*.yaml")
    container = re.compile(r'\.container" \(dict "root" \. "(?:name|part)" "(\w+)"')
    return {name for file in templates for name in container.findall(file.read_text())}


@pytest.fixture(params=FILES, ids=lambda path: path.name)
def path(request: pytest.FixtureRequest) -> Path:
    assert isinstance(request.param, Path)
    return request.param


def test_there_is_a_default_binding() -> None:
    assert ROOT / "streamflow.yml" in FILES


def test_streamflow_accepts_it(path: Path) -> None:
    load_extensions()
    SfValidator().validate_file(str(path))


def test_each_bound_step_exists(path: Path) -> None:
    # The engine only warns.
    for workflow, binding, _ in bindings(load(path)):
        pipeline = path.parent / workflow["config"]["file"]
        if "step" in binding:
            assert binding["step"] in ["/", *step_paths(pipeline)]
        else:
            assert binding["port"].lstrip("/") in load(pipeline)["inputs"]


def test_each_target_exists_and_every_step_has_one(path: Path) -> None:
    document = load(path)
    for _, _, targets in bindings(document):
        for target in targets:
            deployment = document["deployments"][target["deployment"]]
            if "service" in target:
                assert target["service"] in services(path, deployment)
    for name, workflow in document["workflows"].items():
        steps = {binding["step"] for _, binding, _ in bindings(document) if "step" in binding}
        unbound = set(step_paths(path.parent / workflow["config"]["file"])) - steps
        assert "/" in steps or not unbound, f"{name}: unbound steps run in the engine's stock local connector"


def test_only_our_types_are_bound(path: Path) -> None:
    document = load(path)
    for deployment in document["deployments"].values():
        assert deployment["type"].startswith("medweave.")
    assert document["scheduling"]["scheduler"]["type"] == "medweave.scheduler"
    assert document["dataManager"]["type"] == "medweave.transfer"
    assert document["database"]["type"] == "medweave.database"


def test_one_workflow_per_file(path: Path) -> None:
    # The engine runs several one after the other under one name.
    assert len(load(path)["workflows"]) == 1


PODS = ("medweave.kubernetes", "medweave.helm", "medweave.compss")


def test_file_is_independent_of_the_machine(path: Path) -> None:
    document = load(path)
    for deployment in document["deployments"].values():
        # What the chart's containers have inside is no path of a machine: their workdir, and where volumes appear.
        inside = [deployment.get("workdir"), *strings(deployment["config"].get("values", {}))]
        allowed = inside if deployment["type"] in PODS else []
        for text in strings(deployment):
            assert not text.startswith("/") or text in allowed, text
    for workflow in document["workflows"].values():
        for key in ("file", "settings"):
            assert not Path(workflow["config"][key]).is_absolute()
            assert (path.parent / workflow["config"][key]).is_file()


def test_the_files_that_it_names_exist(path: Path) -> None:
    schemas = connector_schemas()
    for name, deployment in load(path)["deployments"].items():
        config = deployment["config"]
        named = [config["chart"]] if "chart" in config else []
        named += list(paths_in(config, schemas[deployment["type"]]))
        for text in named:
            if not text.startswith(("~", "${")):
                assert (path.parent / text).exists(), f"{name}: {text}"


def paths_in(value: Any, schema: dict[str, Any]) -> Iterator[str]:
    """Yield the settings that are paths on the driver's machine."""
    if isinstance(value, str) and schema.get("format") == "path":
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from paths_in(item, schema.get("items", {}))
    elif isinstance(value, dict):
        others = schema.get("additionalProperties") or {}
        for key, item in value.items():
            yield from paths_in(item, schema.get("properties", {}).get(key, others))
