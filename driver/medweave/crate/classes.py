"""The data classes of the files of a run, by the workflow's roles.yml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from medweave.placement.data_rules import read_declared_classes
from medweave.placement.declared_classes import Ports, classes_of_ports
from medweave.project.workflows import ROLES_FILE, read_pipeline
from medweave_core.documents.cwl_reader import CwlReader
from medweave_core.runlog.history import Run

UNKNOWN = "unknown"
SHARED = frozenset(("aggregate", "model"))  # what a crate may hold


@dataclass(frozen=True, slots=True)
class PortClasses:
    """Data classes by path of a step and name of its input or output."""

    ports: Mapping[str, Ports]

    def of(self, step: str, name: str) -> tuple[str, ...]:
        """Return the classes of a port; empty if unknown."""
        return tuple(self.ports.get(step, {}).get(name, ()))


def classes_of(workflow: Path, record: Run, reader: CwlReader) -> PortClasses:
    """Return the classes of all ports, for the steps that ran; empty for a workflow without roles.yml."""
    if not (workflow.parent / ROLES_FILE).is_file():
        return PortClasses({})
    pipeline = read_pipeline(workflow, reader)
    if pipeline.holds is None:
        return PortClasses({})
    begun = {job.step for job in record.jobs}
    values = {step.when: step.path in begun for step in pipeline.steps if step.when and record.state == "completed"}
    return PortClasses(classes_of_ports(pipeline, read_declared_classes(pipeline), values))
