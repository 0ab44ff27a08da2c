"""`medweave-step search`: a grid of trainings in, one table and the best model out."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from medweave_core.contracts import codec
from medweave_core.contracts.search import SearchGrid, SearchTable, Trial, TrialRow
from medweave_core.errors import UserInputError
from medweave_steps.runtime import environment
from medweave_steps.runtime.verb import StepContext, Verb
from medweave_steps.runtime.write import atomic_directory
from medweave_steps.search.choice import WH, parse_objectives
from medweave_steps.search.config import SearchConfig
from medweave_steps.search.grid import parse_selection, planned_of, trials_of
from medweave_steps.search.side_by_side import Spread, run_side_by_side
from medweave_steps.search.table import TRIALS, in_order, read_rows, table_of, write_table
from medweave_steps.search.trial import MODEL, TrialSettings, help_to_train, train_to_its_end

C = TypeVar("C")
_OF_PROGRESS = ("verb", "unit", "done", "total", "seconds_left", "detail")


def run(config: SearchConfig, context: StepContext) -> Mapping[str, Any]:
    """Run the selected part of a search."""
    return {"all": _all, "plan": _plan, "trial": _one, "collect": _collect}[config.part](config, context)


def _plan(config: SearchConfig, context: StepContext) -> Mapping[str, Any]:
    trials = _trials(config)
    with atomic_directory(config.output) as folder:
        for place, trial in enumerate(trials):
            (folder / f"trial-{place:04d}.json").write_text(codec.dumps(trial), encoding="utf-8")
    return {"num_trials": len(trials)}


def _one(config: SearchConfig, context: StepContext) -> Mapping[str, Any]:
    trial, node_group = _read(Trial, config.trial, "trial"), environment.node_group()
    # A trial's threads are dealt to its ranks, wherever they are: equal numbers give equal weights on one node and on several.
    threads = max(1, config.threads_per_trial // node_group.num_nodes)
    settings = dataclasses.replace(_settings(config), num_threads=threads, in_node_group=node_group.num_nodes > 1)
    if node_group.node_rank > 0:
        with tempfile.TemporaryDirectory() as own:  # the nodes may share their file system
            help_to_train(trial, settings, _of(Path(own), trial.trial_id))
        return {}
    with atomic_directory(config.output) as folder:
        row = train_to_its_end(trial, settings, _of(folder, trial.trial_id), _epochs(context))
        table = _written(folder, [row], config, context, choose=False)
    return _results(table)


def _all(config: SearchConfig, context: StepContext) -> Mapping[str, Any]:
    trials = _trials(config)
    spread = Spread(
        slots=min(config.slots, len(trials)),
        scheduler=config.scheduler,
        grace_epochs=config.grace_epochs,
        reduction_factor=config.reduction_factor,
    )
    progress = context.progress(unit="trial", total=len(trials))
    with atomic_directory(config.output) as folder, atomic_directory(config.best_model) as model:
        rows = run_side_by_side(
            trials, _settings(config), _of(folder.resolve()), spread, lambda row: progress.step(_outcome(row, config))
        )
        table = _written(folder, rows, config, context, choose=True)
        shutil.copytree(_of(folder, table.best) / MODEL, model, dirs_exist_ok=True)
    context.versions |= environment.library_versions()
    return _results(table)


def _collect(config: SearchConfig, context: StepContext) -> Mapping[str, Any]:
    trials = _trials(config)
    results = read_rows(config.results)
    rows = in_order(trials, results)
    with atomic_directory(config.output) as folder, atomic_directory(config.best_model) as model:
        for name, (_, source) in results.items():
            shutil.copytree(source, _of(folder, name))
        table = _written(folder, rows, config, context, choose=True)
        shutil.copytree(_of(folder, table.best) / MODEL, model, dirs_exist_ok=True)
    return _results(table)


def _written(
    folder: Path, rows: Sequence[TrialRow], config: SearchConfig, context: StepContext, *, choose: bool
) -> SearchTable:
    for row in rows:
        if row.state == "failed":
            context.notice(f"trial {row.trial_id} failed: {row.cause}")
    objectives = parse_objectives(config.objectives)
    table = table_of(rows, config.metric, choose=choose, repeats=config.repeats if choose else 1, objectives=objectives)
    if choose:
        planned = planned_of(_read(SearchGrid, config.grid, "grid"), parse_selection(config.only))
        table = dataclasses.replace(table, planned=planned)
    _report_choice(table, context)
    write_table(folder, table)
    return table


def _report_choice(table: SearchTable, context: StepContext) -> None:
    """Print notices about trials that take no part in the choice."""
    lacking = [one for one in table.repeated if one.completed < max(one.completed for one in table.repeated)]
    for one in lacking:
        varied = ", ".join(f"{name} {value}" for name, value in one.varied.items())
        context.notice(f"{varied}: only {one.completed} of {len(one.trial_ids)} repeats completed; not chosen.")
    names = [objective.name for objective in table.objectives]
    unmeasured = [row for row in table.rows if row.state == "completed" and row.energy_wh is None]
    if WH in names and unmeasured:
        context.notice(
            f"{len(unmeasured)} trials have no figure of their electricity; they are not on the Pareto front."
        )


def _trials(config: SearchConfig) -> list[Trial]:
    return trials_of(_read(SearchGrid, config.grid, "grid"), config.repeats, parse_selection(config.only))


def _results(table: SearchTable) -> dict[str, Any]:
    document: dict[str, Any] = codec.to_json(table)
    return document


def _settings(config: SearchConfig) -> TrialSettings:
    assert config.training_set is not None, "checked with the options"
    return TrialSettings(
        training_set=config.training_set.resolve(), num_threads=config.threads_per_trial, metric=config.metric
    )


def _of(folder: Path, trial_id: str = "") -> Path:
    return folder / TRIALS / trial_id


def _outcome(row: TrialRow, config: SearchConfig) -> str:
    varied = ", ".join(f"{name} {value}" for name, value in row.varied.items())
    score = "" if row.score is None else f", {config.metric} {row.score:.3f}"
    return f"{varied or row.trial_id}: {row.state}{score}"


def _epochs(context: StepContext) -> Any:
    """Return a function that forwards each epoch of the only trial as this step's progress."""
    progress: list[Any] = []

    def step(point: Mapping[str, Any]) -> None:
        if not progress:
            progress.append(context.progress(unit="epoch", total=int(point["total"]), done=int(point["done"]) - 1))
        figures = {name: value for name, value in point.items() if name not in _OF_PROGRESS}
        progress[0].step(str(point.get("detail", "")), **figures)

    return step


