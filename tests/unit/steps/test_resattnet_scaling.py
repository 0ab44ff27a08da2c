"""Speed-up of 3D-ResAttNet: the paper's table recomputed, bounds that no placement exceeds, and the table of the report."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from medweave_core.contracts.report import RunReport
from medweave_steps.report.resattnet_scaling import (
    GPUS,
    LARGEST_CONSECUTIVE_STAGE_GMAC,
    LARGEST_STAGE_GMAC,
    LOADS_GMAC,
    PRINTED_FOR_34,
    PUBLISHED,
    hybrid_bound,
    resattnet_table,
    stage_bound,
)
from medweave_steps.report.scaling import table_of
from medweave_steps.report.scaling_table import Column, Table
from support.reported import run_report

SPEED_UPS = {  # PAPERS.md 5.5
    (18, "sMCI vs pMCI"): (1, 2.27, 2.62, 3.09, 3.40, 3.78, 4.86, 5.67),
    (18, "AD vs NC"): (1, 2.38, 2.95, 3.44, 3.65, 4.13, 5.17, 5.64),
    (34, "sMCI vs pMCI"): (1, 2.18, 2.64, 3.08, 3.36, 3.70, 4.625, 5.29),
    (34, "AD vs NC"): (1, 2.34, 2.83, 3.24, 3.58, 4.25, 4.86, 5.67),
}
EFFICIENCIES_OF_8 = (0.71, 0.70, 0.66, 0.71)


def test_speed_ups_follow_from_the_printed_minutes() -> None:
    assert [(one.depth, one.task) for one in PUBLISHED] == list(SPEED_UPS)
    for one in PUBLISHED:
        computed = [one.speed_up(gpus) for gpus in GPUS]
        assert computed == pytest.approx(SPEED_UPS[one.depth, one.task], abs=0.005)
        assert 1.09 <= round(one.speed_up(2) / 2, 2) <= 1.19
    assert [round(one.speed_up(8) / 8, 2) for one in PUBLISHED] == list(EFFICIENCIES_OF_8)


def test_whole_minutes_leave_a_range_of_speed_ups() -> None:
    assert PUBLISHED[0].rounding_range(8) == pytest.approx((5.15, 6.27), abs=0.005)
    for one in PUBLISHED:
        for gpus in GPUS:
            low, high = one.rounding_range(gpus)
            assert low < one.speed_up(gpus) < high


def test_the_speed_ups_in_the_text_for_depth_34_are_those_of_depth_18() -> None:
    for one in PUBLISHED:
        computed = [round(one.speed_up(gpus), 2) for gpus in GPUS]
        assert (computed == list(PRINTED_FOR_34[one.task])) == (one.depth == 18)


def smallest_of_any_placement(loads: Sequence[float], stages: int) -> float:
    """Return the load of the largest stage of the best placement, by integer programming."""
    parts, loads = len(loads), sorted(loads, reverse=True)
    each_part_once = np.zeros((parts, parts * stages + 1))
    stage_below_largest = np.zeros((stages, parts * stages + 1))
    stage_below_largest[:, -1] = -1
    for part, stage in itertools.product(range(parts), range(stages)):
        each_part_once[part, part * stages + stage] = 1
        stage_below_largest[stage, part * stages + stage] = loads[part]
    # Stages are equal: the largest part is in the first one, the next in the first or second, and so on.
    may_be = [float(stage <= part) for part, stage in itertools.product(range(parts), range(stages))]
    solved = milp(
        np.eye(parts * stages + 1)[-1],
        constraints=[LinearConstraint(each_part_once, 1, 1), LinearConstraint(stage_below_largest, -np.inf, 0)],
        integrality=[*[1] * (parts * stages), 0],
        bounds=Bounds(0, [*may_be, np.inf]),
    )
    assert solved.success
    return float(solved.fun)


def smallest_of_consecutive_parts(loads: Sequence[float], stages: int) -> float:
    @functools.cache
    def largest(end: int, stages: int) -> float:
        if stages == 1:
            return sum(loads[:end])
        return min(max(largest(cut, stages - 1), sum(loads[cut:end])) for cut in range(stages - 1, end))

    return largest(len(loads), stages)


@pytest.mark.parametrize("stages", GPUS)
@pytest.mark.parametrize("depth", [18, 34])
def test_no_placement_has_a_smaller_largest_stage(depth: int, stages: int) -> None:
    loads = LOADS_GMAC[depth]
    expected = LARGEST_STAGE_GMAC[depth][stages - 1]
    assert smallest_of_any_placement(loads, stages) == pytest.approx(expected, rel=2e-4)
    expected = LARGEST_CONSECUTIVE_STAGE_GMAC[depth][stages - 1]
    assert smallest_of_consecutive_parts(loads, stages) == pytest.approx(expected, abs=5e-4)


def test_bounds_of_stages_and_replicas() -> None:
    assert [sum(LOADS_GMAC[depth]) for depth in (18, 34)] == pytest.approx([12.962, 24.175], abs=5e-4)
    assert LARGEST_STAGE_GMAC[18][1:4] == (6.490, 4.417, 3.567)
    assert [stage_bound(18, stages) for stages in GPUS] == pytest.approx([1, 1.997, 2.935, *[3.634] * 5], abs=5e-4)
    assert hybrid_bound(18, 1) == 1
    assert hybrid_bound(18, 6) == pytest.approx(3 * stage_bound(18, 2))
    assert hybrid_bound(18, 3) == pytest.approx(stage_bound(18, 3))
    assert all(hybrid_bound(depth, gpus) <= gpus for depth in (18, 34) for gpus in GPUS)


# -- the report -------------------------------------------------------------------------------------------------------


def training(
    ranks: int, seconds: float, *, network: str = "resattnet18", accuracy: float = 0.5, strategy: str = "ddp"
) -> RunReport:
    known = {
        "network": network, "strategy": "single" if ranks == 1 else strategy, "world_size": ranks, "step_seconds": seconds,
        "steps_done": 10, "batch_size": 6, "host_cpu": "a processor",
    }  # fmt: skip
    return run_report("train", {"training": known, "metrics": {"validation_accuracy": accuracy}})


def placement(devices: int, bound: float, network: str = "resattnet18") -> RunReport:
    return run_report("place-layers", {"devices": devices, "speed_up_bound": bound}, config={"network": network})


def table(*reports: RunReport) -> Table:
    result = resattnet_table(reports)
    assert result is not None
    return result


def column(result: Table, heading: str) -> Column:
    return next(column for column in result.columns if column.heading == heading)


def test_measured_modeled_and_published_columns() -> None:
    reports = [
        training(1, 100.0, accuracy=0.75),
        training(2, 60.0),
        training(16, 9.0),
        placement(4, 3.4),
        placement(17, 9.0),
    ]
    result = table(*reports)
    assert result.ranks == (*GPUS, 16)
    assert [column.heading for column in result.columns] == [
        "Measured, ddp", "Modeled, stages only", "Modeled, consecutive stages", "Modeled, stages and replicas",
        "Modeled, 4 stages of place-layers",
        "Published, sMCI vs pMCI", "Published, AD vs NC",
    ]  # fmt: skip
    measured = column(result, "Measured, ddp")
    assert measured.headings == ("Time", "Speed-up", "Accuracy")
    assert measured.texts(1) == ("1 min 40 s", "1.00 (1.00)", "0.75")
    assert measured.texts(2) == ("1 min 00 s", "1.67 (0.83)", "0.50")
    assert measured.texts(3) == ("–", "–", "–")
    assert column(result, "Modeled, stages only").texts(8) == ("3.63 (0.45)",)
    assert column(result, "Modeled, stages only").texts(2) == ("2.00 (1.00)",)
    assert column(result, "Modeled, consecutive stages").texts(2) == ("1.76 (0.88)",)
    assert column(result, "Modeled, stages and replicas").texts(8) == ("7.99 (1.00)",)
    placed = column(result, "Modeled, 4 stages of place-layers")
    assert [placed.speed_up(ranks) for ranks in (3, 4, 7, 8, 16)] == pytest.approx([None, 3.4, 3.4, 6.8, 13.6])
    assert column(result, "Published, AD vs NC").texts(8) == ("11 min 00 s", "5.64 (0.70)", "0.95")
    assert [one.heading for one in result.columns if one.is_measured] == ["Measured, ddp"]
    assert any("those of the 18-layer columns" in note for note in result.notes)
    assert "16 ranks: 10 steps of 6" in result.notes[0]


def test_strategies_are_measured_next_to_each_other() -> None:
    result = table(training(1, 100.0), training(4, 30.0), training(4, 40.0, strategy="hybrid"))
    speed_ups = {one.heading: one.speed_up(4) for one in result.columns if one.is_measured}
    assert speed_ups == {"Measured, ddp": pytest.approx(100 / 30), "Measured, hybrid": 2.5}
    assert all(one.seconds[1] == 100 for one in result.columns if one.is_measured)


def test_each_depth_is_compared_with_its_own_columns() -> None:
    result = table(training(2, 10.0), training(2, 60.0, network="resattnet34"), placement(4, 3.4))
    assert column(result, "Measured, ddp").texts(2) == ("1 min 00 s", "–", "0.50"), "nothing is known of one rank"
    assert column(result, "Published, AD vs NC").seconds[8] == 12 * 60
    assert column(result, "Modeled, stages only").speed_up(8) == pytest.approx(24.175 / 3.567)
    assert not any("place-layers" in one.heading for one in result.columns), "the placement is of the other network"


@pytest.mark.parametrize(
    "reports",
    [[], [training(1, 10.0)], [training(1, 10.0, network="mobilenet"), training(2, 6.0, network="mobilenet")]],
)
def test_other_trainings_are_not_compared_with_this_paper(reports: list[RunReport]) -> None:
    assert resattnet_table(reports) is None


def test_a_search_is_compared_with_distmis() -> None:
    rows = [{"state": "completed", "ranks": 1, "seconds": 5.0, "host": "h"}]
    results: dict[str, Any] = {"rows": rows, "best": "a", "most_at_once": 1, "seconds": 5.0}
    trainings = [training(1, 10.0), training(2, 6.0)]
    alone, searched = table_of(trainings), table_of([*trainings, run_report("search", results)])
    assert alone is not None
    assert searched is not None
    assert alone.columns[-1].heading == "Published, AD vs NC"
    assert searched.columns[-1].heading == "DistMIS, experiment parallel"
