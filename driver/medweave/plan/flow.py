"""The graph of a workflow with the values of a job file: steps that run, their order, and transfers between places. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from medweave.placement.declared_classes import runs
from medweave.plan.document import PlannedRoute
from medweave.project.workflows import Pipeline, RoleStep
from medweave_connectors.transfer.routes.direct.commands import PORTS
from medweave_core.documents.line_numbers import shown
from medweave_core.errors import UserInputError

RESULTS = "results"
HERE = None  # the driver's machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Data that must be transferred to another place.

    Attributes:
        name: an input of the workflow, or the output of a step, as CWL's `source` names it.
        source, destination: deployments; None for the driver's machine.
        needed_by: path of a step, or `results`.
    """

    name: str
    source: str | None
    destination: str | None
    needed_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A workflow with values for its inputs.

    Attributes:
        values: of its inputs, with their defaults.
    """

    pipeline: Pipeline
    values: Mapping[str, Any]

    def step(self, name: str) -> RoleStep:
        """Return the step of a source `name/output`."""
        return next(step for step in self.pipeline.steps if step.path == f"/{name}")

    def runs(self, step: RoleStep) -> bool | None:
        """Return whether a step runs; None if only the run can decide."""
        return runs(step, self.values)

    def sources(self, listed: Iterable[str], is_first: bool) -> Iterator[str]:
        """Yield the sources that may have a value; with `is_first`, up to the first one that certainly has."""
        for source in listed:
            name, _, output = source.partition("/")
            is_run = self.runs(self.step(name)) if output else self.values.get(source) is not None
            if is_run is False:
                continue
            yield source
            if is_run and is_first:
                return

    def read(self, step: RoleStep) -> Iterator[tuple[str, str]]:
        """Yield input and source of all that a step reads."""
        for port, listed in step.reads.items():
            for source in self.sources(listed, port in step.firsts):
                yield port, source

    def after(self, step: RoleStep) -> list[str]:
        """Return the paths of the steps whose outputs a step reads."""
        return list(dict.fromkeys(f"/{source.partition('/')[0]}" for _, source in self.read(step) if "/" in source))

    def ordered(self) -> list[RoleStep]:
        """Return the steps in an order of execution; where several are possible, in the order of the document.

        Raises:
            UserInputError: the graph has a cycle.
        """
        waiting, ordered = {step.path: step for step in self.pipeline.steps}, []
        while waiting:
            ready = next((step for step in waiting.values() if not set(self.after(step)) & set(waiting)), None)
            if ready is None:
                raise UserInputError(
                    f"{shown(self.pipeline.path)}: steps depend on each other in a cycle.", seen=", ".join(waiting),
                    expected="a workflow without cycles", do="run `medweave validate`, which shows the cycle",
                )  # fmt: skip
            ordered.append(waiting.pop(ready.path))
        return ordered


def edges(flow: Flow, place_of: Callable[[str], str | None], is_data: Container[str]) -> Iterator[Edge]:
    """Yield the transfers.

    Args:
        place_of: returns the place of an input of the workflow, or of a step by its path.
        is_data: sources that are files or folders.
    """
    for step in flow.ordered():
        if flow.runs(step) is not False:
            for _, source in flow.read(step):
                if source in is_data:
                    yield from _edge(source, place_of, place_of(step.path), step.path)
    for name, listed in flow.pipeline.outputs.items():
        for source in flow.sources(listed, name in flow.pipeline.firsts):
            if source in is_data:
                yield from _edge(source, place_of, HERE, RESULTS)


def _edge(
    source: str, place_of: Callable[[str], str | None], destination: str | None, needed_by: str
) -> Iterator[Edge]:
    name, _, output = source.partition("/")
    lies = place_of(f"/{name}" if output else name)
    if lies != destination:
        yield Edge(name=source, source=lies, destination=destination, needed_by=needed_by)


def routes_between(source: str | None, destination: str | None, settings: Mapping[str, Any]) -> list[PlannedRoute]:
    """Return the routes of a copy in the order in which the data manager tries them.

    Args:
        settings: `transfers` of the site file.
    """
    if source is HERE:
        return [PlannedRoute(route="from-driver", condition="sent by this machine")]
    if destination is HERE:
        return [PlannedRoute(route="to-driver", condition="fetched by this machine")]
    routes = []
    if settings.get("sameFileSystem", True):
        routes.append(PlannedRoute(route="same-file-system", condition="if both sites see the same file system"))
    if settings.get("direct", True):
        first, last = settings.get("directPorts") or PORTS
        routes.append(
            PlannedRoute(
                route="direct",
                condition=f"if one site reaches the other on a port from {first} to {last}; for copies of 1 MiB or more",
            )
        )
    if bucket := settings.get("bucket"):
        routes.append(
            PlannedRoute(
                route="bucket",
                condition=f"if both sites reach the bucket '{bucket['bucket']}'; for copies of 1 MiB or more",
            )
        )
    return [
        *routes,
        PlannedRoute(
            route="through-driver", condition="otherwise" if routes else "the site file disables the other routes"
        ),
    ]
