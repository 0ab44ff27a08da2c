"""The picture of a plan: everything is in it once, and its arrows cross no box."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medweave.placement.bind import fit
from medweave.plan.document import Plan
from medweave.plan.past_runs import Past
from medweave.plan.picture import picture_of
from medweave.plan.planner import make_plan
from medweave.plan.text import text_of
from medweave.report.arrows import Box, Route, drawn, routes, widths
from support.cwl_files import LUNG, PIPELINES, ROOT, known_as

NO_RUNS = Past(runs=(), looked_in=(Path("runs"),))
JOBS = ROOT / "deployments" / "jobs"
SVG = "{http://www.w3.org/2000/svg}"


def plan_of(workflow: Path, site: str) -> Plan:
    named = (JOBS / f"{site}-{known_as(workflow)}.yml", workflow.parent / "jobs" / f"example-{workflow.stem}.yml")
    return make_plan(fit(workflow, site, next((job for job in named if job.is_file()), None)), NO_RUNS)


def texts(picture: str, style: str) -> list[str]:
    elements = ElementTree.fromstring(picture).iter(f"{SVG}text")
    return [element.text or "" for element in elements if element.get("class") == style]


def arrows(picture: str) -> list[ElementTree.Element]:
    return [element for element in ElementTree.fromstring(picture).iter(f"{SVG}path") if element.get("marker-end")]


@pytest.mark.parametrize("site", sorted(path.stem for path in ROOT.glob("deployments/sites/*.yml")))
@pytest.mark.parametrize("workflow", PIPELINES, ids=known_as)
def test_each_plan_of_the_repository_has_a_picture_with_all_its_steps_and_places(workflow: Path, site: str) -> None:
    plan = plan_of(workflow, site)
    picture, text = picture_of(plan), text_of(plan)
    shown = [name for name in texts(picture, "name") if re.match(r"\d+  ", name)]
    assert [name.split() for name in shown] == [
        [number, name]
        for number, name in re.findall(r"^  (\d+) +(\S+) +", text.partition("What moves")[0], re.MULTILINE)
    ]
    assert len(shown) == sum(step.runs is not False for step in plan.steps)
    for step in plan.steps:
        assert picture.count(f">{step.step.lstrip('/')}</text>") == (step.runs is False)
    titles = " ".join(element.findtext(f"{SVG}title") or "" for element in arrows(picture))
    for move in plan.moves:
        assert all(re.search(rf"\b{re.escape(item.name)}\b", titles) for item in move.items)


def test_what_would_fail_is_told_and_names_are_escaped(tmp_path: Path) -> None:
    job = tmp_path / "job.yml"
    job.write_text("cohort: {class: Directory, path: '<none>'}\n")
    plan = make_plan(fit(LUNG / "train.cwl", "testbed", job), NO_RUNS)
    assert texts(picture_of(plan), "bad") == [
        "The run would fail: job file, line 1: cohort.path: input 'cohort' cannot be read."
    ]
    odd = f"{ROOT}/<b>&.cwl"
    title = texts(
        picture_of(Plan(**{name: getattr(plan, name) for name in plan.__slots__} | {"workflow": odd})), "title"
    )
    assert title == [f"Plan of {odd} at site 'testbed'"]


def test_an_arrow_says_what_moves_how_and_how_much(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(bytes(3000))
    (tmp_path / "ct").mkdir()
    job = tmp_path / "job.yml"
    job.write_text(
        "cohort: {class: Directory, path: ct}\nsegmentation_model: {class: Directory, path: model}\nidentified: false\n"
    )
    plan = make_plan(fit(LUNG / "infer.cwl", "testbed", job), NO_RUNS)
    by_title = {element.findtext(f"{SVG}title"): element.get("class") for element in arrows(picture_of(plan))}
    assert by_title["segmentation_model: from-driver, 2.9 KiB"] == "arrow moves"
    assert by_title["segment/segmentations: to-driver"] == "arrow moves"
    assert "stays at this place" in by_title


def test_where_only_figures_move_the_arrow_is_pale() -> None:
    plan = plan_of(LUNG / "train.cwl", "university-hpc-and-hospital")
    pale = [
        element.findtext(f"{SVG}title") for element in arrows(picture_of(plan)) if element.get("class") == "arrow small"
    ]
    assert "check/run_report: to-driver" in pale
    assert not any("model" in str(element) for element in pale)


# ---- where arrows run


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[str, Box], list[tuple[str, str]]]:
    columns = draw(st.lists(st.integers(0, 3), min_size=2, max_size=12))
    boxes = {str(row): Box(column=column, row=row) for row, column in enumerate(columns)}
    pairs = st.tuples(st.integers(0, len(columns) - 1), st.integers(0, len(columns) - 1)).filter(
        lambda pair: pair[0] < pair[1]
    )
    edges = draw(st.sets(pairs, max_size=20))
    return boxes, [(str(first), str(last)) for first, last in sorted(edges)]


@given(graphs())
def test_no_arrow_runs_over_a_box_or_along_another_ones(graph: tuple[dict[str, Box], list[tuple[str, str]]]) -> None:
    boxes, pairs = graph
    all_routes = routes(boxes, pairs)
    assert [(route.source, route.target) for route in all_routes] == pairs
    for route in all_routes:
        begin, end = boxes[route.source], boxes[route.target]
        if route.gap is None:
            between = [box for box in boxes.values() if begin.row < box.row < end.row]
            assert begin.column == end.column
            assert all(box.column != begin.column for box in between)
        else:  # sideways in the source's row, down next to the later box: gap n is to the left of column n
            assert route.gap == end.column + (route.enters > 0)
            assert (route.leaves > 0) == (route.gap > begin.column)
            assert route.track < widths(all_routes, 4)[route.gap]
    assert not any(along(boxes, one, other) for one in all_routes for other in all_routes)


def along(boxes: dict[str, Box], one: Route, other: Route) -> bool:
    """Whether two arrows of different boxes share a piece of a track."""
    if one.gap is None or one.source == other.source or (one.gap, one.track) != (other.gap, other.track):
        return False
    first, last = (
        max(boxes[one.source].row, boxes[other.source].row),
        min(boxes[one.target].row, boxes[other.target].row),
    )
    return first <= last


@pytest.mark.parametrize(
    ("start", "across", "end", "path"),
    [
        ((0, 0), 20, (40, 50), "M0 0H14Q20 0 20 6V44Q20 50 26 50H40"),
        ((40, 0), 20, (0, 50), "M40 0H26Q20 0 20 6V44Q20 50 14 50H0"),
        ((0, 0), 20, (0, 50), "M0 0H14Q20 0 20 6V44Q20 50 14 50H0"),
    ],
)
def test_a_path_goes_across_down_and_in(
    start: tuple[float, float], across: float, end: tuple[float, float], path: str
) -> None:
    assert drawn(start, across, end) == path
