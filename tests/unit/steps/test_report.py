"""`report`: one self-contained fragment with the measurements, equal for equal inputs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from medweave_core.contracts import codec
from medweave_core.contracts.report_fragment import SECTIONS_BEGIN, SECTIONS_END, ReportSummary
from medweave_core.contracts.search import TrialRow
from medweave_steps.cli import main
from medweave_steps.search.choice import parse_objectives
from medweave_steps.search.table import table_of
from support.evaluated import CaseSpec, save_nifti
from support.page import check
from support.reported import balls, evaluated, gate_decision, run_report, write_samples


def report(root: Path, options: list[str], *more: str, name: str = "report") -> tuple[str, ReportSummary]:
    assert main(["report", *options, "--output", str(root / name), *more]) == 0
    summary = json.loads((root / name / "summary.json").read_text())
    return (root / name / "fragment.html").read_text(), codec.from_json(ReportSummary, summary, where="summary.json")


@pytest.mark.slow
def test_fragment_stands_alone_and_says_what_was_measured(tmp_path: Path) -> None:
    _, options = evaluated(tmp_path)
    html, summary = report(tmp_path, options)
    page = check(html)
    metrics = json.loads((tmp_path / "evaluation" / "metrics.json").read_text())
    for text in (
        "Research use only",
        "Synthetic data",
        f"{metrics['dice_mean']:.2f}",
        f"{metrics['dice_ci'][0]:.2f} to {metrics['dice_ci'][1]:.2f}",
        "3 of 4 lesions",
        "case-00000001",
        "1 case without a lesion in either mask",
        "float32 kept. int8 refused: Dice may fall by 0.031.",
        "0.790−0.010 (−0.031 to 0.004)",
        "1.80 ×1.62 to 1.98",
        "voxel probability 0.6; lesion peak probability 0.9 and volume 20 mm³",
        "400, best weights at step 350 after 33 s",
        "100.0 patches per second; 2.5% of the time waiting for data; 3.0 MiB exchanged for averaging by all ranks",
        "1.5 Wh, 0.75 Wh per epoch, measured by RAPL of a processor package (1) for the whole machine",
        "−1000 to 400 HU",
        "2 × 2 × 2 mm",
        "a" * 64,
        "3.11.7",
    ):
        assert text in page.text, text
    assert [heading for level, heading in page.headings if level == 2][:-1] == [h for _, h in summary.sections]
    assert {identifier for identifier, _ in summary.sections} <= set(page.ids)
    assert len(page.images) == 3 * 4 + 1  # one lesion was missed
    assert summary.synthetic
    assert (summary.patients, summary.cases, summary.lesions) == (3, 3, metrics["lesions"])
    assert summary.precision == "float32"
    figures = {figure.key: figure for figure in summary.figures}
    assert figures["dice_mean"].value == metrics["dice_mean"]
    assert figures["dice_mean"].baseline == metrics["baseline"]["dice_mean"]
    assert figures["lesion_sensitivity_6_to_8mm"].value == metrics["lesion_sensitivity_6_to_8mm"]
    inside = html.partition(SECTIONS_BEGIN)[2].partition(SECTIONS_END)[0]
    assert "<h2" in inside
    assert "<html" not in inside


@pytest.mark.slow
def test_a_search_statistics_and_a_model_that_was_trained_further_are_reported(tmp_path: Path) -> None:
    _, options = evaluated(tmp_path)
    further = {
        "postprocessing": {"threshold": 0.35, "min_peak": 0.5, "min_volume_mm3": 10.0},
        "metrics": {"validation_dice": 0.834},
        "training": {
            "rounds": 4, "steps_per_round": 50, "replicas": 2, "engine": "ddp", "best_round": 3, "seconds": 12.0,
        },
    }  # fmt: skip
    path = tmp_path / "further.json"
    path.write_text(codec.dumps(run_report("train-distributed", further)))
    moments = {"started_at": "2026-11-25T19:38:07.000+00:00", "ended_at": "2026-11-25T19:38:10.000+00:00"}
    rows = [
        TrialRow(
            trial_id=name,
            varied={"norm": name},
            seed=1,
            state="completed",
            score=score,
            energy_wh=2.0,
            seconds=3.0,
            **moments,
        )
        for name, score in (("a", 0.5), ("b", 0.7))
    ]
    objectives = parse_objectives(("score:max", "wh:min"))
    searched, means = tmp_path / "search.json", tmp_path / "repeats.json"
    for path_of_search, repeats in ((searched, 1), (means, 2)):
        table = table_of(rows, "validation_dice", choose=True, repeats=repeats, objectives=objectives)
        path_of_search.write_text(codec.dumps(run_report("search", codec.to_json(table))))
    place = options.index("--run-reports") + 1
    times = tmp_path / "times.csv"
    times.write_text("nodes,seconds\n1,2.0\n1,2.1\n2,1.0\n2,1.1\n")
    words = ["--measurements", str(times), "--response", "seconds", "--factor", "nodes"]
    statistics = str(tmp_path / "statistics")
    assert main(["stats", *words, "--output", statistics, "--run-report", str(tmp_path / "stats.json")]) == 0
    options = [*options[:place], str(path), str(searched), str(means), *options[place:]]
    html, summary = report(tmp_path, options, "--statistics", statistics)
    assert ("statistics", "Statistics") in summary.sections
    assert "Box plot of seconds by nodes. Means: 1: 2.05 (a), 2: 1.05 (b)." in html
    assert 'norm b <span class="good">selected</span> <span class="tag soft">Pareto front</span></th>' in html
    assert (
        '<tr><th scope="row">norm a <span class="tag soft">Pareto front</span></th><td class="num">2 of 2</td>' in html
    )
    page = check(html)
    assert "4 rounds of 50 steps by 2 replicas, engine ddp; best after round 3; 12 s" in page.text
    assert "voxel probability 0.35; lesion peak probability 0.5 and volume 10 mm³" in page.text
    assert "0.834" in page.text
    assert "0.812" not in page.text
    assert "400, best weights at step 350" in page.text


@pytest.mark.slow
def test_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    _, options = evaluated(tmp_path)
    write_samples(tmp_path / "training_log", num_ranks=2)
    first, _ = report(tmp_path, options)
    second, _ = report(tmp_path, options, "--num-threads", "1", name="again")
    assert first == second
    page = check(first)
    assert "Hardware during training" in page.text
    assert "Power: processor modelled (12 W for each busy core); GPU measured (NVML of a GPU)." in page.text
    assert 'aria-label="Power, utilization, memory and loss of 2 ranks over 2 min 40 s."' in first
    assert page.text.count("GPU, rank 1") == 3, "power, utilization and memory"


@pytest.mark.slow
def test_nothing_in_the_fragment_depends_on_where_the_files_lie(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        _, options = evaluated(tmp_path / name)
        html, _ = report(tmp_path / name, options)
        assert str(tmp_path) not in html
        made.append(html)
    assert made[0] == made[1]


def path_points(path: str) -> np.ndarray:
    return np.array([[float(v) for v in pair.split()] for pair in re.findall(r"-?[\d.]+ -?[\d.]+", path)])


@pytest.mark.slow
@pytest.mark.parametrize("source_format", ["nifti", "dicom"])
def test_outlines_lie_on_their_lesions_with_patient_right_on_the_left(tmp_path: Path, source_format: str) -> None:
    # A lesion near the patient's left, front and top: on the right, at the top, at the top.
    shape = (30, 44, 40) if source_format == "dicom" else (40, 44, 30)
    centre = (22, 10, 30) if source_format == "dicom" else (30, 10, 22)
    lesion = balls(shape, centre, radius=4)
    spec = CaseSpec(case_id="case-00000000", reference=lesion, predicted=lesion, source_format=source_format)
    _, options = evaluated(tmp_path, [spec], prepared_spacing_mm=(2.0, 2.0, 2.0))
    html, _ = report(tmp_path, options)
    truth, result = (re.findall(rf'class="{name}" d="(M\d[^"]+Z)"', html) for name in ("truth", "found"))
    boxes = re.findall(r'<svg viewBox="0 0 ([\d.]+) ([\d.]+)" preserveAspectRatio="none"', html)
    assert len(truth) == len(result) == len(boxes) == 4
    # Columns run to the patient's left, rows to the back: index 30 of 40 is at 3/4 towards the left.
    for place, expected in ((0, (30 / 40, 10 / 44)), (1, (30 / 40, 1 - 22 / 30)), (2, (10 / 44, 1 - 22 / 30))):
        size = np.array([float(v) for v in boxes[place]])
        for paths in (truth, result):
            np.testing.assert_allclose(path_points(paths[place]).mean(axis=0) / size, expected, atol=0.06)
    # The enlarged field has the lesion in its middle unless the border is near, and shows it in quarters of a millimetre.
    assert boxes[3] == ("200", "200")
    span = np.ptp(path_points(result[3]), axis=0) * 0.25
    np.testing.assert_allclose(span, 8, atol=2.5)


@pytest.mark.slow
def test_a_missed_lesion_gets_a_picture_of_its_own(tmp_path: Path) -> None:
    _, options = evaluated(tmp_path)
    html, _ = report(tmp_path, options)
    page = check(html)
    assert "1 of 2 lesions detected, false positives: 1. Planes through the largest lesion." in page.text
    assert "Planes through the center; no lesion in either mask." in page.text
    missed = [image["alt"] for image in page.images if "largest missed lesion" in image["alt"]]
    assert len(missed) == 1
    assert "case-00000001" in missed[0]
    assert "with the outlines of the ground truth." in missed[0]


def test_best_median_and_worst_are_always_among_the_cases_shown(tmp_path: Path) -> None:
    from medweave_core.contracts.evaluation import Evaluation
    from medweave_steps.report.sections import shown_cases, tags

    lesion = balls((16, 16, 16), (8, 8, 8), radius=5)
    specs = []
    for i in range(7):
        result = lesion.copy()
        result[: 3 + i] = False
        specs.append(CaseSpec(case_id=f"case-{i}", reference=lesion, predicted=result))
    evaluated(tmp_path, specs)
    data = json.loads((tmp_path / "evaluation" / "metrics.json").read_text())
    evaluation = codec.from_json(Evaluation, data, where="metrics.json")
    assert tags(evaluation) == {"case-0": "best", "case-3": "median", "case-6": "worst"}
    assert [case.case_id for case in shown_cases(evaluation, 3)] == ["case-0", "case-3", "case-6"]
    assert [case.case_id for case in shown_cases(evaluation, 5)] == ["case-0", "case-2", "case-3", "case-4", "case-6"]
    assert len(shown_cases(evaluation, 20)) == 7


@pytest.mark.slow
def test_names_are_text_and_never_markup(tmp_path: Path) -> None:
    _, options = evaluated(tmp_path)
    html, _ = report(tmp_path, options, "--title", "<script>alert(1)</script> & co")
    page = check(html)
    assert page.headings[0] == (1, "<script>alert(1)</script> & co")


@pytest.mark.slow
def test_without_gate_and_curves_of_validation_the_rest_is_there(tmp_path: Path) -> None:
    _, options = evaluated(tmp_path)
    gate = str(tmp_path / "reports" / "gate" / "run_report.json")
    (tmp_path / "training_log" / "curves.json").write_text(json.dumps([{"step": 5, "loss": 0.5}]))
    html, summary = report(tmp_path, [word for word in options if word != gate])
    assert summary.gate is None
    assert "No run report of gate is available" in check(html).text


def failure(root: Path, options: list[str], capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
    code = main(["report", *options, "--output", str(root / "report"), *more])
    assert not (root / "report").exists()
    assert not list(root.glob(".report*"))
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("evaluation/metrics.json", None, "the evaluation (metrics.json) is missing"),
        ("evaluation/metrics.json", "{}", "the evaluation (metrics.json): the content does not match this version"),
        ("evaluation/lesions.csv", "case_id,diameter_mm\na,1\n", "the table of lesions (lesions.csv) cannot be read"),
        ("training_log/curves.json", None, "the training log (curves.json) cannot be read"),
        ("training_log/curves.json", "[1, 2]", "the training log (curves.json) cannot be read"),
        (
            "reports/train/run_report.json",
            "[]",
            "a run report (run_report.json): the content does not match this version",
        ),
    ],
)
def test_inputs_that_are_not_what_the_steps_write_are_refused(
    tmp_path: Path, file: str, content: str | None, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, options = evaluated(tmp_path)
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_text(content)
    code, text = failure(tmp_path, options, capsys)
    assert code == 65
    assert expected in text


@pytest.mark.slow
def test_a_gate_report_of_another_version_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, options = evaluated(tmp_path)
    results = codec.to_json(gate_decision()) | {"unheard": 1}
    (tmp_path / "reports/gate/run_report.json").write_text(codec.dumps(run_report("gate", results)))
    code, text = failure(tmp_path, options, capsys)
    assert code == 65
    assert "unheard" in text


@pytest.mark.slow
def test_folders_of_different_runs_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, options = evaluated(tmp_path)
    (made.segmentations[0] / "case-00000001" / "lesion_mask.nii.gz").unlink()
    code, text = failure(tmp_path, options, capsys)
    assert code == 65
    assert "case-00000001 was evaluated, but" in text


@pytest.mark.slow
def test_a_mask_of_another_shape_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, options = evaluated(tmp_path)
    grid = CaseSpec(case_id="x", reference=np.zeros((4, 4, 4), bool), predicted=None).grid()
    save_nifti(made.segmentations[0] / "case-00000001" / "lesion_mask.nii.gz", np.zeros((4, 4, 4), np.uint8), grid)
    code, text = failure(tmp_path, options, capsys)
    assert code == 65
    assert "the mask of case-00000001 cannot be drawn" in text


def test_no_overlay_at_all_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, options = evaluated(tmp_path)
    code, text = failure(tmp_path, options, capsys, "--max-overlays", "0")
    assert code == 2
    assert "1 or more" in text


@pytest.mark.slow
def test_a_missing_library_is_named_with_its_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, options = evaluated(tmp_path)
    monkeypatch.setitem(sys.modules, "contourpy", None)
    code, text = failure(tmp_path, options, capsys)
    assert code == 69
    assert "medweave[report]" in text
