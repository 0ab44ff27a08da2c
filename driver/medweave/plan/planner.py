"""Makes a plan of a workflow, a site and a job file that fit together, with figures of earlier runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave import DRIVER_TYPE, __version__
from medweave.placement.bind import Fitted
from medweave.placement.data_rules import classes_at
from medweave.placement.declared_classes import Ports, classes_in
from medweave.plan.cache_preview import CachePreview, StepPlace
from medweave.plan.document import Figures, Holding, Input, Item, Move, Plan, PlannedStep, Problem
from medweave.plan.flow import HERE, Edge, Flow, edges, routes_between
from medweave.plan.past_runs import Past
from medweave.plan.resources import excess, resources_of
from medweave.plan.sizes import Size, missing_in, size_of
from medweave.project.sites import Place
from medweave.project.workflows import RoleStep
from medweave_connectors.cache.entries import CacheEntries
from medweave_connectors.policy.data_classes import WORKFLOW, most_sensitive_first
from medweave_core.documents.cwl_model import Process
from medweave_core.documents.cwl_types import has_files
from medweave_core.documents.file_locations import place_key
from medweave_core.documents.line_numbers import line_of, shown, spelled

_NONE = Figures(num_runs=0, median=0.0, low=0.0, high=0.0)  # GPUs of a tool without GPUs
JOBS, NAMED = "jobs", "the job file of --job"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """Input of a plan.

    Attributes:
        tools: tools that are files, by path of the step.
        classes: data classes by step and port; None if the workflow does not declare them.
    """

    fitted: Fitted
    flow: Flow
    past: Past
    tools: Mapping[str, Process]
    classes: Mapping[str, Ports] | None

    def place_of(self, name: str) -> str | None:
        """Return the deployment of an input, or of a step given by its path; None for the driver's machine."""
        site = self.fitted.site
        if name.startswith("/"):
            return self.deployment_or_here(self.place_of_step(name).deployment)
        return self.deployment_or_here(site.inputs[name].deployment) if name in site.inputs else HERE

    def place_of_step(self, path: str) -> Place:
        """Return the place of a step."""
        step = next(step for step in self.fitted.pipeline.steps if step.path == path)
        return self.fitted.site.place_of(step.role, gang=step.gang)

    def deployment_or_here(self, deployment: str) -> str | None:
        """Return the name of a deployment; None if it is on the driver's machine."""
        return HERE if self.fitted.site.deployments[deployment]["type"] == DRIVER_TYPE else deployment

    def classes_of(self, source: str) -> tuple[str, ...] | None:
        """Return the data classes of an input of the workflow or of an output of a step."""
        if self.classes is None:
            return None
        step, _, output = source.partition("/")
        ports = self.classes[f"/{step}" if output else WORKFLOW]
        return ports.get(output or step, ())


def make_plan(fitted: Fitted, past: Past) -> Plan:
    """Return the plan.

    Raises:
        UserInputError: the workflow has a cycle, or its declared data classes are wrong.
    """
    context = _context(fitted, past)
    steps = tuple(_steps(context))
    sizes, problems = _sizes(context)
    moves = tuple(_moves(context, sizes))
    problems += [
        problem
        for step in steps
        if step.runs is not False
        for resource in step.asks
        if (problem := excess(step.step, context.place_of_step(step.step), resource)) is not None
    ]
    running = {step.step: (step.deployment, step.service) for step in steps if step.runs}
    is_sure = all(step.runs is not None for step in steps)
    return Plan(
        medweave_version=__version__,
        workflow=shown(fitted.pipeline.path),
        job=_job(fitted.job),
        site=shown(fitted.site.path),
        site_name=fitted.site.name,
        site_title=fitted.site.title,
        inputs=tuple(_inputs(context, sizes)),
        steps=steps,
        moves=moves,
        holdings=tuple(_holdings(context, moves)),
        seconds=past.seconds(running) if is_sure else None,
        wh=past.wh(running) if is_sure else None,
        core_hours=_hours(steps, "cores") if is_sure else None,
        gpu_hours=_hours(steps, "GPUs") if is_sure else None,
        currency=fitted.site.prices.currency if fitted.site.prices else None,
        cost=_cost(steps) if is_sure else None,
        num_earlier_runs=len(past.runs),
        looked_in=tuple(shown(folder) for folder in past.looked_in),
        problems=tuple(problems),
    )


def _step_cost(context: _Context, place: Place, cores: Figures | None, gpus: Figures | None) -> float | None:
    prices = context.fitted.site.prices
    if prices is None or cores is None or gpus is None:
        return None
    return prices.cost(place.deployment, core_hours=cores.median, gpu_hours=gpus.median)


def _cost(steps: Sequence[PlannedStep]) -> float | None:
    costs = [step.cost for step in steps if step.runs]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known and len(known) == len(costs) else None


