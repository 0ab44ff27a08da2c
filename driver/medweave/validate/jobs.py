"""Job files: the inputs of a workflow, their types and formats, and the files that they name."""

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
from medweave.validate.findings import Finding, finding_at, no_json
from medweave.validate.repository import Repository, ignored
from medweave.validate.secrets import MOST_BYTES
from medweave_core.documents.cwl_model import Process
from medweave_core.documents.file_locations import path_of, place_key
from medweave_core.documents.secondary_files import missing_secondary_files
from medweave_core.documents.source_documents import SourceDocument


def jobs_of(repository: Repository) -> dict[Path, tuple[SourceDocument, Path]]:
    """Job files with the workflow of each: those that StreamFlow files name, that name its schema, or are in `jobs/` beside it."""
    found: dict[Path, tuple[SourceDocument, Path]] = {}
    for source in repository.streamflow.values():
        for workflow, job_path, _ in _run_by(source):
            job = repository.source(job_path)
            if job is not None:
                found[job_path] = (job, workflow)
    for path, sources in repository.others.items():
        if path not in found and sources and isinstance(sources[0].data, Mapping):
            its_own = _named_at_the_top(sources[0]) or _beside(sources[0], repository)
            if its_own is not None:
                found[path] = (sources[0], its_own)
    return found


def _named_at_the_top(job: SourceDocument) -> Path | None:
    """The workflow whose schema editors find in the first line: `jobs/NAME.schema.json` is that of `NAME.cwl`."""
    first = job.text.partition("\n")[0]
    if not first.startswith(EDITOR_LINE):
        return None
    schema = (job.path.parent / first.removeprefix(EDITOR_LINE).strip()).resolve()
    workflow = schema.parent.parent / f"{schema.name.removesuffix('.schema.json')}.cwl"
    return workflow if schema.parent.name == JOBS and workflow.is_file() else None


def _beside(job: SourceDocument, repository: Repository) -> Path | None:
    """The workflow with whose name the file's ends; or the one that has the most of its inputs, if it is one."""
    if job.path.parent.name != JOBS:
        return None
    workflows = sorted(job.path.parent.parent.glob("*.cwl"))
    if named_so := [each for each in workflows if f"-{job.path.stem}".endswith(f"-{each.stem}")]:
        return max(named_so, key=lambda each: len(each.stem))  # of train-again.cwl rather than of again.cwl
    shared = {each: _num_shared(job, repository.process(each)) for each in workflows}
    most = max(shared.values(), default=0)
    best = [each for each, count in shared.items() if most and count == most]
    return best[0] if len(best) == 1 else None


def _num_shared(job: SourceDocument, workflow: Process | None) -> int:
    return len(set(job.data) & set(workflow.inputs)) if workflow else 0


def _run_by(source: SourceDocument) -> Iterator[tuple[Path, Path, list[Any]]]:
    """What a StreamFlow file runs: workflow, job file, bindings; without what has not the shape of such a file."""
    workflows = source.data.get("workflows")
    for workflow in workflows.values() if isinstance(workflows, Mapping) else ():
        config = workflow.get("config") if isinstance(workflow, Mapping) else None
        named_files = [config.get(key) for key in ("file", "settings")] if isinstance(config, Mapping) else []
        paths = [(source.path.parent / each).resolve() for each in named_files if isinstance(each, str)]
        if len(paths) == 2:  # both of them
            bindings = workflow.get("bindings")
            yield paths[0], paths[1], bindings if isinstance(bindings, list) else []


def held_at_sites(repository: Repository, jobs: Collection[Path]) -> dict[Path, set[str]]:
    """By job file, the inputs that lie at a site already: the ports that StreamFlow files bind.

    Args:
        jobs: all job files. One that is named wrong is told as such, and the file that was meant is held right.
    """
    found: dict[Path, set[str]] = defaultdict(set)
    for source in repository.streamflow.values():
        for workflow_path, job_path, bindings in _run_by(source):
            workflow = repository.process(workflow_path)
            inputs = workflow.inputs if workflow else {}
            ports = {str(each["port"]).lstrip("/") for each in bindings if isinstance(each, Mapping) and "port" in each}
            for job in [job_path] if job_path in jobs else _meant(job_path, jobs):
                found[job] |= ports if ports <= set(inputs) else set(inputs)  # one of them is told as misspelt
    return found


def _meant(wrong: Path, jobs: Collection[Path]) -> list[Path]:
    """Job files that a path which leads to none may mean: of its name elsewhere, or of nearly its name in its folder."""
    beside = [each.name for each in jobs if each.parent == wrong.parent]
    alike = difflib.get_close_matches(wrong.name, beside, n=1)
    return [each for each in jobs if each.name == wrong.name or (each.parent == wrong.parent and each.name in alike)]


def bound_workflows(repository: Repository) -> dict[Path, dict[Path, Path]]:
    """By site file, the workflows that generated files bind to it, each with its job file."""
    found: dict[Path, dict[Path, Path]] = defaultdict(dict)
    for source in repository.streamflow.values():
        words = generated(source)
        if words:
            origin = origin_of(source, words)
            found[origin.site][origin.workflow] = origin.job
    return found


def check_job(source: SourceDocument, workflow: Process, at_site: Collection[str]) -> Iterator[Finding]:
    """Yield what is wrong with a job file.

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


def _missing(source: SourceDocument, name: str, value: Any) -> Iterator[Finding]:
    places = []
    for inside, each in files_in(value):
        key, local = place_key(each), path_of(each)
        if local is not None and "${" not in local:
            places.append(((name, *inside, key), str(each[key]), (source.path.parent / local).resolve()))
    why = {path: gone(path) for _, _, path in places}
    made = ignored(source.path.parent, [path for path, told in why.items() if told])
    for field, text, path in places:
        if not why[path]:
            yield from _json(path)
        elif path not in made:
            yield finding_at(
                source,
                "job-file",
                field,
                f"'{text}' {why[path]}.",
                seen=str(text),
                expected="a path from the folder of this file",
                fix=near(path)[1] or "correct the path, or bind the input to the site that holds it",
            )


def _missing_secondary(source: SourceDocument, name: str, value: Any, described: Any) -> Iterator[Finding]:
    for field, pattern, path in missing_secondary_files(value, described, source.path.parent, (name,)):
        yield finding_at(
            source, "job-file", field, f"a file that '{name}' needs next to this one is missing.", seen=f"no file '{path.name}'",
            expected=f"a secondary file of the pattern '{pattern}'", fix=f"put '{path.name}' into the same folder",
        )  # fmt: skip


def _json(path: Path) -> Iterator[Finding]:
    if path.suffix != ".json" or not path.is_file() or path.stat().st_size > MOST_BYTES:
        return
    try:
        json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except json.JSONDecodeError as error:
        yield no_json(path, error, "job-type")
