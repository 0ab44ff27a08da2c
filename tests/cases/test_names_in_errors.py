"""No error, event or log line names a file of the data: file names may identify patients. Reasons only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from streamflow.core.exception import WorkflowExecutionException

from medweave_connectors.engine.log_filter import ShortFailures
from medweave_connectors.engine.steps.execute_step import output_error
from medweave_connectors.host.errors import CommandFailed, StreamBroke
from medweave_connectors.jobs.job_errors import event_message, note_job_error
from medweave_connectors.runlog import current_run
from medweave_connectors.runlog.run import RunRecord
from medweave_connectors.transfer.streams.local_programs import LocalReader

NAME = "Mustermann_Max_1970.dcm"
CP = f"cp: cannot open '/scratch/a1/d/{NAME}' for reading: Permission denied"
ENGINE_ERRORS = (
    f"File /scratch/a1/{NAME} does not exist",
    f"Impossible to retrieve checksum of /scratch/a1/{NAME} on login",
    f"Impossible to copy the /scratch/a1/{NAME} file in the working directory: No data locations found",
    f"Invalid value `{NAME}` for a secondary file.",
    f"Error transferring file {NAME} in location a to /x/{NAME} in location b",
    f"Required secondary file {NAME}.idx not found",
)
Seen = Callable[[object], None]
pytestmark = pytest.mark.case("names-in-errors", expected="the reason, without arguments, paths and names of files")


def test_failed_engine_command_reports_program_and_reason(seen: Seen) -> None:
    text = str(CommandFailed(["cp", "-rL", f"/scratch/a1/{NAME}", f"/b/{NAME}"], "login", (CP, 1)))
    seen(text)
    assert text == "`cp` in login ended with 1: Permission denied"
    assert NAME not in str(CommandFailed([f"( cd /x && cp '{NAME}' . )"], "login", (f"cp: {NAME}: odd", 2)))


def test_broken_stream_reports_its_reason(seen: Seen) -> None:
    async def read() -> None:
        async with LocalReader(["sh", "-c", f"echo {CP!r} >&2; exit 1"], "a transfer from this machine") as stream:
            await stream.read()

    with pytest.raises(StreamBroke) as error:
        asyncio.run(read())
    seen(error.value)
    assert str(error.value) == "a transfer from this machine broke off: Permission denied (exit status 1)"


@pytest.mark.parametrize("text", ENGINE_ERRORS)
def test_names_are_removed_from_engine_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: Seen, text: str
) -> None:
    run = RunRecord(tmp_path / "runs", "lung")
    monkeypatch.setattr(current_run, "_runs", {"": run})
    run.begin()
    run.job_scheduled("/a/0", deployment="here", service=None, location="here")
    error = WorkflowExecutionException(text)
    note_job_error("/a/0", output_error("out", None, error))
    run.job_ended("/a/0", "failed")
    record = logging.LogRecord("streamflow", logging.ERROR, "", 0, error, None, None)
    assert ShortFailures().filter(record)
    log = (run.folder / "events.jsonl").read_text()
    seen(record.getMessage())
    for words in (log, record.getMessage(), event_message(error)):
        assert "Mustermann" not in words
        assert "/scratch" not in words
        assert "…" in words or "\\u2026" in words


def test_messages_about_user_files_keep_their_paths() -> None:
    text = "streamflow.yml:12: deployments.hpc.wraps: there is no deployment 'login'."
    record = logging.LogRecord("streamflow", logging.ERROR, "", 0, ValueError(text), None, None)
    assert ShortFailures().filter(record)
    assert record.getMessage() == text
