"""All checks, in their order: consequences of a reported error are not reported."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from medweave.project.schedules import faults_of_schedule
from medweave.project.workflows import ROLES_FILE
from medweave.validate.bindings import check_bindings, check_current, check_structure, generated, origin_of
from medweave.validate.caps import Excesses
from medweave.validate.charts import check_chart, check_deployed_values, check_with_helm
from medweave.validate.cwl import check_document
from medweave.validate.edges import check_workflow
from medweave.validate.findings import ERROR, OF_SHAPE, ValidationFinding
from medweave.validate.images import (
    RECIPES,
    check_chart_version,
    check_containers,
    check_docker_pull,
    check_images,
    check_recipe,
    version_of_package,
)
from medweave.validate.jobs import bound_workflows, check_job, find_inputs_at_sites, jobs_of
from medweave.validate.places import finding_of, tools_of
from medweave.validate.reference import check_with_cwltool
from medweave.validate.repository import CHART_FILE, YAML_ENDS, Repository
from medweave.validate.secrets import check_document as check_secrets
from medweave.validate.secrets import check_text
from medweave.validate.site_files import (
    check_bound_roles,
    check_inputs,
    check_roles,
    check_routes,
    check_site,
    pipelines,
)
from medweave.validate.verbs import check_verb
from medweave_core.documents.source_documents import SourceDocument, parse_file


class Found:
    """Findings so far, one for each place and rule, and the files with errors; errors of shape go to the repository's `unsound`."""

    def __init__(self, repository: Repository) -> None:
        self.findings: dict[tuple[object, ...], ValidationFinding] = {}
        self.broken: set[Path] = set()
        self.unsound = repository.unsound
        self.add(repository.findings)

    def add(self, findings: Iterable[ValidationFinding]) -> None:
        """Add findings; one for each rule and place stays."""
        for finding in findings:
            self.findings.setdefault((finding.file, finding.line, finding.field, finding.rule), finding)
            if finding.severity is ERROR:
                self.broken.add(finding.file)
            if finding.rule in OF_SHAPE:
                self.unsound.add(finding.file)

    def has_reported(self, finding: ValidationFinding, rule: str) -> bool:
        """Return whether a rule has a finding at the same place or inside it."""
        field = finding.field[:-1] if finding.field[-1:] in (("tag",), ("digest",)) else finding.field
        return any(
            other.rule == rule and other.file == finding.file and other.field[: len(field)] == field
            for other in self.findings.values()
        )


def check(
    repository: Repository, *, images: str = "tag", with_helm: bool = False, with_cwltool: bool = False
) -> list[ValidationFinding]:
    """Return all findings of a repository, by file and line.

    Args:
        images: how images must be pinned: `tag` or `digest`.
        with_helm: run helm on the charts too.
        with_cwltool: run cwltool's validator on the CWL documents too.
    """
    found, jobs = Found(repository), jobs_of(repository)
    for path in [*repository.files, *repository.hidden]:
        found.add(check_text(path))
    found.add(_unknown_kinds(repository, jobs))
    _check_cwl(repository, found)
    for source in repository.roles.values():
        if source.path not in found.broken:
            found.add(check_roles(source, repository))
            found.add(_containers(source, repository))
    for source in repository.sites.values():
        if source.path not in found.broken:
            found.add(check_site(source, repository))
    for source in repository.schedules.values():
        if source.path not in found.broken:
            found.add(finding_of(source, fault, "schedule") for fault in faults_of_schedule(source.data, source.path))
    _check_charts(repository, found, with_helm)
    _check_sites_with_workflows(repository, found)
    _check_jobs(repository, jobs, found)
    _check_words(repository, found, images)
    _check_streamflow_files(repository, found)
    if with_cwltool:
        found.add(check_with_cwltool(repository, found.broken))
    return sorted(found.findings.values())


def _unknown_kinds(repository: Repository, jobs: Collection[Path]) -> Iterator[ValidationFinding]:
    """Yield files from the command line that have no known kind."""
    for path in repository.named:
        documents = [source.data for source in repository.others.get(path, [])]
        is_chart_s = any((above / CHART_FILE).is_file() for above in path.parents)
        is_known = path not in repository.others or path in jobs or path in repository.unsound or is_chart_s
        if is_known or (documents and all(map(_is_of_kubernetes, documents))):
            continue
        keys = documents[0] if documents and isinstance(documents[0], dict) else {}
        yield ValidationFinding(
            file=path, line=1, column=1, rule="file-kind",
            what="unknown file type: only secrets and images were checked.",
            seen=", ".join(keys) or "no keys",
            expected="a CWL document, StreamFlow file, site file, roles.yml, schedule file, chart, or a job file in "
                "the folder jobs/ of its workflow",
            fix="check a job file with `medweave plan WORKFLOW --site SITE --job FILE`, or name its schema in the "
                "first line; in another file, correct the keys or the folder",
        )  # fmt: skip


