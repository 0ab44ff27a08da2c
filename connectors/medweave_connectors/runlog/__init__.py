"""What happened in a run: the event log, the lines people see meanwhile, and the truth at the end. No streamflow in here."""

from __future__ import annotations

from medweave_connectors.runlog.current_run import current, plan

__all__ = ["current", "plan"]
