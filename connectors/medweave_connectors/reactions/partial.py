"""A failed job of a scatter that takes no other with it: the run delivers what the others made, and says what is missing.

StreamFlow ends a step, and with it the run, at the first job that fails. What it gathers at a step's end is what came, so a job
whose failure is not the step's leaves its place out of the outputs; the run's record keeps its name and decides about the end.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import PurePosixPath
from typing import Any

import streamflow.cwl.translator
from streamflow.core.workflow import Job, Status
from streamflow.cwl.step import CWLExecuteStep

from medweave_connectors import requests
from medweave_connectors.provenance.step import TellsData
from medweave_connectors.record import current
from medweave_connectors.reuse.step import ReusesWork
from medweave_connectors.transfer.origin import NotesClasses


class MedweaveExecuteStep(TellsData, NotesClasses, ReusesWork, CWLExecuteStep):  # type: ignore[misc]
    """Goes on after a failed job where the step's hint medweave:Partial, or the file, says so."""

    async def _run_job(
        self, job: Job, inputs: MutableMapping[str, Any], connectors: MutableMapping[str, Any]
    ) -> Status:
        status = await super()._run_job(job, inputs, connectors)
        run = current()
        if status is not Status.FAILED or self.terminated or run is None:
            return status
        allowed = run.partial == "all" or (run.partial == "marked" and requests.hints_of(job.name).partial)
        if not (allowed and _is_one_of_many(job.name) and run.leave_out(job.name)):
            return status
        return Status.COMPLETED


def _is_one_of_many(job_name: str) -> bool:
    return "." in PurePosixPath(job_name).name  # `0.3`: the fourth of a scatter


def install() -> None:
    """Puts it in the place where StreamFlow's translator looks its step up."""
    streamflow.cwl.translator.CWLExecuteStep = MedweaveExecuteStep
