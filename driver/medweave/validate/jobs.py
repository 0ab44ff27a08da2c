"""Job files: inputs, types and formats, and the files that they name."""

from __future__ import annotations

import difflib
import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from medweave.placement.bound_file import EDITOR_LINE
from medweave.project.job_files import faults_of_job, files_in
from medweave.project.near_files import gone, near
from medweave.validate.bindings import JOBS, generated, origin_of
from medweave.validate.findings import ValidationFinding, finding_at, no_json
from medweave.validate.repository import Repository, ignored
from medweave.validate.secrets import MOST_BYTES
from medweave_core.documents.cwl_model import Process
from medweave_core.documents.file_locations import path_of, place_key
from medweave_core.documents.secondary_files import missing_secondary_files
from medweave_core.documents.source_documents import SourceDocument


def jobs_of(repository: Repository) -> dict[Path, tuple[SourceDocument, Path]]:
    """Return the job files with their workflows: by StreamFlow files, the schema in the first line, or the folder `jobs/`."""
    jobs: dict[Path, tuple[SourceDocument, Path]] = {}
    for source in repository.streamflow.values():
        for workflow, job_path, _ in _run_by(source):
            job = repository.source(job_path)
            if job is not None:
                jobs[job_path] = (job, workflow)
    for path, sources in repository.others.items():
        if path not in jobs and sources and isinstance(sources[0].data, Mapping):
            its_workflow = _workflow_of_schema(sources[0]) or _workflow_of_folder(sources[0], repository)
            if its_workflow is not None:
                jobs[path] = (sources[0], its_workflow)
    return jobs


def _workflow_of_schema(job: SourceDocument) -> Path | None:
    """Return the workflow whose schema the first line names: `jobs/NAME.schema.json` is that of `NAME.cwl`."""
    first = job.text.partition("\n")[0]
    if not first.startswith(EDITOR_LINE):
        return None
    schema = (job.path.parent / first.removeprefix(EDITOR_LINE).strip()).resolve()
    workflow = schema.parent.parent / f"{schema.name.removesuffix('.schema.json')}.cwl"
    return workflow if schema.parent.name == JOBS and workflow.is_file() else None


def _workflow_of_folder(job: SourceDocument, repository: Repository) -> Path | None:
    """Return the workflow whose name ends the file's name; else the only one that has the most inputs of the file."""
    if job.path.parent.name != JOBS:
        return None
    workflows = sorted(job.path.parent.parent.glob("*.cwl"))
    if same_name := [path for path in workflows if f"-{job.path.stem}".endswith(f"-{path.stem}")]:
        return max(same_name, key=lambda path: len(path.stem))  # of train-again.cwl rather than of again.cwl
    num_shared = {path: _num_shared(job, repository.process(path)) for path in workflows}
    most = max(num_shared.values(), default=0)
    best = [path for path, count in num_shared.items() if most and count == most]
    return best[0] if len(best) == 1 else None


def _num_shared(job: SourceDocument, workflow: Process | None) -> int:
    return len(set(job.data) & set(workflow.inputs)) if workflow else 0


def _run_by(source: SourceDocument) -> Iterator[tuple[Path, Path, list[Any]]]:
    """Yield workflow, job file and bindings of each well-formed workflow of a StreamFlow file."""
    workflows = source.data.get("workflows")
    for workflow in workflows.values() if isinstance(workflows, Mapping) else ():
        config = workflow.get("config") if isinstance(workflow, Mapping) else None
        names = [config.get(key) for key in ("file", "settings")] if isinstance(config, Mapping) else []
        paths = [(source.path.parent / name).resolve() for name in names if isinstance(name, str)]
        if len(paths) == 2:  # both of them
            bindings = workflow.get("bindings")
            yield paths[0], paths[1], bindings if isinstance(bindings, list) else []


