"""The files that a StreamFlow file needs to run (workflow, tools, job file, charts, manifests; no inputs), and their archive."""

from __future__ import annotations

import base64
import gzip
import io
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from medweave.project.deployments import connector_schemas
from medweave_core.documents.file_locations import path_of_reference
from medweave_core.documents.line_numbers import shown
from medweave_core.documents.streamflow_bindings import our_deployments
from medweave_core.documents.yaml_documents import read_mapping
from medweave_core.errors import UserInputError

NAMED_IN_CWL = ("run", "$import", "$include", "$mixin")
OF_THE_MACHINE = ("kubeconfig", "sshKey", "sshKeyPassphraseFile", "knownHosts")  # keys stay where they are
MOST_BYTES = 700_000  # in base64 below the limits of a ConfigMap (1 MiB) and of Helm's release record


def job_file(file: Path) -> Path | None:
    """Return the job file of a StreamFlow file; None if it names none."""
    config = _workflow(file)
    return (file.parent / config["settings"]).resolve() if config.get("settings") else None


def definition_files(file: Path) -> list[Path]:
    """Return the files of a pipeline, the StreamFlow file first, each once; of a chart all files of its folder.

    Raises:
        UserInputError: one of them is missing or no YAML.
    """
    paths: dict[Path, None] = {file.resolve(): None}
    paths |= dict.fromkeys(_cwl(file.parent / str(_workflow(file).get("file", "")), set()))
    if (job := job_file(file)) is not None:
        paths[job] = None
    document = read_mapping(file, "StreamFlow file")
    for deployment in our_deployments(document).values():
        config = deployment.get("config") or {}
        chart = [] if config.get("repo") or "://" in config.get("chart", "") else [config.get("chart", "")]
        for path in [*_paths(config, connector_schemas().get(deployment["type"], {})), *filter(None, chart)]:
            paths |= dict.fromkeys(_files_at((file.parent / path).resolve()))
    return list(paths)


def _workflow(file: Path) -> dict[str, Any]:
    workflows = read_mapping(file, "StreamFlow file").get("workflows") or {}
    return next((workflow.get("config") or {} for workflow in workflows.values()), {})


def _cwl(path: Path, seen: set[Path]) -> Iterator[Path]:
    path = path.resolve()
    if path in seen:
        return
    seen.add(path)
    yield path
    for named in _named_in(read_mapping(path, "CWL document")):
        if (neighbor := path.parent / named).suffix in (".cwl", ".yml", ".yaml", ".json"):
            yield from _cwl(neighbor, seen)
        else:
            yield neighbor.resolve()


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
    """Yield the relative paths of a deployment's settings; absolute paths and credentials stay on the machine that runs."""
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
        return sorted(file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    return [path] if path.is_file() else []


def archive_of(files: Sequence[Path], written: Mapping[Path, str]) -> tuple[str, Path]:
    """Return the archive of some files in base64, and the folder at its top. The same files give the same bytes.

    Args:
        files: absolute paths.
        written: files whose text is replaced in the archive.

    Raises:
        UserInputError: it is too large for a ConfigMap.
    """
    top = Path(os.path.commonpath([path.parent for path in {*files, *written}]))
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for path in sorted({*files, *written}):
            content = written[path].encode() if path in written else path.read_bytes()
            entry = tarfile.TarInfo(path.relative_to(top).as_posix())
            entry.size, entry.mode = len(content), 0o755 if os.access(path, os.X_OK) else 0o644
            tar.addfile(entry, io.BytesIO(content))
    if len(packed.getvalue()) > MOST_BYTES:
        largest = max(files, key=lambda path: path.stat().st_size)
        raise UserInputError(
            "the pipeline's files are too large for a ConfigMap.",
            seen=f"{len(packed.getvalue())} B compressed; the largest is {shown(largest)}",
            expected=f"at most {MOST_BYTES} B",
            do="put the folder on a volume and set place.kubernetes.values.definition.existingClaim",
        )
    return base64.b64encode(packed.getvalue()).decode(), top
