"""What tests of copies share: two sites that are reached by ssh, and this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.direct_ends import PATH, Recorded, recorded
from support.transfers import Places, places


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Places]:
    """The sites, whose programs a test may replace."""
    with places(tmp_path) as made:
        made.server.environment["PATH"] = f"{made.programs}:{PATH}"
        yield made


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """What a run's record would be told."""
    return recorded(monkeypatch)
