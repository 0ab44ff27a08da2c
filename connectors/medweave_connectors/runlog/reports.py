"""The reports of a job, copied into the folder of the run."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

REPORT_FILE, REPORT_FOLDER = "run_report.json", "report"


def copy_report(source: Path, target: Path) -> list[str]:
    """Copy the run report and the report folder of a job; return the copied files, as paths from `target`.

    What cannot be copied is left out: a job does not fail because of its report.

    Args:
        source: the job's output folder, or a folder with copies of its reports.
        target: what earlier attempts left in it is removed.
    """
    if os.path.lexists(target):
        shutil.rmtree(target, ignore_errors=True)
    with contextlib.suppress(OSError, shutil.Error):
        if (source / REPORT_FILE).is_file():
            target.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / REPORT_FILE, target / REPORT_FILE)
        if (source / REPORT_FOLDER).is_dir():
            shutil.copytree(source / REPORT_FOLDER, target / REPORT_FOLDER)
    if not target.exists():
        return []
    return sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file())
