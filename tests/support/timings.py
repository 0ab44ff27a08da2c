"""A pytest plugin that reports how long each test takes: `--timings FILE` writes JSON, and prints the tests above two seconds."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

SLOW_S = 2.0
NUM_SLOWEST = 50
_CPU_S = "cpu_s"


def add_options(parser: pytest.Parser) -> None:
    """Add the plugin's options."""
    parser.addoption(
        "--timings", type=Path, help="write the seconds of the run and of its slowest tests to this JSON file"
    )
    parser.addoption(
        "--timings-since", type=int, help="when the run began, in seconds since 1970; default: pytest's start"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Note the processor time of each phase, with that of the child processes that have ended."""
    report = yield
    used = _processor_time()
    report.user_properties = [*report.user_properties, (_CPU_S, used - getattr(item, "_cpu_before", used))]
    item._cpu_before = used  # type: ignore[attr-defined]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item._cpu_before = _processor_time()  # type: ignore[attr-defined]


def _processor_time() -> float:
    """Return user and system seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


class Timings:
    """The seconds of every test, written at the end of the session.

    A second run with the same `--timings-since` (what failed is run again) adds to the file.
    """

    def __init__(self, path: Path, since: int | None) -> None:
        self._path = path
        self._since = since or int(time.time())
        self._tests: dict[str, dict[str, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self._tests.setdefault(report.nodeid, {"seconds": 0.0, "cpu_s": 0.0})
        test["seconds"] += report.duration
        # The report of a test whose process has died has none.
        test["cpu_s"] += [0.0, *(value for name, value in report.user_properties if name == _CPU_S)][-1]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        slow = [(name, test["seconds"]) for name, test in self._by_seconds() if test["seconds"] > SLOW_S]
        if slow:
            terminalreporter.section(f"{len(slow)} tests above {SLOW_S:g} s: make them quicker, or mark them slow")
            for name, seconds in slow[:NUM_SLOWEST]:
                terminalreporter.write_line(f"{seconds:6.1f} s  {name}")
        self._write()
        terminalreporter.write_line(
            f"{int(time.time()) - self._since} s in all; the seconds of the tests are in {self._path}"
        )

    def _by_seconds(self) -> list[tuple[str, dict[str, float]]]:
        return sorted(self._tests.items(), key=lambda item: -item[1]["seconds"])

    def _write(self) -> None:
        try:
            earlier = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            earlier = {}
        if earlier.get("started") == self._since:
            self._tests = {test.pop("test"): test for test in earlier["tests"]} | self._tests
        tests = [
            {"test": name} | {key: round(value, 3) for key, value in test.items()} for name, test in self._by_seconds()
        ]
        document = {
            "started": self._since,
            "seconds": int(time.time()) - self._since,
            "num_tests": len(tests),
            "num_above_2_s": sum(test["seconds"] > SLOW_S for test in self._tests.values()),
            "slowest": tests[:NUM_SLOWEST],
            "tests": tests,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
