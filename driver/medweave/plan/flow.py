"""The graph of a workflow with a job file's values: which steps run, in which order, and what moves between places. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from medweave.placement.declared_classes import runs
from medweave.plan.document import Way
from medweave.project.workflows import Pipeline, Step
from medweave_connectors.transfer.routes.direct.commands import PORTS
from medweave_core.documents.line_numbers import shown
from medweave_core.errors import UserInputError

RESULTS = "results"
HERE = None  # the machine that drives the run


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Something that is needed at another place than where it lies.

    Attributes:
        name: an input of the workflow, or the output of a step, as CWL's `source` names it.
        source, destination: deployments; None for the machine that drives the run.
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

    def step(self, name: str) -> Step:
        """The step that a source `name/output` names."""
        return next(step for step in self.pipeline.steps if step.path == f"/{name}")

    def runs(self, step: Step) -> bool | None:
        """Whether a step runs; None where that is not known before."""
        return runs(step, self.values)

    def sources(self, listed: Iterable[str], is_first: bool) -> Iterator[str]:
        """Of what an input is bound to, what has a value; up to the first one that surely has where that is taken."""
        for source in listed:
            name, _, output = source.partition("/")
            is_run = self.runs(self.step(name)) if output else self.values.get(source) is not None
            if is_run is False:
                continue
            yield source
            if is_run and is_first:
                return

    def read(self, step: Step) -> Iterator[tuple[str, str]]:
        """(input, source) of all that a step reads."""
        for port, listed in step.reads.items():
            for source in self.sources(listed, port in step.firsts):
                yield port, source

    def after(self, step: Step) -> list[str]:
        """Paths of the steps whose outputs a step reads."""
        return list(dict.fromkeys(f"/{source.partition('/')[0]}" for _, source in self.read(step) if "/" in source))

    def ordered(self) -> list[Step]:
        """The steps, each after those that it reads from; else as the document has them.

        Raises:
            UserInputError: some wait for each other.
        """
        left, done = {step.path: step for step in self.pipeline.steps}, []
        while left:
            ready = next((step for step in left.values() if not set(self.after(step)) & set(left)), None)
            if ready is None:
                raise UserInputError(
                    f"{shown(self.pipeline.path)}: some steps wait for each other.", seen=", ".join(left),
                    expected="steps that can be put in an order", do="run `medweave validate`, which shows the circle",
                )  # fmt: skip
            done.append(left.pop(ready.path))
        return done


def edges(flow: Flow, place_of: Callable[[str], str | None], is_data: Container[str]) -> Iterator[Edge]:
    """What has to move.

    Args:
        place_of: where an input of the workflow, or a step's path, lies or runs.
        is_data: the sources that are files or folders.
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


def ways(source: str | None, destination: str | None, settings: Mapping[str, Any]) -> list[Way]:
    """The routes that a copy may take, best first, as the data manager tries them.

    Args:
        settings: `transfers` of the site file.
    """
    if source is HERE:
        return [Way(route="from-driver", condition="this machine sends it")]
    if destination is HERE:
        return [Way(route="to-driver", condition="this machine fetches it")]
    found = []
    if settings.get("sameFileSystem", True):
        found.append(Way(route="same-file-system", condition="if both see the same files"))
    if settings.get("direct", True):
        first, last = settings.get("directPorts") or PORTS
        found.append(
            Way(route="direct", condition=f"if one reaches the other at a port from {first} to {last}; from 1 MiB on")
        )
    if bucket := settings.get("bucket"):
        found.append(Way(route="bucket", condition=f"if both reach the bucket '{bucket['bucket']}'; from 1 MiB on"))
    return [*found, Way(route="through-driver", condition="else" if found else "the site file switches other ways off")]
