"""`stats`: analysis of variance and letters of a published table, paired tests, corrections, and bad tables."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from medweave_core.contracts import codec
from medweave_core.contracts.report import RunReport
from medweave_core.contracts.statistics import Statistics
from medweave_core.errors import UserInputError
from medweave_steps.cli import main
from medweave_steps.metrics.bootstrap import confidence_interval, mean
from medweave_steps.stats.correction import adjust_holm
from medweave_steps.stats.letters import compact_letters
from medweave_steps.stats.paired import smallest_p, wilcoxon_p

MEANS = {1: 22.82, 2: 21.98, 4: 22.78, 8: 36.74, 16: 71.06}
"""Seconds by number of nodes: table 2 of Parallel SGD, Journal of Big Data 6, 2019, ratio 1:1, 20 trials each."""
MEAN_SQ_WITHIN, TRIALS = 2.23, 20


def trials_of(mean_s: float) -> list[float]:
    """Return 20 times with this mean and the published mean square of the residuals."""
    steps = np.arange(TRIALS) - (TRIALS - 1) / 2
    return [float(x) for x in mean_s + steps * math.sqrt(MEAN_SQ_WITHIN / steps.var(ddof=1))]


def write_table(path: Path, header: str, rows: Iterable[Sequence[object]], *, delimiter: str = ",") -> Path:
    lines = [header.replace(",", delimiter), *(delimiter.join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def run_stats(source: Path | Sequence[Path], *words: object) -> int:
    """Run stats on a table, or on run reports; return the exit code."""
    paths = [source] if isinstance(source, Path) else source
    option, folder = "--measurements" if isinstance(source, Path) else "--run-reports", paths[0].parent
    outputs = ["--output", folder / "statistics", "--run-report", folder / "report.json"]
    words = ("stats", option, *paths, "--num-threads", 1, *words, *outputs)
    return main([str(word) for word in words])


def statistics_in(folder: Path) -> Statistics:
    text = (folder / "statistics" / "statistics.json").read_text(encoding="utf-8")
    return codec.from_json(Statistics, json.loads(text), where="statistics.json")


def training_report(path: Path, *, nodes: int, ratio: int, seed: int, seconds: float) -> Path:
    """Write the run report of a training on claims with 1,120 rows of the smaller class."""
    training = {
        "world_size": nodes, "strategy": "local-sgd", "seed": seed, "seconds": seconds, "step_seconds": seconds - 1.0,
        "num_training_cases_by_class": {"excluded": 1_120, "not-excluded": 1_120 * ratio},
    }  # fmt: skip
    report = RunReport(
        verb="train", medweave_version="0", started_at="", seconds=seconds + 9, peak_memory_mib=0.0, peak_memory_children_mib=0.0,
        num_threads=1, host_cpu="", config={}, versions={}, results={"training": training}, cases=(), notices=(),
    )  # fmt: skip
    path.write_text(codec.dumps(report))
    return path


def test_times_of_trainings_are_compared_for_each_ratio(tmp_path: Path) -> None:
    trials, ratios = 3, (10, 1, 5)
    paths = [
        training_report(
            tmp_path / f"{ratio}-{nodes}-{seed}.json", nodes=nodes, ratio=ratio, seed=seed,
            seconds=MEANS[nodes] * (1 + ratio / 100) + (seed - 1) / 2,
        )
        for seed in range(trials)
        for nodes in (16, 8, 4, 2, 1)
        for ratio in ratios
    ]  # fmt: skip
    assert run_stats(paths, "--response", "seconds", "--factor", "ranks", "--by", "ratio") == 0
    statistics = statistics_in(tmp_path)
    assert [analysis.name for analysis in statistics.analyses] == ["1:1", "1:5", "1:10"]
    for analysis in statistics.analyses:
        factor, residuals = analysis.anova
        assert (factor.df, residuals.df) == (4, 5 * trials - 5)
        assert residuals.mean_sq == pytest.approx(0.25)  # of -0.5, 0 and 0.5
        ratio = int(analysis.name.partition(":")[2])
        reference = stats.f_oneway(*([MEANS[nodes] * (1 + ratio / 100) + d for d in (-0.5, 0, 0.5)] for nodes in MEANS))
        assert (factor.f, factor.p) == (pytest.approx(reference.statistic), pytest.approx(reference.pvalue, rel=1e-3))
        assert [group.name for group in analysis.groups] == ["1", "2", "4", "8", "16"]
    lines = (tmp_path / "statistics" / "measurements.csv").read_text().splitlines()
    assert lines[:2] == [
        "ratio,rows,ranks,strategy,seed,seconds,step_seconds",
        "1:1,2240,1,local-sgd,0,22.5482,21.5482",
    ]
    assert len(lines) == 1 + len(paths)
    html = (tmp_path / "statistics" / "fragment.html").read_text()
    assert all(f"1:{ratio}" in html for ratio in ratios)


@pytest.mark.parametrize(
    ("text", "seen"), [("{", "JSONDecodeError"), ('{"verb": "train"}', "medweave_version"), (None, "a report of export")]
)  # fmt: skip
def test_a_report_of_no_training_is_refused(
    tmp_path: Path, text: str | None, seen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = training_report(tmp_path / "one.json", nodes=1, ratio=1, seed=0, seconds=1.0)
    path.write_text(path.read_text().replace('"train"', '"export"') if text is None else text)
    assert run_stats([path], "--response", "seconds", "--factor", "ranks") == UserInputError.exit_code
    assert seen in capsys.readouterr().err


def test_published_anova_and_letters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # 16 comes before 2 in the file: groups are ordered as numbers. The second data set has three trials and no difference.
    rows: list[tuple[object, ...]] = [
        ("1:1", nodes, seconds) for nodes in (16, 2, 1, 8, 4) for seconds in trials_of(MEANS[nodes])
    ]
    rows += [("1:5", nodes, seconds) for nodes in (1, 2, 4, 8, 16) for seconds in (30.0, 31.5, 29.0 + nodes / 100)]
    table = write_table(tmp_path / "times.tsv", "ratio,nodes,seconds", rows, delimiter="\t")
    assert run_stats(table, "--response", "seconds", "--factor", "nodes", "--by", "ratio") == 0
    statistics = statistics_in(tmp_path)
    analysis, three_trials = statistics.analyses
    factor, residuals = analysis.anova
    assert (factor.df, residuals.df) == (4, 95)
    assert factor.f == pytest.approx(3968.24, rel=0.01)
    assert factor.sum_sq == pytest.approx(35419.46, rel=0.001)
    assert residuals.sum_sq == pytest.approx(211.99, rel=0.001)
    assert residuals.mean_sq == pytest.approx(2.23, abs=0.005)
    assert factor.p is not None
    assert factor.p < 1e-104
    assert analysis.q == pytest.approx(3.933, abs=0.0005)
    assert analysis.hsd == pytest.approx(1.314, abs=0.001)
    assert {group.name: group.letters for group in analysis.groups} == {
        "1": "c", "2": "c", "4": "c", "8": "b", "16": "a",
    }  # fmt: skip
    assert [group.name for group in analysis.groups] == ["1", "2", "4", "8", "16"]
    shown = capsys.readouterr().out
    assert [line.split() for line in shown.splitlines()[2:5]] == [
        ["Df", "Sum", "Sq", "Mean", "Sq", "F", "Pr(>F)"],
        ["nodes", "4", "35410.47", "8852.62", "3969.78", "0.0000"],
        ["Residuals", "95", "211.85", "2.23"],
    ]
    assert "alpha 0.05, q 3.933, HSD 1.313" in shown

    # The second analysis has Df 4 and 5k - 5, and equals scipy's; both p-values are corrected together.
    assert [row.df for row in three_trials.anova] == [4, 10]
    values = [[30.0, 31.5, 29.0 + nodes / 100] for nodes in (1, 2, 4, 8, 16)]
    expected = stats.f_oneway(*values)
    assert (three_trials.anova[0].f, three_trials.anova[0].p) == pytest.approx((expected.statistic, expected.pvalue))
    assert three_trials.anova[0].adjusted_p == three_trials.anova[0].p, "the larger one of two"
    assert factor.adjusted_p == 2 * factor.p
    assert {group.letters for group in three_trials.groups} == {"a"}

    page = (tmp_path / "statistics" / "fragment.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2
    assert '<th scope="row">nodes</th><td class="num">4</td><td class="num">35410.47</td>' in page
    assert "Means: 1: 22.82 (c), 2: 21.98 (c), 4: 22.78 (c), 8: 36.74 (b), 16: 71.06 (a)." in page
    groups = (tmp_path / "statistics" / "groups.csv").read_text().splitlines()
    assert groups[0] == "analysis,nodes,count,mean,sd,median,minimum,maximum,letters"
    assert groups[5].split(",")[:3] == ["1:1", "16", "20"]
    assert float(groups[5].split(",")[3]) == pytest.approx(71.06)
    assert len((tmp_path / "statistics" / "comparisons.csv").read_text().splitlines()) == 1 + 2 * 10


def test_groups_of_unequal_size_follow_tukey_and_kramer(tmp_path: Path) -> None:
    values = {"a": [1.0, 2.0, 3.0, 4.0], "b": [2.0, 3.0, 5.0], "c": [9.0, 8.0]}
    rows = [(name, value) for name, own in values.items() for value in own]
    table = write_table(tmp_path / "t.csv", "model,score", rows)
    assert run_stats(table, "--response", "score", "--factor", "model", "--alpha", 0.1) == 0
    (analysis,) = statistics_in(tmp_path).analyses
    assert analysis.hsd is None
    # By the formulas, without the functions that `stats` calls.
    number, mean = 9, sum(value for _, value in rows) / 9
    between = sum(len(own) * (np.mean(own) - mean) ** 2 for own in values.values()) / (3 - 1)
    within = sum(np.var(own) * len(own) for own in values.values()) / (number - 3)
    assert analysis.anova[0].f == pytest.approx(between / within)
    assert analysis.anova[0].p == pytest.approx(stats.f.sf(between / within, 2, number - 3))
    pair = next(pair for pair in analysis.comparisons if {pair.first, pair.second} == {"a", "c"})
    assert (pair.first, pair.second) == ("c", "a")
    difference, error = 8.5 - 2.5, np.sqrt(within / 2 * (1 / 2 + 1 / 4))
    assert pair.p == pytest.approx(stats.studentized_range.sf(difference / error, 3, number - 3), rel=1e-4)
    half = stats.studentized_range.ppf(0.9, 3, number - 3) * error
    assert pair.interval == pytest.approx((difference - half, difference + half), abs=1e-4)


def paired_rows(scores: Mapping[str, Sequence[float]]) -> list[tuple[object, ...]]:
    return [
        (f"case-{number}", model, value) for model, own in scores.items() for number, value in enumerate(own, start=1)
    ]


def test_paired_tests_over_patients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = np.linspace(0.5, 0.9, 8)
    scores = {"float32": base, "int8": base - np.arange(1, 9) / 1000, "pruned": base + np.array([1, -1] * 4) / 500}
    rows = paired_rows({name: own.tolist() for name, own in scores.items()})
    rows.append(("case-1", "int8", float(scores["int8"][0])))  # a second value of a patient: the mean counts
    table = write_table(tmp_path / "t.csv", "case_id,model,dice", reversed(rows))
    assert run_stats(table, "--response", "dice", "--factor", "model", "--patient", "case_id") == 0
    statistics = statistics_in(tmp_path)
    (analysis,) = statistics.analyses
    assert (statistics.design, analysis.patients, analysis.anova) == ("paired", 8, ())
    pairs = {frozenset((pair.first, pair.second)): pair for pair in analysis.comparisons}
    worse = pairs[frozenset(("float32", "int8"))]
    assert (worse.first, worse.second) == ("float32", "int8")
    assert worse.p == pytest.approx(2 / 2**8), "all eight differences have one sign: two of 2^8 assignments of signs"
    assert worse.adjusted_p == pytest.approx(3 * 2 / 2**8)
    assert worse.is_different
    assert worse.difference == pytest.approx(0.0045)
    assert worse.interval == pytest.approx(confidence_interval(scores["float32"] - scores["int8"], mean, seed=0))
    assert not pairs[frozenset(("float32", "pruned"))].is_different
    assert "Holm's correction for 3 pairs" in capsys.readouterr().out
    assert not (tmp_path / "statistics" / "anova.csv").exists()
    for file in (tmp_path / "statistics").iterdir():
        assert "case-1" not in file.read_text(encoding="utf-8"), "no file names a patient"


def test_too_few_patients_are_a_notice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write_table(tmp_path / "t.csv", "p,m,v", paired_rows({"a": [1, 2, 3], "b": [2, 3.5, 5]}))
    assert run_stats(table, "--response", "v", "--factor", "m", "--patient", "p") == 0
    assert "3 patients are too few for 1 paired tests at alpha 0.05" in capsys.readouterr().err
    assert smallest_p(3) == wilcoxon_p(np.array([1.0, 1.5, 2.0])) == 0.25


def test_equal_values_of_all_patients_do_not_differ() -> None:
    assert wilcoxon_p(np.zeros(5)) == 1.0


def test_holm() -> None:
    assert adjust_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert adjust_holm([0.6, 0.9]) == [1.0, 1.0]


def test_letters_of_groups_that_overlap() -> None:
    assert compact_letters(["x", "y", "z"], [("x", "z")]) == {"x": "a", "y": "ab", "z": "b"}
    assert compact_letters(["x", "y"], []) == {"x": "a", "y": "a"}
    # w differs from y and z, x from z: two groups share a letter if and only if they do not differ.
    letters = compact_letters(["w", "x", "y", "z"], [("y", "w"), ("w", "z"), ("z", "x")])
    assert letters == {"w": "a", "x": "ab", "y": "bc", "z": "c"}


@pytest.mark.parametrize(
    ("text", "words", "exit_code", "message"),
    [
        ("m,v\na,1\na,2\n", (), 65, "fewer than two groups"),
        ("m,v\na,1\na,2\nb,3\n", (), 65, "a group has one value only"),
        ("m,v\na,1\na,2\nb,nan\nb,4\n", (), 65, "line 4"),
        ("m,v\na,1\na,2\nb,\nb,inf\n", (), 65, "line 4, 5"),
        ("m,v\na,1\na,1\nb,2\nb,2\n", (), 65, "do not vary within the groups"),
        ("model,v\na,1\n", (), 65, "write 'model' (closest match)"),
        ("m,v,v\na,1,1\n", (), 65, "2 columns named 'v'"),
        ("", (), 65, "cannot be used"),
        ("m,v\n", (), 65, "no rows below the header"),
        ("m,v,p\na,1,x\na,2,y\nb,1,x\nb,3,z\n", ("--patient", "p"), 65, "a: 1 of 3 missing; b: 1 of 3 missing"),
        ("m,v,p\na,1,x\nb,1,x\n", ("--patient", "p"), 65, "one patient only"),
        ("m,v,p\na,1,x\na,1,y\nb,1,x\nb,1,y\n", ("--patient", "p"), 65, "the same value for all patients"),
        ("m,v\na,1\n", ("--alpha", 1), 2, "invalid value of --alpha"),
        ("m,v\na,1\n", ("--by", "m"), 2, "another column in each option"),
    ],
)  # fmt: skip
def test_bad_tables(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    words: tuple[object, ...],
    exit_code: int,
    message: str,
) -> None:
    (tmp_path / "t.csv").write_text(text)
    factor = "modle" if text.startswith("model") else "m"
    assert run_stats(tmp_path / "t.csv", "--response", "v", "--factor", factor, *words) == exit_code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "statistics").exists()
