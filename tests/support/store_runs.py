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
    """A site that several runs copy to, one after the other; `next` begins the first of them, too.

    Attributes:
        told: what each copy was recorded with.
    """

    def __init__(self, at: Places, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.workdir, self.told = at, workdir, list[dict[str, Any]]()
        self._number = 0
        monkeypatch.setattr(manager, "current", lambda: self._run)

    def next(self) -> Path:
        """Another run; where its copies come to."""
        self._number += 1
        run_id = f"run-{self._number}"
        self._run = SimpleNamespace(run_id=run_id, transfer_ended=lambda **facts: self.told.append(facts))
        self.at.target = self.workdir / run_id / "job"
        self.at.target.mkdir(parents=True)
        return self.at.target

    def end(self, number: int) -> None:
        """The folder of a run is removed, as after a success."""
        shutil.rmtree(self.workdir / f"run-{number}")

    def send(self, name: str, route: Route = "from-driver", *, writable: bool = False) -> tuple[int, int, int]:
        """What was sent in a run of its own: bytes, files, and bytes that were there."""
        self.at.at_work(lambda each: each.send(route, name, writable=writable))
        facts = self.told[-1]
        return facts["num_bytes"], facts["num_files"], facts["reused_bytes"]

    @property
    def root(self) -> Path:
        return self.workdir / STORE

    def blobs(self) -> list[Path]:
        return sorted(each for each in self.root.glob("*/*/*") if each.is_file())