def _is_of_kubernetes(data: object) -> bool:
    return isinstance(data, dict) and {"apiVersion", "kind"} <= set(data)


def _check_cwl(repository: Repository, found: Found) -> None:
    for source in repository.cwl.values():
        process = repository.reader.find_process(source.path)
        if process is not None and source.path not in found.broken:
            found.add(check_document(process))
        if process is not None and source.path not in found.unsound:
            found.add(check_verb(process))
    by_itself = set(found.broken)
    for source in repository.cwl.values():
        process = repository.process(source.path) if source.path not in by_itself else None
        if process is not None and process.is_workflow:
            found.add(check_workflow(process, repository))


def _containers(roles: SourceDocument, repository: Repository) -> Iterator[ValidationFinding]:
    for name in roles.data:
        workflow = repository.process(roles.path.parent / str(name))
        if workflow is not None and workflow.is_workflow:
            yield from check_containers(workflow, tools_of(workflow, repository))


def _check_charts(repository: Repository, found: Found, with_helm: bool) -> None:
    for source in repository.charts.values():
        if source.path not in found.broken:
            found.add(check_chart(source, repository))
    by_hand = [source for source in repository.streamflow.values() if not generated(source)]
    for source in by_hand:
        found.add(check_structure(source))
    for source in [*repository.sites.values(), *by_hand]:
        if source.path not in found.broken:
            found.add(check_deployed_values(source, repository))
    if with_helm and not any(source.path in found.broken for source in repository.charts.values()):
        found.add(check_with_helm(repository))


def _check_words(repository: Repository, found: Found, images: str) -> None:
    """Check secrets, images and versions. Those of a generated file are reported at its site file."""
    for path in repository.hidden:
        for source in parse_file(path).documents if path.suffix in YAML_ENDS else ():
            found.add(check_secrets(source))
    version = version_of_package(repository.root)
    by_hand = [source for source in repository.streamflow.values() if not generated(source)]
    others = [source for sources in repository.others.values() for source in sources]
    kinds = (repository.sites, repository.roles, repository.schedules)
    for source in [*by_hand, *others, *(kind_source for kind in kinds for kind_source in kind.values())]:
        found.add(check_secrets(source))
        found.add(
            finding
            for finding in check_images(source, images, version)
            if not found.has_reported(finding, "chart-value")
        )
    for source in repository.cwl.values():
        if source.path not in repository.unsound:
            found.add(check_docker_pull(source, images))
    for source in repository.charts.values():
        found.add(check_chart_version(source, version))
    for path in repository.files:
        if path.name.startswith(RECIPES) or path.suffix == ".Containerfile":
            found.add(check_recipe(path))


def _check_sites_with_workflows(repository: Repository, found: Found) -> None:
    known = pipelines(repository, found.broken)
    bound, excesses = bound_workflows(repository), Excesses()
    sound = [source for source in repository.sites.values() if source.path not in found.broken]
    for source in sound:
        found.add(check_bound_roles(source, bound, known))
        misspelt = [*check_inputs(source, known)]
        found.add(misspelt or check_routes(source, repository, known, bound.get(source.path, {})))
        for pipeline in known:
            excesses.add(source, pipeline, repository)
    found.add(excesses.findings())


def _check_jobs(repository: Repository, jobs: Mapping[Path, tuple[SourceDocument, Path]], found: Found) -> None:
    inputs_at_sites = find_inputs_at_sites(repository, jobs)
    for path, (source, workflow_path) in jobs.items():
        workflow = repository.process(workflow_path)
        if workflow is not None and not {path, workflow_path} & found.broken:
            found.add(check_job(source, workflow, inputs_at_sites.get(path, ())))


def _check_streamflow_files(repository: Repository, found: Found) -> None:
    for source in repository.streamflow.values():
        if source.path in found.broken:
            continue
        words = generated(source)
        reported = {
            finding.file for finding in found.findings.values()
        }  # a generated file changes when these are fixed
        is_settled = words is not None and not _leans_on(source, words, repository) & reported
        stale = check_current(source, words, repository) if words is not None and is_settled else []
        if is_settled and not stale:
            continue  # it is what `bind` writes from correct files
        own = check_bindings(source, repository)
        found.add(own or stale)


def _leans_on(source: SourceDocument, words: Iterable[str], repository: Repository) -> set[Path]:
    """Return the files from which a generated file was made."""
    origin = origin_of(source, list(words))
    workflow = origin.workflow
    process = repository.process(workflow)
    tools = {tool.path for tool in tools_of(process, repository).values()} if process else set()
    tools |= set(workflow.parent.glob("*.cwl"))  # roles.yml covers them all
    if process:  # and those that cannot be read
        tools |= {step.run_file for step in process.steps.values() if step.run_file is not None}
    return {workflow, origin.site, origin.job, workflow.parent / ROLES_FILE, *tools}
