"""The crate of a run."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave.crate.actions import Actions
from medweave.crate.classes import classes_of
from medweave.crate.data import Data
from medweave.crate.description import WorkflowEntities
from medweave.crate.entities import Entities
from medweave.crate.hosts import hosts_of
from medweave.crate.included import Included, include
from medweave.crate.workflow import Definition, read_definition
from medweave.validate.secrets import check_text
from medweave_core.contracts.model import RESEARCH_USE_ONLY
from medweave_core.documents.cwl_reader import CwlReader
from medweave_core.documents.line_numbers import shown
from medweave_core.errors import UserInputError
from medweave_core.runlog.history import Run

PROFILES = (
    ("https://w3id.org/ro/wfrun/process/0.5", "Process Run Crate", "0.5"),
    ("https://w3id.org/ro/wfrun/workflow/0.5", "Workflow Run Crate", "0.5"),
    ("https://w3id.org/ro/wfrun/provenance/0.5", "Provenance Run Crate", "0.5"),
    ("https://w3id.org/workflowhub/workflow-ro-crate/1.0", "Workflow RO-Crate", "1.0"),
)
NO_LICENSE = "No license. Contact the people who share this crate."


@dataclass(frozen=True, slots=True)
class Made:
    """A crate that is not written yet, and its files."""

    crate: Any
    included: Included


def make(record: Run, workflow: Path, *, outputs: Path | None, hosts: bool) -> Made:
    """Return the crate of a run.

    Args:
        workflow: its document.
        outputs: the folder of delivered outputs, to include files from it; None to include none.
        hosts: whether names of hosts are included.

    Raises:
        UserInputError: the workflow's documents are not those of the run, or hold a secret; no job of the run began.
    """
    reader = CwlReader()
    definition = read_definition(workflow, reader)
    check_documents(record, definition)
    if not any(job.inputs or job.outputs for job in record.jobs):
        raise UserInputError(
            f"run {record.run_id} has no data records.",
            seen="no event of type job.data",
            expected="a run in which a job started, with this version of medweave or a later one",
            do="run the workflow again, and export the new run",
        )
    names, classes = hosts_of(record), classes_of(workflow, record, reader)
    included = include(outputs, record, definition, classes, None if hosts else names) if outputs else Included()
    entities = Entities()
    workflow_entities = WorkflowEntities(entities, definition)
    data = Data(entities, included.by_digest)
    run = Actions(entities, workflow_entities, data, classes, names, with_hosts=hosts).add(record)
    _root(entities, record, definition, run)
    _single_values(entities)
    return Made(entities.crate, included)


def check_documents(record: Run, definition: Definition) -> None:
    """Check that the documents are those of the run.

    Raises:
        UserInputError: one differs, or holds what looks like a secret.
    """
    folder, known = definition.path.parent, record.facts.get("documents") or {}
    for name in definition.documents:
        path = folder / name
        if known.get(name) != hashlib.sha256(path.read_bytes()).hexdigest():
            raise UserInputError(
                f"{shown(path)}: this document has changed since run {record.run_id}.",
                seen="different content" if name in known else "a document that the run did not read",
                expected="the workflow as it was when the run started",
                do="restore that version (git checkout), then export",
            )
        if finding := next(iter(check_text(path)), None):
            raise UserInputError(
                f"{shown(path)}:{finding.line}: {finding.what}",
                seen=finding.seen,
                expected=finding.expected,
                do=finding.fix,
            )


def write(crate: Any, path: Path) -> None:
    """Write a crate to a folder or, if the name ends with .zip, to a file; complete or not at all.

    Raises:
        UserInputError: it is there already.
    """
    if path.exists() or path.is_symlink():
        raise UserInputError(
            f"{shown(path)} exists already.", seen="a file or folder", expected="a path that does not exist",
            do="choose another path, or remove the existing one",
        )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        if path.suffix == ".zip":
            crate.write_zip(part / path.name)
            (part / path.name).replace(path)
        else:
            crate.write(part / "crate")
            (part / "crate").replace(path)
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(part)


def _root(entities: Entities, record: Run, definition: Definition, run: Any) -> None:
    crate = entities.crate
    crate.name = f"{definition.label or record.workflow}: run {record.run_id}"
    about = f"Record of a medweave run: content digests without the data. State: {record.state}."
    crate.description = f"{about} {definition.doc} {RESEARCH_USE_ONLY}"
    crate.datePublished = record.started.isoformat(timespec="seconds")
    crate.license = NO_LICENSE
    crate.root_dataset["conformsTo"] = _profiles(entities, PROFILES)
    crate.root_dataset.append_to("mentions", run)


def _single_values(entities: Entities) -> None:
    """Replace lists of one value by that value, as RO-Crate recommends."""
    for entity in entities.crate.get_entities():
        for name in list(entity.properties()):
            value = entity.get(name)
            if isinstance(value, list) and len(value) == 1 and not name.startswith("@"):
                entity[name] = value[0]


def _profiles(entities: Entities, profiles: Sequence[tuple[str, str, str]]) -> list[Any]:
    return [
        entities.add(address, "CreativeWork", {"name": name, "version": version}) for address, name, version in profiles
    ]
