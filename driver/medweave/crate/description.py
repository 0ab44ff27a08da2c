"""The workflow in a crate: its documents, tools, parameters, steps, and what is joined to what."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from medweave.crate.entities import Entities, fragment
from medweave.crate.workflow import Definition, Parameter, Port, Step, Tool

FOLDER = "workflow"  # in the crate
CWL = "https://w3id.org/workflowhub/workflow-ro-crate#cwl"
PARAMETER_PROFILE = "https://bioschemas.org/profiles/FormalParameter/1.0-RELEASE"


class Described:
    """Puts a workflow into a crate.

    Attributes:
        workflow: its entity.
        places: path in the crate by path from the workflow's folder.
    """

    def __init__(self, entities: Entities, definition: Definition) -> None:
        self._entities, self.definition = entities, definition
        self.places = places_of(definition.path.parent, definition.documents)
        self.language = entities.add(
            CWL, "ComputerLanguage",
            {"name": "Common Workflow Language", "alternateName": "CWL", "identifier": {"@id": "https://w3id.org/cwl/v1.2/"},
             "url": {"@id": "https://www.commonwl.org/"}, "version": "v1.2"},
        )  # fmt: skip
        for document, place in self.places.items():
            if document != definition.path.name:
                entities.crate.add_file(
                    definition.path.parent / document, place,
                    properties={"@type": ["File", "SoftwareSourceCode"], "name": Path(place).name,
                                "encodingFormat": "application/x-yaml", "programmingLanguage": {"@id": CWL}},
                )  # fmt: skip
        self.workflow = self._workflow()
        entities.crate.mainEntity = self.workflow

    def tool(self, tool: Tool) -> Any:
        """The entity of what a step runs."""
        place = self.places[tool.document]
        known = self._entities.crate.get(f"{place}#{tool.part}" if tool.part else place)
        if known is None:
            known = self._entities.add(f"{place}#{tool.part}", "SoftwareApplication", {"name": tool.part})
        if known.get("input") is None and known.get("output") is None:
            inputs = self._parameters(known, tool.inputs, "in")
            outputs = self._parameters(known, tool.outputs, "out")
            for name, value in (
                ("name", tool.label),
                ("description", tool.doc),
                ("input", inputs),
                ("output", outputs),
            ):
                if value:
                    known[name] = value
        return known

    def parameter(self, step: Step | None, name: str, *, output: bool) -> Any:
        """The entity of an input or output of a step's tool, or of the workflow; None where it has none of that name."""
        owner = self.workflow if step is None else self.tool(step.tool)
        return self._entities.crate.get(_parameter_id(owner, name, "out" if output else "in"))

    def step(self, step: Step) -> Any:
        """The entity of a step."""
        return self._entities.crate.get(_step_id(step.path))

    def add_steps(self, ran: Iterable[str]) -> None:
        """The steps, with what they read.

        Args:
            ran: paths of those that have run: the profile wants an action of each tool of the workflow.
        """
        by_path = {step.path: step for step in self.definition.steps}
        for position, step in enumerate(self.definition.steps):
            entity = self._entities.add(
                _step_id(step.path), "HowToStep",
                {"name": step.path.strip("/"), "position": str(position), "workExample": self.tool(step.tool)},
            )  # fmt: skip
            self.workflow.append_to("step", entity)
            joined = [
                self._connection(self._source(port, by_path), self.parameter(step, name, output=False), f"{step.path}/{name}")
                for name, ports in step.sources.items()
                for port in ports
            ]  # fmt: skip
            if found := [each for each in joined if each is not None]:
                entity["connection"] = found
        for name, ports in self.definition.results.items():
            for port in ports:
                joined_to = self._connection(self._source(port, by_path), self.parameter(None, name, output=True), name)
                if joined_to is not None:
                    self.workflow.append_to("connection", joined_to)
        tools = {entity.id: entity for path in ran if path in by_path for entity in [self.tool(by_path[path].tool)]}
        self.workflow["hasPart"] = list(tools.values())

    def _source(self, port: Port, by_path: dict[str, Step]) -> Any:
        if port.step == "/":
            return self.parameter(None, port.name, output=False)
        step = by_path.get(port.step)
        return None if step is None else self.parameter(step, port.name, output=True)

    def _connection(self, source: Any, target: Any, where: str) -> Any:
        if source is None or target is None:  # an input that only decides whether the step runs
            return None
        return self._entities.add(
            fragment("connection", source.id, "to", where), "ParameterConnection",
            {"sourceParameter": source, "targetParameter": target},
        )  # fmt: skip

    def _workflow(self) -> Any:
        definition, crate = self.definition, self._entities.crate
        entity = crate.add_file(
            definition.path, self.places[definition.path.name],
            properties={
                "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"],
                "name": definition.label or definition.path.stem, "programmingLanguage": {"@id": CWL},
                "encodingFormat": "application/x-yaml",
            },
        )  # fmt: skip
        if definition.doc:
            entity["description"] = definition.doc
        for name, parameters, kind in (("input", definition.inputs, "in"), ("output", definition.outputs, "out")):
            if found := self._parameters(entity, parameters, kind):
                entity[name] = found
        return entity

    def _parameters(self, owner: Any, parameters: Sequence[Parameter], kind: str) -> list[Any]:
        profile = self._entities.add(
            PARAMETER_PROFILE, "CreativeWork", {"name": "FormalParameter", "version": "1.0-RELEASE"}
        )
        return [
            self._entities.add(
                _parameter_id(owner, each.name, kind), "FormalParameter",
                {"name": each.name, "additionalType": each.kind, "description": each.doc, "multipleValues": str(each.many),
                 "valueRequired": str(each.required), "conformsTo": profile},
            )
            for each in parameters
        ]  # fmt: skip


def places_of(folder: Path, documents: Sequence[str]) -> dict[str, str]:
    """Where documents lie in a crate: as they lie to each other.

    Args:
        folder: of the workflow.
        documents: paths from there.
    """
    paths = {each: os.path.normpath(folder / each) for each in documents}
    root = os.path.commonpath([os.path.dirname(path) for path in paths.values()])  # noqa: PTH120 (texts)
    return {each: Path(FOLDER, os.path.relpath(path, root)).as_posix() for each, path in paths.items()}


def _parameter_id(owner: Any, name: str, kind: str) -> str:
    return fragment("parameter", owner.id, kind, name)


def _step_id(path: str) -> str:
    return fragment("step", path.strip("/"))
