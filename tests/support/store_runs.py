"""Runs that copy to the same site, which keeps a store."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from medweave_connectors.engine.data import manager
from medweave_connectors.transfer.store.folder_commands import STORE
from support.transfers import Places, Route


class Runs:
    """A site that several runs copy to, one after the other; call `next` before each run.

    Attributes:
        records: the facts recorded for each copy.
    """

    def __init__(self, at: Places, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.workdir, self.records = at, workdir, list[dict[str, Any]]()
        self._number = 0
        monkeypatch.setattr(manager, "current", lambda: self._run)

    def next(self) -> Path:
        """Begin the next run; return the folder that its copies arrive in."""
        self._number += 1
        run_id = f"run-{self._number}"
        self._run = SimpleNamespace(run_id=run_id, transfer_ended=lambda **facts: self.records.append(facts))
        self.at.target = self.workdir / run_id / "job"
        self.at.target.mkdir(parents=True)
        return self.at.target

    def end(self, number: int) -> None:
        """Remove the folder of a run, as after a success."""
        shutil.rmtree(self.workdir / f"run-{number}")

    def send(self, name: str, route: Route = "from-driver", *, writable: bool = False) -> tuple[int, int, int]:
        """Copy in a separate run; return sent bytes, sent files, and reused bytes."""
        self.at.at_work(lambda places: places.send(route, name, writable=writable))
        facts = self.records[-1]
        return facts["num_bytes"], facts["num_files"], facts["reused_bytes"]

    @property
    def root(self) -> Path:
        return self.workdir / STORE

    def blobs(self) -> list[Path]:
        return sorted(path for path in self.root.glob("*/*/*") if path.is_file())
