"""Fixtures of the connector tests: short intervals, and two ssh sites and this machine for copies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support import engine, intervals
from support.direct_ends import PATH, Recorded, recorded
from support.transfers import TransferSites, transfer_sites

STAND_INS = frozenset(
    ("at", "cluster", "config", "hosts", "jobs", "port", "server", "sharing", "site")
)  # fixtures that start one


@pytest.fixture(autouse=True)
def quick_python3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites that have this machine's programs start this Python, not a script of some version manager."""
    monkeypatch.setenv("PATH", PATH)


@pytest.fixture(autouse=True)
def short_intervals(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the polling intervals of connectors to fake services, in this process and in the runs that it starts."""
    if STAND_INS.intersection(request.fixturenames):
        intervals.shorten(monkeypatch.setattr)
        monkeypatch.setattr(engine, "SHORT_INTERVALS", True)


@pytest.fixture
def at(tmp_path: Path) -> Iterator[TransferSites]:
    """Yield the sites, whose programs a test may replace."""
    with transfer_sites(tmp_path) as sites:
        sites.server.environment["PATH"] = f"{sites.programs}:{PATH}"
        yield sites


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """Replace the record of the current run, and return the replacement."""
    return recorded(monkeypatch)
