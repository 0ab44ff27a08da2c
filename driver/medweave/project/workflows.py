"""Workflows as `bind` needs them: their steps with the role of each, their inputs, and a job file for them."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from medweave_connectors.jobs.job_requests import NAMESPACE, full_name
from medweave_core.documents.closest_match import closest
from medweave_core.documents.cwl_shape import CWL_SHAPE
from medweave_core.documents.docker_requirement import image_of, refusal
from medweave_core.documents.field_errors import check, fault_at, faults
from medweave_core.documents.file_locations import path_of, path_of_reference, place_key
from medweave_core.documents.line_numbers import shown
from medweave_core.documents.yaml_documents import parse_mapping, read_mapping, read_text
from medweave_core.errors import UsageError, UserInputError

ROLES_FILE = "roles.yml"
ROLES_SHAPE = {
    "patternProperties": {
        r"\.cwl$": {
            "type": "object",
            "additionalProperties": {"type": "string", "description": "a role"},
            "description": "a line `/step: role` for each step",
        }
    },
    "properties": {"holds": {"type": ["object", "null"], "description": "classes of data, by input and by output"}},
}
GANG = f"{NAMESPACE}Gang"  # medweave:Gang where medweave is declared so in $namespaces, as in our tools


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of a workflow.

    Attributes:
        path: as bindings name it (`/train`).
        gang: its tool says that the same command may be started once per node.
        reads: what each of its inputs is bound to: names of the workflow's inputs, and outputs of steps (`train/model`).
        writes: its outputs.
        firsts: of its inputs, those that take the first source that has a value (`pickValue: first_non_null`).
        when: the workflow's input that says whether it runs; None where it always does, empty for another condition.
        definition_files: inputs of its tool that no source feeds and whose default is a file or folder: part of the workflow's
            definition, such as the program that the tool runs.
    """

    path: str
    role: str
    gang: bool
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    writes: tuple[str, ...] = ()
    firsts: frozenset[str] = frozenset()
    when: str | None = None
    definition_files: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A workflow of the kind that medweave's repositories hold: a folder with CWL documents and their roles.yml.

    Attributes:
        path: absolute.
        inputs: names of its inputs.
        data_inputs: of these, the files and folders.
        defaults: values of inputs that a job file may leave out.
        outputs: what each of its outputs is bound to, as for the inputs of a step.
        firsts: of its outputs, as for the inputs of a step.
        inputs_beside: names of the inputs of all workflows in its folder.
        written_beside: outputs of the steps of all workflows in its folder, by role.
        holds: what roles.yml says of the data that the steps read and write, as it stands there; None where it says nothing.
    """

    path: Path
    steps: tuple[Step, ...]
    inputs: frozenset[str]
    inputs_beside: frozenset[str]
    data_inputs: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    firsts: frozenset[str] = frozenset()
    written_beside: Mapping[str, frozenset[str]] = field(default_factory=dict)
    holds: Any = None

    @property
    def name(self) -> str:
        """`lung-nodule-segmentation-train` for train.cwl in that folder: the workflow's name in streamflow.yml."""
        return f"{self.path.parent.name}-{self.path.stem}".lower()


def read_pipeline(path: Path) -> Pipeline:
    """Reads a workflow and the roles of its steps.

    Args:
        path: absolute.

    Raises:
        UserInputError: the document is no CWL workflow, or roles.yml does not give each of its steps one role.
    """
    document = _read_cwl(path, "CWL workflow")
    if document.get("class") != "Workflow" or not document.get("steps"):
        raise UserInputError(
            f"{shown(path)}: this document is no workflow with steps.",
            seen=f"class: {document.get('class')}",
            expected="a CWL document with class: Workflow",
            do="name a workflow, such as workflows/lung-nodule-segmentation/train.cwl",
        )
    steps = _named(document["steps"])
    roles = _roles(path, list(steps))
    said = _read_roles(path.parent / ROLES_FILE)
    beside = {file.name for file in path.parent.glob("*.cwl")} & set(said)
    others = {name: _read_cwl(path.parent / name, "CWL workflow") for name in sorted(beside - {path.name})}
    all_of_them = {path.name: document, **others}
    inputs = _named(document.get("inputs") or {})
    return Pipeline(
        path=path,
        steps=tuple(
            _step(name, step, role=roles[f"/{name}"], path=path, workflow=document) for name, step in steps.items()
        ),
        inputs=frozenset(inputs),
        data_inputs=frozenset(name for name, described in inputs.items() if _is_data(described)),
        defaults={
            name: each["default"] for name, each in inputs.items() if isinstance(each, Mapping) and "default" in each
        },
        firsts=_firsts(document.get("outputs")),
        outputs={
            name: _sources(bound, "outputSource") for name, bound in _named(document.get("outputs") or {}).items()
        },
        inputs_beside=_inputs_of(all_of_them.values()),
        written_beside=_written_by_role(all_of_them, said),
        holds=said.get("holds"),
    )


