"""`medweave.transfer`: StreamFlow's data manager, whose copies are complete or absent."""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import shlex
import time
from collections.abc import Iterable, Iterator, MutableSequence
from importlib.resources import files
from typing import Any

from streamflow.core.context import StreamFlowContext
from streamflow.core.data import DataLocation, DataType
from streamflow.core.deployment import ExecutionLocation
from streamflow.data.manager import DefaultDataManager
from streamflow.data.remotepath import StreamFlowPath

from medweave_connectors.errors import TransferFailed
from medweave_connectors.record import current
from medweave_connectors.transfer import manifest
from medweave_connectors.transfer.manifest import Manifest


class MedweaveDataManager(DefaultDataManager):  # type: ignore[misc]
    """Verifies each copy between two sites by SHA-256 and writes it into the run's event log.

    The stock manager drops tar's exit status and never looks at folders: a cut stream passes for a whole copy. Links to what a
    site has already are not copies, and are not counted.
    """

    def __init__(self, context: StreamFlowContext) -> None:
        super().__init__(context)
        # The same source is often sent to several places: its manifest is made once.
        self._manifests: dict[tuple[str, str, str], asyncio.Task[Manifest]] = {}

    async def transfer_data(
        self,
        src_location: ExecutionLocation,
        src_path: str,
        dst_locations: MutableSequence[ExecutionLocation],
        dst_path: str,
        writable: bool = False,
    ) -> None:
        """Copies, or links where the site has it.

        Raises:
            TransferFailed: what arrived differs from what was sent; nothing of it is left.
        """
        started = time.monotonic()
        known = {id(place) for place in self._at(dst_locations, dst_path, src_path)}
        try:
            await super().transfer_data(src_location, src_path, dst_locations, dst_path, writable)
            copies = [
                place
                for place in self._at(dst_locations, dst_path, src_path)
                if id(place) not in known and _crosses(src_location, place)
            ]
            seconds = time.monotonic() - started
            await asyncio.gather(*(self._verify(src_location, src_path, copy, seconds) for copy in copies))
        except BaseException:
            broken = [place for place in self._at(dst_locations, dst_path, src_path) if id(place) not in known]
            await self._discard(place for place in broken if _crosses(src_location, place))
            _release(broken)
            raise

    @classmethod
    def get_schema(cls) -> str:
        """The closed schema of `dataManager.config`."""
        return files(__package__).joinpath("schema.json").read_text("utf-8")

    def _at(self, locations: MutableSequence[ExecutionLocation], path: str, source_path: str) -> Iterator[DataLocation]:
        # A copy into an existing folder lies below it, under the source's own name.
        for candidate in (path, posixpath.join(path, posixpath.basename(source_path))):
            for location in locations:
                for place in self.path_mapper.get(candidate, None, location.deployment, location.name):
                    if place.path == candidate:  # relations put the source's own places here too
                        yield place

    async def _verify(self, source: ExecutionLocation, path: str, copy: DataLocation, seconds: float) -> None:
        connector: Any = self.context.deployment_manager.get_connector(copy.deployment)
        mirrors = getattr(connector, "mirrors", None)  # places of several machines copy to all of them
        places = [copy.location, *(mirrors(copy.location) if mirrors is not None else [])]
        sent, *arrived = await asyncio.gather(
            self._sent(source, path), *(self._manifest(place, copy.path) for place in places)
        )
        if wrong := next(filter(None, map(sent.difference, arrived)), ""):
            raise TransferFailed(source.deployment, copy.deployment, wrong)
        if (run := current()) is None:
            return
        for place in places:
            run.transfer_ended(
                source=source.deployment,
                destination=copy.deployment,
                location=place.name,
                route=route(source, place),
                num_bytes=sent.num_bytes,
                num_files=len(sent.sha256),
                seconds=seconds,
            )

    async def _discard(self, copies: Iterable[DataLocation]) -> None:
        # A part of a copy must not be taken for all of it; where the site cannot be reached, the run's failure tells.
        for copy in copies:
            with contextlib.suppress(Exception):
                await self._run(copy.location, [f"rm -rf -- {shlex.quote(copy.path)}"])

    async def _sent(self, source: ExecutionLocation, path: str) -> Manifest:
        key = (source.deployment, source.name, path)
        if key not in self._manifests or self._manifests[key].cancelled():
            self._manifests[key] = asyncio.create_task(self._manifest(source, path))
        return await asyncio.shield(self._manifests[key])

    async def _manifest(self, location: ExecutionLocation, path: str) -> Manifest:
        real = await StreamFlowPath(path, context=self.context, location=location).resolve()
        text = await self._run(location, manifest.command(str(real or path)))
        try:
            return manifest.parse(text)
        except ValueError as error:
            raise TransferFailed(location.deployment, location.deployment, str(error)) from None

    async def _run(self, location: ExecutionLocation, command: list[str]) -> str:
        connector: Any = self.context.deployment_manager.get_connector(location.deployment)
        text, exit_code = await connector.run(location=location, command=command, capture_output=True)
        if exit_code:
            raise TransferFailed(location.deployment, location.deployment, f"listing the files ended with {exit_code}")
        return str(text)


def _release(places: Iterable[DataLocation]) -> None:
    # Whoever waits for such a copy would wait for ever: the stock manager never sets the event of a copy that broke.
    for place in places:
        place.data_type = DataType.INVALID
        place.available.set()


def route(source: ExecutionLocation, destination: ExecutionLocation) -> str:
    """How the bytes went: `local`, `from-driver`, `to-driver`, or `through-driver` between two other sites."""
    if source.local and destination.local:
        return "local"
    if source.local:
        return "from-driver"
    return "to-driver" if destination.local else "through-driver"


def _crosses(source: ExecutionLocation, copy: DataLocation) -> bool:
    # What a site has already is linked there, and a link's data type says so.
    elsewhere = (source.deployment, source.name) != (copy.deployment, copy.name)
    return elsewhere and copy.data_type == DataType.PRIMARY
