"""The site of a Slurm job, as its connector describes it. Does not import streamflow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from medweave_connectors.sites.slurm import messages
from medweave_connectors.sites.slurm.final_state import FinalStateQueries
from medweave_connectors.sites.slurm.service import Service
from medweave_connectors.sites.slurm.submission import SubmissionRate
from medweave_connectors.sites.slurm.watch import JobWatcher


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSite:
    """The site of a job, as its connector describes it.

    Attributes:
        nodes: (cores, MiB) of the partition's nodes; empty if unknown.
        run_line: runs a line on the login node and returns its output, or raises.
        submissions: limits the rate of submissions.
        fetch_reports: called with the job's name and its output folder; returns a folder with copies, or None.
        closing: returns True once the run is being ended.
    """

    deployment: str
    service_name: str
    service: Service
    nodes: Sequence[tuple[int, int]]
    prologue: str
    run_line: Callable[[str], Awaitable[str]]
    submissions: SubmissionRate
    watch: JobWatcher
    final_states: FinalStateQueries
    fetch_reports: Callable[[str, str], Awaitable[Path | None]]
    closing: Callable[[], bool]

    @property
    def label(self) -> messages.ServiceLabel:
        name = f"{self.deployment}/{self.service_name}" if self.service_name else self.deployment
        setting = f"deployments.{self.deployment}.config.services.{self.service_name or '…'}"
        return messages.ServiceLabel(name=name, setting=setting)
