"""The table of ranks: the paper's figures recomputed, the measurements, and a model limited to its range."""

from __future__ import annotations

from typing import Any

import pytest

from medweave_core.contracts.report import RunReport
from medweave_steps.report.scaling import makespan, modelled_training, table_of
from medweave_steps.report.scaling_table import Column, Table

PRINTED = {  # DistMIS, table I: ranks to speed-ups, data parallel and experiment parallel
    1: (1.00, 1.00), 2: (1.91, 1.98), 4: (2.92, 3.84), 8: (5.76, 6.28), 12: (7.38, 7.93), 16: (9.96, 10.56), 32: (13.18, 15.19),
}  # fmt: skip


def report(verb: str, results: dict[str, Any]) -> RunReport:
    values: dict[str, Any] = {
        "verb": verb, "medweave_version": "0", "started_at": "", "seconds": 0.0, "peak_memory_mib": 0.0,
        "peak_memory_children_mib": 0.0, "num_threads": 1, "host_cpu": "", "config": {}, "versions": {}, "cases": (),
        "notices": (), "results": results,
    }  # fmt: skip
    return RunReport(**values)


def training(ranks: int, seconds: float, verb: str = "train") -> RunReport:
    known = {
        "world_size": ranks,
        "step_seconds": seconds,
        "steps_done": 10,
        "batch_size": 2 * ranks,
        "host_cpu": "a processor",
    }
    return report(verb, {"training": known})


def search(seconds: list[float], *, ranks: int = 1, at_once: int = 1, wall: float, best: str = "a") -> RunReport:
    rows = [{"state": "completed", "ranks": ranks, "seconds": item, "host": "h"} for item in seconds]
    rows.append({"state": "failed", "ranks": 1, "seconds": 1.0, "host": "h"})
    return report("search", {"rows": rows, "best": best, "most_at_once": at_once, "seconds": wall})


def table(*reports: RunReport) -> Table:
    result = table_of(reports)
    assert result is not None
    return result


def column(result: Table, heading: str) -> Column:
    return next(column for column in result.columns if column.heading == heading)


def test_the_papers_speed_ups_follow_from_its_times() -> None:
    result = table(training(1, 100.0), training(2, 60.0))
    assert result.ranks == (1, 2, 4, 8, 12, 16, 32)
    for place, heading in enumerate(("DistMIS, data parallel", "DistMIS, experiment parallel")):
        for ranks, printed in PRINTED.items():
            assert column(result, heading).speed_up(ranks) == pytest.approx(printed[place], abs=0.01)
    assert column(result, "DistMIS, data parallel").texts(32) == ("3 h 21 min", "13.18 (0.41)")


@pytest.mark.parametrize("seconds", [{1: 100.0, 2: 55.0}, {1: 100.0, 2: 55.0, 4: 33.0}])
def test_modelled_speed_ups_grow_stay_below_the_ranks_and_favour_experiments(seconds: dict[int, float]) -> None:
    result = table(*(training(ranks, item) for ranks, item in seconds.items()))
    data, experiments = (
        [column(result, f"Modeled, grid {mode} parallel").speed_up(ranks) or 0 for ranks in result.ranks]
        for mode in ("data", "experiment")
    )
    for speeds in (data, experiments):
        assert speeds == sorted(speeds)
        assert all(speed <= ranks + 1e-9 for speed, ranks in zip(speeds, result.ranks, strict=True))
    assert all(e >= d for e, d in zip(experiments, data, strict=True))
    assert "The grid has 32 trials" in result.caption
    assert [column(result, "Modeled, grid experiment parallel").seconds[n] for n in (1, 8, 12, 32)] == [
        3200,
        400,
        300,
        100,
    ]


def test_the_model_meets_two_measured_times() -> None:
    modelled = modelled_training({1: 100.0, 2: 60.0})
    assert (modelled[1], modelled[2]) == (100.0, 60.0)
    assert modelled[4] == pytest.approx(25 + 10 * 1.5)
    assert modelled_training({1: 100.0, 2: 40.0})[2] == 50.0, "no exchange takes less than no time"


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 9])
def test_trials_are_done_no_sooner_than_they_can_be(slots: int) -> None:
    durations = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert max(sum(durations) / slots, max(durations)) <= makespan(durations, slots) <= -(-5 // slots) * max(durations)
    assert makespan(durations, slots) >= makespan(durations, slots + 1)
    assert makespan(durations, 1) == sum(durations)


def test_both_modes_of_a_search_are_measured_next_to_each_other() -> None:
    alone, spread = search([10.0, 12.0, 8.0], at_once=2, wall=19.0), search([6.0, 7.0, 5.0], ranks=2, wall=20.0)
    result = table(alone, spread)
    assert "The grid has 3 trials" in result.caption
    assert column(result, "Measured, grid experiment parallel").texts(2) == ("19 s", "1.58 (0.79)")
    assert column(result, "Measured, grid data parallel").texts(2) == ("20 s", "1.50 (0.75)")
    assert column(result, "Modeled, grid experiment parallel").seconds[32] == 12.0
    assert column(result, "Modeled, grid data parallel").seconds[2] == pytest.approx(18.0), "the trials' own times"
    assert "a grid of 4 trials, 3 completed, 2 ranks each, 1 at once, on 1 machine" in result.notes[0]


def test_what_was_not_measured_is_not_reported() -> None:
    assert table_of([training(2, 60.0), training(4, 35.0, verb="train-distributed")]) is None
    assert table_of([search([1.0], wall=1.0, best="")]) is None, "one trial of a search is not a search"
    result = table(training(2, 60.0), training(4, 35.0))
    assert [column.heading for column in result.columns] == [
        "Measured, one training", "DistMIS, data parallel", "DistMIS, experiment parallel",
    ]  # fmt: skip
    assert result.columns[0].texts(2) == ("1 min 00 s", "–"), "nothing is known of one rank"
    assert result.columns[0].texts(8) == ("–", "–")
    assert "1 rank" not in result.notes[0]
    assert "2 ranks: 10 steps of 4 volumes or patches" in result.notes[0]