def _read_cwl(path: Path, what: str) -> dict[str, Any]:
    """A CWL document, which must have the shape of one."""
    text = read_text(path, what)
    document = parse_mapping(text, path, what)
    if not _has_shape(text):
        check(document, CWL_SHAPE, path, ())
    return document


@functools.lru_cache(maxsize=256)
def _has_shape(text: str) -> bool:
    """Whether a text is of a CWL document: a repository binds the same few documents to many sites."""
    return next(faults(parse_mapping(text, Path(), ""), CWL_SHAPE, Path(), ()), None) is None


def _inputs_of(workflows: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(name for each in workflows for name in _named(each.get("inputs") or {}))


def inputs_around(pipeline: Pipeline) -> frozenset[str]:
    """Names of the inputs of all workflows in the folders beside its own: a site file serves them all."""
    return _inputs_of(_around(pipeline.path.parent))


def _around(folder: Path) -> Iterator[Mapping[str, Any]]:
    """The workflows of the folders beside a workflow's own. What cannot be read there is not this workflow's fault."""
    for roles in sorted(folder.parent.glob(f"*/{ROLES_FILE}")):
        if roles.parent == folder:
            continue
        with contextlib.suppress(UserInputError):
            named = set(_read_roles(roles))
            for file in sorted(roles.parent.glob("*.cwl")):
                if file.name in named:
                    yield _read_cwl(file, "CWL workflow")


def default_job(pipeline: Pipeline) -> Path:
    """The demo's job file beside a workflow.

    Raises:
        UsageError: there is none, so one has to be named.
    """
    path = pipeline.path.parent / "jobs" / f"demo-{pipeline.path.stem}.yml"
    if not path.is_file():
        raise UsageError(
            f"{shown(pipeline.path)}: no job file is named, and there is none of a demo.",
            seen=f"no {shown(path)}",
            expected="--job FILE with the inputs of the workflow",
            do="write --job my-job.yml",
        )
    return path


def read_job(path: Path, pipeline: Pipeline) -> dict[str, Any]:
    """The inputs in a job file.

    Raises:
        UserInputError: the file is no YAML, or names an input that the workflow does not have.
    """
    document = read_mapping(path, "job file")
    unknown = sorted(set(document) - pipeline.inputs)
    if unknown:
        raise fault_at(
            path,
            (unknown[0],),
            f"{shown(pipeline.path)} has no such input.",
            seen=f"'{unknown[0]}'",
            expected=f"one of {', '.join(sorted(pipeline.inputs))}",
            do=closest(unknown[0], list(pipeline.inputs)) or "correct the name",
        )
    return document


def check_path_at_site(path: Path, job: Mapping[str, Any], name: str, workdir: str) -> None:
    """Refuses a path in a job file that does not stay below the folder in which the input lies at the site.

    StreamFlow takes the path relative to the job file's folder and puts `workdir` before it.

    Raises:
        UserInputError: the path is absolute, goes up, or is missing.
    """
    value = job.get(name)
    text = value.get(place_key(value)) if isinstance(value, Mapping) else None
    pure = PurePosixPath((path_of(value) if isinstance(value, Mapping) else None) or "/")
    if pure.is_absolute() or ".." in pure.parts:
        raise fault_at(
            path,
            (name,),
            "the site holds this input, so its path must lie below the site's folder for it.",
            seen=f"path: {text}" if text else "no path",
            expected=f"a path below {workdir}, without '..'",
            do=f"write the path below {workdir}, or take inputs.{name} out of the site file",
        )


def _named(section: Any) -> dict[str, Any]:
    """Steps or inputs by name, from either of the two forms that CWL has for them."""
    if isinstance(section, Mapping):
        return dict(section)
    return {str(item["id"]).lstrip("#"): item for item in section}


def _step(name: str, step: Mapping[str, Any], *, role: str, path: Path, workflow: Mapping[str, Any]) -> Step:
    tool = _tool(path, name, step)
    image = image_of(workflow, step, tool) or _image_below(path, step, tool)
    if image is not None:
        raise fault_at(path, ("steps", name), **refusal(f"/{name}", image))
    reads = {port: _sources(bound, "source") for port, bound in _named(step.get("in") or {}).items()}
    condition = step.get("when")
    named = re.fullmatch(r"\$\(inputs\.(\w+)\)", str(condition))
    decides = reads.get(named[1], ()) if named else ()
    return Step(
        path=f"/{name}",
        role=role,
        gang=_is_gang(workflow, step, tool),
        reads=reads,
        writes=tuple(_written(step)),
        firsts=_firsts(step.get("in")),
        when=None if condition is None else decides[0] if len(decides) == 1 else "",
        definition_files=_definition_files(tool, step),
    )


def _image_below(
    path: Path, step: Mapping[str, Any], tool: Mapping[str, Any], outer: frozenset[Path] = frozenset()
) -> str | None:
    """Return the image that a step of the nested workflow `tool` asks for; None where there is none.

    Args:
        outer: files of the workflows around it: one that runs itself is refused elsewhere.
    """
    if tool.get("class") != "Workflow":
        return None
    run = step.get("run")
    file = path.parent / path_of_reference(run) if isinstance(run, str) else path
    if isinstance(run, str) and file.resolve() in {path.resolve(), *outer}:
        return None
    for name, inner in _named(tool.get("steps") or {}).items():
        document = _tool(file, name, inner)
        image = image_of(inner, document) or _image_below(file, inner, document, outer | {path.resolve()})
        if image is not None:
            return image
    return None


def _definition_files(tool: Mapping[str, Any], step: Mapping[str, Any]) -> frozenset[str]:
    """Return the inputs of a step that have no source and a file or folder as default.

    Inputs with `valueFrom` are excluded: the expression may return a file of another input.
    """
    bound = _named(step.get("in") or {})
    defaults = {
        name: port.get("default")
        for name, port in _named(tool.get("inputs") or {}).items()
        if isinstance(port, Mapping)
    }
    defaults |= {
        name: port["default"] for name, port in bound.items() if isinstance(port, Mapping) and "default" in port
    }
    return frozenset(
        name
        for name, value in defaults.items()
        if not _sources(bound.get(name), "source")
        and not (isinstance(bound.get(name), Mapping) and "valueFrom" in bound[name])
        and isinstance(value, Mapping)
        and value.get("class") in ("File", "Directory")
        and _lies_with_the_document(value)
    )


def _lies_with_the_document(value: Mapping[str, Any]) -> bool:
    """Whether a file is a literal or at a path relative to its document; an absolute path may be data of people."""
    place = path_of(value)
    return "contents" in value or (place is not None and not PurePosixPath(place).is_absolute())


def _firsts(section: Any) -> frozenset[str]:
    return frozenset(
        name
        for name, bound in _named(section or {}).items()
        if isinstance(bound, Mapping) and bound.get("pickValue") == "first_non_null"
    )


def _sources(bound: Any, key: str) -> tuple[str, ...]:
    """What an input of a step, or an output of the workflow, is bound to: `cohort`, `[train/model, …]` or `{source: …}`."""
    found = bound.get(key) if isinstance(bound, Mapping) else bound
    listed = [found] if isinstance(found, str) else found or []
    return tuple(str(each).lstrip("#") for each in listed)


def _written(step: Mapping[str, Any]) -> list[str]:
    return [str(each["id"] if isinstance(each, Mapping) else each) for each in step.get("out") or []]


def _written_by_role(documents: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for name, document in documents.items():
        for step, described in _named(document.get("steps") or {}).items():
            role = said[name].get(f"/{step}")
            found[role] = found.get(role, frozenset()) | frozenset(_written(described))
    return found


def _is_data(described: Any) -> bool:
    """Whether an input is files or folders, by its type; a type that stands in another document is taken for none."""
    return _has_data(described.get("type") if isinstance(described, Mapping) else described)


def _has_data(kind: Any) -> bool:
    if isinstance(kind, str):
        return kind.rstrip("[]?") in ("File", "Directory")
    if isinstance(kind, Mapping):
        fields = kind.get("fields")
        listed = fields.values() if isinstance(fields, Mapping) else fields if isinstance(fields, list) else ()
        return _has_data(kind.get("items")) or any(_is_data(each) for each in listed)
    return isinstance(kind, list) and any(map(_has_data, kind))


def _read_roles(file: Path) -> dict[str, Any]:
    document = read_mapping(file, "file of roles")
    check(document, ROLES_SHAPE, file, ())
    return document


def _roles(path: Path, steps: list[str]) -> dict[str, str]:
    file = path.parent / ROLES_FILE
    document = _read_roles(file)
    roles = document.get(path.name)
    if not isinstance(roles, Mapping):
        gone = [str(name) for name in document if str(name).endswith(".cwl") and not (path.parent / str(name)).exists()]
        near = next((name for name in gone if closest(path.name, [name])), path.name)
        raise fault_at(
            file,
            (near,),
            f"the steps of {path.name} have no roles here.",
            seen=", ".join(name for name in document if str(name).endswith(".cwl")) or "no workflow",
            expected=f"{path.name}: with a line `/step: role` for each step",
            do=f"write '{path.name}' for '{near}'"
            if near != path.name
            else f"add them for {', '.join('/' + step for step in steps)}",
        )
    without = [f"/{step}" for step in steps if f"/{step}" not in roles]
    stray = [name for name in roles if name not in [f"/{step}" for step in steps]]
    if without or stray:
        raise fault_at(
            file,
            (path.name, *stray[:1]),
            "steps and roles do not match.",
            seen="; ".join(
                [f"step {name} has no role" for name in without] + [f"there is no step {name}" for name in stray]
            ),
            expected=f"one role for each of {', '.join('/' + step for step in steps)}",
            do=(closest(stray[0], without) if stray else "") or "correct these lines",
        )
    return {str(step): str(role) for step, role in roles.items()}


def _tool(path: Path, name: str, step: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the document that a step runs: a file's, or the one in the step itself."""
    run = step.get("run")
    if not isinstance(run, str):
        return run or {}
    file = path_of_reference(run)
    if not (path.parent / file).is_file():
        above = (path.parent / run).parent
        near = closest(Path(run).name, [tool.name for tool in above.glob("*.cwl")])
        raise fault_at(
            path, ("steps", name, "run"), "there is no such CWL tool.", seen=run,
            expected="a path from the folder of this workflow", do=near or "correct the path",
        )  # fmt: skip
    return _read_cwl(path.parent / file, "CWL tool")


def _is_gang(workflow: Mapping[str, Any], step: Mapping[str, Any], tool: Mapping[str, Any]) -> bool:
    """Whether the step, or the tool that it runs, says that its command may be started once per node."""
    document = tool if isinstance(step.get("run"), str) else workflow
    return GANG in [*_hints(step, workflow), *_hints(tool, document)]


def _hints(holder: Mapping[str, Any], document: Mapping[str, Any]) -> list[str]:
    """Full names of the hints of a step or tool, by the `$namespaces` of its document."""
    hints = holder.get("hints") or {}
    names = list(hints) if isinstance(hints, Mapping) else [hint.get("class", "") for hint in hints]
    return [full_name(name, document.get("$namespaces") or {}) for name in names]
