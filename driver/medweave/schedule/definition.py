"""Which files a StreamFlow file needs to run: the workflow and its tools, the job file, charts and manifests. Not the inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from medweave.project.deployments import connector_schemas
from medweave_core.documents.file_locations import path_of_reference
from medweave_core.documents.streamflow_bindings import our_deployments
from medweave_core.documents.yaml_documents import read_mapping

NAMED_IN_CWL = ("run", "$import", "$include", "$mixin")
OF_THE_MACHINE = ("kubeconfig", "sshKey", "sshKeyPassphraseFile", "knownHosts")  # keys stay where they are


def job_file(file: Path) -> Path | None:
    """The job file of a StreamFlow file; None where it names none."""
    config = _workflow(file)
    return (file.parent / config["settings"]).resolve() if config.get("settings") else None


def definition_files(file: Path) -> list[Path]:
    """All of them, the StreamFlow file first, each once; a chart is a folder's files.

    Raises:
        UserInputError: one of them is missing or no YAML.
    """
    found: dict[Path, None] = {file.resolve(): None}
    found |= dict.fromkeys(_cwl(file.parent / str(_workflow(file).get("file", "")), set()))
    if (job := job_file(file)) is not None:
        found[job] = None
    document = read_mapping(file, "StreamFlow file")
    for deployment in our_deployments(document).values():
        config = deployment.get("config") or {}
        chart = [] if config.get("repo") or "://" in config.get("chart", "") else [config.get("chart", "")]
        for path in [*_paths(config, connector_schemas().get(deployment["type"], {})), *filter(None, chart)]:
            found |= dict.fromkeys(_files_at((file.parent / path).resolve()))
    return list(found)


def _workflow(file: Path) -> dict[str, Any]:
    workflows = read_mapping(file, "StreamFlow file").get("workflows") or {}
    return next((each.get("config") or {} for each in workflows.values()), {})


def _cwl(path: Path, seen: set[Path]) -> Iterator[Path]:
    path = path.resolve()
    if path in seen:
        return
    seen.add(path)
    yield path
    for named in _named_in(read_mapping(path, "CWL document")):
        if (beside := path.parent / named).suffix in (".cwl", ".yml", ".yaml", ".json"):
            yield from _cwl(beside, seen)
        else:
            yield beside.resolve()


def _named_in(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key in NAMED_IN_CWL and isinstance(inner, str):
                if "://" not in inner and not inner.startswith("#"):
                    yield path_of_reference(inner)
            else:
                yield from _named_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _named_in(inner)


def _paths(value: Any, schema: Mapping[str, Any]) -> Iterator[str]:
    """The relative paths of a deployment's settings; absolute ones, and those of keys, are of the machine that runs."""
    if isinstance(value, str):
        if schema.get("format") == "path" and "://" not in value and not value.startswith(("/", "~", "$")):
            yield value
    elif isinstance(value, list):
        for item in value:
            yield from _paths(item, schema.get("items", {}))
    elif isinstance(value, Mapping):
        named, others = schema.get("properties", {}), schema.get("additionalProperties")
        for key, item in value.items():
            if key not in OF_THE_MACHINE:
                yield from _paths(item, named.get(key) or (others if isinstance(others, Mapping) else {}))


def _files_at(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(each for each in path.rglob("*") if each.is_file() and "__pycache__" not in each.parts)
    return [path] if path.is_file() else []
