"""StreamFlow's step that executes the jobs of a tool, with everything that medweave adds to it."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from streamflow.core.workflow import Job
from streamflow.cwl.step import CWLExecuteStep

from medweave_connectors.engine.data.origin import RecordsDataClasses
from medweave_connectors.engine.steps.cached_step import CachedStep
from medweave_connectors.engine.steps.partial_failures import ToleratesFailures
from medweave_connectors.engine.steps.provenance import RecordsProvenance
from medweave_connectors.host.errors import OutputNotCollected, StreamBroke, TransferFailed
from medweave_connectors.jobs.job_errors import event_message, note_job_error, storage_error


class MedweaveExecuteStep(ToleratesFailures, RecordsProvenance, RecordsDataClasses, CachedStep, CWLExecuteStep):
    """Adds to each job: the cause of its failure, partial failures, provenance, data classes and the cache, in this order."""

    async def _execute_command(self, job: Job, connectors: MutableMapping[str, Any]) -> None:
        try:
            await super()._execute_command(job, connectors)
        except Exception as error:
            note_job_error(job.name, error)
            raise

    async def _retrieve_output(
        self, job: Job, output_name: str, output_port: Any, command_output: Any, connector: Any = None
    ) -> None:
        try:
            await super()._retrieve_output(job, output_name, output_port, command_output, connector)
        except (TransferFailed, StreamBroke):
            raise
        except Exception as error:
            if storage_error(error) is not None:
                raise
            raise output_error(output_name, self.output_processors[output_name], error) from error


def output_error(output: str, processor: Any, error: Exception) -> OutputNotCollected:
    """Return the error of an output that StreamFlow could not collect, with the patterns of its `glob`.

    Args:
        processor: StreamFlow's, of this output; processors of unions and lists hold others.
        error: StreamFlow's, whose text may contain names of files.
    """
    patterns = list(dict.fromkeys(_glob_patterns(processor)))
    globs = f" by glob {', '.join(map(repr, patterns))}" if patterns else ""
    return OutputNotCollected(
        output,
        seen=event_message(error),
        expected=f"a value of the type that the tool declares for '{output}'{globs}",
        do="correct `outputBinding` of the output, or let the command write such a file, or make the output optional",
    )


def _glob_patterns(processor: Any) -> Iterator[str]:
    glob = getattr(processor, "glob", None)
    yield from map(str, glob if isinstance(glob, list) else [glob] if glob else [])
    for part in (getattr(processor, "processor", None), *(getattr(processor, "processors", None) or ())):
        if part is not None and not isinstance(part, str):
            yield from _glob_patterns(part)
