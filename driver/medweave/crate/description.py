"""The workflow in a crate: its documents, tools, parameters, steps and connections."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from medweave.crate.entities import Entities, fragment
from medweave.crate.workflow import CrateParameter, CrateStep, Definition, FormalPort, Tool

FOLDER = "workflow"  # in the crate
CWL = "https://w3id.org/workflowhub/workflow-ro-crate#cwl"
PARAMETER_PROFILE = "https://bioschemas.org/profiles/FormalParameter/1.0-RELEASE"


class WorkflowEntities:
    """Adds a workflow to a crate.

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
        """Return the entity of a tool."""
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

    def parameter(self, step: CrateStep | None, name: str, *, output: bool) -> Any:
        """Return the entity of an input or output of a step's tool, or of the workflow; None if the crate has no such entity."""
        owner = self.workflow if step is None else self.tool(step.tool)
        return self._entities.crate.get(_parameter_id(owner, name, "out" if output else "in"))

    def step(self, step: CrateStep) -> Any:
        """Return the entity of a step."""
        return self._entities.crate.get(_step_id(step.path))

    def add_steps(self, ran: Iterable[str]) -> None:
        """Add the steps with their connections.

        Args:
            ran: paths of the steps that ran: the profile requires an action for each tool of the workflow.
        """
        by_path = {step.path: step for step in self.definition.steps}
        for position, step in enumerate(self.definition.steps):
            entity = self._entities.add(
                _step_id(step.path), "HowToStep",
                {"name": step.path.strip("/"), "position": str(position), "workExample": self.tool(step.tool)},
            )  # fmt: skip
            self.workflow.append_to("step", entity)
            candidates = [
                self._connection(self._source(port, by_path), self.parameter(step, name, output=False), f"{step.path}/{name}")
                for name, ports in step.sources.items()
                for port in ports
            ]  # fmt: skip
            if connections := [connection for connection in candidates if connection is not None]:
                entity["connection"] = connections
        for name, ports in self.definition.results.items():
            for port in ports:
                connection = self._connection(
                    self._source(port, by_path), self.parameter(None, name, output=True), name
                )
                if connection is not None:
                    self.workflow.append_to("connection", connection)
        tools = {entity.id: entity for path in ran if path in by_path for entity in [self.tool(by_path[path].tool)]}
        self.workflow["hasPart"] = list(tools.values())

    def _source(self, port: FormalPort, by_path: dict[str, CrateStep]) -> Any:
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
            if parameter_entities := self._parameters(entity, parameters, kind):
                entity[name] = parameter_entities
        return entity

    def _parameters(self, owner: Any, parameters: Sequence[CrateParameter], kind: str) -> list[Any]:
        profile = self._entities.add(
            PARAMETER_PROFILE, "CreativeWork", {"name": "FormalParameter", "version": "1.0-RELEASE"}
        )
        return [
            self._entities.add(
                _parameter_id(owner, parameter.name, kind), "FormalParameter",
                {"name": parameter.name, "additionalType": parameter.kind, "description": parameter.doc,
                 "multipleValues": str(parameter.many), "valueRequired": str(parameter.required), "conformsTo": profile},
            )
            for parameter in parameters
        ]  # fmt: skip


def places_of(folder: Path, documents: Sequence[str]) -> dict[str, str]:
    """Return the paths of documents in a crate, with the same relative positions.

    Args:
        folder: of the workflow.
        documents: paths from there.
    """
    paths = {document: os.path.normpath(folder / document) for document in documents}
    root = os.path.commonpath([os.path.dirname(path) for path in paths.values()])  # noqa: PTH120 (texts)
    return {document: Path(FOLDER, os.path.relpath(path, root)).as_posix() for document, path in paths.items()}


def _parameter_id(owner: Any, name: str, kind: str) -> str:
    return fragment("parameter", owner.id, kind, name)


def _step_id(path: str) -> str:
    return fragment("step", path.strip("/"))
