"""The data classes of each input and output of a workflow's steps, derived along its edges from roles.yml. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from medweave.project.workflows import Pipeline, RoleStep
from medweave_connectors.policy.data_classes import DEFINITION, WORKFLOW, most_sensitive_first

AS_READ = "as-read"  # the class of the patient data that the step reads
OF_PEOPLE = ("identified", "de-identified", "derived")  # most sensitive first

Ports = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredClasses:
    """The block `holds` of roles.yml.

    Attributes:
        inputs: class by name of an input of the workflow.
        outputs: by role, one class for all outputs of its steps, or a class by name of the output; may be `as-read`.
    """

    inputs: Mapping[str, str]
    outputs: Mapping[str, str | Mapping[str, str]]

    def written(self, role: str, output: str) -> str | None:
        """Return the declared class of an output of the steps of a role; None if not declared."""
        of_role = self.outputs.get(role)
        return of_role.get(output) if isinstance(of_role, Mapping) else of_role


@dataclass(slots=True)
class _Walk:
    pipeline: Pipeline
    declared: DeclaredClasses
    values: Mapping[str, Any]
    reads: dict[str, Ports] = field(default_factory=dict)

    def of_source(self, source: str) -> tuple[list[str], bool]:
        """Return the classes of a source, and whether it certainly has a value."""
        name, _, output = source.partition("/")
        if not output:
            return ([self.declared.inputs[source]] if source in self.declared.inputs else []), self.values.get(
                source
            ) is not None
        step = next(step for step in self.pipeline.steps if step.path == f"/{name}")
        is_running = runs(step, self.values)
        return ([] if is_running is False else [self.of_output(step, output)]), is_running is True

    def of_output(self, step: RoleStep, output: str) -> str:
        declared = self.declared.written(step.role, output)
        assert declared is not None, "read_declared_classes checks that each output has a class"
        return (
            as_read(data_class for classes in self.of_inputs(step).values() for data_class in classes)
            if declared == AS_READ
            else declared
        )

    def of_inputs(self, step: RoleStep) -> Ports:
        if step.path not in self.reads:
            self.reads[step.path] = self.bound(step.reads, step.firsts)
        return self.reads[step.path]

    def bound(self, ports: Mapping[str, Iterable[str]], firsts: Container[str]) -> Ports:
        by_port = {}
        for name, sources in ports.items():
            classes: list[str] = []
            for source_classes, is_sure in map(self.of_source, sources):
                classes += source_classes
                if is_sure and name in firsts:
                    break  # later sources are not used
            if classes:
                by_port[name] = tuple(most_sensitive_first(classes))
        return by_port


def runs(step: RoleStep, values: Mapping[str, Any]) -> bool | None:
    """Return whether a step runs; None if only the run can decide.

    Args:
        values: of the workflow's inputs, with their defaults.
    """
    if step.when is None:
        return True
    value = values.get(step.when)
    return value if isinstance(value, bool) else None


def classes_of_ports(
    pipeline: Pipeline, declared: DeclaredClasses, values: Mapping[str, Any] | None = None
) -> dict[str, Ports]:
    """Return the data classes by step and port; those of the workflow's inputs and outputs under `/`.

    Args:
        declared: classes of each output of each step, and of each input with data.
        values: of the workflow's inputs, as far as they are known; they decide which steps run. A step that does not run has no
            classes.
    """
    walk = _Walk(pipeline, declared, dict(pipeline.defaults) | dict(values or {}))
    inputs = {name: (declared.inputs[name],) for name in declared.inputs if name in pipeline.inputs}
    classes_by_step = {WORKFLOW: _joined(inputs, walk.bound(pipeline.outputs, pipeline.firsts))}
    for step in pipeline.steps:
        writes = {name: (walk.of_output(step, name),) for name in step.writes}
        of_definition = dict.fromkeys(sorted(step.definition_files), (DEFINITION,))
        is_running = runs(step, walk.values) is not False
        classes_by_step[step.path] = {**of_definition, **_joined(walk.of_inputs(step), writes)} if is_running else {}
    return classes_by_step


def _joined(reads: Ports, writes: Ports) -> Ports:
    """Return the classes of inputs and outputs; an input and an output of one name have the classes of both."""
    return {
        name: tuple(most_sensitive_first((*reads.get(name, ()), *writes.get(name, ())))) for name in {**reads, **writes}
    }


def as_read(classes: Iterable[str]) -> str:
    """Return the class of a step's outputs if it removes nothing from the patient data that it reads."""
    read = set(classes)
    return next((data_class for data_class in OF_PEOPLE if data_class in read), OF_PEOPLE[-1])


def classes_in(ports: Ports) -> list[str]:
    """Return the classes of all inputs and outputs of a step."""
    return most_sensitive_first(data_class for classes in ports.values() for data_class in classes)
