"""The place of a step's Job, as its connector has it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from medweave_connectors.sites.kubernetes.job_client import JobCluster
from medweave_connectors.sites.pods.api.cluster import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSite:
    """The place of a job.

    Attributes:
        template: key of the deployment's config that describes the pod that stands, which is the template.
        place: `pod:container` of it.
        kept_at: where its files are after the run, for people; empty where they are removed.
        signal_lead_s: how long before its time limit a step with a checkpoint folder gets USR1, s.
        ask: runs a line there and returns its output and exit code.
        fetch_reports: returns a folder with copies of the reports, or None.
        closing: true once the run is being ended.
    """

    deployment: str
    template: str
    place: str
    kept_at: str
    cluster: Cluster
    jobs: JobCluster
    timeout_s: float
    pending_timeout_s: float
    signal_lead_s: int
    ask: Callable[[str], Awaitable[tuple[str, int]]]
    fetch_reports: Callable[[], Awaitable[Path | None]]
    closing: Callable[[], bool]

    @property
    def container(self) -> str:
        """Its name in the standing pod, and in the Jobs' pods."""
        return self.place.partition(":")[2]
