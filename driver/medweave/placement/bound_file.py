"""The text of a bound file: an ordinary streamflow.yml with comments on the origin of each part. Pure."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from medweave.placement.data_rules import SiteClasses
from medweave.project.deployments import wrapped
from medweave.project.sites import SITES, Place, Site
from medweave.project.workflows import Pipeline
from medweave_core.documents.line_numbers import FieldPath

EDITOR_LINE = "# yaml-language-server: $schema="  # names the schema of a YAML file; editors look for it at the top
PATH_FORMAT = "path"  # `"format": "path"` in a connector's schema marks a path on the driver's machine
VARIABLE = re.compile(r"\$\{(\w+)\}")
PLAIN = re.compile(r"[A-Za-z0-9._/][A-Za-z0-9._/-]*")
DATA_RULES = "data-rules"  # name of the filter
MANAGERS = """\
scheduling:
  scheduler: {type: medweave.scheduler, config: {}}
TRANSFERS
database: {type: medweave.database, config: {}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundWorkflow:
    """Input of `render`; all paths are absolute and without `..`.

    Attributes:
        job: file with the workflow's inputs.
        job_is_default: no job file was named, so `bind` uses the demo's.
        role_options: `--role` options, which override places of the site file, as written.
        output: the bound file; relative paths in its text start at its folder.
        site_classes: data classes of the inputs and outputs of the workflow and its steps; None if the site has no data rules.
        schema: file with the JSON Schema of StreamFlow files, for editors, or None.
    """

    pipeline: Pipeline
    site: Site
    job: Path
    job_is_default: bool
    output: Path
    role_options: tuple[str, ...] = ()
    site_classes: SiteClasses | None = None
    schema: Path | None = None


def render(binding: BoundWorkflow, schemas: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text of the bound file.

    Args:
        schemas: schema of `config` by connector type; a schema marks settings that are paths.
    """
    blocks = [_block(binding, name, schemas) for name in used_deployments(binding)]
    workflow = _workflow(binding)
    variables = sorted({name for text in [workflow, *blocks] for name in VARIABLE.findall(text)})
    root = _common_folder(binding)
    lines = [
        *_header(binding, root, variables),
        "version: v1.0",
        workflow,
        *_data_rules(binding, _from(binding.site.path, root)),
        f"deployments: # copied from {_from(binding.site.path, root)}",
        *blocks,
        "# The same at every site. The event log and the reports of a run are in runs/<run-id>/ next to this file.",
    ]
    return "\n".join(lines) + "\n" + MANAGERS.replace("TRANSFERS", "\n".join(_transfers(binding)))


def used_deployments(binding: BoundWorkflow) -> list[str]:
    """Return the deployments of the workflow's steps and inputs, and those that they wrap, in the site's order."""
    places = [binding.site.roles[step.role] for step in binding.pipeline.steps]
    places += [place for name, place in binding.site.inputs.items() if name in binding.pipeline.inputs]
    needed: set[str] = set()
    for place in places:
        name: str | None = place.deployment
        while name is not None:
            needed.add(name)
            name = wrapped(binding.site.deployments[name])
    return [name for name in binding.site.deployments if name in needed]


def _header(binding: BoundWorkflow, root: Path, variables: list[str]) -> Iterator[str]:
    pipeline, site, output = binding.pipeline, binding.site, binding.output
    workflow = f"{pipeline.path.parent.name}/{pipeline.path.name}"
    folder = os.path.relpath(root, output.parent)
    if binding.schema is not None:
        yield f"{EDITOR_LINE}{_from(binding.schema, output.parent)}"
    yield f"# {workflow} at the site '{site.name}': {site.title}."
    yield f"# Do not edit it: change {_from(site.path, root)} and make it again, in the folder {folder} seen from here:"
    yield f"#   {shlex.join(_command(binding, root))}"
    yield f"#   streamflow run {shlex.quote(_from(output, root))} --outdir results"
    if variables:
        yield f"# Variables that must be set when it runs: {', '.join(variables)}"


def _command(binding: BoundWorkflow, root: Path) -> Iterator[str]:
    yield from ("medweave", "bind", _from(binding.pipeline.path, root))
    site = _from(binding.site.path, root)
    yield from ("--site", binding.site.name if PurePosixPath(site).parent == PurePosixPath(SITES) else site)
    if not binding.job_is_default:
        yield from ("--job", _from(binding.job, root))
    for option in binding.role_options:
        yield from ("--role", option)
    yield from ("--output", _from(binding.output, root))


def _workflow(binding: BoundWorkflow) -> str:
    pipeline, site, folder = binding.pipeline, binding.site, binding.output.parent
    lines = [
        "workflows:",
        f"  {pipeline.name}:",
        "    type: cwl",
        "    config:",
        f"      file: {_scalar(_from(pipeline.path, folder))}",
        f"      settings: {_scalar(_from(binding.job, folder))}",
        "    bindings:",
    ]
    targets = {
        step.path: _target_line(step.path, site.place_of(step.role, gang=step.gang), binding.site_classes)
        for step in pipeline.steps
    }
    width = max(map(len, targets.values()))
    for step in pipeline.steps:
        lines.append(f"{targets[step.path]:<{width}} # role {step.role}")
    for name, place in site.inputs.items():
        if name in pipeline.inputs:
            lines.append(f"      - {{port: /{name}, target: {{{_target(place)}}}}} # stored at the site")
    return "\n".join(lines)


def _data_rules(binding: BoundWorkflow, site_path: str) -> Iterator[str]:
    """Yield the data classes of the steps and the data rules of the site, as settings of the filter of all steps."""
    if binding.site_classes is None:
        return
    yield (
        "bindingFilters: # holds: data classes that a step reads and writes, from roles.yml; mayHold: data classes "
        f"allowed per deployment, from {site_path}"
    )
    yield f"  {DATA_RULES}:"
    yield "    type: medweave.filter"
    yield "    config:"
    yield "      holds:"
    for step in binding.pipeline.steps:
        yield f"        {step.path}: [{', '.join(binding.site_classes.of_step(step.path))}]"
    yield "      mayHold:"
    yield from (f"        {line}" for line in _may_hold(binding))


def _may_hold(binding: BoundWorkflow) -> Iterator[str]:
    used = used_deployments(binding)
    for name, classes in binding.site.may_hold.items():
        if name in used:
            yield f"{name}: [{', '.join(classes)}]"


def _transfers(binding: BoundWorkflow) -> Iterator[str]:
    """Yield the settings of the data manager, which checks the data rules for each copy."""
    settings = dict(binding.site.transfers)
    if binding.site_classes is None:
        yield f"dataManager: {{type: medweave.transfer, config: {json.dumps(settings)}}}"
        return
    yield "dataManager:"
    yield "  type: medweave.transfer"
    yield "  config:"
    yield from (f"    {name}: {json.dumps(value)}" for name, value in settings.items())
    yield "    dataRules: # checked before each transfer"
    yield "      carries: # data classes of each input and output; / means the workflow itself"
    for step, ports in binding.site_classes.by_port.items():
        yield f"        {step}: {{{', '.join(f'{name}: {_classes(classes)}' for name, classes in ports.items())}}}"
    yield "      mayHold:"
    yield from (f"        {line}" for line in _may_hold(binding))
    yield f"      driver: [{', '.join(binding.site_classes.driver)}] # this machine, which receives the results"


def _classes(classes: Sequence[str]) -> str:
    return classes[0] if len(classes) == 1 else f"[{', '.join(classes)}]"


def _target_line(step: str, place: Place, site_classes: object) -> str:
    filters = f", filters: [{DATA_RULES}]" if site_classes is not None else ""
    return f"      - {{step: {step}, target: {{{_target(place)}}}{filters}}}"


def _target(place: Place) -> str:
    parts = [f"deployment: {place.deployment}"]
    if place.service is not None:
        parts.append(f"service: {_scalar(place.service)}")
    if place.locations != 1:
        parts.append(f"locations: {place.locations}")
    if place.workdir is not None:
        parts.append(f"workdir: {_scalar(place.workdir)}")
    return ", ".join(parts)


def _block(binding: BoundWorkflow, name: str, schemas: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text of a deployment, with its relative paths rewritten for the bound file's folder."""
    site = binding.site
    entry = next(entry for entry in site.entries if entry.name == name)
    deployment = site.deployments[name]
    schema = schemas.get(deployment["type"], {})
    text, position = "", entry.start
    for scalar in entry.scalars:
        if _is_path(scalar.field, deployment, schema) and _is_relative(scalar.value):
            moved = _from(site.path.parent / scalar.value, binding.output.parent)
            text += site.text[position : scalar.start] + _scalar(moved)
            position = scalar.end
    return text + site.text[position : entry.end]


def _is_path(field: FieldPath, deployment: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    if field == ("workdir",):
        return bool(deployment["type"] == "medweave.local")  # elsewhere it is a path of the site
    if field[0] != "config":
        return False
    if field == ("config", "chart"):  # a folder or archive, unless it comes from a repository or oci://
        return "repo" not in deployment["config"]
    node: Any = schema
    for part in field[1:]:
        if isinstance(part, int):
            node = node.get("items", {})
        else:
            others = node.get("additionalProperties")
            node = node.get("properties", {}).get(part, others if isinstance(others, Mapping) else {})
    return bool(node.get("format") == PATH_FORMAT)


def _is_relative(text: str) -> bool:
    return "://" not in text and not text.startswith(("/", "~", "${"))


def _common_folder(binding: BoundWorkflow) -> Path:
    """Return the common parent folder of all files: commands in the header start there."""
    files = (binding.pipeline.path, binding.site.path, binding.job, binding.output)
    return Path(os.path.commonpath([file.parent for file in files]))


def _from(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def _scalar(text: str) -> str:
    """Return a YAML scalar that is also safe in flow style."""
    return text if PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
