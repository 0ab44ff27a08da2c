"""Report of the cases: `--cases-summary FILE` writes name, expected, seen and ok of every test marked with `case`."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

_SEEN = "case_seen"
_NAME = "case_name"
_EXPECTED = "case_expected"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases-summary", type=Path, help="write the result of each case to this JSON file")


def pytest_configure(config: pytest.Config) -> None:
    summary = config.getoption("--cases-summary")
    if summary and not hasattr(config, "workerinput"):
        config.pluginmanager.register(CasesSummary(summary))


@pytest.fixture
def seen(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Callable[[object], None]:
    """Record in the summary what the case showed: an exit code, an error's first line, a measured value."""
    marker = request.node.get_closest_marker("case")
    assert marker is not None, "a test that reports a case is marked: @pytest.mark.case(name, expected=...)"
    record_property(_NAME, marker.args[0])
    record_property(_EXPECTED, marker.kwargs["expected"])
    return lambda value: record_property(_SEEN, str(value))


class CasesSummary:
    """The reports of the cases, written at the end of the session."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._cases: dict[str, dict[str, object]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = dict(report.user_properties)
        if _NAME not in properties or (report.when != "call" and not report.failed):
            return
        case = {
            "name": properties[_NAME],
            "test": report.nodeid,
            "expected": properties[_EXPECTED],
            "seen": "; ".join(str(value) for name, value in report.user_properties if name == _SEEN),
            "ok": report.passed,
        }
        self._cases[report.nodeid] = case

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self) -> Generator[None, None, None]:
        yield
        self._path.parent.mkdir(parents=True, exist_ok=True)
        cases = sorted(self._cases.values(), key=lambda case: (str(case["name"]), str(case["test"])))
        self._path.write_text(json.dumps({"cases": cases}, indent=1) + "\n", encoding="utf-8")
