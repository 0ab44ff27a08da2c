"""The run of this process. StreamFlow passes connectors no context; one `streamflow run` is one process and one run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medweave_connectors.runlog import console
from medweave_connectors.runlog.run import RunRecord
from medweave_core.errors import UsageError

_runs: dict[str, RunRecord] = {}


def plan(config: Mapping[str, Any]) -> RunRecord:
    """Return the run record for a context that StreamFlow builds, the same one for each manager of a file.

    Args:
        config: the parsed streamflow.yml, with its absolute path under `path`.

    Raises:
        SystemExit: the run id is refused; StreamFlow would end with 1 for any error.
    """
    path = Path(config["path"]).absolute()
    record = _runs.get(path.as_posix())
    if record is None:
        workflow = next(iter(config.get("workflows") or {}), "run")
        runs = Path(os.environ.get("MEDWEAVE_RUNS_DIR") or path.parent / "runs").absolute()
        try:
            record = _runs[path.as_posix()] = RunRecord(runs, workflow)
        except UsageError as error:
            console.say(f"medweave: {error}")
            raise SystemExit(error.exit_code) from None
    return record


def current() -> RunRecord | None:
    """Return the running run; None if streamflow.yml names no medweave manager."""
    return next((record for record in _runs.values() if record.running), None)


def job_notice(job_name: str, text: str) -> None:
    """Report a notice of a job; ignored outside of a run."""
    if (run := current()) is not None:
        run.job_notice(job_name, text)