def _hours(steps: Sequence[PlannedStep], resource: str) -> float | None:
    """Return the hours of a resource over all steps; None if earlier runs have no figure for one of them."""
    medians = []
    for step in steps:
        if step.runs and any(demand.name == resource for demand in step.asks):
            hours = step.core_hours if resource == "cores" else step.gpu_hours
            if hours is None:
                return None
            medians.append(hours.median)
    return sum(medians)


def _job(file: Path) -> str:
    """Return the name of a job file in a plan, which may be shared: a file outside `jobs/` may be named after a patient."""
    return shown(file) if file.parent.name == JOBS else NAMED


def _context(fitted: Fitted, past: Past) -> _Context:
    pipeline = fitted.pipeline
    return _Context(
        fitted=fitted,
        flow=Flow(pipeline=pipeline, values=dict(pipeline.defaults) | dict(fitted.values)),
        past=past,
        tools={step.path: step.tool for step in pipeline.steps if step.definition.run_file is not None},
        classes=fitted.site_classes.by_port
        if fitted.site_classes is not None
        else classes_at(pipeline, fitted.site, fitted.values),
    )


def _steps(context: _Context) -> Iterator[PlannedStep]:
    site = context.fitted.site
    preview = _cache_preview(context)
    for step in context.flow.ordered():
        place, tool = site.place_of(step.role, gang=step.gang), context.tools.get(step.path)
        where = place.deployment, place.service
        known = _known(step.reads, context.flow.values)
        asks = tuple(resources_of(tool, site.document, place, known)) if tool else ()
        amounts = {resource.name: resource.most * place.locations for resource in asks}
        hours = {
            name: context.past.hours(step.path, where, amounts[name]) if name in amounts else None
            for name in ("cores", "GPUs")
        }
        yield PlannedStep(
            step=step.path,
            label=tool.label if tool else "",
            runs=context.flow.runs(step),
            condition=_condition(step),
            after=tuple(context.flow.after(step)),
            inputs=tuple(
                dict.fromkeys(
                    source for _, source in context.flow.read(step) if source in context.fitted.pipeline.data_inputs
                )
            ),
            role=step.role,
            deployment=place.deployment,
            service=place.service,
            locations=place.locations,
            connector=site.deployments[place.deployment]["type"],
            why=_why(step, context),
            one_job_for_each=tuple(_scattered(step)),
            asks=asks,
            holds=tuple(classes_in(context.classes[step.path])) if context.classes is not None else None,
            job_seconds=context.past.job_seconds(step.path, where),
            job_wh=context.past.job_wh(step.path, where),
            core_hours=hours["cores"],
            gpu_hours=hours["GPUs"],
            cost=_step_cost(context, place, hours["cores"], hours["GPUs"] if "GPUs" in amounts else _NONE),
            reuse=preview.preview(step),
        )


def _cache_preview(context: _Context) -> CachePreview:
    site, pipeline, folder = context.fitted.site, context.fitted.pipeline, context.past.looked_in[0]
    places = {step.path: site.place_of(step.role, gang=step.gang) for step in pipeline.steps}
    of_folder = [run for run in context.past.runs if run.folder.parent == folder]
    return CachePreview(
        flow=context.flow,
        files=context.tools,
        places={
            path: StepPlace(
                deployment=place.deployment,
                service=place.service,
                is_here=context.deployment_or_here(place.deployment) is HERE,
            )
            for path, place in places.items()
        },
        lies_at={name: place.deployment for name, place in site.inputs.items()},
        folder=context.fitted.job.parent,
        runs=sorted(of_folder, key=lambda run: run.started, reverse=True),
        cache=CacheEntries(folder),
    )


def _condition(step: RoleStep) -> str:
    return "" if step.when is None else step.when or "an expression"


def _why(step: RoleStep, context: _Context) -> str:
    site = context.fitted.site
    if step.role in site.options:
        return f"--role {site.options[step.role]}"
    return f"roles.{step.role} of {shown(site.path)}"


