"""The engine's step that tells what a job has read and written.

Nothing is read for that alone: on this machine reuse knows what it has read, elsewhere what was sent, verified or kept is known.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from streamflow.workflow.utils import get_token_value

from medweave_connectors.cache.content import Contents, tree
from medweave_connectors.engine.data.manager import MedweaveDataManager
from medweave_connectors.engine.provenance import symbols
from medweave_connectors.runlog import current, values
from medweave_connectors.runlog.values import Item
from medweave_connectors.transfer.manifest.manifest import ROOT, Kind, Manifest
from medweave_connectors.transfer.manifest.site_inventory import SiteInventory, site_of

_made: contextvars.ContextVar[dict[str, Any] | None] = contextvars.ContextVar("made", default=None)


class TellsData:
    """Of a step of the engine: its jobs' data go into the event log."""

    async def _execute_command(self, job: Any, connectors: MutableMapping[str, Any]) -> None:
        made: dict[str, Any] = {}
        token = _made.set(made)
        try:
            await super()._execute_command(job, connectors)  # type: ignore[misc]
        finally:
            _made.reset(token)
            if (run := current()) is not None and not _is_cancelled():
                looks = _looks(self, job)
                inputs = {name: get_token_value(each) for name, each in job.inputs.items()}
                step: Any = self
                run.job_data(
                    job.name,
                    inputs={
                        name: await _told(each, looks, symbols.of(step.name, name)) for name, each in inputs.items()
                    },
                    outputs={name: await _told(each, looks, ()) for name, each in made.items()},
                )

    async def _persist_token(self, token: Any, port: Any, input_token_ids: Any) -> Any:
        if (made := _made.get()) is not None:
            step: Any = self
            made |= {name: get_token_value(token) for name, known in step.output_ports.items() if known == port.name}
        return await super()._persist_token(token=token, port=port, input_token_ids=input_token_ids)  # type: ignore[misc]


class _Here:
    """Looks at what lies on this machine."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    async def item(self, kind: str, path: str) -> Item:
        """A file or folder."""
        try:
            return await asyncio.to_thread(self._item, path)
        except OSError:  # a pipe, a link that leads nowhere
            return values.unread(kind)

    def _item(self, path: str) -> Item:
        if not Path(path).is_dir():
            return values.of_file(self._contents.files([path])[0], Path(path).stat().st_size)
        files = {inside: at for inside, at, is_folder in tree(path) if not is_folder}
        digests = self._contents.files(list(files.values()))
        num_bytes = sum(os.stat(at).st_size for at in files.values())  # noqa: PTH116 (thousands)
        return values.of_folder(dict(zip(files, digests, strict=True)), num_bytes)


class _There:
    """Looks at what is known of a site."""

    def __init__(self, held: SiteInventory, location: Any) -> None:
        self._held, self._site = held, site_of(location)

    async def item(self, kind: str, path: str) -> Item:
        """A file or folder."""
        known = self._held.find(self._site, path)
        return values.unread(kind) if known is None else _of_manifest(known)


class _Nowhere:
    """For a run that reuses nothing: nothing of it was read."""

    async def item(self, kind: str, path: str) -> Item:
        """A file or folder."""
        return values.unread(kind)


_Looks = _Here | _There | _Nowhere


def _of_manifest(known: Manifest) -> Item:
    root = known.entries[ROOT]
    if root.kind == Kind.FILE:
        return values.of_file(root.sha256, root.size)
    files = {path: each.sha256 for path, each in known.entries.items() if each.kind == Kind.FILE}
    return values.of_folder(files, known.num_bytes)


def _looks(step: Any, job: Any) -> _Looks:
    context = step.workflow.context
    reuse, manager = getattr(context.scheduler, "reuse", None), context.data_manager
    locations = context.scheduler.get_locations(job.name)
    if reuse is None or not reuse.on or not locations:
        return _Nowhere()
    if all(each.local for each in locations):
        return _Here(reuse.shelf.contents)
    return _There(manager.inventory, locations[0]) if isinstance(manager, MedweaveDataManager) else _Nowhere()


async def _told(value: Any, looks: _Looks, known: Sequence[str] | frozenset[str]) -> list[Item]:
    """The items of a value, with what belongs to its files."""
    found: list[Item] = []
    for each in _leaves(value):
        is_data = isinstance(each, Mapping)
        path = each.get("path") if is_data else None
        if path:
            found.append(await looks.item(each["class"], path))
        else:
            found += [values.unread(each["class"])] if is_data else values.plain(each, known)
    return found


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        if value.get("class") in ("File", "Directory"):
            yield value
            yield from (leaf for each in value.get("secondaryFiles") or [] for leaf in _leaves(each))
        else:
            yield from (leaf for each in value.values() for leaf in _leaves(each))
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        yield from (leaf for each in value for leaf in _leaves(each))
    else:
        yield value


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
