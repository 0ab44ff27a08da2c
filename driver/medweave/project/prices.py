"""What jobs cost by the prices in a site file: of what they asked for, while they ran. Pure.

What a release of pods or an allocation holds beside that, storage, traffic and what people are paid are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medweave_core.runlog.jobs import Job

METHOD = (
    "Cost is the time of each attempt by the cores and GPUs that it asked for, at the prices of the site '{site}'. What pods or "
    "nodes hold beside that, storage and traffic are not in it."
)
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Of one deployment.

    Attributes:
        core_hour: of one core for one hour, in the currency; None where the site file does not say it.
        gpu_hour: the same of one GPU.
    """

    core_hour: float | None
    gpu_hour: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Of a site.

    Attributes:
        site: its name.
        currency: ISO 4217, `EUR`.
        of: by name of the deployment.
    """

    site: str
    currency: str
    of: Mapping[str, Price]

    @property
    def method(self) -> str:
        """What is counted, in words."""
        return METHOD.format(site=self.site)

    def cost(self, deployment: str, *, core_hours: float | None, gpu_hours: float | None) -> float | None:
        """What some hours cost there; None where the hours or a price that counts is not known."""
        price = self._price(deployment)
        parts = [(core_hours, price.core_hour), (gpu_hours, price.gpu_hour)]
        if any(hours is None or (hours and each is None) for hours, each in parts):
            return None
        return sum((hours or 0.0) * (each or 0.0) for hours, each in parts)

    def of_job(self, job: Job) -> float | None:
        """What one attempt cost; None where that is not known. Work that was not done again, or never began, cost nothing."""
        if job.reused_from or (job.started_s is None and job.seconds is None):
            return 0.0
        cores, seconds = job.requested.get("cores"), job.duration_s
        if seconds is None or not isinstance(cores, int | float):
            return None
        nodes = int(job.site.get("num_nodes") or len((job.location or "").split(",")))
        gpus = job.site.get("gpus")  # all of the job's together, where its site gives GPUs to jobs
        is_priced = self._price(job.deployment).gpu_hour is not None
        gpu_hours = None if gpus is None and is_priced else float(gpus or 0) * seconds / _HOUR_S
        return self.cost(job.deployment, core_hours=cores * nodes * seconds / _HOUR_S, gpu_hours=gpu_hours)

    def _price(self, deployment: str) -> Price:
        return self.of.get(deployment) or Price(core_hour=None, gpu_hour=None)

    def told(self, each: Sequence[float | None], what: str) -> str:
        """A sum in words, and how many are not in it.

        Args:
            what: one of what is summed: `job`.
        """
        known = [amount for amount in each if amount is not None]
        left = len(each) - len(known)
        if not known:
            return f"not known: {self.site} has no prices for where it ran, or hours are not known"
        without = f", without {left} {what}{'s' * (left > 1)} whose hours or prices are not known" if left else ""
        return f"about {amount_text(sum(known), self.currency)}{without}"


def amount_text(amount: float, currency: str) -> str:
    """`0.0042 EUR`, `12.30 EUR`."""
    return f"{amount:,.2f} {currency}" if amount >= 1 or not amount else f"{amount:.2g} {currency}"


def read_prices(site: str, told: Mapping[str, Any] | None) -> Prices | None:
    """The prices of a site file; None where it has none.

    Args:
        site: its name.
        told: its block `prices`, which has passed the schema.
    """
    if not told:
        return None
    return Prices(
        site=site,
        currency=told["currency"],
        of={
            name: Price(core_hour=each.get("coreHour"), gpu_hour=each.get("gpuHour"))
            for name, each in told["deployments"].items()
        },
    )
