"""Cost of jobs by the prices of a site file: the resources that they requested, while they ran. Pure.

Idle resources of a Helm release or allocation, storage, traffic and work of people are not included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medweave_core.runlog.jobs import Job

METHOD = (
    "Cost is the time of each attempt multiplied by the cores and GPUs that it requested, at the prices of "
    "site '{site}'. Other pod or node resources, storage and network traffic are not included."
)
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Prices of one deployment.

    Attributes:
        core_hour: price of one core for one hour, in the currency; None if the site file has none.
        gpu_hour: price of one GPU for one hour.
    """

    core_hour: float | None
    gpu_hour: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices of a site.

    Attributes:
        site: name of the site.
        currency: ISO 4217, `EUR`.
        of: prices by name of the deployment.
    """

    site: str
    currency: str
    of: Mapping[str, Price]

    @property
    def method(self) -> str:
        """Return the method as text."""
        return METHOD.format(site=self.site)

    def cost(self, deployment: str, *, core_hours: float | None, gpu_hours: float | None) -> float | None:
        """Return the cost of some hours at a deployment; None if the hours or a required price are unknown."""
        price = self._price(deployment)
        parts = [(core_hours, price.core_hour), (gpu_hours, price.gpu_hour)]
        if any(hours is None or (hours and price_per_hour is None) for hours, price_per_hour in parts):
            return None
        return sum((hours or 0.0) * (price_per_hour or 0.0) for hours, price_per_hour in parts)

    def of_job(self, job: Job) -> float | None:
        """Return the cost of one attempt; None if unknown. A cache hit, or a job that never started, costs nothing."""
        if job.reused_from or (job.started_s is None and job.seconds is None):
            return 0.0
        cores, seconds = job.requested.get("cores"), job.duration_s
        if seconds is None or not isinstance(cores, int | float):
            return None
        nodes = int(job.site.get("num_nodes") or len((job.location or "").split(",")))
        gpus = job.site.get("gpus")  # GPUs of the whole job, if its site allocates GPUs
        is_priced = self._price(job.deployment).gpu_hour is not None
        gpu_hours = None if gpus is None and is_priced else float(gpus or 0) * seconds / _HOUR_S
        return self.cost(job.deployment, core_hours=cores * nodes * seconds / _HOUR_S, gpu_hours=gpu_hours)

    def _price(self, deployment: str) -> Price:
        return self.of.get(deployment) or Price(core_hour=None, gpu_hour=None)

    def total_text(self, amounts: Sequence[float | None], what: str) -> str:
        """Return the sum of amounts as text, with the number of unknown ones.

        Args:
            what: name of one summand: `job`.
        """
        known = [amount for amount in amounts if amount is not None]
        num_unknown = len(amounts) - len(known)
        if not known:
            return f"unknown: {self.site} has no prices for the services used, or hours are unknown"
        without = (
            f", without {num_unknown} {what}{'s' * (num_unknown > 1)} of unknown hours or prices" if num_unknown else ""
        )
        return f"about {amount_text(sum(known), self.currency)}{without}"


def amount_text(amount: float, currency: str) -> str:
    """Return an amount for people: `0.0042 EUR`, `12.30 EUR`."""
    return f"{amount:,.2f} {currency}" if amount >= 1 or not amount else f"{amount:.2g} {currency}"


def read_prices(site: str, block: Mapping[str, Any] | None) -> Prices | None:
    """Return the prices of a site file; None if it has none.

    Args:
        site: its name.
        block: its block `prices`, which has passed the schema.
    """
    if not block:
        return None
    return Prices(
        site=site,
        currency=block["currency"],
        of={
            name: Price(core_hour=price.get("coreHour"), gpu_hour=price.get("gpuHour"))
            for name, price in block["deployments"].items()
        },
    )
