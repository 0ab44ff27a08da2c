"""What runs the commands of a job at a site, as far as it decides about their results. No streamflow in here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from medweave_connectors.jobs.worker_environment import NOTHING, WorkerEnvironment


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """As the connector of the site knows it.

    Attributes:
        environment: what is loaded before the command.
        setting: its place in the file, for messages.
        facts: what else decides about the result: a partition, an image.
        computes: the place that can be asked is the one that computes, not a login node.
    """

    environment: WorkerEnvironment = NOTHING
    setting: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    computes: bool = True
