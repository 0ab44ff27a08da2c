"""The events of a namespace, asked for once every few seconds for all who wait for something there."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Sequence

from medweave_connectors.sites.pods.api.cluster import Cluster, Told, chosen
from medweave_connectors.sites.pods.startup.pod import Event

EVENTS_S = 2.0


class Events:
    """What a cluster tells of the objects of one namespace."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._told: list[Told] = []
        self._asked, self._asking = -EVENTS_S, asyncio.Lock()

    async def about(self, names: Sequence[str], since: datetime.datetime, *, at_once: bool = False) -> list[Event]:
        """The events of some objects as of `EVENTS_S` ago at most, oldest first; none where the account may not read them.

        Args:
            names: names of objects, or beginnings of names that end in `-`.
            at_once: as of now.
        """
        async with self._asking:
            if at_once or time.monotonic() - self._asked >= EVENTS_S:
                self._told = await self._cluster.told()
                self._asked = time.monotonic()
        return chosen(self._told, names, since)
