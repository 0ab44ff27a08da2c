"""The ways between deployments, each tried once in a run and remembered."""

from __future__ import annotations

from collections.abc import Sequence

from streamflow.core.context import StreamFlowContext
from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.transfer.manifest.manifest import Manifest
from medweave_connectors.transfer.routes.bucket.depot import Depot
from medweave_connectors.transfer.routes.bucket.settings import Bucket
from medweave_connectors.transfer.routes.route_work import Pair
from medweave_connectors.transfer.routes.selection import Way, say
from medweave_connectors.transfer.wire import Sites

OFF = "direct copies are switched off in dataManager.config"
SMALL = "less than 1 MiB costs less so"
# Two programs take a third of a second to start; a driver at a link of 25 Mbit/s sends these in that time.
SMALL_BYTES = 2**20


class Routes:
    """What a run knows of them."""

    def __init__(
        self, context: StreamFlowContext, *, same: bool, direct: bool, ports: tuple[int, int], bucket: Bucket | None
    ) -> None:
        """`same` and `direct` are false where the site's file switches these ways off; `ports`: see `carry`."""
        self._context, self._same, self._direct, self._ports = context, same, direct, ports
        self._depot = None if bucket is None else Depot(bucket, lambda text: say("the bucket", text))
        self._pairs: dict[tuple[str, str], Pair] = {}
        self._sites = Sites()

    def way(
        self,
        source: ExecutionLocation,
        destinations: Sequence[ExecutionLocation],
        *,
        num_bytes: int,
        seen: Manifest,
        writable: bool,
    ) -> Way:
        """The way of one copy.

        Args:
            num_bytes: that have to be sent.
            seen: the source as it looks now.
            writable: somebody will write to the copy.
        """
        new = Pair(apart=not self._same, refused="" if self._direct else OFF)
        pair = self._pairs.setdefault((source.deployment, destinations[0].deployment), new)
        connector_of = self._context.deployment_manager.get_connector
        way = Way(connector_of, pair, source, destinations, SMALL if num_bytes < SMALL_BYTES else "", self._ports)
        way.depot, way.sites = self._depot, self._sites
        way.holds, way.links = (seen.num_files, seen.num_bytes), not writable
        return way

    async def ask(self, places: Sequence[ExecutionLocation]) -> None:
        """Asks what places can encode, which `way` would do later.

        Raises:
            SiteUnreachable: one of them does not answer.
        """
        await self._sites.ask(places, self._context.deployment_manager.get_connector)
