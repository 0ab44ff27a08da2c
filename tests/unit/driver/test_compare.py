"""Comparison of two runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from medweave.cli.main_command import main
from medweave.report import compare
from medweave.report.compare import Row
from medweave.report.energy import Model
from medweave.report.paired_cases import paired_cases
from medweave_core.runlog.history import Run, read_run
from support.recorded import Recorder, completed_run


def recorded(folder: Path, train_s: float, *, at: str = "laptop", state: str = "completed", sent: int = 0) -> Run:
    run = Recorder(folder)
    run.job("/check/0", 1, 20)
    run.job("/train/0", 21, 21 + train_s, deployment=at, state=state)
    if sent:
        run.event(
            30, "transfer.ended", deployment="site-a", **{"from": "laptop", "route": "from-driver", "bytes": sent}
        )
    run.end(30 + train_s, state)
    return read_run(folder)


def test_a_step_has_both_times_and_the_change(tmp_path: Path) -> None:
    now, before = recorded(tmp_path / "now", 60), recorded(tmp_path / "before", 20.6, at="site-a")
    check, train = compare.steps(now, before, Model())
    assert check == Row(name="check", now="laptop, 18 s, 321 MiB", before="laptop, 18 s, 321 MiB")
    assert train.now == "laptop, 59 s, 321 MiB"
    assert train.before == "site-a/gpu4, 20 s, 321 MiB"
    assert (train.change, train.is_worse) == ("3.0 times", True)
    quicker = compare.steps(before, now, Model())[1]
    assert (quicker.change, quicker.is_worse) == ("-66 %", False)


def test_a_step_of_one_run_only_and_one_that_failed(tmp_path: Path) -> None:
    now = recorded(tmp_path / "now", 60, state="failed")
    run = Recorder(tmp_path / "before")
    run.job("/check/0", 1, 20)
    for place in range(3):
        run.job(f"/segment/0.{place}", 21, 40)
    run.end(41)
    by_name = {row.name: row for row in compare.steps(now, read_run(tmp_path / "before"), Model())}
    assert list(by_name) == ["check", "train", "segment"]
    assert by_name["train"].now == "laptop, failed, 59 s, 321 MiB"
    assert by_name["train"].before == "did not run"
    assert by_name["segment"].before == "3 jobs at laptop, 55 s, 321 MiB"
    assert by_name["segment"].now == "did not run"


def test_a_cache_hit_is_not_compared(tmp_path: Path) -> None:
    run = Recorder(tmp_path / "now")
    run.event(1, "job.scheduled", "/check/0", attempt=1, cores=1, memory_mib=10)
    run.event(2, "job.lookup", "/check/0", attempt=1, parts={}, reused_from="before")
    run.event(3, "job.ended", "/check/0", attempt=1, state="completed", exit_code=0, seconds=0.1)
    run.end(4)
    now, before = read_run(tmp_path / "now"), recorded(tmp_path / "before", 60)
    row = compare.steps(now, before, Model())[0]
    assert row == Row(name="check", now="laptop, cache hit", before="laptop, 18 s, 321 MiB")


def test_the_whole_run(tmp_path: Path) -> None:
    now = recorded(tmp_path / "now", 60, sent=3 * 2**20)
    before = recorded(tmp_path / "before", 60, sent=2**20)
    rows = {row.name: row for row in compare.sums(now, before, Model())}
    assert rows["Whole run"] == Row(name="Whole run", now="1 min 30 s", before="1 min 30 s")
    copied = rows["MiB copied between places"]
    assert (copied.now, copied.before, copied.change, copied.is_worse) == ("3.0", "1.0", "3.0 times", True)
    assert rows["Energy (estimate)"].now.endswith("Wh")


def test_waits_in_queues_are_shown_if_there_were_any(tmp_path: Path) -> None:
    runs = []
    for place, queue_s in enumerate((600.0, 60.0)):
        run = Recorder(tmp_path / str(place))
        run.job("/train/0", 1, 700, deployment="site-a", seconds=30.0, site={"queue_seconds": queue_s})
        run.end(701)
        runs.append(read_run(run.folder))
    row = next(row for row in compare.sums(*runs, Model()) if row.name.startswith("Queue time"))
    assert (row.now, row.before, row.change) == ("10 min 00 s", "1 min 00 s", "10.0 times")
    plain = [recorded(tmp_path / name, 60) for name in ("now", "before")]
    assert not any(row.name.startswith("Queue time") for row in compare.sums(*plain, Model()))


@pytest.mark.parametrize(
    ("now", "before", "change"),
    [(0.812, 0.8, "+0.012"), (0.8, 0.812, "-0.012"), (0.8, 0.8, ""), (None, 0.8, ""), (0.8, None, "")],
)
def test_results_are_not_judged(now: float | None, before: float | None, change: str) -> None:
    (row,) = compare.figures({"Dice": now}, {"Dice": before})
    assert (row.change, row.is_worse) == (change, None)


def test_only_versions_that_differ_are_shown() -> None:
    rows = compare.versions(
        [("torch", "2.6"), ("monai", "1.5")], [("torch", "2.5"), ("monai", "1.5"), ("onnx", "1.17")]
    )
    assert rows == [Row(name="onnx", now="–", before="1.17"), Row(name="torch", now="2.6", before="2.5")]


def test_the_page_has_the_section_and_names_another_workflow(tmp_path: Path) -> None:
    run, other = completed_run(tmp_path / "run"), Recorder(tmp_path / "other", workflow="brain")
    other.job("/check/0", 1, 20)
    other.end(30)
    assert main(["report", str(run.folder), "--compare", str(other.folder)]) == 0
    page = (run.folder / "report.html").read_text()
    assert '<h2 id="compared">Comparison with another run</h2>' in page
    assert "That run has another workflow: brain." in page
    assert '<th scope="col">This run</th><th scope="col">Other run</th>' in page, "ids push the change out of sight"
    assert main(["report", str(run.folder)]) == 0
    assert "Comparison with another run" not in (run.folder / "report.html").read_text()


def evaluated_run(folder: Path, scores: dict[str, float | None]) -> Run:
    """Write a run whose evaluation reports the Dice of cases; each patient has two cases."""
    run = Recorder(folder)
    cases = tuple(
        {"case_id": case, "patient_key": f"patient-{int(case) // 2}", "dice": dice} for case, dice in scores.items()
    )
    run.report(20, "/evaluate/0", "laptop", cases=cases)
    run.event(1, "job.scheduled", "/evaluate/0", attempt=1, cores=1, memory_mib=10)
    run.job("/check/0", 21, 40)
    run.end(50)
    return read_run(folder)


def test_cases_of_several_runs_are_tested_pairwise_over_patients(tmp_path: Path) -> None:
    base = {str(case): 0.5 + case / 100 for case in range(16)}
    worse: dict[str, float | None] = {case: dice - 0.05 - int(case) / 1000 for case, dice in base.items()}
    evaluated_run(tmp_path / "first", {**base, "99": 0.9})
    evaluated_run(tmp_path / "second", worse | {"0": None, "1": None})
    evaluated_run(tmp_path / "third", {case: dice + 0.001 * (-1) ** (int(case) // 2) for case, dice in base.items()})
    folders = [str(tmp_path / name) for name in ("first", "second", "third")]
    assert main(["report", folders[0], "--compare", *folders[1:]]) == 0
    page = (tmp_path / "first" / "report.html").read_text()
    assert '<h2 id="compared">Comparison with 2 other runs</h2>' in page
    assert "Dice of 14 cases of 7 patients that all these runs have, without 3 other cases." in page
    p = f"{3 * 2 / 2**7:.4f}"
    assert '<td class="id">second</td><td class="num">0.058</td>' in page
    assert f'<td class="num">{p}</td><td>differ</td>' in page
    assert "no difference shown" in page
    assert page.count("<caption>The run</caption>") == 2, "each run has its own tables"


def test_runs_without_common_cases_have_no_test(tmp_path: Path) -> None:
    runs = [evaluated_run(tmp_path / name, {name: 0.5}) for name in ("1", "2")]
    result = paired_cases(runs)
    assert result is not None
    assert (result.reason, result.analysis, result.left_out) == ("the runs share no case", None, 2)
    assert paired_cases([runs[0], recorded(tmp_path / "3", 20)]) is None


def test_a_run_is_not_compared_with_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = completed_run(tmp_path / "run")
    assert main(["report", str(run.folder), "--compare", str(run.folder)]) == 2
    assert "run more than once" in capsys.readouterr().err


def test_a_missing_run_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = completed_run(tmp_path / "run")
    assert main(["report", str(run.folder), "--compare", str(tmp_path / "none")]) != 0
    assert "none" in capsys.readouterr().err
