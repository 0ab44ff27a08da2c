"""Which class of data each input and output of a workflow's steps carries: by its edges, from what roles.yml says. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from medweave.project.workflows import Pipeline, Step
from medweave_connectors.policy.data_classes import DEFINITION, WORKFLOW, most_sensitive_first

AS_READ = "as-read"  # of people, like what the step reads
OF_PEOPLE = ("identified", "de-identified", "derived")  # the one that tells most of them first

Ports = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The block `holds` of roles.yml.

    Attributes:
        inputs: class by name of an input of the workflow.
        outputs: by role, a class for all that its steps write, or one by name of the output; `as-read` is none of its own.
    """

    inputs: Mapping[str, str]
    outputs: Mapping[str, str | Mapping[str, str]]

    def written(self, role: str, output: str) -> str | None:
        """What is said of an output of the steps of a role; None if nothing is."""
        of_role = self.outputs.get(role)
        return of_role.get(output) if isinstance(of_role, Mapping) else of_role


@dataclass(slots=True)
class _Walk:
    pipeline: Pipeline
    said: Said
    values: Mapping[str, Any]
    reads: dict[str, Ports] = field(default_factory=dict)

    def of_source(self, source: str) -> tuple[list[str], bool]:
        """The classes of a source, and whether it has a value in any case."""
        name, _, output = source.partition("/")
        if not output:
            return ([self.said.inputs[source]] if source in self.said.inputs else []), self.values.get(
                source
            ) is not None
        step = next(each for each in self.pipeline.steps if each.path == f"/{name}")
        is_run = runs(step, self.values)
        return ([] if is_run is False else [self.of_output(step, output)]), is_run is True

    def of_output(self, step: Step, output: str) -> str:
        said = self.said.written(step.role, output)
        assert said is not None, "looked after before"
        return (
            as_read(each for classes in self.of_inputs(step).values() for each in classes) if said == AS_READ else said
        )

    def of_inputs(self, step: Step) -> Ports:
        if step.path not in self.reads:
            self.reads[step.path] = self.bound(step.reads, step.firsts)
        return self.reads[step.path]

    def bound(self, ports: Mapping[str, Iterable[str]], firsts: Container[str]) -> Ports:
        found = {}
        for name, sources in ports.items():
            classes: list[str] = []
            for more, is_sure in map(self.of_source, sources):
                classes += more
                if is_sure and name in firsts:
                    break  # the others are not asked
            if classes:
                found[name] = tuple(most_sensitive_first(classes))
        return found


def runs(step: Step, values: Mapping[str, Any]) -> bool | None:
    """Whether a step runs; None where that is not known before.

    Args:
        values: of the workflow's inputs, with their defaults.
    """
    if step.when is None:
        return True
    value = values.get(step.when)
    return value if isinstance(value, bool) else None


def carried(pipeline: Pipeline, said: Said, values: Mapping[str, Any] | None = None) -> dict[str, Ports]:
    """Classes by step and port, those of the workflow's own inputs and outputs under `/`. A port without data has none.

    Args:
        said: for each output of each step, and for each input with data.
        values: of the workflow's inputs, as far as they are known; they say which steps run. One that does not carries nothing.
    """
    walk = _Walk(pipeline, said, dict(pipeline.defaults) | dict(values or {}))
    inputs = {name: (said.inputs[name],) for name in said.inputs if name in pipeline.inputs}
    found = {WORKFLOW: _joined(inputs, walk.bound(pipeline.outputs, pipeline.firsts))}
    for step in pipeline.steps:
        writes = {name: (walk.of_output(step, name),) for name in step.writes}
        of_definition = dict.fromkeys(sorted(step.definition_files), (DEFINITION,))
        is_run = runs(step, walk.values) is not False
        found[step.path] = {**of_definition, **_joined(walk.of_inputs(step), writes)} if is_run else {}
    return found


def _joined(reads: Ports, writes: Ports) -> Ports:
    """Both; an input and an output of one name carry the classes of both."""
    return {
        name: tuple(most_sensitive_first((*reads.get(name, ()), *writes.get(name, ())))) for name in {**reads, **writes}
    }


def as_read(classes: Iterable[str]) -> str:
    """The class of people's data that a step makes of what it reads without taking anything away."""
    read = set(classes)
    return next((each for each in OF_PEOPLE if each in read), OF_PEOPLE[-1])


def held(ports: Ports) -> list[str]:
    """The classes of all that a step reads and writes."""
    return most_sensitive_first(each for classes in ports.values() for each in classes)
