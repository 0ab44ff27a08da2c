"""Progress lines of the steps."""

from __future__ import annotations

import pytest

from medweave_steps.runtime import progress as module
from medweave_steps.runtime.progress import MOST_LINES, Progress


@pytest.mark.parametrize(("total", "is_quick"), [(MOST_LINES, True), (10 * MOST_LINES, False)])
def test_each_unit_of_a_few_or_of_long_work_has_a_line(
    capsys: pytest.CaptureFixture[str], total: int, is_quick: bool
) -> None:
    progress = Progress("train", unit="epoch", total=total, is_quick=is_quick)
    for _ in range(total):
        progress.step()
    assert len(capsys.readouterr().err.splitlines()) == total


def test_thousands_of_units_have_a_line_per_second_and_the_last_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    progress = Progress("check", unit="image", total=1000, is_quick=True)
    for number in range(1000):
        now = number * 0.01
        progress.step()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert lines[0].startswith("check: image 1/1000")
    assert lines[-1].startswith("check: image 1000/1000")
