"""`report` with several labels or regions: tables, outlines with one color per label, a legend, and words."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medweave_core.contracts import codec
from medweave_core.contracts.labels import Label, Region
from medweave_core.contracts.report_fragment import ReportSummary
from medweave_steps.cli import main
from support.evaluated import CaseSpec
from support.page import check
from support.reported import balls, evaluated, run_report

EDEMA, CORE, ENHANCING = (
    Label(value=value, name=name) for value, name in ((1, "edema"), (2, "core"), (5, "enhancing"))
)
LABELS = (EDEMA, CORE, ENHANCING)
REGIONS = (
    Region(name="whole", values=(1, 2, 5)), Region(name="tumor core", values=(2, 5)), Region(name="enhancing part", values=(5,)),
)  # fmt: skip
SHAPE, CENTRE = (40, 36, 24), (20, 18, 12)


def tumor(*radii: float, shape: tuple[int, int, int] = SHAPE, centre: tuple[int, int, int] = CENTRE) -> np.ndarray:
    """Return balls inside one another: edema, core and enhancing part."""
    labels = np.zeros(shape, np.uint8)
    for radius, value in zip(radii, (1, 2, 5), strict=False):
        labels[balls(shape, centre, radius=radius)] = value
    return labels


def specs() -> list[CaseSpec]:
    return [
        CaseSpec(case_id="case-00000000", reference=tumor(9, 6, 3), predicted=tumor(9, 6, 3)),
        CaseSpec(case_id="case-00000001", reference=tumor(9, 6, 3), predicted=tumor(8, 4)),
        CaseSpec(case_id="case-00000002", reference=tumor(9), predicted=tumor(8)),
    ]


def report(root: Path, cases: list[CaseSpec] | None = None, **changes: Any) -> tuple[str, ReportSummary]:
    _, options = evaluated(root, cases or specs(), **{"labels": LABELS, "delivered": LABELS} | changes)
    filters = dict(zip((output.name for output in changes.get("regions", LABELS)), FILTERS, strict=True))
    training = {"postprocessing": {"threshold": 0.5, "min_volume_mm3": 0.0, "by_output": filters}}
    path = root / "reports/train/run_report.json"
    path.write_text(codec.dumps(run_report("train", training)))
    assert main(["report", *options, "--output", str(root / "report")]) == 0
    summary = json.loads((root / "report/summary.json").read_text())
    html = (root / "report/fragment.html").read_text()
    return html, codec.from_json(ReportSummary, summary, where="summary.json")


FILTERS = [
    {"threshold": 0.4, "min_peak": 0.7, "min_volume_mm3": 10.0}, {"threshold": 0.5, "min_peak": 0.0, "min_volume_mm3": 0.0},
    {"threshold": 0.6, "min_peak": 0.8, "min_volume_mm3": 5.0},
]  # fmt: skip


@pytest.mark.slow
def test_each_label_has_a_row_a_color_and_its_dice_in_each_case(tmp_path: Path) -> None:
    html, summary = report(tmp_path)
    page = check(html)
    metrics = json.loads((tmp_path / "evaluation/metrics.json").read_text())
    for one in metrics["by_label"]:
        assert f'<th scope="row">{one["name"]}</th><td class="num">{one["dice_mean"]:.2f}' in html
        assert f"{one['dice_ci'][0]:.2f} to {one['dice_ci'][1]:.2f}" in html
    keys = [figure.key for figure in summary.figures]
    assert keys[:2] == ["dice_by_label_mean", "dice_mean"]
    assert summary.figures[0].value == metrics["dice_by_label_mean"]
    for text in (
        "The first table counts all labels as one mask", "Each label, over 3 scans", "Dice of each label, in the same order",
        "edema (value 1; without DICOM codes); core (value 2; without DICOM codes); enhancing (value 5; without DICOM codes)",
        "edema: lesion peak probability 0.7 and volume 10 mm³; core: lesion peak probability 0 and volume 0 mm³",
    ):  # fmt: skip
        assert text in page.text, text
    assert summary.title == "Segmentation of edema, core and enhancing in CT"
    assert "odule" not in html.replace("tiny-nodule", "")  # the name of the model in this test
    # Case 2 has neither core nor enhancing part in any mask; case 1 has an enhancing part that the model missed.
    rows = re.search(r"Dice of each label.*?</table>", html, re.DOTALL)
    assert rows is not None
    assert rows[0].count(">absent<") == 2
    assert ">0.00<" in rows[0]


@pytest.mark.slow
def test_outlines_of_a_label_share_a_color_and_lie_on_that_label(tmp_path: Path) -> None:
    html, _ = report(tmp_path, specs()[:1])
    strokes = {}
    for kind in ("truth", "found"):
        paths = re.findall(rf'class="{kind}" style="stroke:(#\w+);[^"]+" d="(M\d[^"]+Z)"', html)
        assert len(paths) == 4 * 3  # three planes and the enlarged one
        strokes[kind] = [color for color, _ in paths]
        points = [np.array([float(v) for v in re.findall(r"-?[\d.]+", path)]).reshape(-1, 2) for _, path in paths[:3]]
        assert [np.ptp(p, axis=0).max() / 2 for p in points] == pytest.approx([9, 6, 3], abs=1.0)
    assert strokes["truth"] == strokes["found"]
    assert len(set(strokes["truth"])) == 3
    legend = html.partition('<ul class="legend">')[2].partition("</ul>")[0]
    assert re.findall(r"fill:(#\w+)\"/></svg>([\w ]+)<", legend) == list(
        zip(strokes["truth"][:3], ("edema", "core", "enhancing"), strict=True)
    )
    alt = check(html).images[0]["alt"]
    assert "the ground truth (edema, core, enhancing) and the prediction (edema, core, enhancing)" in alt


@pytest.mark.slow
def test_regions_of_the_model_are_the_rows_and_labels_the_outlines(tmp_path: Path) -> None:
    html, _ = report(tmp_path, regions=REGIONS)
    page = check(html)
    for text in (
        "Each region, over 3 scans", "Dice, mean over regions",
        "whole (labels 1, 2, 5); tumor core (labels 2, 5); enhancing part (label 5)",
        "whole: voxel probability 0.4; lesion peak probability 0.7 and volume 10 mm³",
    ):  # fmt: skip
        assert text in page.text, text
    legend = html.partition('<ul class="legend">')[2].partition("</ul>")[0]
    assert [name for name in ("edema", "core", "enhancing") if f"</svg>{name}<" in legend] == [
        "edema", "core", "enhancing"
    ]  # fmt: skip


@pytest.mark.slow
def test_labels_that_were_not_evaluated_are_named(tmp_path: Path) -> None:
    cases = [CaseSpec(case_id="case-00000000", reference=tumor(9, 6), predicted=tumor(9, 6, 3))]
    html, _ = report(tmp_path, cases, labels=(EDEMA, CORE))
    assert "because the ground truth has no such labels: enhancing." in check(html).text


@pytest.mark.slow
def test_voxels_without_annotation_are_not_outlined(tmp_path: Path) -> None:
    truth = tumor(9, 6, 3)
    truth[:6] = 9
    cases = [CaseSpec(case_id="case-00000000", reference=truth, predicted=tumor(9, 6, 3))]
    html, _ = report(tmp_path, cases, ignore_value=9)
    assert len(re.findall(r'class="truth" style="[^"]+" d=', html)) == 4 * 3


@pytest.mark.slow
def test_a_title_of_many_labels_counts_them(tmp_path: Path) -> None:
    many = tuple(Label(value=value, name=f"structure number {value}") for value in range(1, 13))
    _, summary = report(
        tmp_path,
        [CaseSpec(case_id="case-00000000", reference=tumor(9), predicted=tumor(8))],
        labels=many,
        delivered=many,
    )
    assert summary.title == "Segmentation of 12 labels in CT"


@pytest.mark.slow
def test_with_one_label_voxels_without_annotation_are_not_outlined(tmp_path: Path) -> None:
    truth = np.zeros(SHAPE, np.uint8)
    truth[balls(SHAPE, CENTRE, radius=5)] = 1
    truth[:6] = 9  # larger than the lesion
    cases = [CaseSpec(case_id="case-00000000", reference=truth, predicted=(truth == 1).astype(np.uint8))]
    html, _ = report(tmp_path, cases, ignore_value=9, labels=(EDEMA,), delivered=(EDEMA,))
    assert "which was missed" not in check(html).text
    pairs = re.findall(r'<path class="truth" d="(M\d[^"]+Z)"/><path class="found" d="([^"]+)"', html)
    assert len(pairs) == 4
    assert all(truth_path == found_path for truth_path, found_path in pairs)
