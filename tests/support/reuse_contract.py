"""Cache behavior that every connector has, written once."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.cache import session
from medweave_connectors.cache.local import LocalCacheLookup
from medweave_connectors.cache.remote import CacheSite, RemoteCacheLookup
from medweave_connectors.cache.session import CacheSession
from medweave_connectors.runlog.run import RunRecord
from medweave_connectors.transfer.manifest.site_inventory import SiteInventory
from medweave_connectors.transfer.store.blob_store import store_at
from support.connector_runs import JOB, Site, run_job, using


class Again:
    """The same job in one run after the other, in a new folder each time, as in the engine's step.

    Attributes:
        first, folder: output folders of the first job, and of the last one.
    """

    def __init__(self, site: Site, record: RunRecord) -> None:
        self._site, self._held = site, SiteInventory()
        self._reuse = CacheSession(record, limit_gib=1, keep_days=1)
        self._reuse.is_enabled = True
        self.first = self.folder = ""

    async def run(self, connector: Any, place: ExecutionLocation, script: str) -> str:
        """Return the run of the cache hit; empty if the script was run."""
        self.folder = f"{self._site.folder}/{self._reuse.run.run_id}/{uuid.uuid4()}"
        self.first = self.first or self.folder
        work = self._work(connector, place)
        token = session.begin(work)
        try:
            assert await run_job(self._site, connector, place, script, folder=self.folder) == ("", 0)
        finally:
            session.end(token)
        await work.store_outputs()
        outcome = self._reuse.run.jobs[JOB].outcome
        assert outcome is not None
        return outcome.reused_from

    def _work(self, connector: Any, place: ExecutionLocation) -> session.CacheLookup:
        if place.local:
            return LocalCacheLookup(self._reuse, JOB, {"word": "red"}, allowed=True, outputs=Path(self.folder))
        store = store_at(self.folder, self._reuse.run.run_id, 1)
        assert store is not None
        at = CacheSite(
            connector=connector,
            location=place,
            inventory=self._held,
            store=store,
            outputs=self.folder,
            staged=True,
            num_nodes=1,
            sweeps=lambda: True,
        )
        return RemoteCacheLookup(self._reuse, JOB, {"word": "red"}, allowed=True, at=at)


class ReuseContract:
    """Tests of `ConnectorContract`, which has the fixtures."""

    @pytest.mark.slow
    def test_a_second_job_is_a_cache_hit(self, site: Site, record: RunRecord) -> None:
        again = Again(site, record)
        script = f"""echo x >> {site.folder}/count
            mkdir result; echo one > result/a; echo two > 'result/b c'; echo {{}} > run_report.json"""

        async def act(connector: Any, place: ExecutionLocation) -> None:
            assert await again.run(connector, place, script) == ""
            assert await again.run(connector, place, script) == record.run_id
            texts = [site.read(f"{again.folder}/{name}") for name in ("result/a", "result/b c", "run_report.json")]
            assert texts == ["one\n", "two\n", "{}\n"]
            outcome = record.jobs[JOB].outcome
            assert outcome is not None
            assert outcome.report_folder is not None
            assert (outcome.report_folder / "run_report.json").is_file()
            # A restored file is a hard link to the stored one: a write changes both.
            write = ["echo", "other", ">", f"{again.first}/result/a"]
            await connector.run(place, write, capture_output=True)  # of a cluster, other pods have no such file
            assert await again.run(connector, place, script) == ""
            assert site.read(f"{again.folder}/result/a") == "one\n"
            assert await again.run(connector, place, f"{script}; true") == "", "another command"

        using(site, act)
        assert site.read(f"{site.folder}/count") == "x\n" * 3
