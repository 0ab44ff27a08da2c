"""Checks of a StreamFlow file before it runs: errors that the engine would raise are reported by line and field."""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medweave.project.deployments import connector_schemas
from medweave.project.near_files import near
from medweave_core.documents.binding_names import check_named
from medweave_core.documents.field_errors import FieldFault, fault_at
from medweave_core.documents.file_locations import document_of
from medweave_core.documents.job_values import refuse
from medweave_core.documents.line_numbers import Where, spelled
from medweave_core.documents.manager_settings import check_managers, check_wraps
from medweave_core.documents.secondary_files import missing_secondary_files
from medweave_core.documents.streamflow_paths import resolve_paths
from medweave_core.documents.yaml_documents import read_mapping
from medweave_core.errors import UserInputError

if TYPE_CHECKING:
    from medweave.validate.findings import ValidationFinding

PLUGINS = "unito.streamflow.plugin"
REFUSED = (
    "binding-structure",
    "binding-file",
    "binding-target",
)  # other findings of `medweave validate` do not prevent a run
REFUSED_CWL = ("cwl-structure", "cwl-duplicate-id", "cwl-type")
LOOK = "read the job file: logs contain no file names of inputs"
REFUSED_EDGES = ("cwl-missing-file", "cwl-source", "cwl-cycle")


def check_file(file: Path, *, hides: bool = False) -> None:
    """Refuse a StreamFlow file that cannot run, with its workflow and its inputs.

    If other plug-ins are installed, whose types are not known here, the engine does the checks.

    Args:
        hides: the error may be read by others, so it names no file of the inputs.

    Raises:
        FieldFault: the first fault.
        UserInputError: the first fault of an input, with `hides`.
        UsageError: a variable has no value.
    """
    from medweave.validate.bindings import check_bindings
    from medweave.validate.repository import open_repository

    document = read_mapping(file, "StreamFlow file")
    if len(entry_points(group=PLUGINS)) > 1:
        return
    repository = open_repository([file])
    source = repository.source(file.resolve())
    for finding in check_bindings(source, repository) if source is not None else ():
        if finding.rule in REFUSED or finding.field[-1:] in (("step",), ("port",)):  # missing or bound twice
            raise _fault_of(finding)
    config = copy.deepcopy(document) | {"path": str(file)}
    for check in (check_managers, check_wraps, check_named):
        check(config)
    resolve_paths(config, Path(), connector_schemas())
    check_documents(document, file, hides=hides)


def check_documents(document: Mapping[str, Any], file: Path, *, job: Path | None = None, hides: bool = False) -> None:
    """Refuse a workflow that is no CWL, and inputs that are missing or of another type.

    Args:
        document: a StreamFlow file that has passed its schema.
        file: its path, from which its relative paths start; it need not exist yet.
        job: the job file, where `settings` names a link to it.
        hides: the error may be read by others, so it names no file of the inputs.

    Raises:
        FieldFault: the first fault.
        UserInputError: the first fault of an input, with `hides`.
    """
    from medweave.validate.repository import Repository

    for name, workflow in document["workflows"].items():
        config = workflow["config"]
        path = document_of(str(config["file"]), file.parent).resolve()
        if not path.is_file() or workflow.get("type") != "cwl":
            continue
        _check_cwl(path)
        # Without `..`, since the folder of the file may not exist yet.
        named = Path(os.path.normpath(file.parent / config["settings"])) if config.get("settings") else None
        settings = job or named
        at_sites = {str(binding["port"]).lstrip("/") for binding in workflow.get("bindings") or [] if "port" in binding}
        if settings is not None and settings.is_file():
            _check_inputs(settings, path, at_sites, hides=hides)
        elif settings is None and (source := Repository(root=path.parent, files=[]).source(path)) is not None:
            refuse({}, source.data, path.name, job=None, at=Where(file, ("workflows", name, "config")))


