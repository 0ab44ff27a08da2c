"""The picture of a run's steps: their places, states and data dependencies."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from medweave.report.command import render
from medweave.report.energy import Model
from medweave.report.flow_picture import MUCH, describe_steps, flow_picture, steps_of
from medweave_core.runlog.history import read_run
from medweave_core.runlog.jobs import Job
from support.recorded import Recorder


def job(name: str, at: str, begin: float, *, reads: str = "", writes: str = "", size: int = 10, **changes: Any) -> Job:
    def data(contents: str) -> dict[str, Any]:
        return {f"port-{content}": [{"class": "File", "bytes": size, "sha256": content}] for content in contents}

    values: dict[str, Any] = {
        "name": name, "step": name.rpartition("/")[0], "attempt": 1, "deployment": at, "service": None, "location": None,
        "scheduled_s": begin, "started_s": begin, "ended_s": begin + 5, "seconds": 5.0, "state": "completed",
        "inputs": data(reads), "outputs": data(writes),
    }  # fmt: skip
    return Job(**values | changes)


def after(jobs: list[Job]) -> dict[str, tuple[str, ...]]:
    return {step.path: step.after for step in steps_of(jobs)}


def drawn(jobs: list[Job]) -> ET.Element:
    return ET.fromstring(flow_picture(jobs, {"hpc": "medweave.slurm"}))


def lefts(picture: ET.Element) -> dict[str, float]:
    """Return the left edge of each step's box."""
    edges = {}
    for group in picture.iter("g"):
        rect, text = group.find("rect"), group.find("text")
        assert rect is not None
        assert text is not None
        edges[str(text.text)] = float(str(rect.get("x")))
    return edges


CHAIN = [
    job("/check/0", "laptop", 0, writes="a"),
    job("/train/0", "hpc", 10, reads="a", writes="b"),
    job("/segment/0.0", "hpc", 20, reads="b", writes="c"),
    job("/segment/0.1", "hpc", 21, reads="b", writes="d"),
    job("/report/0", "laptop", 30, reads="acd"),
]


def test_a_step_comes_after_those_whose_outputs_it_read() -> None:
    assert after(CHAIN) == {
        "/check": (), "/train": ("/check",), "/segment": ("/train",), "/report": ("/segment",),
    }, "other arrows imply the one from /check to /report"  # fmt: skip


def test_a_large_transfer_to_another_place_has_an_arrow_even_if_others_imply_it() -> None:
    jobs = [job("/a/0", "laptop", 0, writes="xy"), job("/b/0", "laptop", 1, reads="x", writes="z")]
    assert after([*jobs, job("/c/0", "hpc", 2, reads="yz", size=MUCH)])["/c"] == ("/a", "/b")
    assert after([*jobs, job("/c/0", "hpc", 2, reads="yz", size=MUCH - 1)])["/c"] == ("/b",)
    assert after([*jobs, job("/c/0", "laptop", 2, reads="yz", size=MUCH)])["/c"] == ("/b",)


def test_content_that_was_passed_on_comes_from_the_later_step() -> None:
    jobs = [job("/a/0", "x", 0, writes="m"), job("/gate/0", "x", 1, reads="m", writes="m")]
    assert after([*jobs, job("/c/0", "x", 2, reads="m")])["/c"] == ("/gate",)


def test_each_step_is_in_the_column_of_its_place() -> None:
    picture = drawn(CHAIN)
    boxes = lefts(picture)
    assert list(boxes) == ["check", "train", "segment", "report"]
    assert boxes["check"] == boxes["report"] < boxes["train"] == boxes["segment"]
    text = " ".join(picture.itertext())
    assert "medweave.slurm" in text
    assert "2 jobs · 10 s" in text
    arrows = [str(path.get("class")) for path in picture.iter("path") if path.get("marker-end")]
    assert sorted(arrows) == ["arrow", "arrow moves", "arrow moves"]


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"state": "failed"}, "failed", "failed · 5.0 s"),
        ({"state": "cancelled", "seconds": None, "started_s": None}, "cancelled", "cancelled"),
        ({"state": "unfinished", "seconds": None, "ended_s": None}, "unfinished", "unfinished"),
        ({"reused_from": "before"}, "reused", "cache hit"),
        ({}, "done", "completed · 5.0 s"),
    ],
)
def test_the_state_is_shown_by_form_and_word(changes: dict[str, Any], kind: str, words: str) -> None:
    group = next(drawn([job("/train/0", "hpc", 0, **changes)]).iter("g"))
    assert [rect.get("class") for rect in group.iter("rect")] == [kind]
    assert [text.text for text in group.iter("text")] == ["train", words]


def test_of_several_jobs_the_worst_and_the_last_attempt_count() -> None:
    jobs = [
        job("/s/0.0", "hpc", 0, state="failed"), job("/s/0.0", "hpc", 5, attempt=2), job("/s/0.1", "hpc", 0, state="failed"),
        job("/s/0.2", "hpc", 0, reused_from="before"),
    ]  # fmt: skip
    (step,) = steps_of(jobs)
    assert (step.state, step.words) == ("failed", "2 of 3 jobs · failed · 10 s")


def test_names_are_text_and_long_ones_are_cut() -> None:
    svg = flow_picture([job(f"/{'n' * 60}<b>/0", "<hpc>", 0)], {})
    assert "<b>" not in svg
    assert "<hpc>" not in svg
    assert max(len(text.text or "") for text in ET.fromstring(svg).iter("text")) < 30


def test_the_page_has_the_picture_and_its_words(tmp_path: Path) -> None:
    run = Recorder(tmp_path / "run")
    run.job("/check/0", 1, 20)
    run.job("/train/0", 21, 400, deployment="site-a", state="failed", exit_code=1)
    read = [{"class": "File", "bytes": 3, "sha256": "ab"}]
    run.event(401, "job.data", "/check/0", attempt=1, inputs={}, outputs={"cohort_index": read})
    run.event(402, "job.data", "/train/0", deployment="site-a", attempt=1, inputs={"cohort_index": read}, outputs={})
    run.end(403, "failed")
    record = read_run(run.folder)
    page = render(record, None, Model())
    words = describe_steps(steps_of(record.jobs))
    assert words == "check on laptop, completed; train on site-a/gpu4, failed, after check"
    assert f'aria-label="Steps by place: {words}."' in page
    assert 'class="arrow moves"' in page


def test_a_run_without_jobs_has_no_picture(tmp_path: Path) -> None:
    run = Recorder(tmp_path / "run")
    run.end(1, "failed")
    assert 'class="flow"' not in render(read_run(run.folder), None, Model())
