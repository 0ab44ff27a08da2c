"""Partial failures: a failed job of a scatter whose step may lose jobs does not end the run.

StreamFlow ends a step, and with it the run, at the first job that fails. A step's output consists of what its jobs delivered, so a
failed job that the step tolerates is absent from it; the run's record lists the job, and decides how the run ended.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import PurePosixPath
from typing import Any

from streamflow.core.workflow import Job, Status
from streamflow.cwl.step import CWLExecuteStep

from medweave_connectors.jobs import job_requests
from medweave_connectors.runlog import current


class ToleratesFailures(CWLExecuteStep):
    """Mixin of an execute step: continue after a failed job if the hint medweave:Partial or the StreamFlow file allows it."""

    async def _run_job(
        self, job: Job, inputs: MutableMapping[str, Any], connectors: MutableMapping[str, Any]
    ) -> Status:
        status = await super()._run_job(job, inputs, connectors)
        run = current()
        if status is not Status.FAILED or self.terminated or run is None:
            return status
        allowed = run.partial == "all" or (run.partial == "marked" and job_requests.hints_of(job.name).partial)
        if not (allowed and _is_in_scatter(job.name) and run.leave_out(job.name)):
            return status
        return Status.COMPLETED


def _is_in_scatter(job_name: str) -> bool:
    return "." in PurePosixPath(job_name).name  # `0.3`: the fourth job of a scatter
