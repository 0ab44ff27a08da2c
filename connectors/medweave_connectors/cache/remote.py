"""A job elsewhere whose work may have been done before: its outputs stay at its site, in the site's store, and are linked again.

What the site has by content is known from what this run has sent there, or is read there. Where something of the outputs is gone,
or has other content, the work is done again, which the record says.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Mapping, MutableSequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamflow.core.deployment import ExecutionLocation
from streamflow.core.workflow import Token

from medweave_connectors.cache import remote_outputs, remote_software
from medweave_connectors.cache.content import has_more
from medweave_connectors.cache.key import described, parts_of
from medweave_connectors.cache.remote_index import Ledger, SiteRecord
from medweave_connectors.cache.remote_worker import Worker
from medweave_connectors.cache.session import UNREADABLE, Asked, Reuse, Untold, Work
from medweave_connectors.host.errors import SiteUnreachable
from medweave_connectors.jobs.remote_environment import fetch_reports
from medweave_connectors.transfer.manifest import manifest, remote_scan
from medweave_connectors.transfer.manifest.manifest import ROOT, Manifest, ManifestError
from medweave_connectors.transfer.manifest.site_inventory import Site, SiteInventory, content_digest, site_of
from medweave_connectors.transfer.shell_commands import StagingPlace
from medweave_connectors.transfer.store import blob_store as store
from medweave_connectors.transfer.store.blob_store import Store, StoreState
from medweave_connectors.transfer.store.store_lookup import StoreLookup

SILENT = "its site did not answer when it was asked for what it has"
NO_PROGRAMS = "its site does not tell which programs it would run: they are not where the site is asked (a login node), or too old"
STAGED_CHANGED = "its command has changed what the workflow had put beside its outputs"
NO_LINKS = "its site keeps no further names (hard links) of files"


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """The place of a job.

    Attributes:
        connector: of its deployment; has `worker_of`.
        location: the first that it was given: there its outputs lie.
        held: what lies at the sites by content.
        store: the site's, for the classes of the step's outputs.
        outputs: the job's output folder.
        staged: something may lie in there before the command.
        num_nodes: that the job gets.
        sweeps: whether this run has not looked yet whether there is too much in the store; it has, then.
    """

    connector: Any
    location: ExecutionLocation
    held: SiteInventory
    store: Store
    outputs: str
    staged: bool
    num_nodes: int
    sweeps: Callable[[], bool]

    @property
    def site(self) -> Site:
        """The innermost of the location: two deployments that lead to one machine see the same files."""
        return site_of(self.location)


class WorkThere(Work):
    """See `Work`."""

    def __init__(self, reuse: Reuse, job_name: str, inputs: Mapping[str, Any], *, allowed: bool, at: At) -> None:
        super().__init__(reuse, job_name, inputs, allowed=allowed)
        self._at, self._ledger = at, Ledger(reuse.shelf.memo)
        self._staged: dict[str, str] = {}

    # ---- what it is made of

    async def parts(self, asked: Asked) -> tuple[dict[str, str], bytes]:
        """As `Work.parts`; what this run has not sent to the site is read there."""
        at = self._at
        worker = await self._worker()
        secret, software, digests, staged = await asyncio.gather(
            asyncio.to_thread(self.reuse.secret), self._programs(asked, worker), self._digests(), self._beside()
        )
        place = {
            "deployment": at.location.deployment,
            "service": at.location.service,
            "folder": at.store.blobs,
            "nodes": at.num_nodes,
            "facts": worker.facts,
        }
        told = parts_of(
            words=asked.words,
            environment=asked.environment,
            streams=asked.streams,
            inputs={name: described(value, digests.__getitem__) for name, value in self.inputs.items()},
            staged=staged,
            software=software,
            place=place,
            run_id=self.reuse.run.run_id,
            secret=secret,
        )
        return told, secret

    async def _worker(self) -> Worker:
        try:
            found: Worker = await self._at.connector.worker_of(self._at.location, self.job_name)
        except Exception as error:  # a job that cannot reach its site says so itself
            raise Untold(SILENT) from error
        return found

    async def _programs(self, asked: Asked, worker: Worker) -> str:
        at = self._at
        words = remote_software.look(
            asked.words,
            asked.environment,
            worker.environment,
            where=worker.setting,
            folder=at.outputs,
            computes=worker.computes,
        )

        async def ask() -> str:
            text, _ = await self._run(words)
            if (told := remote_software.read(text)) is None:
                raise Untold(NO_PROGRAMS)
            return told

        # All that is asked stands in the words; the folder of the job changes nothing about the answer.
        key = (at.location.deployment, at.location.name, *words)
        told: str = await self.reuse.once(tuple(each.replace(at.outputs, "") for each in key), ask)
        return told

    async def _digests(self) -> dict[str, str]:
        paths = sorted({path for value in self.inputs.values() for path in paths_in(value)})
        found = await asyncio.gather(*(self._read(path) for path in paths))
        try:
            return {path: content_digest(each) for path, each in zip(paths, found, strict=True)}
        except ValueError:
            raise Untold(UNREADABLE) from None

    async def _read(self, path: str) -> Manifest:
        at = self._at
        if (known := at.held.find(at.site, path)) is None:
            text, _ = await self._run(manifest.command(path))
            known = _listing(text)
            at.held.note(at.site, path, known)
        return known

    async def _beside(self) -> dict[str, str]:
        if not self._at.staged:
            return {}
        text, _ = await self._run(manifest.command(self._at.outputs))
        self._staged = _contents(_listing(text))
        return self._staged

    # ---- what was kept

    async def given(self, key: str) -> str:
        """As `Work.given`: the store's files get names in the output folder, and each is read."""
        record = await asyncio.to_thread(self._ledger.get, key)
        if record is None:
            return ""
        at, part, wanted = self._at, remote_outputs.aside(self._at.outputs, secrets.token_hex(6)), record.outputs
        try:
            state = store.parse_state((await self._run(self._make(part)))[0])
            stores = StoreLookup(
                at.store, StagingPlace(part, at.outputs), remote_outputs.NAME, [at.location], self._at_location
            )
            if state is not StoreState.USED or await stores.link(wanted):
                await asyncio.to_thread(self._ledger.forget, key)
                raise Untold(f"what run {record.run_id} has written is not at {at.location.deployment} any more")
            _, code = await self._run(remote_outputs.put(part, at.outputs))
            if code:
                raise SiteUnreachable(
                    f"{at.location.name}: what an earlier run of {self.job_name} has written could not be linked there: {code}"
                )
        finally:
            await self._run(remote_outputs.drop(part))
        await asyncio.to_thread(self._ledger.used, key)
        at.held.note(at.site, at.outputs, wanted)
        return record.run_id

    async def handed_in(self, key: str) -> None:
        """As `Work.handed_in`: the outputs get names in the store, and are read for their digests."""
        at, part = self._at, remote_outputs.aside(self._at.outputs, secrets.token_hex(6))
        outputs, _ = await asyncio.gather(self._written(), self._no_links())
        files = outputs.files
        told = ""
        for words in remote_outputs.together(
            self._make(part, at.outputs),
            *store.add_files(at.store, part, outputs, remote_outputs.NAME, files),
            *store.query(at.store, part, outputs, files),
            remote_outputs.drop(part),
        ):
            text, _ = await self._run(words)
            told += f"{text}\n"
        if StoreState.NONE is store.parse_state(told) or not {
            store.blob_key(outputs.entries[path]) for path in files
        } <= set(told.split()):
            raise Untold(NO_LINKS)
        at.held.note(at.site, at.outputs, outputs)
        await asyncio.to_thread(self._ledger.put, key, SiteRecord.of(self.reuse.run.run_id, outputs))

    async def report_folder(self) -> Path | None:
        """Copies of them."""
        at = self._at
        return await fetch_reports(at.connector, at.location, at.outputs, self.job_name)

    async def _written(self) -> Manifest:
        text, _ = await self._run(manifest.command(self._at.outputs))
        found = _listing(text)
        if not self._staged.items() <= _contents(found).items() or has_more(found.entries, self._staged):
            raise Untold(STAGED_CHANGED)
        return Manifest("", {path: each for path, each in found.entries.items() if path not in self._staged})

    async def _no_links(self) -> None:
        text, _ = await self._run(remote_outputs.links(self._at.outputs))
        try:
            names = remote_scan.folder_names(remote_scan.parse_answer(text))
        except remote_scan.RemoteScanFailed as error:
            raise Untold(str(error)) from None
        if set(names) - self._staged.keys():
            raise Untold(UNREADABLE)

    def _make(self, part: str, outputs: str = "") -> list[str]:
        at = self._at
        sweep = f"{store.evict(at.store)}; " if at.sweeps() else ""
        return [f"{{ {sweep}{store.make_store(at.store)}; {remote_outputs.make(part, outputs)}; }}"]

    # ---- inside

    async def _run(self, words: list[str]) -> tuple[str, int]:
        return await self._at_location(self._at.location, words)

    async def _at_location(self, location: ExecutionLocation, words: list[str]) -> tuple[str, int]:
        """One place alone: a cluster that does everything on all of its pods has the outputs on one."""
        connector = self._at.connector
        alone = getattr(connector, "alone", None)
        try:
            if alone is not None:
                told = await alone(location, words)
            else:
                told = await connector.run(location=location, command=words, capture_output=True)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # a job that cannot reach its site says so itself
            raise Untold(SILENT) from error
        return str(told[0]), int(told[1])


def _contents(found: Manifest) -> dict[str, str]:
    """What lies in a folder: digests, and other kinds than files by their names."""
    return {path: each.sha256 or each.kind for path, each in found.entries.items() if path != ROOT}


def _listing(text: str) -> Manifest:
    try:
        return manifest.parse(text)
    except ManifestError:
        raise Untold(UNREADABLE) from None


def paths_in(value: Any) -> Iterator[str]:
    """Yield the paths of all files and folders in a value, without the entries of folders."""
    if isinstance(value, Token):
        yield from paths_in(value.value)
    elif isinstance(value, MutableSequence):
        for item in value:
            yield from paths_in(item)
    elif isinstance(value, Mapping):
        if value.get("class") in ("File", "Directory"):
            if path := value.get("path"):
                yield path
            yield from paths_in(value.get("secondaryFiles") or [])
        else:
            for item in value.values():
                yield from paths_in(item)
