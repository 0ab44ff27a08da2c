"""Names of files and folders in the folder of a run."""

from __future__ import annotations

EVENTS = "events.jsonl"
WORK = "work"  # scratch of the run
STDERR = "stderr"  # in the scratch: what running jobs print; only the owner of the run can read it
