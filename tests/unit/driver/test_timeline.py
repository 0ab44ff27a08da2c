"""The timeline: positions and texts of bars."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from medweave.report.timeline import LABEL_WIDTH, RIGHT, WIDTH, colours, lanes, timeline
from medweave_core.runlog.jobs import Job


def job(name: str, begin: float, end: float | None, **changes: Any) -> Job:
    values: dict[str, Any] = {
        "name": name, "step": name.rpartition("/")[0], "attempt": 1, "deployment": "laptop", "service": None,
        "location": None, "scheduled_s": begin, "started_s": begin, "ended_s": end, "state": "completed",
    }  # fmt: skip
    return Job(**values | changes)


def bars(svg: str) -> list[dict[str, str]]:
    root = ET.fromstring(svg)
    return [dict(rect.attrib) for group in root.iter("g") for rect in group.iter("rect") if rect.get("class") != "wait"]


def test_bars_lie_where_their_times_are() -> None:
    first, second = bars(timeline([job("/a/0", 0, 50), job("/b/0", 50, 100)], 100))
    scale = (WIDTH - LABEL_WIDTH - RIGHT) / 100
    assert float(first["x"]) == pytest.approx(LABEL_WIDTH)
    assert float(first["width"]) == pytest.approx(50 * scale, abs=0.01)
    assert float(second["x"]) == pytest.approx(LABEL_WIDTH + 50 * scale, abs=0.01)
    assert float(second["y"]) > float(first["y"])


def test_overlapping_jobs_get_separate_lanes_and_others_share_one() -> None:
    jobs = [job("/s/0.0", 0, 10), job("/s/0.1", 1, 12), job("/s/0.2", 11, 20), job("/t/0", 5, 6)]
    result = lanes(jobs, 20)
    assert [[j.label for j in lane.jobs] for lane in result] == [["s.0", "s.2"], ["s.1"], ["t"]]
    assert [lane.label for lane in result] == ["s × 3", "", "t"]


def test_states_and_deployments_can_be_told_apart_without_colour() -> None:
    jobs = [
        job("/a/0", 0, 60, deployment="laptop"),
        job("/b/0", 0, 60, deployment="site-a", state="failed"),
        job("/c/0", 0, None, state="unfinished"),
    ]
    svg = timeline(jobs, 60)
    assert [bar["class"] for bar in bars(svg)] == ["done", "failed", "unfinished"]
    text = " ".join(ET.fromstring(svg).itertext())
    assert "failed after 1 min 00 s" in text
    assert "unfinished after" in text
    assert "b on site-a: failed 1 min 00 s" in text
    assert colours(jobs) == {"laptop": "var(--c1)", "site-a": "var(--c2)"}


def test_waiting_is_drawn_before_the_bar() -> None:
    svg = timeline([job("/a/0", 0, 100, started_s=40.0)], 100)
    wait = next(rect for rect in ET.fromstring(svg).iter("rect") if rect.get("class") == "wait")
    assert float(wait.get("width")) == pytest.approx(40 * (WIDTH - LABEL_WIDTH - RIGHT) / 100, abs=0.01)


def test_a_job_that_ended_in_the_queue_has_no_bar() -> None:
    svg = timeline([job("/a/0", 0, 50, started_s=None, queued_s=45.0, state="cancelled")], 100)
    assert [float(bar["width"]) for bar in bars(svg)] == [1.5]
    assert "cancelled in the queue" in "".join(ET.fromstring(svg).itertext())


def test_words_of_neighbours_do_not_run_into_each_other() -> None:
    crowded = [job("/s/0.0", 98, 99), job("/s/0.1", 99, 100)]
    words = re.findall(r'class="(?:inside|outside)[^>]*>([^<]+)<', timeline(crowded, 100))
    assert words == ["1.0 s"]  # before the first; there is no room between the two and none after the second
    assert len(bars(timeline(crowded, 100))) == 2


def test_nothing_leaves_the_picture_and_names_are_text() -> None:
    jobs = [job(f"/a-step-with-a-very-long-name-{i}<b>/0", i, i + 0.01) for i in range(30)]
    svg = timeline(jobs, 30)
    for bar in bars(svg):
        assert 0 <= float(bar["x"]) <= float(bar["x"]) + float(bar["width"]) <= WIDTH
    assert "<b>" not in svg


@pytest.mark.parametrize("seconds", [0.4, 9.0, 75.0, 1000.0, 7000.0, 90000.0, 9e6])
def test_ticks_are_few_whatever_the_length(seconds: float) -> None:
    ticks = re.findall(r'class="axis"[^>]*>([^<]+)<', timeline([job("/a/0", 0, seconds)], seconds))
    assert 2 <= len(ticks) <= 9
    assert len(set(ticks)) == len(ticks)


def test_a_run_without_jobs_has_an_empty_timeline() -> None:
    assert bars(timeline([], 5)) == []
