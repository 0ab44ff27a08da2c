"""The routes between the deployments of a run: each is probed once, and later copies use the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.transfer.failures import notify
from medweave_connectors.transfer.plan import BUCKET, DIRECT, SAME, THROUGH, TransferPlan, driver_route
from medweave_connectors.transfer.progress import TransferMeter
from medweave_connectors.transfer.routes.bucket.bucket_copy import BucketRoute
from medweave_connectors.transfer.routes.bucket.settings import BucketSettings
from medweave_connectors.transfer.routes.carrier import Carrier
from medweave_connectors.transfer.routes.copy_work import PairState
from medweave_connectors.transfer.streams.transcoding import SiteCodecs

OFF = "direct copies are switched off in dataManager.config"
SMALL = "faster for less than 1 MiB"
PARTIAL = "only missing files were sent"
ONE_END_HERE = "the driver is one end of the copy"
# Starting two agents takes a third of a second; a driver with a link of 25 Mbit/s sends these bytes in that time.
SMALL_BYTES = 2**20


class Router:
    """Chooses the candidate routes of each copy of a run.

    Args:
        connector_of: returns the connector of a deployment.
        same, direct: false where the settings switch the route off.
        ports: first and last port at which an agent may listen.
    """

    def __init__(
        self,
        connector_of: Callable[[str], Any],
        *,
        same: bool,
        direct: bool,
        ports: tuple[int, int],
        bucket: BucketSettings | None,
    ) -> None:
        self._connector_of, self._same, self._direct, self._ports = connector_of, same, direct, ports
        self._bucket = None if bucket is None else BucketRoute(bucket, lambda text: notify("the bucket", text))
        self._pairs: dict[tuple[str, str], PairState] = {}
        self._codecs = SiteCodecs()

    def candidates(
        self, source: ExecutionLocation, destination: ExecutionLocation, num_bytes: int
    ) -> tuple[tuple[str, ...], str]:
        """Return the routes that a copy may take, the preferred one first, and why there are no others.

        Args:
            num_bytes: that have to be sent.
        """
        route = driver_route(source, destination)
        if route != THROUGH:
            return (route,), ONE_END_HERE
        pair, is_small = self._pair(source, destination), num_bytes < SMALL_BYTES
        routes = [
            *([] if pair.apart else [SAME]),
            *([] if is_small or pair.refused else [DIRECT]),
            *([] if is_small or self._bucket is None or pair.no_bucket else [BUCKET]),
            THROUGH,
        ]
        return tuple(routes), SMALL if is_small else PARTIAL

    def carrier(self, plan: TransferPlan, meter: TransferMeter) -> Carrier:
        """Return the carrier of one copy.

        Args:
            meter: counts the bytes of its streams.
        """
        pair = self._pair(plan.source, plan.destinations[0])
        return Carrier(
            plan,
            meter,
            pair=pair,
            connector_of=self._connector_of,
            bucket=self._bucket,
            codecs=self._codecs,
            ports=self._ports,
            is_small=plan.num_bytes < SMALL_BYTES,
        )

    async def query_codecs(self, locations: Sequence[ExecutionLocation]) -> None:
        """Query the codecs of locations before a carrier needs them.

        Raises:
            SiteUnreachable: a location does not answer.
        """
        await self._codecs.query(locations, self._connector_of)

    def _pair(self, source: ExecutionLocation, destination: ExecutionLocation) -> PairState:
        new = PairState(apart=not self._same, refused="" if self._direct else OFF)
        return self._pairs.setdefault((source.deployment, destination.deployment), new)
