"""What tests of connectors share: short intervals, and for copies two sites that are reached by ssh, and this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support import engine, intervals
from support.direct_ends import PATH, Recorded, recorded
from support.transfers import Places, places

STAND_INS = frozenset(("at", "cluster", "config", "jobs", "port", "server", "site"))  # fixtures that start one


@pytest.fixture(autouse=True)
def quick_python3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites that have this machine's programs start this Python, not a script of some version manager."""
    monkeypatch.setenv("PATH", PATH)


@pytest.fixture(autouse=True)
def short_intervals(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a stand-in, connectors look more often than at a real site, in this process and in the runs that it starts."""
    if STAND_INS.intersection(request.fixturenames):
        intervals.shorten(monkeypatch.setattr)
        monkeypatch.setattr(engine, "SHORT_INTERVALS", True)


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Places]:
    """The sites, whose programs a test may replace."""
    with places(tmp_path) as made:
        made.server.environment["PATH"] = f"{made.programs}:{PATH}"
        yield made


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """Return a recorder of the events of a run."""
    return recorded(monkeypatch)
