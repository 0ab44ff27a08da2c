"""The adviser: a table of the literature, workloads with times computed by hand, and invalid files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from medweave.advise import document, model
from medweave.advise.document import Advice, Measured, MeasuredRow
from medweave.advise.judge import advise, law_of
from medweave.cli.main_command import main
from medweave_core.contracts import codec
from medweave_core.contracts.report import RankFacts, RunReport
from medweave_core.contracts.search import SearchTable, TrialRow
from medweave_core.errors import UsageError, UserInputError
from medweave_steps.cli import main as step
from support.cwl_files import ROOT

TABLE = ROOT / "docs/how-to/advise/distmis-table-1.yml"
PAGE = ROOT / "docs/how-to/choose-a-strategy.md"
OF_GPUS = "rows[0].gpus: the measurements are not sufficient.\n  seen:     "


def advised(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Advice:
    """Return the advice that the command prints as JSON, checked against its schema."""
    assert main(["advise", "--json", *map(str, words)]) == 0
    data = json.loads(capsys.readouterr().out)
    jsonschema.validate(data, document.schema(document.ADVICE), jsonschema.Draft202012Validator)
    return codec.from_json(Advice, data, where="advice")


def written(folder: Path, **content: Any) -> Path:
    path = folder / "measured.json"
    path.write_text(json.dumps({"title": "t", "gpus": [1, 2, 4], "gpus_per_node": 2} | content))
    return path


def measured(*rows: MeasuredRow, **more: Any) -> Measured:
    return Measured(**({"title": "t", "gpus": (1, 2, 4, 8), "gpus_per_node": 8, "rows": rows} | more))


def row(strategy: Any, gpus: int, seconds: float | None = None, **more: Any) -> MeasuredRow:
    return MeasuredRow(strategy=strategy, gpus=gpus, elapsed_s=seconds, **more)


# -- DistMIS, Table I -------------------------------------------------------------------------------------------------


def test_calibrated_on_two_rows_every_further_row_has_its_error_and_lies_in_its_interval(
    capsys: pytest.CaptureFixture[str],
) -> None:
    checks = advised(capsys, TABLE, "--calibrate-up-to", "2").checks
    assert [(check.strategy, check.gpus) for check in checks] == [
        (strategy, gpus) for strategy in ("ddp", "search") for gpus in (4, 8, 12, 16, 32)
    ]
    assert all(check.is_inside and check.low_s <= check.measured_s <= check.high_s for check in checks)
    # By hand: a + b = T(1), a/2 + b = T(2).
    fixed = 2 * 83368 - 159482
    assert checks[0].elapsed_s == pytest.approx((159482 - fixed) / 4 + fixed)
    assert checks[0].error == pytest.approx(checks[0].elapsed_s / 54575 - 1)
    assert checks[4].error == pytest.approx(-0.008, abs=0.001)
    assert checks[9].error == pytest.approx(-0.365, abs=0.001)


def test_the_interval_rests_on_the_calibrated_rows_alone(capsys: pytest.CaptureFixture[str]) -> None:
    for check in advised(capsys, TABLE, "--calibrate-up-to", "2").checks:
        first, second = {"ddp": (159482, 83368), "search": (159619, 80679)}[check.strategy]
        assert check.low_s == pytest.approx(min(first, 2 * second) / check.gpus)
        assert check.high_s == second


def test_more_rows_make_narrower_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    widths = []
    for limit in (2, 4, 8, 16):
        last = advised(capsys, TABLE, "--calibrate-up-to", str(limit)).checks[-1]
        assert last.gpus == 32
        assert last.is_inside
        widths.append(last.high_s - last.low_s)
    assert widths == sorted(widths, reverse=True)


def test_a_row_that_is_wrong_is_outside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"strategy": "ddp", "gpus": n, "elapsed_s": s} for n, s in ((1, 100), (2, 60), (4, 20))]
    (check,) = advised(capsys, written(tmp_path, rows=rows), "--calibrate-up-to", "2").checks
    assert not check.is_inside
    assert main(["advise", str(tmp_path / "measured.json"), "--calibrate-up-to", "2"]) == 0
    assert "0 of 1 in their interval" in capsys.readouterr().out


def test_unseen_effects_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    unseen = " ".join(advised(capsys, TABLE, "--calibrate-up-to", "2").unseen)
    for words in (
        "shared file system",
        "network between nodes",
        "trial durations: assumed equal",
        "queue wait",
        "memory",
    ):
        assert words in unseen
    assert "network between nodes" not in " ".join(advised(capsys, TABLE).unseen)


def test_the_whole_table_agrees_with_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    advice = advised(capsys, TABLE)
    assert advice.soonest is not None
    assert (advice.soonest.strategy, advice.soonest.gpus, advice.soonest.is_measured) == ("search", 32, True)
    assert advice.soonest.efficiency == pytest.approx(15.19 / 32, abs=0.001)
    assert advice.is_sure
    assert advice.measure_next == ""


# -- the model --------------------------------------------------------------------------------------------------------


def test_a_law_of_two_terms_is_recovered_from_three_rows() -> None:
    rows = [row("ddp", n, 1000 / n + 50) for n in (1, 2, 4)]
    law = law_of("ddp", rows, measured(*rows))
    assert law is not None
    assert law.at(8).elapsed_s == pytest.approx(1000 / 8 + 50)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(1.0, 100.0), (0.5, 50.0)], (100.0, 0.0)),
        ([(1.0, 100.0), (0.5, 40.0)], None),
        ([(1.0, 80.0), (0.5, 90.0)], None),
    ],
)
def test_neither_term_is_below_zero(points: list[tuple[float, float]], expected: tuple[float, float] | None) -> None:
    terms = model.fitted(points)
    assert min(terms) >= 0
    if expected:
        assert terms == pytest.approx(expected)


def test_parts_of_a_step_make_the_interval_narrower_than_whole_times() -> None:
    # Of a step of 1.1 s on one GPU 1 s is computing, 0.1 s waiting for data; on two, 0.5 + 0.05 and 0.1 for the other rank.
    parts = [
        row("ddp", 1, compute_s=1.0, data_s=0.1, samples_per_step=8),
        row("ddp", 2, compute_s=0.5, data_s=0.05, communication_s=0.1, samples_per_step=8),
    ]
    work = measured(*parts, samples_per_trial=800)
    law = law_of("ddp", parts, work)
    assert law is not None
    four = law.at(4)
    assert four.elapsed_s == pytest.approx(100 * (0.25 + 0.025 + 0.1 * (3 / 4) / (1 / 2)))
    assert four.low_s == pytest.approx(100 * (0.25 + 0.025 + 0.1))
    assert four.high_s == pytest.approx(100 * (0.25 + 0.05 + 0.1 * 3))
    whole = [row("ddp", 1, 110.0), row("ddp", 2, 65.0)]
    wide = law_of("ddp", whole, measured(*whole))
    assert wide is not None
    assert (wide.at(4).low_s, wide.at(4).high_s) == (27.5, 65.0)


def test_a_batch_that_grows_with_the_gpus_needs_fewer_synchronizations() -> None:
    parts = [
        row("ddp", 1, compute_s=1.0, samples_per_step=2),
        row("ddp", 2, compute_s=1.0, communication_s=0.1, samples_per_step=4),
    ]
    law = law_of("ddp", parts, measured(*parts, samples_per_trial=800))
    assert law is not None
    assert law.at(2).elapsed_s == pytest.approx(200 * 1.1)
    assert law.at(4).elapsed_s == pytest.approx(100 * (1.0 + 0.1 * (3 / 4) / (1 / 2)))


def test_between_two_measured_numbers_the_time_lies_between_theirs() -> None:
    rows = [row("ddp", 1, 100.0), row("ddp", 8, 30.0)]
    law = law_of("ddp", rows, measured(*rows))
    assert law is not None
    assert (law.at(4).low_s, law.at(4).high_s) == (30.0, 100.0)
    assert 30 < law.at(4).elapsed_s < 100


def test_repeats_are_averaged_and_their_range_is_the_interval() -> None:
    rows = [row("ddp", 1, 100.0), row("ddp", 2, 60.0), row("ddp", 2, 64.0)]
    law = law_of("ddp", rows, measured(*rows))
    assert law is not None
    two = law.at(2)
    assert (two.low_s, two.elapsed_s, two.high_s, two.is_measured) == (60.0, 62.0, 64.0, True)


def test_trials_of_known_length_start_on_the_next_free_gpu() -> None:
    assert model.makespan([4, 3, 2, 1], 2) == 5
    assert model.makespan([4, 3, 2, 1], 9) == 4
    rows = [row("search", 1, 10.0)]
    law = law_of("search", rows, measured(*rows, num_trials=4, trial_s=(4, 3, 2, 1)))
    assert law is not None
    assert law.at(2).elapsed_s == pytest.approx(5.0)
    equal = law_of("search", rows, measured(*rows, num_trials=5))
    assert equal is not None
    assert equal.at(2).elapsed_s == pytest.approx(6.0)  # two GPUs, five trials: three of them one after the other
    assert equal.at(2).low_s == pytest.approx(5.0)


# -- the advice -------------------------------------------------------------------------------------------------------


def test_one_training_is_not_sooner_by_a_search_and_the_fewest_gpus_of_equals_are_advised() -> None:
    rows = [row("ddp", 1, 100.0), row("ddp", 2, 55.0), row("search", 2, 100.0)]
    advice = advise(measured(*rows))
    assert advice.soonest is not None
    assert (advice.soonest.strategy, advice.soonest.gpus) == ("ddp", 8)
    search = [option for option in advice.options if option.strategy == "search"]
    assert [option.gpus for option in search] == [2, 4, 8]
    assert {round(option.elapsed_s) for option in search} == {100}


def test_the_wait_in_the_queue_counts() -> None:
    rows = [row("ddp", 1, 100.0, queue_wait_s=5), row("ddp", 2, 55.0, queue_wait_s=500)]
    best = advise(measured(*rows)).soonest
    assert best is not None
    assert (best.strategy, best.gpus, best.queue_wait_s) == ("single", 1, 5)


def test_an_option_that_does_not_fit_into_memory_is_not_advised() -> None:
    rows = [row("ddp", 1, 100.0, memory_mib=20000), row("ddp", 2, 55.0, memory_mib=11000)]
    advice = advise(measured(*rows, gpus=(1, 2), gpu_memory_mib=16384))
    assert advice.soonest is not None
    assert (advice.soonest.strategy, advice.soonest.gpus) == ("ddp", 2)
    assert {option.strategy for option in advice.options if not option.fits} == {"single", "search"}
    assert advise(measured(*rows, gpus=(1, 2), gpu_memory_mib=8000)).soonest is None


def test_a_strategy_that_communicates_is_not_judged_by_one_gpu() -> None:
    advice = advise(measured(row("ddp", 1, 100.0)))
    assert {option.strategy for option in advice.options} == {"single", "search"}
    assert advice.not_judged[0].startswith("ddp:")


# -- files ------------------------------------------------------------------------------------------------------------


def report(
    path: Path,
    *,
    strategy: str,
    ranks: int,
    seconds: float,
    steps: int = 50,
    verb: str = "train",
    wait: float | None = None,
) -> Path:
    training = {
        "strategy": strategy, "world_size": ranks, "seconds": seconds, "steps_done": steps, "batch_size": 4,
    }  # fmt: skip
    training |= {} if wait is None else {"data_wait_seconds": wait}
    facts = [
        RankFacts(rank=rank, host="n1", device="cpu", num_threads=1, samples=1, seconds=1.0) for rank in range(ranks)
    ]
    content = RunReport(
        verb=verb, medweave_version="0", started_at="2026-01-01T00:00:00+00:00", seconds=seconds, peak_memory_mib=1,
        peak_memory_children_mib=1, num_threads=1, host_cpu="x", config={}, versions={}, results={"training": training},
        cases=(), notices=(), ranks=tuple(facts),
    )  # fmt: skip
    path.write_text(codec.dumps(content))
    return path


def test_reports_of_trainings_are_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = report(tmp_path / "one.json", strategy="single", ranks=1, seconds=100)
    two = report(tmp_path / "two.json", strategy="ddp", ranks=2, seconds=60)
    advice = advised(capsys, one, two, "--gpus", "1", "2", "4", "--num-trials", "3")
    times = {(option.strategy, option.gpus): option.elapsed_s for option in advice.options}
    assert times[("single", 1)] == 300
    assert times[("ddp", 2)] == 180
    assert times[("search", 4)] == pytest.approx(100)


def test_reports_with_the_wait_for_data_are_rows_by_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # 90 s of computing and 10 of waiting; on two ranks 45, 5, and 10 with each other: the latter two may not divide.
    one = report(tmp_path / "one.json", strategy="single", ranks=1, seconds=100, wait=10)
    two = report(tmp_path / "two.json", strategy="ddp", ranks=2, seconds=60, wait=5)
    options = advised(capsys, one, two, "--gpus", "1", "2", "4").options
    four = next(option for option in options if (option.strategy, option.gpus) == ("ddp", 4))
    assert four.elapsed_s == pytest.approx(90 / 4 + 10 * (3 / 4) / (1 / 2) + 2.5)
    assert (four.low_s, four.high_s) == (pytest.approx(90 / 4 + 10 + 2.5), pytest.approx(90 / 4 + 30 + 5))
    blind = report(tmp_path / "blind.json", strategy="ddp", ranks=2, seconds=60)
    options = advised(capsys, one, blind, "--gpus", "1", "2", "4").options
    four = next(option for option in options if (option.strategy, option.gpus) == ("ddp", 4))
    assert (four.low_s, four.high_s) == (25.0, 60.0)


def test_reports_of_different_workloads_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = report(tmp_path / "one.json", strategy="single", ranks=1, seconds=100)
    two = report(tmp_path / "two.json", strategy="ddp", ranks=2, seconds=60, steps=70)
    assert main(["advise", str(one), str(two)]) == UserInputError.exit_code
    assert "200 samples" in capsys.readouterr().err
    other = report(tmp_path / "three.json", strategy="single", ranks=1, seconds=1, verb="export")
    assert main(["advise", str(other)]) == UserInputError.exit_code
    assert "is not from a training" in capsys.readouterr().err
    own = report(tmp_path / "four.json", strategy="my-own", ranks=2, seconds=1)
    assert main(["advise", str(one), str(own)]) == UserInputError.exit_code
    assert "no scaling model for this training strategy" in (shown := capsys.readouterr().err)
    assert "strategy my-own" in shown


@pytest.mark.parametrize(
    ("rows", "seen"),
    [
        ([], "no rows"),
        ([{"strategy": "single", "gpus": 2, "elapsed_s": 1}], OF_GPUS + "single on 2 GPUs"),
        ([{"strategy": "ddp", "gpus": 0, "elapsed_s": 1}], OF_GPUS + "ddp on 0 GPUs"),
        ([{"strategy": "ddp", "gpus": 1}], "both or neither of elapsed_s and compute_s"),
        ([{"strategy": "ddp", "gpus": 1, "elapsed_s": 1, "compute_s": 1}], "both or neither of elapsed_s and compute_s"),
        ([{"strategy": "ddp", "gpus": 1, "elapsed_s": -1}], "elapsed_s: -1"),
        ([{"strategy": "ddp", "gpus": 1, "elapsed_s": 1, "queue_wait_s": -1}], "queue_wait_s: -1"),
        ([{"strategy": "ddp", "gpus": 1, "compute_s": 1, "samples_per_step": 4}], "without the number of steps"),
        ([{"strategy": "dpp", "gpus": 1, "elapsed_s": 1}], "dpp"),
        ([{"strategy": "ddp", "gpus": 1, "elapsed": 1}], "elapsed"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_says_where(
    tmp_path: Path, rows: list[dict[str, Any]], seen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", str(written(tmp_path, rows=rows))]) == UserInputError.exit_code
    assert seen in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("  strateggy: ddp", "5: rows[0].strateggy: there is no such key."),
        ("  strategy: dpp", "5: rows[0].strategy: invalid value."),
        ("  strategy: ddp\n  elapsed_s: -1", "6: rows[0].elapsed_s: the measurements are not sufficient."),
        ("  strategy: ddp\n  elapsed_s: fast", "6: rows[0].elapsed_s: invalid value."),
    ],
)
def test_the_line_is_reported(tmp_path: Path, line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "measured.yml"
    file.write_text(f"title: t\ngpus: [1, 2]\ngpus_per_node: 2\nrows:\n- {line[2:]}\n  gpus: 2\n")
    assert main(["advise", str(file)]) == UserInputError.exit_code
    error = capsys.readouterr().err
    assert f"measured.yml:{message}" in error
    assert "  expected: " in error


def test_durations_of_trials_are_as_many_as_the_trials(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"strategy": "search", "gpus": 1, "elapsed_s": 10}]
    assert main(["advise", str(written(tmp_path, rows=rows, num_trials=3, trial_s=[1, 2]))]) == UserInputError.exit_code
    assert "each of the 3 trials" in capsys.readouterr().err


def test_a_limit_below_all_rows_and_a_missing_file_are_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"strategy": "ddp", "gpus": 2, "elapsed_s": 10}]
    assert main(["advise", str(written(tmp_path, rows=rows)), "--calibrate-up-to", "1"]) == UsageError.exit_code
    assert "excludes every row" in capsys.readouterr().err
    assert main(["advise", str(tmp_path / "none.yml")]) == UserInputError.exit_code
    with pytest.raises(SystemExit):
        main(["advise", str(TABLE), "--gpus", "0"])


def test_the_guide_shows_the_output_of_its_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = PAGE.read_text()
    (measurements,) = re.findall(r"^cat > measured.yml <<'END'\n(.*?)^END$", page, flags=re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    Path("measured.yml").write_text(measurements)
    Path("docs").symlink_to(ROOT / "docs")
    blocks = re.findall(
        r"^medweave (advise (?:measured|docs/)[^\n]*)\n```\n\n```text\n(.*?)```", page, flags=re.DOTALL | re.MULTILINE
    )
    assert [command.split()[1] for command, _ in blocks] == ["measured.yml", str(TABLE.relative_to(ROOT))]
    for command, shown in blocks:
        assert main(command.split()) == 0
        printed = capsys.readouterr().out.splitlines()
        for line in shown.splitlines():
            assert line == "…" or line in printed


def search_report(path: Path, *, states: tuple[str, ...] = ("completed", "completed", "completed")) -> Path:
    rows = tuple(
        TrialRow(trial_id=f"t{place}", varied={}, seed=1, state=state, score=0.5, seconds=10.0 * (place + 1))  # type: ignore[arg-type]
        for place, state in enumerate(states)
    )
    table = SearchTable(metric="validation_dice", rows=rows, best="t0", most_at_once=2, seconds=42.0)
    content = json.loads(report(path, strategy="single", ranks=1, seconds=1, verb="search").read_text())
    path.write_text(json.dumps(content | {"results": codec.to_json(table)}))
    return path


def test_the_report_of_a_search_has_the_time_of_each_trial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    advice = advised(capsys, search_report(tmp_path / "s.json"), "--gpus", "1", "2", "3")
    times = {(option.strategy, option.gpus): option.elapsed_s for option in advice.options}
    # 10, 20 and 30 s: two GPUs are done after 40, which took 42; three after 30.
    assert times[("search", 2)] == 42
    assert times[("search", 3)] == pytest.approx(42 / 40 * 30)
    assert "trial durations: assumed equal" not in " ".join(advice.unseen)


@pytest.mark.parametrize("state", ["failed", "stopped"])
def test_a_search_with_incomplete_trials_is_no_measurement(
    tmp_path: Path, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", str(search_report(tmp_path / "s.json", states=("completed", state)))]) == 65
    assert f"{state}: 1" in capsys.readouterr().err


# -- stages of a network ----------------------------------------------------------------------------------------------

RESATTNET18 = (
    ("stem", 1.338, 448.9), ("stage1_block1", 21.404, 121.5), ("stage1_block2", 21.404, 97.9),
    ("stage2_block1", 8.125, 39.8), ("stage2_block2", 10.702, 37.1), ("stage3_block1", 4.063, 48.4),
    ("stage3_block2", 5.351, 59.9), ("stage4_block1", 2.322, 166.2), ("stage4_block2", 3.058, 217.7),
    ("head", 0.07526, 6.0),
)  # fmt: skip
"""Partitions, GMAC and MiB that `place-layers` measures in the command of the guide."""


def placed(folder: Path, *words: object, memory: bool = True) -> Path:
    loads = [{"name": name, "load": load, "memory_mib": mib if memory else 0} for name, load, mib in RESATTNET18]
    (folder / "loads.json").write_text(json.dumps({"unit": "GMAC", "partitions": loads}))
    path = folder / "placement.json"
    files = ["--loads", folder / "loads.json", "--output", path, "--run-report", folder / "run_report.json"]
    assert step(["place-layers", *map(str, (*files, *words))]) == 0
    return path


def test_the_guide_shows_the_stages_of_a_placement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = placed(tmp_path, "--devices", 4, "--memory-mib", 16384)
    capsys.readouterr()
    assert main(["advise", str(path)]) == 0
    assert f"```text\n{capsys.readouterr().out}```" in PAGE.read_text()


def test_stages_are_bounded_by_the_largest_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = placed(tmp_path, "--devices", 3, "--memory-mib", 1000)
    capsys.readouterr()
    advice = advised(capsys, path)
    (hybrid,) = advice.hybrid
    assert (advice.soonest, advice.options) == (None, ())
    loads = [load for _, load, _ in RESATTNET18]
    assert [stage.load for stage in hybrid.stages] == pytest.approx([sum(loads[:2]), sum(loads[2:4]), sum(loads[4:])])
    assert hybrid.speed_up_bound == pytest.approx(sum(loads) / sum(loads[2:4]))
    assert hybrid.ddp_speed_up_bound == 3
    assert sum(stage.share for stage in hybrid.stages) == pytest.approx(1)
    assert (hybrid.gpu_memory_mib, hybrid.fits_one_gpu) == (1000, False)
    assert main(["advise", str(path)]) == 0
    assert "does not fit one GPU (1,243 of 1,000 MiB), so single and ddp cannot train it" in " ".join(
        capsys.readouterr().out.split()
    )


def test_measurements_give_the_memory_that_a_placement_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = placed(tmp_path, "--devices", 2)
    rows = [{"strategy": "single", "gpus": 1, "elapsed_s": 100}]
    with_memory = written(tmp_path, rows=rows, gpu_memory_mib=2000)
    capsys.readouterr()
    advice = advised(capsys, with_memory, path)
    assert advice.soonest is not None
    assert (advice.hybrid[0].gpu_memory_mib, advice.hybrid[0].fits_one_gpu) == (2000, True)
    assert advised(capsys, path).hybrid[0].fits_one_gpu is None
    assert main(["advise", str(path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Strategy hybrid"), "no text about options without measurements"
    assert "Unknown whether the network fits one GPU" in " ".join(shown.split())
    of_loads_only = placed(tmp_path, "--devices", 2, "--memory-mib", 2000, memory=False)
    capsys.readouterr()
    assert advised(capsys, of_loads_only).hybrid[0].fits_one_gpu is None


def test_on_unequal_gpus_ddp_waits_for_the_slowest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = placed(tmp_path, "--speeds", 1, 4, "--memory-mib", 2000, "--fitness", "makespan")
    capsys.readouterr()
    (hybrid,) = advised(capsys, path).hybrid
    assert hybrid.ddp_speed_up_bound == 0.5
    assert hybrid.speed_up_bound > 1
    assert main(["advise", str(path)]) == 0
    assert "compare both: ddp on 2 GPUs is at most 0.50 times" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"assignment": [0, 1, 0, 1, 1, 1, 1, 1, 1]}, "a stage needs consecutive partitions"),
        ({"assignment": [0, 0, 0]}, "a stage needs consecutive partitions"),
        ({"assignment": [], "partitions": [], "devices": []}, "a stage needs consecutive partitions"),
        ({"devices": "two"}, "devices"),
    ],
)
def test_a_placement_without_stages_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], message: str
) -> None:
    path = placed(tmp_path, "--devices", 2)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert main(["advise", str(path)]) == UserInputError.exit_code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--gpus", "4"), ("--num-trials", "2"), ("--calibrate-up-to", "2")])
def test_options_of_measurements_need_measurements(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, str]
) -> None:
    assert main(["advise", str(placed(tmp_path, "--devices", 2)), *words]) == UsageError.exit_code
    assert f"{words[0]} needs measurements" in capsys.readouterr().err
