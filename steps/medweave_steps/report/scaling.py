"""The table of ranks, time and speed-up: measured values, modeled values beyond them, and the values that a paper published.

For a training of 3D-ResAttNet the paper is that of `resattnet_scaling.py`, otherwise DistMIS.

Source: Berral et al. 2022 (DistMIS), table I: a grid of 32 trials, mean of three runs, hours:minutes:seconds there, seconds here.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

from medweave_core.contracts.report import RunReport
from medweave_steps.report.resattnet_scaling import resattnet_table
from medweave_steps.report.scaling_table import Column, Table, conditions_of, measured_trainings
from medweave_steps.report.words import plural

NUM_TRIALS = 32
DATA_PARALLEL_S = {1: 159_482, 2: 83_368, 4: 54_575, 8: 27_672, 12: 21_599, 16: 16_010, 32: 12_104}
EXPERIMENT_PARALLEL_S = {1: 159_619, 2: 80_679, 4: 41_540, 8: 25_397, 12: 20_122, 16: 15_114, 32: 10_506}
MODEL = (
    "Model of one training with n ranks: T(1)/n plus a gradient exchange that grows as 2(n − 1)/n, fitted to the measured times. "
    "Data parallel: all ranks run the trainings of the grid one after another. Experiment parallel: each training uses one rank, "
    "with n trainings at a time. The model ignores the network between nodes and contention on a shared file system. The DistMIS "
    "columns are table I of the DistMIS paper (GPUs, another machine, other data): compare only the shape of the curves."
)


def table_of(reports: Sequence[RunReport]) -> Table | None:
    """Return the table, by the run reports of `train` and `search`; None where there is nothing to compare."""
    trainings, searches = measured_trainings(reports), measured_searches(reports)
    if not searches and (table := resattnet_table(reports)):
        return table
    if len(trainings) < 2 and not searches:
        return None
    steps = {ranks: float(known["step_seconds"]) for ranks, known in trainings.items()}
    of_trials = {max(row["ranks"] for row in rows): _mean(rows) for rows, _ in searches}
    seconds = of_trials if searches else steps
    durations = next((_seconds(rows) for rows, _ in searches if _is_alone(rows)), [])
    if not durations and 1 in seconds:
        durations = [seconds[1]] * (len(searches[0][0]) if searches else NUM_TRIALS)
    alone = sum(durations) or None
    modelled = modelled_training(seconds)
    numbers = sorted({*steps, *of_trials, *(_number(*search) for search in searches), *DATA_PARALLEL_S})
    share = {n: duration / modelled[1] for n, duration in modelled.items()} if modelled else {}
    columns = (
        Column(heading="Measured, one training", seconds=steps, one=steps.get(1), is_measured=True),
        *(_of_mode("Measured, grid data parallel", searches, alone, wants_alone=False),),
        *(_of_mode("Measured, grid experiment parallel", searches, alone, wants_alone=True),),
        Column(
            heading="Modeled, grid data parallel", seconds={n: x * (alone or 0) for n, x in share.items()}, one=alone
        ),
        Column(
            heading="Modeled, grid experiment parallel",
            seconds={n: makespan(durations, n) for n in numbers} if durations else {},
            one=alone,
        ),
        Column(heading="DistMIS, data parallel", seconds=DATA_PARALLEL_S, one=DATA_PARALLEL_S[1]),
        Column(heading="DistMIS, experiment parallel", seconds=EXPERIMENT_PARALLEL_S, one=EXPERIMENT_PARALLEL_S[1]),
    )
    return Table(
        caption="Speed-up over one rank, in parentheses per rank. Columns headed “Modeled” were not measured. The grid has "
        f"{len(durations) or NUM_TRIALS} trials; the grid of DistMIS has {NUM_TRIALS}.",
        ranks=tuple(numbers),
        columns=tuple(column for column in columns if column.seconds),
        notes=(_conditions(trainings, searches), MODEL),
    )


Search = tuple[Sequence[Mapping[str, Any]], Mapping[str, Any]]
"""The completed trials of a search, and all that its report says."""


def measured_searches(reports: Sequence[RunReport]) -> list[Search]:
    """Return the completed trials and the results of each search whose trials were all gathered."""
    gathered = [report.results for report in reports if report.verb == "search" and report.results.get("best")]
    return [([row for row in known["rows"] if row["state"] == "completed"], known) for known in gathered]


def modelled_training(seconds: Mapping[int, float]) -> Mapping[int, float]:
    """Return the modeled seconds of one training by number of ranks: shared work plus a ring's exchange of gradients.

    T(n) = T(1) / n + s 2 (n - 1) / n; s is the least squares fit to the measurements, at least 0. Empty unless T(1) and another
    were measured. The model ignores the network to a second node, and files that all ranks read.
    """
    shares = {ranks: 2 * (ranks - 1) / ranks for ranks in seconds if ranks > 1}
    if 1 not in seconds or not shares:
        return {}
    fitted = sum(share * (seconds[ranks] - seconds[1] / ranks) for ranks, share in shares.items())
    exchange = max(fitted / sum(share**2 for share in shares.values()), 0.0)
    return {n: seconds[1] / n + exchange * 2 * (n - 1) / n for n in sorted({*seconds, *DATA_PARALLEL_S})}


def makespan(durations: Sequence[float], slots: int) -> float:
    """Return the seconds that trials take in their order on a number of slots, each starting when a slot is free."""
    ends = [0.0] * slots
    for seconds in durations:
        heapq.heapreplace(ends, ends[0] + seconds)
    return max(ends)


def _of_mode(heading: str, searches: Sequence[Search], alone: float | None, *, wants_alone: bool) -> Column:
    seconds = {
        _number(rows, known): float(known["seconds"]) for rows, known in searches if _is_alone(rows) == wants_alone
    }
    return Column(heading=heading, seconds=seconds, one=alone, is_measured=True)


def _number(rows: Sequence[Mapping[str, Any]], known: Mapping[str, Any]) -> int:
    """Return the largest number of ranks of a trial, or of concurrent trials if each trial has one rank."""
    return int(known["most_at_once"]) if _is_alone(rows) else max(row["ranks"] for row in rows)


def _is_alone(rows: Sequence[Mapping[str, Any]]) -> bool:
    return all(row["ranks"] == 1 for row in rows)


def _seconds(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    return [float(row["seconds"]) for row in rows]


def _mean(rows: Sequence[Mapping[str, Any]]) -> float:
    return sum(_seconds(rows)) / len(rows)


def _conditions(trainings: Mapping[int, Mapping[str, Any]], searches: Sequence[Search]) -> str:
    grids = []
    for rows, known in searches:
        hosts = plural(len({row["host"] for row in rows}), "machine")
        ranks_each = plural(max(row["ranks"] for row in rows), "rank")
        grids.append(
            f"a grid of {plural(len(known['rows']), 'trial')}, {len(rows)} completed, {ranks_each} each, "
            f"{known['most_at_once']} at once, on {hosts}"
        )
    conditions = conditions_of(list(trainings.values()), grids)
    return (
        f"{conditions}; the time of a grid is from the start of the first trial to the end of the last, including both."
    )
