"""The places of a gang in standing pods: made ready one after the other, and looked at side by side."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.jobs.retries.policy import STANDING, Checkpoint
from medweave_connectors.sites.pods.api.errors import PodLost
from medweave_connectors.sites.pods.attempts import PodAttempts
from medweave_connectors.sites.pods.exec.commands import PodStep

PLACES = [f"w-{number}:worker" for number in range(4)]


class Begun(Exception):
    """The command would begin now."""


class Gang:
    """Four places that answer only once all were queried, and that may be one folder."""

    table, deployment_name = STANDING, "pods"

    def __init__(self, gives_files: bool) -> None:
        self.COPIES_FILES = gives_files
        self._all_asked, self._makes = asyncio.Barrier(len(PLACES)), False

    def places_of(self, job: str, location: ExecutionLocation) -> list[str]:
        return PLACES

    async def distinct(self, places: list[ExecutionLocation], path: str) -> list[ExecutionLocation]:
        return places

    async def alone(self, place: ExecutionLocation, command: list[str]) -> tuple[str, int]:
        if "mkdir" in command[0]:
            assert not self._makes, "another place makes its folder at this moment"
            self._makes = True
            await asyncio.sleep(0)
            self._makes = False
            return "", 0
        async with asyncio.timeout(5):
            await self._all_asked.wait()
        if self.COPIES_FILES and place.name == PLACES[1]:
            raise PodLost("its pod is gone")
        return {PLACES[2]: str(Checkpoint.OLD)}.get(place.name, str(Checkpoint.NEW)), 0

    async def members(self, *arguments: Any) -> None:
        raise Begun

    async def after_attempt(self, job: str, location: ExecutionLocation) -> None:
        pass


@pytest.mark.parametrize(("gives_files", "found"), [(False, Checkpoint.OLD), (True, Checkpoint.NEW)])
def test_the_places_are_looked_at_together_and_the_worst_counts_where_none_gives_its_files_to_the_others(
    gives_files: bool, found: Checkpoint
) -> None:
    streams: dict[str, str | None] = {"stdin": None, "stdout": None, "stderr": None}
    step = PodStep(
        name="/train/0", words=["true"], environment={}, output_directory="/work/out", streams=streams, limit_s=None
    )
    first = ExecutionLocation(name=PLACES[0], deployment="pods")

    async def look() -> Checkpoint:
        tried = PodAttempts(Gang(gives_files), step, first, groups=set(), closing=lambda: False)
        with pytest.raises(Begun):
            await tried.attempt()
        return await tried.find_checkpoint()

    assert asyncio.run(look()) is found