def _check_cwl(path: Path) -> None:
    from medweave.validate.cwl import check_document
    from medweave.validate.edges import check_workflow
    from medweave.validate.findings import of_syntax
    from medweave.validate.places import tools_of
    from medweave.validate.repository import Repository

    repository = Repository(root=path.parent, files=[])
    for fault in repository.reader.parse(path).faults:
        if not fault.is_duplicate_key:
            raise _fault_of(of_syntax(fault))
    process = repository.process(path)
    if process is None or "$graph" in process.fields:
        return
    for document in (process, *tools_of(process, repository).values()):
        for finding in check_document(document):
            is_default = finding.field[-1:] == ("default",)  # of another type than its input: the engine accepts it
            if (
                finding.rule in REFUSED_CWL and finding.field and not is_default
            ):  # no field: the checker's parser failed
                raise _fault_of(finding)
    for finding in check_workflow(process, repository) if process.is_workflow else ():
        if finding.rule in REFUSED_EDGES:
            raise _fault_of(finding)


def _check_inputs(job: Path, workflow: Path, at_sites: Collection[str], *, hides: bool) -> None:
    """Refuse values of the wrong type and missing files; inputs in `at_sites` are files of a site and are not looked up."""
    from medweave.plan.sizes import missing_in
    from medweave.project.job_files import first_fault_of_job
    from medweave.validate.findings import finding_at
    from medweave_core.documents.cwl_reader import CwlReader

    reader = CwlReader()
    jobs, process = reader.parse(job).documents, reader.find_process(workflow)
    if not jobs or not isinstance(jobs[0].data, Mapping) or process is None:
        return  # a file is empty or not YAML; the engine reports the error when it reads the file
    source = jobs[0]
    if "$graph" not in process.fields and (fault := first_fault_of_job(source.data, process)) is not None:
        finding = finding_at(
            source, fault.rule, fault.field, fault.what, seen=fault.seen, expected=fault.expected, fix=fault.fix
        )
        raise _without_values(finding) if hides else _fault_of(finding)
    values = {name: source.data[name] for name in process.inputs if name in source.data}
    for field, path in missing_in(
        {name: values[name] for name in values if name not in at_sites}, job.resolve().parent
    ):
        if hides:
            raise UserInputError(
                f"job file, input '{field[0]}': {spelled(field)}: no such file or folder.",
                do=LOOK,
            )
        raise fault_at(
            job, field, "no such file or folder.", seen=os.path.normpath(path),
            expected="a path relative to the folder of this file", do=near(path)[1] or "correct the path, or create the file",
        )  # fmt: skip
    for name, parameter in process.inputs.items():
        if name in values and name not in at_sites:
            _check_secondary(job, name, values[name], parameter.fields, hides=hides)


def _check_secondary(job: Path, name: str, value: Any, declared: Any, *, hides: bool) -> None:
    """Refuse an input that lacks a required secondary file; `declared` is the input in its workflow."""
    for field, pattern, path in missing_secondary_files(value, declared, job.resolve().parent, (name,)):
        what, expected = (
            "a required secondary file is missing.",
            f"a file that matches the pattern '{pattern}'",
        )
        if hides:
            raise UserInputError(f"job file, input '{name}': {spelled(field)}: {what}", expected=expected, do=LOOK)
        raise fault_at(
            job, field, what, seen=f"no file '{path.name}'", expected=expected, do="put it into the same folder"
        )


def _without_values(finding: ValidationFinding) -> UserInputError:
    return UserInputError(
        f"job file, line {finding.line}: {spelled(finding.field)}{': ' if finding.field else ''}{finding.what}",
        expected=finding.expected, do=LOOK,
    )  # fmt: skip


def _fault_of(finding: ValidationFinding) -> FieldFault:
    return fault_at(
        finding.file, finding.field, finding.what, seen=finding.seen, expected=finding.expected, do=finding.fix
    )


def check_variables(site: Path, deployments: Mapping[str, Any]) -> None:
    """Refuse a site file with an undefined environment variable in the deployments that a run uses.

    Raises:
        UsageError: a variable has no value.
    """
    resolve_paths({"path": str(site), "deployments": copy.deepcopy(dict(deployments))}, Path(), connector_schemas())
