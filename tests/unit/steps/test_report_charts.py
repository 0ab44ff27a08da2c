"""Charts: inline SVG with the page's colors, unique ids, and alternative text."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from medweave_steps.report.charts import CLASS_FIGURES, MASK_FIGURES, loss_chart, size_chart, validation_chart
from medweave_steps.report.gather import Curves, LesionRow
from medweave_steps.runtime.svg import Chart

CURVES = Curves(
    loss=tuple((step, 1 / step) for step in range(10, 100, 10)),
    validation={"dice": ((30, 0.3), (60, 0.8), (90, 0.7)), "sensitivity": ((30, 0.2), (60, 0.5), (90, 0.6))},
)
VALIDATION = validation_chart(CURVES, MASK_FIGURES, "sliding-window inference")
LESIONS = tuple(LesionRow(case_id="a", diameter_mm=d, is_hit=d > 7) for d in (3.0, 6.0, 7.9, 8.0, 12.0, 30.0))


@pytest.mark.parametrize("chart", [loss_chart(CURVES), VALIDATION, size_chart(LESIONS)])
def test_charts_are_plain_svg_in_the_colours_of_the_page(chart: Chart) -> None:
    root = ET.fromstring(chart.svg)
    assert root.tag == "svg"
    for foreign in ("<style", "<metadata", "http", "xlink", "font-family", "<?xml", "script"):
        assert foreign not in chart.svg
    colours = set(re.findall(r"(?:fill|stroke): ([^;\"]+)", chart.svg))
    allowed = {"none", "currentColor", "var(--soft)", "var(--line)", "var(--c1)", "var(--c2)", "var(--paper)"}
    assert {c for c in colours if not c.startswith("url(#")} <= allowed


def test_charts_of_one_page_share_no_identifier() -> None:
    charts = [loss_chart(CURVES), VALIDATION, size_chart(LESIONS)]
    ids = [set(re.findall(r' id="([^"]+)"', chart.svg)) for chart in charts]
    assert all(ids)
    assert not ids[0] & ids[1]
    assert not ids[1] & ids[2]


def test_equal_figures_give_equal_bytes() -> None:
    assert size_chart(LESIONS) == size_chart(LESIONS)
    assert loss_chart(CURVES) == loss_chart(CURVES)


def test_words_say_what_the_picture_shows() -> None:
    assert VALIDATION.alt == "Validation Dice over optimizer steps; the best is 0.800 at step 60."
    expected = "below 6 mm: 0 of 1; 6 to 8 mm: 1 of 2; 8 to 10 mm: 1 of 1; 10 to 15 mm: 1 of 1; from 20 mm: 1 of 1."
    assert size_chart(LESIONS).alt == f"Detected lesions by diameter. {expected}"


def test_curves_of_a_classification_begin_with_its_score() -> None:
    curves = Curves(loss=(), validation={"macro_f1": ((10, 0.4), (20, 0.6)), "accuracy": ((10, 0.5), (20, 0.4))})
    chart = validation_chart(curves, CLASS_FIGURES, "whole images")
    assert chart.alt == "Validation macro-F1 over optimizer steps; the best is 0.600 at step 20."
    assert chart.caption == "Validation split, whole images. Best macro-F1 0.600, at step 20."
