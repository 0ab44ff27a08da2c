"""Record of a run: its event log, its lines on the terminal, and its final state. Does not import streamflow."""

from __future__ import annotations

from medweave_connectors.runlog.current_run import current, job_notice, plan

__all__ = ["current", "job_notice", "plan"]