def _known(bound: Mapping[str, Sequence[str]], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a tool's inputs that come from the job file or from defaults of the workflow."""
    return {name: values.get(sources[0]) for name, sources in bound.items() if len(sources) == 1}


def _scattered(step: RoleStep) -> Iterator[str]:
    for port in step.definition.scatter:
        yield from step.reads.get(port, ())


def _sizes(context: _Context) -> tuple[dict[str, Size | None], list[Problem]]:
    """Return the sizes of the inputs on this machine, and a problem for each one that cannot be read."""
    fitted, sizes, problems = context.fitted, {}, []
    for name in sorted(fitted.pipeline.data_inputs - set(fitted.site.inputs)):
        value = fitted.values.get(name)
        folder = fitted.job.parent
        if value is None:
            value, folder = fitted.pipeline.defaults.get(name), fitted.pipeline.path.parent
        if value is None:
            continue
        try:
            sizes[name] = size_of(value, folder)
        except OSError as error:  # without its path: a file may be named after a patient
            problems.append(
                Problem(
                    what=f"{_place_of_missing(fitted, name, value, folder)}input '{name}' cannot be read.",
                    seen=f"{error.strerror}: {_path_in(value)}",
                    expected="a readable file or folder on this machine, without broken links; a relative path starts at "
                    f"the folder of {shown(fitted.job)}",
                    do="correct the path, or create the file first; declare an input that is stored at a site "
                    "under `inputs` of the site file",
                )
            )
    return sizes, problems


def _inputs(context: _Context, sizes: Mapping[str, Size | None]) -> Iterator[Input]:
    for name in context.fitted.pipeline.process.inputs:
        if name in context.fitted.pipeline.data_inputs and context.flow.values.get(name) is not None:
            size = sizes.get(name)
            yield Input(
                name=name,
                place=context.place_of(name),
                classes=context.classes_of(name),
                num_files=size.num_files if size else None,
                num_bytes=size.num_bytes if size else None,
            )


def _place_of_missing(fitted: Fitted, name: str, value: Any, folder: Path) -> str:
    """Return the place of the first missing path, as `jobs/demo.yml:3: scans[0].path: `; empty if none is, or for a default."""
    field = next((field for field, _ in missing_in(value, folder, (name,))), None)
    if field is None or name not in fitted.values:
        return ""
    line = line_of(fitted.job, field)
    file = f"{_job(fitted.job)}:{line}" if fitted.job.parent.name == JOBS else f"job file, line {line}"
    return f"{file}: {spelled(field)}: "


def _path_in(value: Any) -> str:
    return str(value.get(place_key(value))) if isinstance(value, Mapping) else "one of several paths"


def _moves(context: _Context, sizes: Mapping[str, Size | None]) -> Iterator[Move]:
    pairs: dict[tuple[str | None, str | None], dict[str, list[Edge]]] = {}
    for edge in edges(context.flow, context.place_of, _data_sources(context)):
        pairs.setdefault((edge.source, edge.destination), {}).setdefault(edge.name, []).append(edge)
    for (source, destination), by_name in pairs.items():
        earlier, routes = context.past.moved(source, destination)
        yield Move(
            source=source,
            destination=destination,
            ways=tuple(routes_between(source, destination, context.fitted.site.transfers)),
            items=tuple(_item(context, name, of_name, sizes.get(name)) for name, of_name in by_name.items()),
            earlier_bytes=earlier,
            earlier_routes=routes,
        )


def _item(context: _Context, name: str, of_name: Sequence[Edge], size: Size | None) -> Item:
    return Item(
        name=name,
        classes=context.classes_of(name),
        needed_by=tuple(dict.fromkeys(edge.needed_by for edge in of_name)),
        num_files=size.num_files if size else None,
        num_bytes=size.num_bytes if size else None,
    )


def _data_sources(context: _Context) -> set[str]:
    """Return the inputs and outputs that are files or folders; of a tool that is written in its step, all outputs."""
    sources = set(context.fitted.pipeline.data_inputs)
    for step in context.fitted.pipeline.steps:
        tool = context.tools.get(step.path)
        for name in step.writes:
            parameter = tool.outputs.get(name) if tool else None
            if parameter is None or has_files(parameter.type, any_counts=True):
                sources.add(f"{step.path.lstrip('/')}/{name}")
    return sources


def _holdings(context: _Context, moves: Sequence[Move]) -> Iterator[Holding]:
    """Yield the data classes at each place, in the order of the steps."""
    fitted, classes_by_place = context.fitted, dict[str | None, list[str]]()
    for step in context.flow.ordered():
        if context.flow.runs(step) is not False:
            step_classes = classes_in(context.classes[step.path]) if context.classes is not None else []
            classes_by_place.setdefault(context.place_of(step.path), []).extend(step_classes)
    for name in fitted.pipeline.data_inputs:
        if context.flow.values.get(name) is not None:
            classes_by_place.setdefault(context.place_of(name), []).extend(context.classes_of(name) or ())
    for move in moves:
        place_classes = classes_by_place.setdefault(move.destination, [])
        for item in move.items:
            place_classes.extend(item.classes or ())
    rules = fitted.site.may_hold
    for place, classes in classes_by_place.items():
        allowed = (
            (fitted.site_classes.driver if place is HERE else rules.get(place, ()))
            if fitted.site_classes is not None
            else None
        )
        yield Holding(
            place=place,
            gets=tuple(most_sensitive_first(set(classes))) if context.classes is not None else None,
            may_hold=None if allowed is None else tuple(allowed),
        )
