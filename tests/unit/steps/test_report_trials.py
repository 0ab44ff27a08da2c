"""The report's table of trials: options, result, start and end of each."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from medweave_core.contracts import codec
from medweave_core.contracts.report import RunReport
from medweave_core.contracts.search import PlannedTrials, SearchTable, TrialRow
from medweave_steps.report.trials import trials_of
from medweave_steps.search.choice import parse_objectives
from medweave_steps.search.table import table_of

START, END = "2026-11-25T19:38:07.125+00:00", "2026-11-25T19:40:07.250+00:00"


def row(trial_id: str, **changes: Any) -> TrialRow:
    values: dict[str, Any] = {
        "trial_id": trial_id, "varied": {"norm": trial_id}, "seed": 1, "state": "completed", "score": 0.5, "started_at": START,
        "ended_at": END, "seconds": 120.125, "host": "node-a",
    }  # fmt: skip
    return TrialRow(**values | changes)


def report(*rows: TrialRow, best: str, verb: str = "search") -> RunReport:
    table = SearchTable(metric="validation_dice", rows=rows, best=best, most_at_once=2, seconds=121.0)
    return RunReport(
        verb=verb, medweave_version="0", started_at="", seconds=0.0, peak_memory_mib=0.0, peak_memory_children_mib=0.0,
        num_threads=1, host_cpu="", config={}, versions={}, results=codec.to_json(table), cases=(), notices=(),
    )  # fmt: skip


def test_each_trial_has_its_start_and_its_end() -> None:
    lost = row(
        "c", state="failed", score=None, cause="the node was lost", started_at="", ended_at="", seconds=0.0, host=""
    )
    (result,) = trials_of([report(row("a", ranks=2), row("b"), lost, best="b")])
    start, end = "2026-11-25 19:38:07.125", "2026-11-25 19:40:07.250"
    assert result.rows == (
        ("norm a", "completed", "0.5000", "2", start, end, "2 min 00 s", "node-a"),
        ("norm b", "completed", "0.5000", "1", start, end, "2 min 00 s", "node-a"),
        ("norm c", "failed: the node was lost", "–", "1", "–", "–", "–", "–"),
    )
    assert (result.metric, result.best) == ("validation_dice", 1)
    assert result.caption.startswith("Data parallel, 1 to 2 ranks each: 3 trials, at most 2 at the same time, ")


def test_repeats_electricity_and_pareto_front_are_shown() -> None:
    rows = [
        row("a", energy_wh=1.5, energy_kind="modelled"),
        row("b", score=0.7),
        row("a2", varied={"norm": "a"}),
        row("b2"),
    ]
    table = table_of(
        rows, "validation_dice", choose=True, repeats=2, objectives=parse_objectives(("score:max", "seconds:min"))
    )
    (result,) = trials_of([dataclasses.replace(report(rows[0], best="a"), results=codec.to_json(table))])
    assert result.more == {"Electricity": ["1.5 Wh, modelled", "–", "–", "–"]}
    assert result.repeated == (
        ("norm a", "2 of 2", "0.5000 ± 0.0000", "2 min 00 s", "–"),
        ("norm b", "2 of 2", "0.6000 ± 0.1414", "2 min 00 s", "–"),
    )
    assert (result.front, result.best) == ((1,), 1)
    assert result.caption.endswith(
        "Objectives: highest score, lowest seconds; the trials of the Pareto front are marked."
    )


def test_groups_parameters_metrics_and_skipped_combinations_are_shown() -> None:
    metrics = {"validation_log_loss": 0.25, "validation_weighted_f1": None}
    rows = (row("a", group="fine", parameters=1_991_054, metrics=metrics), row("b", group="coarse"))
    planned = (
        PlannedTrials(group="fine", planned=240, selected=1, skipped=239, reason="not selected"),
        PlannedTrials(group="coarse", planned=1, selected=1, skipped=0, reason=""),
    )
    table = dataclasses.replace(table_of(rows, "validation_macro_f1", choose=True), planned=planned)
    assert codec.from_json(SearchTable, json.loads(codec.dumps(table)), where="t") == table
    (result,) = trials_of([dataclasses.replace(report(rows[0], best="a"), results=codec.to_json(table))])
    assert result.more == {
        "Group": ["fine", "coarse"], "Parameters": ["1,991,054", "–"], "validation_log_loss": ["0.2500", "–"],
        "validation_weighted_f1": ["–", "–"],
    }  # fmt: skip
    assert result.planned == (("fine", "240", "1", "239", "not selected"), ("coarse", "1", "1", "0", ""))


def test_the_first_objective_is_drawn_over_each_of_the_others() -> None:
    rows = [row("a", energy_wh=1.5), row("b", score=0.7, energy_wh=2.0), row("c", score=0.4, energy_wh=3.0), row("d")]
    objectives = parse_objectives(("score:max", "seconds:min", "wh:min"))
    table = table_of(rows, "validation_dice", choose=True, repeats=1, objectives=objectives)
    (result,) = trials_of([dataclasses.replace(report(rows[0], best="a"), results=codec.to_json(table))])
    assert [(chart.alt, chart.caption) for chart in result.charts] == [
        (
            "validation_dice over time, s: 2 of 4 combinations on the Pareto front.",
            "2 of 4 combinations on the Pareto front. The front is that of all objectives together.",
        ),
        (
            "validation_dice over electricity, Wh: 2 of 3 combinations on the Pareto front.",
            "2 of 3 combinations on the Pareto front. The front is that of all objectives together. "
            "1 combination without both figures left out.",
        ),
    ]
    assert trials_of([report(row("a"), best="a")])[0].charts == ()


def test_every_search_has_a_table_and_a_single_trial_none() -> None:
    whole, single = report(row("a"), best="a"), report(row("a"), best="")
    assert [result.caption.partition(":")[0] for result in trials_of([whole, single, whole])] == [
        "Experiment parallel"
    ] * 2
