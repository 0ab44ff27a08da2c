"""The StreamFlow file with which a run was started."""

from __future__ import annotations

from pathlib import Path

from medweave_core.documents.line_numbers import shown
from medweave_core.errors import UserInputError
from medweave_core.runlog.history import Run


def file_of(folder: Path) -> Path:
    """Return the streamflow.yml of a run that was started with the usual one."""
    own = folder / "streamflow.yml"
    return own if own.exists() else folder.parent.parent / "streamflow.yml"


def file_of_run(record: Run, named: Path | None) -> Path:
    """Return the streamflow.yml of a run: the named one, else that of `file_of`.

    Raises:
        UserInputError: the run was started with another one: its workflow is not at its path relative to this file.
    """
    if named is not None:
        return named
    folder = record.folder.absolute()
    file, workflow = file_of(folder), str(record.facts.get("workflow_file", ""))
    is_usual = file.parent != folder and file.exists()  # one in the run's folder is its own
    if is_usual and not (file.parent / workflow).exists():
        raise UserInputError(
            f"run {record.run_id} was started with another file than {shown(file)}.",
            seen=f"the file does not lead to {workflow}, the workflow of the run",
            expected="the StreamFlow file with which the run was started",
            do="pass it with --file FILE",
        )  # fmt: skip
    return file
