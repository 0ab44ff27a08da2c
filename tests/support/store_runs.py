"""Consecutive runs that copy to the same site, which has a store."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from medweave_connectors.engine.data import manager
from medweave_connectors.transfer.store.folder_commands import STORE
from support.transfers import Route, TransferSites


class Runs:
    """A site that consecutive runs copy to; call `next` to start a run, the first one too.

    Attributes:
        transfers: the recorded facts of each copy.
    """

    def __init__(self, at: TransferSites, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.workdir, self.transfers = at, workdir, list[dict[str, Any]]()
        self._number = 0
        monkeypatch.setattr(manager, "current", lambda: self._run)

    def next(self) -> Path:
        """Start another run. Return the folder that its copies are written to."""
        self._number += 1
        run_id = f"run-{self._number}"
        self._run = SimpleNamespace(run_id=run_id, transfer_ended=lambda **facts: self.transfers.append(facts))
        self.at.target = self.workdir / run_id / "job"
        self.at.target.mkdir(parents=True)
        return self.at.target

    def end(self, number: int) -> None:
        """Remove the folder of a run, as after a success."""
        shutil.rmtree(self.workdir / f"run-{number}")

    def send(self, name: str, route: Route = "from-driver", *, writable: bool = False) -> tuple[int, int, int]:
        """Copy a folder. Return the bytes and files that were sent, and the bytes that were reused."""
        self.at.run_connected(lambda sites: sites.send(route, name, writable=writable))
        facts = self.transfers[-1]
        return facts["num_bytes"], facts["num_files"], facts["reused_bytes"]

    @property
    def root(self) -> Path:
        return self.workdir / STORE

    def blobs(self) -> list[Path]:
        return sorted(file for file in self.root.glob("*/*/*") if file.is_file())
