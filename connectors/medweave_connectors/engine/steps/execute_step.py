"""StreamFlow's step that executes the jobs of a tool, with everything that medweave adds to it."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from streamflow.core.workflow import Job
from streamflow.cwl.step import CWLExecuteStep

from medweave_connectors.engine.data.origin import NotesClasses
from medweave_connectors.engine.job_errors import note_job_error, output_error, storage_error
from medweave_connectors.engine.steps.cached_step import ReusesOutputs
from medweave_connectors.engine.steps.partial_failures import ToleratesFailures
from medweave_connectors.engine.steps.provenance import RecordsProvenance
from medweave_connectors.host.errors import StreamBroke, TransferFailed


class MedweaveExecuteStep(ToleratesFailures, RecordsProvenance, NotesClasses, ReusesOutputs, CWLExecuteStep):  # type: ignore[misc]
    """Adds to each job: the cause of its failure, partial failures, provenance, data classes and the cache, in this order."""

    async def _execute_command(self, job: Job, connectors: MutableMapping[str, Any]) -> None:
        try:
            await super()._execute_command(job, connectors)
        except Exception as error:
            note_job_error(job.name, error)
            raise

    async def _retrieve_output(self, **keywords: Any) -> None:
        output_name = keywords["output_name"]
        try:
            await super()._retrieve_output(**keywords)
        except (TransferFailed, StreamBroke):
            raise
        except Exception as error:
            if storage_error(error) is not None:
                raise
            raise output_error(output_name, self.output_processors[output_name], error) from error
