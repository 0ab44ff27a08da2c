"""`--stock-only`: each test ends when the engine has shown its fault. For try_streamflow.py, and other versions of the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import engine


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stock-only", action="store_true", help="show the engine's faults only, medweave is not needed")


@pytest.fixture
def stock_only(request: pytest.FixtureRequest) -> bool:
    """Return True if tests end after their stock side."""
    return bool(request.config.getoption("--stock-only", default=False))


@pytest.fixture(autouse=True)
def short_intervals(stock_only: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the polling intervals of medweave's connectors."""
    monkeypatch.setattr(engine, "SHORT_INTERVALS", not stock_only)


@pytest.fixture
def stock(tmp_path: Path) -> Path:
    """Return the folder of the run without medweave."""
    return made(tmp_path / "stock")


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """Return the folder of the same run with medweave."""
    return made(tmp_path / "ours")


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder
