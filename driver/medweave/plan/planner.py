"""Puts a plan together from a workflow, a site and a job file that fit together, and from what earlier runs tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave import DRIVER_TYPE, __version__
from medweave.placement.bind import Fitted
from medweave.placement.data_rules import classes_at
from medweave.placement.declared_classes import Ports, held
from medweave.plan.cache_preview import Foresight, Spot
from medweave.plan.document import Figures, Holding, Input, Item, Move, Plan, PlannedStep, Problem
from medweave.plan.flow import HERE, Edge, Flow, edges, ways
from medweave.plan.past_runs import Past
from medweave.plan.resources import asked_by, excess
from medweave.plan.sizes import Size, missing_in, size_of
from medweave.project.sites import Place
from medweave.project.workflows import Step
from medweave_connectors.cache.entries import CacheEntries
from medweave_connectors.policy.data_classes import WORKFLOW, most_sensitive_first
from medweave_core.documents.cwl_model import Process
from medweave_core.documents.cwl_types import has_files
from medweave_core.documents.file_locations import place_key
from medweave_core.documents.line_numbers import line_of, shown, spelled

_NONE = Figures(num_runs=0, median=0.0, low=0.0, high=0.0)  # of GPUs, for a tool that asks for none
JOBS, NAMED = "jobs", "the one that --job names"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """All that a plan is made from.

    Attributes:
        carries: classes by step and port; None where the workflow does not say.
    """

    fitted: Fitted
    flow: Flow
    past: Past
    tools: Mapping[str, Process]
    carries: Mapping[str, Ports] | None

    def place_of(self, name: str) -> str | None:
        """Where an input lies, or a step's path runs: a deployment, None for the machine that drives the run."""
        site = self.fitted.site
        if name.startswith("/"):
            return self.machine(self.role_place(name).deployment)
        return self.machine(site.inputs[name].deployment) if name in site.inputs else HERE

    def role_place(self, path: str) -> Place:
        """The place of a step."""
        step = next(each for each in self.fitted.pipeline.steps if each.path == path)
        return self.fitted.site.place_of(step.role, gang=step.gang)

    def machine(self, deployment: str) -> str | None:
        """A deployment; None where it is on the machine that drives the run."""
        return HERE if self.fitted.site.deployments[deployment]["type"] == DRIVER_TYPE else deployment

    def classes_of(self, source: str) -> tuple[str, ...] | None:
        """Classes of an input of the workflow or of a step's output."""
        if self.carries is None:
            return None
        step, _, output = source.partition("/")
        ports = self.carries[f"/{step}" if output else WORKFLOW]
        return ports.get(output or step, ())


