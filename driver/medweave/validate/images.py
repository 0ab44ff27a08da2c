"""Container images: pinned, and of the version of the step package."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from medweave import __version__
from medweave.validate.findings import ValidationFinding, finding_at
from medweave_core.documents.cwl_model import Process
from medweave_core.documents.cwl_types import required
from medweave_core.documents.docker_requirement import DOCKER_REQUIREMENT, image_of, refusal
from medweave_core.documents.line_numbers import FieldPath
from medweave_core.documents.source_documents import SourceDocument

MOVING = (
    "latest",
    "main",
    "master",
    "stable",
    "edge",
    "nightly",
    "dev",
    "devel",
    "develop",
    "current",
    "rolling",
    "head",
)
RECIPES = ("Containerfile", "Dockerfile")
_VERSION = re.compile(r"v?(\d+\.\d+\.\d+)([-+].*)?")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LINE = re.compile(r"(?im)^(?:FROM\s+(?:--\S+\s+)*|ARG\s+\w*IMAGE\w*=)(?P<image>\S+)(?:\s+AS\s+(?P<stage>\S+))?")


def version_of_package(root: Path) -> str:
    """Return the version of medweave: of this working tree if it is medweave's, else the installed one."""
    path = root / "pyproject.toml"
    if path.is_file():
        try:
            project = tomllib.loads(path.read_text(encoding="utf-8")).get("project")
        except ValueError:  # no TOML, or no UTF-8
            project = None
        if isinstance(project, Mapping) and project.get("name") == "medweave" and "version" in project:
            return str(project["version"])
    return __version__


def check_images(source: SourceDocument, policy: str, version: str) -> Iterator[ValidationFinding]:
    """Yield the findings of images in a YAML document."""
    for field, image in _named(source.data, ()):
        if isinstance(image, Mapping):
            digest, tag = str(image.get("digest") or ""), image.get("tag")
            name = f"{image['repository']}{':' + str(tag) if tag is not None else ''}{'@' + digest if digest else ''}"
            field = (*field, "tag") if "tag" in image and not digest else field
        else:
            name = image
        fault = fault_of_image(name, policy)
        if fault is not None:
            what, expected = fault
            yield finding_at(source, "image-unpinned", field, what, seen=name, expected=expected, fix=_fix(policy))
            continue
        match = _VERSION.fullmatch(_tag(name))
        if (
            match
            and re.search(r"(?:^|[/-])medweave(?:[/-]|$)", name.partition("@")[0].rpartition(":")[0])
            and match[1] != version
        ):
            yield finding_at(
                source,
                "version-differs",
                field,
                "the version of this image differs from the version of the step package.",
                seen=name,
                expected=version,
                fix=f"rebuild the image, or write tag {version}",
            )


def check_containers(workflow: Process, tools: Mapping[str, Process]) -> Iterator[ValidationFinding]:
    """Yield a finding for each process or step of a workflow that asks for a container.

    Args:
        workflow: one that has roles, or that a StreamFlow file binds to our deployments.
        tools: processes in files that its steps run, by path of the step.
    """
    for process in {tool.path: tool for tool in (workflow, *tools.values())}.values():
        step_path = next((path for path, tool in tools.items() if tool is process), "/")
        fields: list[tuple[FieldPath, Mapping[str, Any]]] = [((), process.fields)]
        for name, step in process.steps.items():
            fields.append((("steps", name), step.fields))
            if step.process is not None:
                fields.append((step.process.field, step.process.fields))
        for field, holder in fields:
            image = image_of(holder)
            if image is not None:
                section = required(holder)[DOCKER_REQUIREMENT][0]
                parts = refusal(step_path, image)
                yield finding_at(
                    process.document, "container", (*field, section, DOCKER_REQUIREMENT), parts["what"], seen=parts["seen"],
                    expected=parts["expected"], fix=parts["do"],
                )  # fmt: skip


def check_docker_pull(source: SourceDocument, policy: str) -> Iterator[ValidationFinding]:
    """Yield the finding of the image of a CWL document."""
    for section, fields in (pair for name, pair in required(source.data).items() if name == "DockerRequirement"):
        name = fields.get("dockerPull") if isinstance(fields, Mapping) else None
        fault = fault_of_image(str(name), policy) if name else None
        if fault is not None:
            yield finding_at(
                source,
                "image-unpinned",
                (section, "DockerRequirement", "dockerPull"),
                fault[0],
                seen=str(name),
                expected=fault[1],
                fix=_fix(policy),
            )


def check_recipe(path: Path) -> Iterator[ValidationFinding]:
    """Yield unpinned base images of a Containerfile. A tag suffices under any policy: a digest would miss security updates."""
    text = path.read_text(encoding="utf-8", errors="replace")
    stages = {"scratch"}
    for match in _LINE.finditer(text):
        name = match["image"].strip("\"'")
        if name not in stages and "$" not in name:
            fault = fault_of_image(name, "tag")
            if fault is not None:
                yield ValidationFinding(
                    file=path,
                    line=text.count("\n", 0, match.start()) + 1,
                    column=match.start("image") - match.start() + 1,
                    rule="image-unpinned",
                    what=fault[0],
                    seen=name,
                    expected=fault[1],
                    fix=_fix("tag"),
                )
        if match["stage"]:
            stages.add(match["stage"])


def check_chart_version(source: SourceDocument, version: str) -> Iterator[ValidationFinding]:
    """Yield a finding if a chart of medweave has another version than the step package."""
    helpers = source.path.parent.glob("templates/_helpers*.tpl")
    ours = any("medweave.image" in path.read_text(encoding="utf-8", errors="replace") for path in helpers)
    app_version = source.data.get("appVersion")
    if ours and app_version is not None and str(app_version) != version:
        yield finding_at(
            source,
            "version-differs",
            ("appVersion",),
            "the version of this chart differs from the version of the step package.",
            seen=str(app_version),
            expected=version,
            fix=f"write appVersion: {version}",
        )


def fault_of_image(name: str, policy: str) -> tuple[str, str] | None:
    """Return the error in an image's name and the expected form; None for a correct name, or a name with a variable."""
    digest, tag = name.partition("@")[2], _tag(name)
    if _DIGEST.fullmatch(digest) or "$" in tag or "{{" in name or "$" in digest:
        return None
    if digest:
        return "this is not a digest.", "sha256: and 64 hexadecimal digits"
    if policy == "digest":
        return "this image has no digest.", "NAME@sha256:…"
    if not tag:
        return (
            "this image has neither tag nor digest, so it may change at any time.",
            "a fixed tag or a digest",
        )
    if tag.lower() in MOVING:
        return (
            f"the tag '{tag}' moves, so the image may change at any time.",
            "a fixed tag, such as a version, or a digest",
        )
    return None


def _fix(policy: str) -> str:
    return (
        "add the digest: docker inspect --format '{{index .RepoDigests 0}}' IMAGE"
        if policy == "digest"
        else "use a version as the tag, or a digest"
    )


def _tag(name: str) -> str:
    last = name.partition("@")[0].rpartition("/")[2]
    return last.partition(":")[2] if "${" not in last.partition(":")[0] or ":" in last else "$"


def _named(value: Any, field: FieldPath) -> Iterator[tuple[FieldPath, Any]]:
    """Yield images with their fields: texts under `image`, and mappings under it with a `repository`."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if (key == "image" and isinstance(item, Mapping) and isinstance(item.get("repository"), str)) or (
                key == "image" and isinstance(item, str) and item and not item.startswith((".", "/", "~"))
            ):
                yield (*field, key), item
            else:
                yield from _named(item, (*field, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _named(item, (*field, number))
