"""What steps at sites have written, by the name of their work: where it lies there, and its digests. The content stays there.

No streamflow in here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass

from medweave_connectors.cache.database import Memo
from medweave_connectors.transfer.manifest.manifest import ROOT, Kind, Manifest, ManifestEntry

VERSION = "site-2"  # the shelf's own records have a number


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRecord:
    """Outputs that a site's store has.

    Attributes:
        run_id: the run that made them.
        entries: path in the output folder to kind, bytes, permission bits and SHA-256.
    """

    run_id: str
    entries: Mapping[str, tuple[str, int, int, str]]
    version: str = VERSION

    @classmethod
    def of(cls, run_id: str, outputs: Manifest) -> SiteRecord:
        """Of what lies in an output folder."""
        return cls(
            run_id=run_id,
            entries={
                path: (each.kind.value, each.size, each.mode, each.sha256) for path, each in outputs.entries.items()
            },
        )

    @property
    def outputs(self) -> Manifest:
        """What lies in the output folder; the times are not known."""
        entries = {
            path: ManifestEntry(Kind(kind), size, mode, 0, "", sha256)
            for path, (kind, size, mode, sha256) in self.entries.items()
        }
        return Manifest("", entries)


class Ledger:
    """Records of sites, in the file where the shelf has its own."""

    def __init__(self, memo: Memo) -> None:
        self._memo = memo

    def get(self, key: str) -> SiteRecord | None:
        """What is known of the work; None where nothing is."""
        row = None
        with self._memo.open() as table:
            row = table.execute("SELECT record FROM works WHERE key=?", (key,)).fetchone()
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            told = json.loads(row[0]) if row is not None else {}
            if told.get("version") == VERSION:
                record = SiteRecord(**told)
                return record if ROOT in record.entries else None
        return None

    def put(self, key: str, record: SiteRecord) -> None:
        """Remembers it. It takes no room here."""
        text = json.dumps(dataclasses.asdict(record))
        with self._memo.open() as table:
            table.execute("REPLACE INTO works VALUES (?, ?, 0, ?)", (key, time.time(), text))

    def used(self, key: str) -> None:
        """It has served again."""
        with self._memo.open() as table:
            table.execute("UPDATE works SET used=? WHERE key=?", (time.time(), key))

    def forget(self, key: str) -> None:
        """It is not there any more."""
        with self._memo.open() as table:
            table.execute("DELETE FROM works WHERE key=?", (key,))
