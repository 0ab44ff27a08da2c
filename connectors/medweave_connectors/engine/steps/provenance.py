"""The provenance of jobs: digests of the files that a job read and wrote, in the event log.

No file is read only for provenance: on the driver's machine the cache has read the files, and at a site the manifests of
transferred, verified and cached files are known.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from streamflow.cwl.step import CWLExecuteStep
from streamflow.workflow.utils import get_token_value

from medweave_connectors.cache.content import Contents, tree
from medweave_connectors.engine.data.manager import MedweaveDataManager
from medweave_connectors.engine.scheduling.scheduler import MedweaveScheduler
from medweave_connectors.engine.steps import input_symbols
from medweave_connectors.runlog import current, values
from medweave_connectors.runlog.values import Item
from medweave_connectors.transfer.manifest.manifest import ROOT, Kind, Manifest
from medweave_connectors.transfer.manifest.site_inventory import SiteInventory, site_of

_outputs: contextvars.ContextVar[dict[str, Any] | None] = contextvars.ContextVar("outputs", default=None)


class RecordsProvenance(CWLExecuteStep):
    """Mixin of an execute step: record the inputs and outputs of its jobs in the event log."""

    async def _execute_command(self, job: Any, connectors: MutableMapping[str, Any]) -> None:
        outputs: dict[str, Any] = {}
        token = _outputs.set(outputs)
        try:
            await super()._execute_command(job, connectors)
        finally:
            _outputs.reset(token)
            if (run := current()) is not None and not _is_cancelled():
                describer = _describer_of(self, job)
                inputs = {name: get_token_value(token) for name, token in job.inputs.items()}

                def describe() -> tuple[dict[str, list[Item]], dict[str, list[Item]]]:
                    return (
                        {
                            name: _items(value, describer, input_symbols.of(self.name, name))
                            for name, value in inputs.items()
                        },
                        {name: _items(value, describer, ()) for name, value in outputs.items()},
                    )

                # Local files may have to be read.
                is_local = isinstance(describer, _LocalDescriber)
                read, written = await asyncio.to_thread(describe) if is_local else describe()
                run.job_data(job.name, inputs=read, outputs=written)

    async def _persist_token(self, token: Any, port: Any, input_token_ids: Any) -> Any:
        if (outputs := _outputs.get()) is not None:
            outputs |= {
                name: get_token_value(token) for name, port_name in self.output_ports.items() if port_name == port.name
            }
        return await super()._persist_token(token=token, port=port, input_token_ids=input_token_ids)


class _LocalDescriber:
    """Describes files on the driver's machine, by the digests of the cache."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    def item(self, kind: str, path: str) -> Item:
        """Return the description of a file or folder; a file whose digest is unknown is read."""
        try:
            return self._item(path)
        except OSError:  # a pipe, a link that leads nowhere
            return values.unread(kind)

    def _item(self, path: str) -> Item:
        if not Path(path).is_dir():
            return values.of_file(self._contents.files([path])[0], Path(path).stat().st_size)
        files = {inside: at for inside, at, is_folder in tree(path) if not is_folder}
        digests = self._contents.files(list(files.values()))
        num_bytes = sum(os.stat(at).st_size for at in files.values())  # noqa: PTH116 (thousands)
        return values.of_folder(dict(zip(files, digests, strict=True)), num_bytes)


class _SiteDescriber:
    """Describes files at a site, by the manifests that are known."""

    def __init__(self, inventory: SiteInventory, location: Any) -> None:
        self._inventory, self._site = inventory, site_of(location)

    def item(self, kind: str, path: str) -> Item:
        """Return the description of a file or folder."""
        known = self._inventory.find(self._site, path)
        return values.unread(kind) if known is None else _of_manifest(known)


class _NoDescriber:
    """Describes files of a run without a cache, which has read none of them."""

    def item(self, kind: str, path: str) -> Item:
        """Return the description of a file or folder."""
        return values.unread(kind)


_Describer = _LocalDescriber | _SiteDescriber | _NoDescriber


def _of_manifest(known: Manifest) -> Item:
    root = known.entries[ROOT]
    if root.kind == Kind.FILE:
        return values.of_file(root.sha256, root.size)
    files = {path: entry.sha256 for path, entry in known.entries.items() if entry.kind == Kind.FILE}
    return values.of_folder(files, known.num_bytes)


def _describer_of(step: Any, job: Any) -> _Describer:
    context = step.workflow.context
    scheduler, manager = context.scheduler, context.data_manager
    locations = scheduler.get_locations(job.name)
    if not isinstance(scheduler, MedweaveScheduler) or not scheduler.reuse.is_enabled or not locations:
        return _NoDescriber()
    if all(location.local for location in locations):
        return _LocalDescriber(scheduler.reuse.store.contents)
    return (
        _SiteDescriber(manager.inventory, locations[0]) if isinstance(manager, MedweaveDataManager) else _NoDescriber()
    )


def _items(value: Any, describer: _Describer, symbols: Sequence[str] | frozenset[str]) -> list[Item]:
    """Return the descriptions of the files and other leaves of a value."""
    items: list[Item] = []
    for leaf in _leaves(value):
        is_data = isinstance(leaf, Mapping)
        path = leaf.get("path") if is_data else None
        if path:
            items.append(describer.item(leaf["class"], path))
        else:
            items += [values.unread(leaf["class"])] if is_data else values.plain(leaf, symbols)
    return items


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        if value.get("class") in ("File", "Directory"):
            yield value
            yield from (leaf for item in value.get("secondaryFiles") or [] for leaf in _leaves(item))
        else:
            yield from (leaf for item in value.values() for leaf in _leaves(item))
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        yield from (leaf for item in value for leaf in _leaves(item))
    else:
        yield value


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
