"""Remote cache lookup: reuse the outputs that an earlier job left in the site's blob store, by hard links at the site.

Digests of inputs come from the transfers of this run, or are computed at the site. If a stored output is gone or has changed, the
step runs again, and the event log gives the reason.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.cache import remote_outputs, remote_software
from medweave_connectors.cache.content import has_more
from medweave_connectors.cache.key import describe_value, key_parts
from medweave_connectors.cache.remote_index import SiteIndex, SiteRecord
from medweave_connectors.cache.session import UNREADABLE, CacheLookup, CacheSession, JobCommand, NotCacheable
from medweave_connectors.host.errors import SiteUnreachable
from medweave_connectors.jobs.connector_capabilities import DescribesWorkers
from medweave_connectors.jobs.remote_environment import fetch_reports
from medweave_connectors.jobs.worker_environment import RemoteWorker
from medweave_connectors.policy.token_paths import paths_in
from medweave_connectors.transfer.capabilities import run_only_at
from medweave_connectors.transfer.manifest import manifest, remote_scan
from medweave_connectors.transfer.manifest.manifest import ROOT, Manifest, ManifestError
from medweave_connectors.transfer.manifest.site_inventory import Site, SiteInventory, content_digest, site_of
from medweave_connectors.transfer.shell_commands import StagingPlace
from medweave_connectors.transfer.store import blob_store as store
from medweave_connectors.transfer.store.blob_store import Store, StoreState
from medweave_connectors.transfer.store.store_lookup import StoreLookup

UNRESPONSIVE = "its site did not answer a cache query"
NO_PROGRAMS = "its programs could not be identified at its site: they are not installed on the login node, or too old"
STAGED_CHANGED = "its command changed files that the workflow had staged in its output folder"
NO_LINKS = "the file system of its site does not support hard links"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSite:
    """Where a remote job runs, and the store of its site.

    Attributes:
        connector: of its deployment.
        location: the first location of the job; its outputs are there.
        inventory: known digests of files at the sites.
        store: the site's, for the classes of the step's outputs.
        outputs: the job's output folder.
        staged: the folder may have contents before the command.
        num_nodes: nodes of the job.
        sweeps: returns True at the first call of the run: the store's size was not checked yet.
    """

    connector: DescribesWorkers
    location: ExecutionLocation
    inventory: SiteInventory
    store: Store
    outputs: str
    staged: bool
    num_nodes: int
    sweeps: Callable[[], bool]

    @property
    def site(self) -> Site:
        """Return the innermost location: two deployments on one machine see the same files."""
        return site_of(self.location)


class RemoteCacheLookup(CacheLookup):
    """Cache lookup of a job at a remote site."""

    def __init__(
        self, session: CacheSession, job_name: str, inputs: Mapping[str, Any], *, allowed: bool, at: CacheSite
    ) -> None:
        super().__init__(session, job_name, inputs, allowed=allowed)
        self._at, self._index = at, SiteIndex(session.store.database)
        self._staged: dict[str, str] = {}

    # ---- parts of the cache key

    async def compute_parts(self, command: JobCommand) -> tuple[dict[str, str], bytes]:
        """See `CacheLookup.compute_parts`; inputs that this run did not send are read at the site."""
        at = self._at
        worker = await self._worker()
        secret, software, digests, staged = await asyncio.gather(
            asyncio.to_thread(self.session.secret),
            self._programs(command, worker),
            self._digests(),
            self._staged_digests(),
        )
        place = {
            "deployment": at.location.deployment,
            "service": at.location.service,
            "folder": at.store.blobs,
            "nodes": at.num_nodes,
            "facts": worker.facts,
        }
        parts = key_parts(
            words=command.words,
            environment=command.environment,
            streams=command.streams,
            inputs={name: describe_value(value, digests.__getitem__) for name, value in self.inputs.items()},
            staged=staged,
            software=software,
            site=place,
            run_id=self.session.run.run_id,
            secret=secret,
        )
        return parts, secret

    async def _worker(self) -> RemoteWorker:
        try:
            worker = await self._at.connector.worker_of(self._at.location, self.job_name)
        except Exception as error:  # a job that cannot reach its site fails with its own message
            raise NotCacheable(UNRESPONSIVE) from error
        return worker

    async def _programs(self, command: JobCommand, worker: RemoteWorker) -> str:
        at = self._at
        words = remote_software.look(
            command.words,
            command.environment,
            worker.environment,
            where=worker.setting,
            folder=at.outputs,
            computes=worker.computes,
        )

        async def ask() -> str:
            text, _ = await self._run(words)
            if (digest := remote_software.read(text)) is None:
                raise NotCacheable(NO_PROGRAMS)
            return digest

        # The words determine the answer; the folder of the job does not.
        key = (at.location.deployment, at.location.name, *words)
        digest: str = await self.session.run_once(tuple(word.replace(at.outputs, "") for word in key), ask)
        return digest

    async def _digests(self) -> dict[str, str]:
        paths = sorted({path for value in self.inputs.values() for path in paths_in(value)})
        manifests = await asyncio.gather(*(self._read(path) for path in paths))
        try:
            return {path: content_digest(manifest) for path, manifest in zip(paths, manifests, strict=True)}
        except ValueError:
            raise NotCacheable(UNREADABLE) from None

    async def _read(self, path: str) -> Manifest:
        at = self._at
        if (known := at.inventory.find(at.site, path)) is None:
            text, _ = await self._run(manifest.command(path))
            known = _listing(text)
            at.inventory.note(at.site, path, known)
        return known

    async def _staged_digests(self) -> dict[str, str]:
        if not self._at.staged:
            return {}
        text, _ = await self._run(manifest.command(self._at.outputs))
        self._staged = _contents(_listing(text))
        return self._staged

    # ---- stored outputs

    async def restore(self, key: str) -> str:
        """See `CacheLookup.restore`: files of the store are linked into the output folder, and each is verified."""
        record = await asyncio.to_thread(self._index.get, key)
        if record is None:
            return ""
        at, part, cached_outputs = (
            self._at,
            remote_outputs.aside(self._at.outputs, secrets.token_hex(6)),
            record.outputs,
        )
        try:
            state = store.parse_state((await self._run(self._make(part)))[0])
            stores = StoreLookup(
                at.store, StagingPlace(part, at.outputs), remote_outputs.NAME, [at.location], self._at_location
            )
            if state is not StoreState.USED or await stores.link(cached_outputs):
                await asyncio.to_thread(self._index.delete, key)
                raise NotCacheable(f"the outputs of run {record.run_id} are no longer at {at.location.deployment}")
            _, code = await self._run(remote_outputs.put(part, at.outputs))
            if code:
                raise SiteUnreachable(
                    f"{at.location.name}: cached outputs of {self.job_name} could not be linked: exit code {code}"
                )
        finally:
            await self._run(remote_outputs.drop(part))
        await asyncio.to_thread(self._index.note_used, key)
        at.inventory.note(at.site, at.outputs, cached_outputs)
        return record.run_id

    async def store_job_outputs(self, key: str) -> None:
        """See `CacheLookup.store_job_outputs`: the outputs are linked into the store, and read for their digests."""
        at, part = self._at, remote_outputs.aside(self._at.outputs, secrets.token_hex(6))
        outputs, _ = await asyncio.gather(self._written(), self._no_links())
        files = outputs.files
        output = ""
        for words in remote_outputs.together(
            self._make(part, at.outputs),
            *store.add_files(at.store, part, outputs, remote_outputs.NAME, files),
            *store.query(at.store, part, outputs, files),
            remote_outputs.drop(part),
        ):
            text, _ = await self._run(words)
            output += f"{text}\n"
        if StoreState.NONE is store.parse_state(output) or not {
            store.blob_key(outputs.entries[path]) for path in files
        } <= set(output.split()):
            raise NotCacheable(NO_LINKS)
        at.inventory.note(at.site, at.outputs, outputs)
        await asyncio.to_thread(self._index.put, key, SiteRecord.of(self.session.run.run_id, outputs))

    async def report_folder(self) -> Path | None:
        """Copy the reports to this machine and return their folder."""
        at = self._at
        return await fetch_reports(at.connector, at.location, at.outputs, self.job_name)

    async def _written(self) -> Manifest:
        text, _ = await self._run(manifest.command(self._at.outputs))
        outputs = _listing(text)
        if not self._staged.items() <= _contents(outputs).items() or has_more(outputs.entries, self._staged):
            raise NotCacheable(STAGED_CHANGED)
        return Manifest("", {path: entry for path, entry in outputs.entries.items() if path not in self._staged})

    async def _no_links(self) -> None:
        text, _ = await self._run(remote_outputs.links(self._at.outputs))
        try:
            names = remote_scan.folder_names(remote_scan.parse_answer(text))
        except remote_scan.RemoteScanFailed as error:
            raise NotCacheable(str(error)) from None
        if set(names) - self._staged.keys():
            raise NotCacheable(UNREADABLE)

    def _make(self, part: str, outputs: str = "") -> list[str]:
        at = self._at
        sweep = f"{store.evict(at.store)}; " if at.sweeps() else ""
        return [f"{{ {sweep}{store.make_store(at.store)}; {remote_outputs.make(part, outputs)}; }}"]

    # ---- commands

    async def _run(self, words: list[str]) -> tuple[str, int]:
        return await self._at_location(self._at.location, words)

    async def _at_location(self, location: ExecutionLocation, words: list[str]) -> tuple[str, int]:
        """Run a command at one location only: a connector that runs commands on all pods has the outputs on one."""
        try:
            return await run_only_at(self._at.connector, location, words)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # a job that cannot reach its site fails with its own message
            raise NotCacheable(UNRESPONSIVE) from error


def _contents(manifest: Manifest) -> dict[str, str]:
    """Return the digests of files by path, and the kind of other entries."""
    return {path: entry.sha256 or entry.kind for path, entry in manifest.entries.items() if path != ROOT}


def _listing(text: str) -> Manifest:
    try:
        return manifest.parse(text)
    except ManifestError:
        raise NotCacheable(UNREADABLE) from None
