"""The table of ranks: the paper's figures recomputed, and a model that says no more than it can."""

from __future__ import annotations

from typing import Any

import pytest

from medweave_steps.contracts.report import RunReport
from medweave_steps.report import scaling

PRINTED = {  # DistMIS, table I: ranks to speed-ups, data parallel and experiment parallel
    1: (1.00, 1.00), 2: (1.91, 1.98), 4: (2.92, 3.84), 8: (5.76, 6.28), 12: (7.38, 7.93), 16: (9.96, 10.56), 32: (13.18, 15.19),
}  # fmt: skip


def report(ranks: int, seconds: float, verb: str = "train") -> RunReport:
    known = {
        "world_size": ranks,
        "step_seconds": seconds,
        "steps_done": 10,
        "batch_size": 2 * ranks,
        "host_cpu": "a processor",
    }
    values: dict[str, Any] = {
        "verb": verb, "medweave_version": "0", "started_at": "", "seconds": 0.0, "peak_memory_mib": 0.0,
        "peak_memory_children_mib": 0.0, "num_threads": 1, "host_cpu": "", "config": {}, "versions": {}, "cases": (),
        "notices": (), "results": {"training": known},
    }  # fmt: skip
    return RunReport(**values)


def test_the_papers_speed_ups_follow_from_its_times() -> None:
    by_ranks = {row.ranks: row for row in scaling.rows({1: 100.0, 2: 60.0})}
    assert list(by_ranks) == [1, 2, 4, 8, 12, 16, 32]
    for ranks, printed in PRINTED.items():
        row = by_ranks[ranks]
        for speed, expected in zip((row.paper_data_parallel, row.paper_experiment_parallel), printed, strict=True):
            assert speed is not None
            assert speed.speed_up == pytest.approx(expected, abs=0.01)
            assert speed.efficiency == pytest.approx(expected / ranks, abs=0.01)


@pytest.mark.parametrize("seconds", [{1: 100.0, 2: 55.0}, {1: 100.0, 2: 55.0, 4: 33.0}])
def test_modelled_speed_ups_grow_stay_below_the_ranks_and_favour_experiments(seconds: dict[int, float]) -> None:
    rows = scaling.rows(seconds)
    data, experiments = ([getattr(row, name) for row in rows] for name in ("data_parallel", "experiment_parallel"))
    for speeds in (data, experiments):
        values = [speed.speed_up for speed in speeds]
        assert values == sorted(values)
        assert all(value <= row.ranks for value, row in zip(values, rows, strict=True))
    assert all(e.speed_up >= d.speed_up for e, d in zip(experiments, data, strict=True))
    assert [speed.seconds for speed in experiments] == [100.0 * waves for waves in (32, 16, 8, 4, 3, 2, 1)]


def test_the_model_meets_two_measured_times() -> None:
    modelled = scaling.modelled_training({1: 100.0, 2: 60.0})
    assert (modelled[1], modelled[2]) == (100.0, 60.0)
    assert modelled[4] == pytest.approx(25 + 10 * 1.5)
    assert scaling.modelled_training({1: 100.0, 2: 40.0})[2] == 50.0, "no exchange takes less than no time"


def test_what_was_not_measured_is_not_told() -> None:
    assert scaling.rows({2: 60.0}) == []
    rows = scaling.rows({2: 60.0, 4: 35.0})
    assert all(row.data_parallel is None and row.experiment_parallel is None for row in rows), (
        "nothing is known of one rank"
    )
    assert [row.ranks for row in rows if row.measured] == [2, 4]
    assert scaling.cells(rows[1])[:5] == ["2", "1 min 00 s", "–", "–", "–"]


def test_trainings_are_taken_from_the_reports_of_train() -> None:
    reports = [report(2, 60.0), report(1, 100.0), report(4, 1.0, verb="train-distributed")]
    trainings = scaling.measured_trainings(reports)
    assert {ranks: known["step_seconds"] for ranks, known in trainings.items()} == {1: 100.0, 2: 60.0}
    assert scaling.where(trainings) == (
        "1 rank: 10 steps of 2 volumes or patches; 2 ranks: 10 steps of 4 volumes or patches. On a processor."
    )
