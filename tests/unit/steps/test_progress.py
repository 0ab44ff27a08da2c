"""Progress lines of the steps."""

from __future__ import annotations

import pytest

from medweave_steps.runtime import progress as module
from medweave_steps.runtime.progress import MOST_LINES, Progress


def test_each_unit_of_a_few_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("check", unit="case", total=MOST_LINES)
    for _ in range(MOST_LINES):
        progress.step()
    assert len(capsys.readouterr().err.splitlines()) == MOST_LINES


def test_thousands_of_units_have_a_line_per_second_and_the_last_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    progress = Progress("check", unit="image", total=1000)
    for number in range(1000):
        now = number * 0.01
        progress.step()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert lines[0].startswith("check: image 1/1000")
    assert lines[-1].startswith("check: image 1000/1000")
