"""A failed job of a scatter that takes no other with it: the run delivers what the others made, and says what is missing.

StreamFlow ends a step, and with it the run, at the first job that fails. What it gathers at a step's end is what came, so a job
whose failure is not the step's leaves its place out of the outputs; the run's record keeps its name and decides about the end.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from pathlib import PurePosixPath
from typing import Any

import streamflow.cwl.translator
from streamflow.core.workflow import Job, Status
from streamflow.cwl.step import CWLExecuteStep

from medweave_connectors.engine.cached_step import ReusesWork
from medweave_connectors.engine.data.origin import RecordsDataClasses
from medweave_connectors.engine.job_errors import event_message, note_job_error, storage_error
from medweave_connectors.engine.provenance.step import TellsData
from medweave_connectors.host.errors import OutputNotCollected, StreamBroke, TransferFailed
from medweave_connectors.jobs import job_requests
from medweave_connectors.runlog import current


class MedweaveExecuteStep(TellsData, RecordsDataClasses, ReusesWork, CWLExecuteStep):  # type: ignore[misc]
    """Records why a job fails, and continues after it where the step's hint medweave:Partial, or the file, says so."""

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
            raise not_collected(output_name, self.output_processors[output_name], error) from error

    async def _run_job(
        self, job: Job, inputs: MutableMapping[str, Any], connectors: MutableMapping[str, Any]
    ) -> Status:
        status = await super()._run_job(job, inputs, connectors)
        run = current()
        if status is not Status.FAILED or self.terminated or run is None:
            return status
        allowed = run.partial == "all" or (run.partial == "marked" and job_requests.hints_of(job.name).partial)
        if not (allowed and _is_one_of_many(job.name) and run.leave_out(job.name)):
            return status
        return Status.COMPLETED


def not_collected(output: str, processor: Any, error: Exception) -> OutputNotCollected:
    """Return the error of an output that the engine could not collect, with the patterns of its `glob`.

    Args:
        processor: the engine's, of this output; those of unions and lists hold others.
        error: the engine's, whose words may name files.
    """
    patterns = list(dict.fromkeys(_patterns(processor)))
    globs = f" by glob {', '.join(map(repr, patterns))}" if patterns else ""
    return OutputNotCollected(
        output,
        seen=event_message(error),
        expected=f"a value of the type that the tool declares for '{output}'{globs}",
        do="correct `outputBinding` of the output, or let the command write such a file; make the output optional if it may lack",
    )


def _patterns(processor: Any) -> Iterator[str]:
    glob = getattr(processor, "glob", None)
    yield from map(str, glob if isinstance(glob, list) else [glob] if glob else [])
    inner = getattr(processor, "processor", None), *(getattr(processor, "processors", None) or ())
    for part in inner:
        if part is not None and not isinstance(part, str):
            yield from _patterns(part)


def _is_one_of_many(job_name: str) -> bool:
    return "." in PurePosixPath(job_name).name  # `0.3`: the fourth of a scatter


def install() -> None:
    """Puts it in the place where StreamFlow's translator looks its step up."""
    streamflow.cwl.translator.CWLExecuteStep = MedweaveExecuteStep
