"""What a job reads, how large it is, and where it lies already, as far as the engine knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from streamflow.core.context import StreamFlowContext
from streamflow.core.data import DataLocation, DataType
from streamflow.core.workflow import Job, Token
from streamflow.cwl.utils import get_path_from_token
from streamflow.data.remotepath import StreamFlowPath

from medweave_connectors.engine.scheduling import choice

MEASURE_S = 5.0  # nothing else is scheduled meanwhile


class Inputs:
    """Remembers the sizes of folders: the token of a file has its size, that of a folder has none."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    async def bytes_at(
        self, context: StreamFlowContext, job: Job, names: Sequence[str], name_of: Callable[[DataLocation], str]
    ) -> dict[str, int]:
        """How much of a job's inputs lies at each place, bytes.

        The size of a folder is asked for once, at one of the places where it lies, and only if it could change the order.

        Args:
            name_of: the place of a copy, by which `names` calls it.
        """
        found = [
            choice.Input(
                path=path, num_bytes=num_bytes, at=frozenset(map(name_of, _copies(context, path))) & set(names)
            )
            for path, num_bytes in _inputs(job)
        ]
        for each in choice.to_measure(found):
            if each.path not in self._sizes:
                self._sizes[each.path] = await _measured(context, each.path)
        return choice.bytes_at(found, self._sizes, names)


def _inputs(job: Job) -> Iterator[tuple[str, int | None]]:
    for token in job.inputs.values():
        yield from _below(token)


def _below(value: Any) -> Iterator[tuple[str, int | None]]:
    """Path and size of each file and folder in a token, however deep; a folder's parts are not told besides it."""
    if isinstance(value, Token):
        yield from _below(value.value)
    elif isinstance(value, list):
        for each in value:
            yield from _below(each)
    elif isinstance(value, dict):
        path = get_path_from_token(value) if value.get("class") in ("File", "Directory") else None
        if path is None:
            for each in value.values():
                yield from _below(each)
        else:
            yield path, _size(value)
            yield from _below(value.get("secondaryFiles", []))


def _size(value: dict[str, Any]) -> int | None:
    if value["class"] == "File":
        return value.get("size")
    parts = [_size(each) for each in value["listing"]] if "listing" in value else [None]
    return None if None in parts else sum(part for part in parts if part is not None)


def _copies(context: StreamFlowContext, path: str) -> list[DataLocation]:
    return list(context.data_manager.get_data_locations(path, data_type=DataType.PRIMARY))


async def _measured(context: StreamFlowContext, path: str) -> int:
    """Bytes; 1 where a site does not tell in time: that may make a job read from elsewhere, and nothing worse."""
    copy = _copies(context, path)[0]
    try:
        async with asyncio.timeout(MEASURE_S):
            place = StreamFlowPath(copy.path, context=context, location=copy.location)
            return int(await (await place.resolve() or place).size())
    except Exception:  # the job's own transfer tells what is wrong with the site
        return 1