def make_plan(fitted: Fitted, past: Past) -> Plan:
    """The plan.

    Raises:
        UserInputError: the workflow's steps wait for each other, or it does not say rightly what its data are.
    """
    given = _given(fitted, past)
    steps = tuple(_steps(given))
    sizes, problems = _sizes(given)
    moves = tuple(_moves(given, sizes))
    problems += [
        each
        for step in steps
        if step.runs is not False
        for asked in step.asks
        if (each := excess(step.step, given.role_place(step.step), asked)) is not None
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
        inputs=tuple(_inputs(given, sizes)),
        steps=steps,
        moves=moves,
        holdings=tuple(_holdings(given, moves)),
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


def _step_cost(given: _Given, place: Place, cores: Figures | None, gpus: Figures | None) -> float | None:
    prices = given.fitted.site.prices
    if prices is None or cores is None or gpus is None:
        return None
    return prices.cost(place.deployment, core_hours=cores.median, gpu_hours=gpus.median)


def _cost(steps: Sequence[PlannedStep]) -> float | None:
    each = [step.cost for step in steps if step.runs]
    known = [cost for cost in each if cost is not None]
    return sum(known) if known and len(known) == len(each) else None


def _hours(steps: Sequence[PlannedStep], resource: str) -> float | None:
    """What all steps hold of a resource; None where earlier runs do not tell it of each that asks for it."""
    found = []
    for step in steps:
        if step.runs and any(asked.name == resource for asked in step.asks):
            hours = step.core_hours if resource == "cores" else step.gpu_hours
            if hours is None:
                return None
            found.append(hours.median)
    return sum(found)


def _job(file: Path) -> str:
    """A job file as a plan names it, which others may see: one that is not kept with workflows or sites may be a patient's."""
    return shown(file) if file.parent.name == JOBS else NAMED


def _given(fitted: Fitted, past: Past) -> _Given:
    pipeline = fitted.pipeline
    return _Given(
        fitted=fitted,
        flow=Flow(pipeline=pipeline, values=dict(pipeline.defaults) | dict(fitted.values)),
        past=past,
        tools={step.path: step.tool for step in pipeline.steps if step.definition.run_file is not None},
        carries=fitted.held.carries if fitted.held is not None else classes_at(pipeline, fitted.site, fitted.values),
    )


def _steps(given: _Given) -> Iterator[PlannedStep]:
    site = given.fitted.site
    foresight = _foresight(given)
    for step in given.flow.ordered():
        place, tool = site.place_of(step.role, gang=step.gang), given.tools.get(step.path)
        where = place.deployment, place.service
        known = _known(step.reads, given.flow.values)
        asks = tuple(asked_by(tool, site.document, place, known)) if tool else ()
        amounts = {each.name: each.most * place.locations for each in asks}
        hours = {
            name: given.past.hours(step.path, where, amounts[name]) if name in amounts else None
            for name in ("cores", "GPUs")
        }
        yield PlannedStep(
            step=step.path,
            label=tool.label if tool else "",
            runs=given.flow.runs(step),
            condition=_condition(step),
            after=tuple(given.flow.after(step)),
            inputs=tuple(
                dict.fromkeys(each for _, each in given.flow.read(step) if each in given.fitted.pipeline.data_inputs)
            ),
            role=step.role,
            deployment=place.deployment,
            service=place.service,
            locations=place.locations,
            connector=site.deployments[place.deployment]["type"],
            why=_why(step, given),
            one_job_for_each=tuple(_scattered(step)),
            asks=asks,
            holds=tuple(held(given.carries[step.path])) if given.carries is not None else None,
            job_seconds=given.past.job_seconds(step.path, where),
            job_wh=given.past.job_wh(step.path, where),
            core_hours=hours["cores"],
            gpu_hours=hours["GPUs"],
            cost=_step_cost(given, place, hours["cores"], hours["GPUs"] if "GPUs" in amounts else _NONE),
            reuse=foresight.of(step),
        )


def _foresight(given: _Given) -> Foresight:
    site, pipeline, folder = given.fitted.site, given.fitted.pipeline, given.past.looked_in[0]
    places = {step.path: site.place_of(step.role, gang=step.gang) for step in pipeline.steps}
    of_folder = [run for run in given.past.runs if run.folder.parent == folder]
    return Foresight(
        flow=given.flow,
        files=given.tools,
        spots={
            path: Spot(deployment=place.deployment, service=place.service, here=given.machine(place.deployment) is HERE)
            for path, place in places.items()
        },
        lies_at={name: place.deployment for name, place in site.inputs.items()},
        folder=given.fitted.job.parent,
        runs=sorted(of_folder, key=lambda run: run.started, reverse=True),
        kept=CacheEntries(folder),
    )


def _condition(step: Step) -> str:
    return "" if step.when is None else step.when or "an expression"


def _why(step: Step, given: _Given) -> str:
    site = given.fitted.site
    if step.role in site.options:
        return f"--role {site.options[step.role]}"
    return f"roles.{step.role} of {shown(site.path)}"


def _known(bound: Mapping[str, Sequence[str]], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the tool's inputs that come from the job file, or from the workflow's own defaults."""
    return {name: values.get(sources[0]) for name, sources in bound.items() if len(sources) == 1}


def _scattered(step: Step) -> Iterator[str]:
    for port in step.definition.scatter:
        yield from step.reads.get(port, ())


def _sizes(given: _Given) -> tuple[dict[str, Size | None], list[Problem]]:
    """Sizes of the inputs that lie on this machine, and what is missing of them."""
    fitted, found, problems = given.fitted, {}, []
    for name in sorted(fitted.pipeline.data_inputs - set(fitted.site.inputs)):
        value = fitted.values.get(name)
        folder = fitted.job.parent
        if value is None:
            value, folder = fitted.pipeline.defaults.get(name), fitted.pipeline.path.parent
        if value is None:
            continue
        try:
            found[name] = size_of(value, folder)
        except OSError as error:  # only its reason: names of files below may be names of people
            problems.append(
                Problem(
                    what=f"{_place_of_missing(fitted, name, value, folder)}the input '{name}' cannot be read.",
                    seen=f"{error.strerror}: {_path_in(value)}",
                    expected=f"what {shown(fitted.job)} names, on this machine, with all that it leads to",
                    do="correct the path, or make it first; an input that lies at a site stands under `inputs` of the site file",
                )
            )
    return found, problems


def _inputs(given: _Given, sizes: Mapping[str, Size | None]) -> Iterator[Input]:
    for name in given.fitted.pipeline.process.inputs:
        if name in given.fitted.pipeline.data_inputs and given.flow.values.get(name) is not None:
            size = sizes.get(name)
            yield Input(
                name=name,
                place=given.place_of(name),
                classes=given.classes_of(name),
                num_files=size.num_files if size else None,
                num_bytes=size.num_bytes if size else None,
            )


def _place_of_missing(fitted: Fitted, name: str, value: Any, folder: Path) -> str:
    """`jobs/demo.yml:3: scans[0].path: `, of the first that is not there; empty where it is all there, or a default."""
    field = next((field for field, _ in missing_in(value, folder, (name,))), None)
    if field is None or name not in fitted.values:
        return ""
    line = line_of(fitted.job, field)
    file = f"{_job(fitted.job)}:{line}" if fitted.job.parent.name == JOBS else f"line {line} of the job file"
    return f"{file}: {spelled(field)}: "


def _path_in(value: Any) -> str:
    return str(value.get(place_key(value))) if isinstance(value, Mapping) else "one of several paths"


def _moves(given: _Given, sizes: Mapping[str, Size | None]) -> Iterator[Move]:
    pairs: dict[tuple[str | None, str | None], dict[str, list[Edge]]] = {}
    for edge in edges(given.flow, given.place_of, _data_sources(given)):
        pairs.setdefault((edge.source, edge.destination), {}).setdefault(edge.name, []).append(edge)
    for (source, destination), by_name in pairs.items():
        earlier, routes = given.past.moved(source, destination)
        yield Move(
            source=source,
            destination=destination,
            ways=tuple(ways(source, destination, given.fitted.site.transfers)),
            items=tuple(_item(given, name, of_name, sizes.get(name)) for name, of_name in by_name.items()),
            earlier_bytes=earlier,
            earlier_routes=routes,
        )


def _item(given: _Given, name: str, of_name: Sequence[Edge], size: Size | None) -> Item:
    return Item(
        name=name,
        classes=given.classes_of(name),
        needed_by=tuple(dict.fromkeys(edge.needed_by for edge in of_name)),
        num_files=size.num_files if size else None,
        num_bytes=size.num_bytes if size else None,
    )


def _data_sources(given: _Given) -> set[str]:
    """The inputs and outputs that are files or folders; of a tool that stands in the workflow itself, all outputs."""
    found = set(given.fitted.pipeline.data_inputs)
    for step in given.fitted.pipeline.steps:
        tool = given.tools.get(step.path)
        for name in step.writes:
            parameter = tool.outputs.get(name) if tool else None
            if parameter is None or has_files(parameter.type, any_counts=True):
                found.add(f"{step.path.lstrip('/')}/{name}")
    return found


def _holdings(given: _Given, moves: Sequence[Move]) -> Iterator[Holding]:
    """What comes to lie at each place, in the order in which the steps reach them."""
    fitted, gets = given.fitted, dict[str | None, list[str]]()
    for step in given.flow.ordered():
        if given.flow.runs(step) is not False:
            classes = held(given.carries[step.path]) if given.carries is not None else []
            gets.setdefault(given.place_of(step.path), []).extend(classes)
    for name in fitted.pipeline.data_inputs:
        if given.flow.values.get(name) is not None:
            gets.setdefault(given.place_of(name), []).extend(given.classes_of(name) or ())
    for move in moves:
        into = gets.setdefault(move.destination, [])
        for item in move.items:
            into.extend(item.classes or ())
    rules = fitted.site.may_hold
    for place, classes in gets.items():
        allowed = (fitted.held.driver if place is HERE else rules.get(place, ())) if fitted.held is not None else None
        yield Holding(
            place=place,
            gets=tuple(most_sensitive_first(set(classes))) if given.carries is not None else None,
            may_hold=None if allowed is None else tuple(allowed),
        )
