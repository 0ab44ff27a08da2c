"""Which class of data the files of a run have: by the workflow's roles.yml, else none is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from medweave.placement.data_rules import read_declared_classes
from medweave.placement.declared_classes import Ports, classes_of_ports
from medweave.project.workflows import ROLES_FILE, read_pipeline
from medweave_core.documents.cwl_reader import CwlReader
from medweave_core.runlog.history import Run

UNKNOWN = "not known"
SHARED = frozenset(("aggregate", "model"))  # what a crate may hold


@dataclass(frozen=True, slots=True)
class Classes:
    """By path of a step, and name of its input or output."""

    ports: Mapping[str, Ports]

    def of(self, step: str, name: str) -> tuple[str, ...]:
        """Those of a port; none where nothing is known."""
        return tuple(self.ports.get(step, {}).get(name, ()))


def classes_of(workflow: Path, record: Run, reader: CwlReader) -> Classes:
    """The classes of all ports, by what ran; a workflow without roles.yml has none."""
    if not (workflow.parent / ROLES_FILE).is_file():
        return Classes({})
    pipeline = read_pipeline(workflow, reader)
    if pipeline.holds is None:
        return Classes({})
    begun = {job.step for job in record.jobs}
    values = {step.when: step.path in begun for step in pipeline.steps if step.when and record.state == "completed"}
    return Classes(classes_of_ports(pipeline, read_declared_classes(pipeline), values))