def find_inputs_at_sites(repository: Repository, jobs: Collection[Path]) -> dict[Path, set[str]]:
    """Return the inputs that are at a site already, by job file: the ports that StreamFlow files bind.

    Args:
        jobs: all job files. A wrong name is reported elsewhere, and the inputs of the intended file count as bound.
    """
    inputs_by_job: dict[Path, set[str]] = defaultdict(set)
    for source in repository.streamflow.values():
        for workflow_path, job_path, bindings in _run_by(source):
            workflow = repository.process(workflow_path)
            inputs = workflow.inputs if workflow else {}
            ports = {
                str(binding["port"]).lstrip("/")
                for binding in bindings
                if isinstance(binding, Mapping) and "port" in binding
            }
            for job in [job_path] if job_path in jobs else _intended_jobs(job_path, jobs):
                inputs_by_job[job] |= (
                    ports if ports <= set(inputs) else set(inputs)
                )  # an unknown port is reported as misspelt
    return inputs_by_job


def _intended_jobs(wrong: Path, jobs: Collection[Path]) -> list[Path]:
    """Return the job files that a wrong path may mean: with its name elsewhere, or with a similar name in its folder."""
    siblings = [job.name for job in jobs if job.parent == wrong.parent]
    similar = difflib.get_close_matches(wrong.name, siblings, n=1)
    return [job for job in jobs if job.name == wrong.name or (job.parent == wrong.parent and job.name in similar)]


def bound_workflows(repository: Repository) -> dict[Path, dict[Path, Path]]:
    """Return the workflows that generated files bind to a site, each with its job file, by site file."""
    workflows: dict[Path, dict[Path, Path]] = defaultdict(dict)
    for source in repository.streamflow.values():
        arguments = generated(source)
        if arguments:
            origin = origin_of(source, arguments)
            workflows[origin.site][origin.workflow] = origin.job
    return workflows


def check_job(source: SourceDocument, workflow: Process, at_site: Collection[str]) -> Iterator[ValidationFinding]:
    """Yield the findings of a job file.

    Args:
        at_site: inputs that a site holds.
    """
    faults = [*faults_of_job(source.data, workflow)]
    for fault in faults:
        yield finding_at(
            source, fault.rule, fault.field, fault.what, seen=fault.seen, expected=fault.expected, fix=fault.fix
        )
    unchecked = {fault.input for fault in faults if fault.hides_files}
    for key, parameter in workflow.inputs.items():
        if key in source.data and key not in unchecked and key not in at_site:
            yield from _missing(source, key, source.data[key])
            yield from _missing_secondary(source, key, source.data[key], parameter.fields)


def _missing(source: SourceDocument, name: str, value: Any) -> Iterator[ValidationFinding]:
    places = []
    for inside, file in files_in(value):
        key, local = place_key(file), path_of(file)
        if local is not None and "${" not in local:
            places.append(((name, *inside, key), str(file[key]), (source.path.parent / local).resolve()))
    reasons = {path: gone(path) for _, _, path in places}
    generated_paths = ignored(source.path.parent, [path for path, reason in reasons.items() if reason])
    for field, text, path in places:
        if not reasons[path]:
            yield from _json(path)
        elif path not in generated_paths:
            yield finding_at(
                source,
                "job-file",
                field,
                f"'{text}' {reasons[path]}.",
                seen=str(text),
                expected="a path relative to the folder of this file",
                fix=near(path)[1] or "correct the path, or declare the input in a site file if a site stores it",
            )


def _missing_secondary(source: SourceDocument, name: str, value: Any, described: Any) -> Iterator[ValidationFinding]:
    for field, pattern, path in missing_secondary_files(value, described, source.path.parent, (name,)):
        yield finding_at(
            source, "job-file", field, f"a required secondary file of '{name}' is missing.", seen=f"no file '{path.name}'",
            expected=f"a file that matches the pattern '{pattern}'", fix=f"put '{path.name}' into the same folder",
        )  # fmt: skip


def _json(path: Path) -> Iterator[ValidationFinding]:
    if path.suffix != ".json" or not path.is_file() or path.stat().st_size > MOST_BYTES:
        return
    try:
        json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except json.JSONDecodeError as error:
        yield no_json(path, error, "job-type")