def _read(cls: type[C], path: Path | None, what: str) -> C:
    """Return a file that people or `--part plan` wrote.

    Raises:
        UserInputError: the file is not JSON, or of another kind.
    """
    assert path is not None, "checked with the options"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserInputError(
            f"the file of the {what} is not valid JSON.", seen=str(error), expected="a JSON object", do="mend the file"
        ) from error
    return codec.from_json(cls, document, where=f"the file of the {what}")


DESCRIPTION = """\
Runs a hyperparameter search: trains each trial of a grid of `train` options and selects the model with the best validation
metric. Each trial is an independent `train` process; its seed depends only on its options.

Grid file: {"options": {"steps": 2000}, "product": {"learning-rate": [0.001, 0.005], …}} or with "trials": [{…}, …]. A key of
several options, "units,hidden-layers": [[64, 4], [256, 2]], has their pairs. Values in groups, {"small": […], "large": […]}, give
each trial the name of its group. --only selects a part of the grid; the table counts the skipped combinations of each group.

With --repeats N, each combination of options is trained N times with different, recorded seeds. The table has the mean and the
standard deviation of each combination, and the best model is that of the combination with the best mean. With several
--objectives, the table also has the Pareto front: the combinations that no other one dominates, that is, no other one is at
least as good in all objectives and better in one.

A failed trial becomes a row of the result table with its cause; the other trials continue. Times are UTC, durations in s.
--part all needs the library Ray, uses only this machine and leaves no process running. --part plan, trial and collect split
the same search into jobs for a workflow engine.
Errors: an unknown objective; a grid with unknown keys or with the same trial twice; a search in which no trial completes."""
EXAMPLE = "medweave-step search --grid grid.json --training-set prepared/training_set --slots 4 --output search"

VERB = Verb(name="search", description=DESCRIPTION, example=EXAMPLE, config=SearchConfig, run=run)
