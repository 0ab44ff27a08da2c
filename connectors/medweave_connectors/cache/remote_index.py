"""Index of outputs in the stores of sites, by cache key: their run, paths and digests. The content stays at the site.

Does not import streamflow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass

from medweave_connectors.cache.database import CacheDatabase
from medweave_connectors.transfer.manifest.manifest import ROOT, Kind, Manifest, ManifestEntry

VERSION = "site-2"  # records of the local store have a number


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRecord:
    """Outputs in a site's store.

    Attributes:
        run_id: the run that produced them.
        entries: path in the output folder to kind, bytes, permission bits and SHA-256.
    """

    run_id: str
    entries: Mapping[str, tuple[str, int, int, str]]
    version: str = VERSION

    @classmethod
    def of(cls, run_id: str, outputs: Manifest) -> SiteRecord:
        """Return the record of an output folder."""
        return cls(
            run_id=run_id,
            entries={
                path: (entry.kind.value, entry.size, entry.mode, entry.sha256)
                for path, entry in outputs.entries.items()
            },
        )

    @property
    def outputs(self) -> Manifest:
        """Return the manifest of the output folder; modification times are not known."""
        entries = {
            path: ManifestEntry(Kind(kind), size, mode, 0, "", sha256)
            for path, (kind, size, mode, sha256) in self.entries.items()
        }
        return Manifest("", entries)


class SiteIndex:
    """Records of site outputs, in the database of the local store."""

    def __init__(self, database: CacheDatabase) -> None:
        self._database = database

    def get(self, key: str) -> SiteRecord | None:
        """Return the record of a cache key; None if the cache has no entry."""
        row = None
        with self._database.open() as table:
            row = table.execute("SELECT record FROM works WHERE key=?", (key,)).fetchone()
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            record = json.loads(row[0]) if row is not None else {}
            if record.get("version") == VERSION:
                record = SiteRecord(**record)
                return record if ROOT in record.entries else None
        return None

    def put(self, key: str, record: SiteRecord) -> None:
        """Store a record. It counts no bytes on this machine."""
        text = json.dumps(dataclasses.asdict(record))
        with self._database.open() as table:
            table.execute("REPLACE INTO works VALUES (?, ?, 0, ?)", (key, time.time(), text))

    def note_used(self, key: str) -> None:
        """Update the time of last use."""
        with self._database.open() as table:
            table.execute("UPDATE works SET used=? WHERE key=?", (time.time(), key))

    def delete(self, key: str) -> None:
        """Delete the record of outputs that the site no longer has."""
        with self._database.open() as table:
            table.execute("DELETE FROM works WHERE key=?", (key,))
