"""The inputs of a job: their sizes, and the locations that have a copy, as StreamFlow has registered them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from streamflow.core.context import StreamFlowContext
from streamflow.core.data import DataLocation, DataType
from streamflow.core.workflow import Job, Token
from streamflow.cwl.utils import get_path_from_token
from streamflow.data.remotepath import StreamFlowPath

from medweave_connectors.engine.scheduling import ranking

MEASURE_S = 5.0  # during this time nothing else is scheduled


class Inputs:
    """Stores the sizes of folders: the token of a file has its size, the token of a folder has none."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    async def bytes_at(
        self, context: StreamFlowContext, job: Job, names: Sequence[str], name_of: Callable[[DataLocation], str]
    ) -> dict[str, int]:
        """Return the size of a job's inputs at each location, bytes.

        A folder is measured once, at one of the locations that have it, and only if its size could change the order.

        Args:
            name_of: returns the location of a copy as it is written in `names`.
        """
        inputs = [
            ranking.JobInput(
                path=path, num_bytes=num_bytes, at=frozenset(map(name_of, _copies(context, path))) & set(names)
            )
            for path, num_bytes in _inputs(job)
        ]
        for item in ranking.inputs_to_measure(inputs):
            if item.path not in self._sizes:
                self._sizes[item.path] = await _measure(context, item.path)
        return ranking.bytes_at(inputs, self._sizes, names)


def _inputs(job: Job) -> Iterator[tuple[str, int | None]]:
    for token in job.inputs.values():
        yield from _below(token)


def _below(value: Any) -> Iterator[tuple[str, int | None]]:
    """Yield path and size of each file and folder in a token, at any depth, without the entries of a folder."""
    if isinstance(value, Token):
        yield from _below(value.value)
    elif isinstance(value, list):
        for item in value:
            yield from _below(item)
    elif isinstance(value, dict):
        path = get_path_from_token(value) if value.get("class") in ("File", "Directory") else None
        if path is None:
            for item in value.values():
                yield from _below(item)
        else:
            yield path, _size(value)
            yield from _below(value.get("secondaryFiles", []))


def _size(value: dict[str, Any]) -> int | None:
    if value["class"] == "File":
        return value.get("size")
    parts = [_size(entry) for entry in value["listing"]] if "listing" in value else [None]
    return None if None in parts else sum(part for part in parts if part is not None)


def _copies(context: StreamFlowContext, path: str) -> list[DataLocation]:
    return list(context.data_manager.get_data_locations(path, data_type=DataType.PRIMARY))


async def _measure(context: StreamFlowContext, path: str) -> int:
    """Return the size of a folder, bytes; 1 if the site does not answer in time, which may only cost a longer transfer."""
    copy = _copies(context, path)[0]
    try:
        async with asyncio.timeout(MEASURE_S):
            folder = StreamFlowPath(copy.path, context=context, location=copy.location)
            return int(await (await folder.resolve() or folder).size())
    except Exception:  # the job's own transfer reports the error of the site
        return 1
