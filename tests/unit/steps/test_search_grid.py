"""From a grid to its trials and their command lines, and from rows to a table."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from medweave_core.contracts import codec
from medweave_core.contracts.search import SearchGrid, Trial, TrialRow
from medweave_core.errors import UsageError, UserInputError
from medweave_steps.cli import build_parser, load_verb, main
from medweave_steps.runtime.options import read_options
from medweave_steps.search.config import SearchConfig
from medweave_steps.search.grid import RESERVED, trials_of, words_of
from medweave_steps.search.side_by_side import LOST, _row
from medweave_steps.search.table import in_order, most_at_once, table_of, write_table
from support.cwl_files import WORKFLOWS

GRID = SearchGrid(options={"steps": 6}, product={"learning-rate": (0.1, 0.2), "channels": ((4, 8), (8, 16))})


def row(trial_id: str, **changes: Any) -> TrialRow:
    message = {"varied": {"learning-rate": 0.1}, "seed": 1, "state": "completed", "score": 0.5}
    return TrialRow(trial_id=trial_id, **message | changes)


def test_the_last_option_changes_fastest_and_each_trial_is_whole() -> None:
    trials = trials_of(GRID)
    assert [list(trial.varied.values()) for trial in trials] == [
        [0.1, [4, 8]], [0.1, [8, 16]], [0.2, [4, 8]], [0.2, [8, 16]],
    ]  # fmt: skip
    assert all(trial.options["steps"] == 6 for trial in trials)
    assert len({trial.trial_id for trial in trials}) == len({trial.options["seed"] for trial in trials}) == 4


def test_a_trial_does_not_depend_on_the_others_or_on_its_place() -> None:
    whole = {trial.trial_id: trial for trial in trials_of(GRID)}
    turned = SearchGrid(options={"steps": 6.0}, product={"channels": ((8, 16),), "learning-rate": (0.2, 0.1)})
    for trial in trials_of(turned):
        assert trial.options == whole[trial.trial_id].options
    (alone,) = trials_of(SearchGrid(trials=({"channels": [8, 16], "learning-rate": 0.2, "steps": 6},)))
    assert alone.options == whole[alone.trial_id].options


def test_a_seed_that_is_named_counts() -> None:
    seeds = [trial.options["seed"] for trial in trials_of(SearchGrid(product={"seed": (3, 4)}))]
    assert seeds == [3, 4]


@pytest.mark.parametrize(
    ("grid", "seen"),
    [
        (SearchGrid(), "no trial"),
        (SearchGrid(product={"steps": ()}), "no trial"),
        (SearchGrid(product={"steps": (1,)}, trials=({"seed": 1},)), "no trial"),
        (SearchGrid(trials=({"steps": 1}, {"seed": 2}, {"steps": 1.0})), "the same trial at positions 0 and 2"),
        (SearchGrid(options={"steps": 1}, product={"steps": (2,)}), "option 'steps' both in `options`"),
        (SearchGrid(product={"learning_rate": (1,)}), "option 'learning_rate'"),
        (SearchGrid(product={"--steps": (1,)}), "option '--steps'"),
        *((SearchGrid(product={name: ("x",)}), f"option '{name}'") for name in RESERVED),
        (SearchGrid(product={"folds": (2, 3)}), "option 'folds'"),
        (SearchGrid(product={"steps": ({"a": 1},)}), 'steps: {"a": 1}'),
        (SearchGrid(product={"steps": (None,)}), "steps: null"),
        (SearchGrid(product={"learning-rate": (math.nan,)}), "learning-rate: NaN"),
    ],
)
def test_a_grid_that_cannot_be_used_is_reported(grid: SearchGrid, seen: str) -> None:
    with pytest.raises(UserInputError, match="grid of the search") as message:
        trials_of(grid)
    assert seen in message.value.seen


def test_options_become_words_that_train_reads_as_they_were() -> None:
    options = {"learning-rate": 1e-4, "augment": False, "channels": [4, 8], "strides": [2], "name": "-x", "seed": 7}
    parsed = build_parser(load_verb("train")).parse_args(
        [*words_of(options), "--training-set", "t", "--output", "o", "--patch-shape", "8", "8", "8"]
    )
    assert (parsed.learning_rate, parsed.augment, parsed.channels, parsed.name, parsed.seed) == (
        1e-4,
        False,
        [4, 8],
        "-x",
        7,
    )
    assert words_of({"augment": True}) == ["--augment"]


@pytest.mark.parametrize("path", sorted(WORKFLOWS.glob("*/**/*grid*.json")), ids=lambda path: path.name)
def test_each_trial_of_a_committed_grid_is_valid_for_train(path: Path) -> None:
    trials = trials_of(codec.from_json(SearchGrid, json.loads(path.read_text()), where=path.name))
    verb = load_verb("train")
    for trial in trials:
        words = [*words_of(trial.options), "--training-set", "t", "--output", "o"]
        config = read_options(verb.config, build_parser(verb).parse_args(words))
        for name, value in trial.options.items():
            arguments = getattr(config, name.replace("-", "_"))
            assert (list(arguments) if isinstance(arguments, tuple) else arguments) == value


def test_most_at_once_counts_moments_and_not_touches() -> None:
    assert most_at_once([]) == 0
    assert most_at_once([(0, 1), (1, 2)]) == 1
    assert most_at_once([(0, 3), (1, 2), (2.5, 4)]) == 2


def test_the_best_is_the_highest_of_those_that_have_a_model_and_the_first_of_equals(tmp_path: Path) -> None:
    rows = [
        row("a", score=0.5), row("b", score=0.9, state="stopped"), row("c", score=0.7), row("d", score=0.7),
        row("e", score=None, state="failed", cause="no"),
    ]  # fmt: skip
    table = table_of(rows, "validation_dice", choose=True)
    assert table.best == "c"
    write_table(tmp_path, table)
    lines = (tmp_path / "trials.csv").read_text().splitlines()
    assert lines[0].startswith("trial,learning-rate,state,validation_dice,seed,")
    assert lines[1].startswith("a,0.1,completed,0.5,1,")
    assert lines[5].endswith(",no")
    with pytest.raises(UserInputError, match="no trial of the search completed") as message:
        table_of(rows[4:], "validation_dice", choose=True)
    assert message.value.seen == "no"


def test_a_trial_whose_job_left_nothing_is_a_failed_row(tmp_path: Path) -> None:
    trials = trials_of(GRID)
    result = {trial.trial_id: (row(trial.trial_id), tmp_path) for trial in trials[1:]}
    rows = in_order(trials, result)
    assert [item.state for item in rows] == ["failed", "completed", "completed", "completed"]
    assert rows[0].cause.startswith("no result")
    assert _row(tmp_path, trials[0]).cause == LOST
    with pytest.raises(UserInputError, match="does not belong to a trial of this grid"):
        in_order(trials[:1], result)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"part": "all", "training_set": Path("t")}, "--grid is required with --part all"),
        (
            {"part": "plan", "grid": Path("g"), "training_set": Path("t")},
            "--training-set is not allowed with --part plan",
        ),
        ({"part": "trial", "training_set": Path("t")}, "--trial is required"),
        ({"part": "collect", "grid": Path("g")}, "--results is required"),
        ({"part": "plan", "grid": Path("g"), "slots": 0}, "invalid value of --slots"),
        ({"part": "plan", "grid": Path("g"), "scheduler": "asha"}, "--scheduler asha is not allowed"),
        ({"part": "plan", "grid": Path("g"), "reduction_factor": 1}, "invalid value of --reduction-factor"),
        ({"part": "plan", "grid": Path("g"), "best_model": Path("o")}, "the same folder"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        SearchConfig(**{"output": Path("o"), **changes})


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is not valid JSON"), ('{"produkt": {}}', "produkt"), ("[]", "an object")]
)
def test_a_grid_file_that_is_none_is_reported(
    tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "grid.json").write_text(text)
    code = main(["search", "--part", "plan", "--grid", str(tmp_path / "grid.json"), "--output", str(tmp_path / "o")])
    assert code == UserInputError.exit_code
    assert message in capsys.readouterr().err


def test_plan_writes_a_file_per_trial_in_the_order_of_the_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("grid.json").write_text(codec.dumps(GRID))
    assert main(["search", "--part", "plan", "--grid", "grid.json", "--output", "o"]) == 0
    read = [codec.from_json(Trial, json.loads(path.read_text()), where="t") for path in sorted(Path("o").iterdir())]
    assert read == [dataclasses.replace(trial) for trial in trials_of(GRID)]


@pytest.mark.parametrize("mode", ["data", "experiment"])
def test_distmis_grid_has_its_32_trials_in_the_stated_order_of_keys(mode: str) -> None:
    path = WORKFLOWS / "brain-tumour-segmentation" / "jobs" / f"{mode}-parallel-grid.json"
    trials = trials_of(codec.from_json(SearchGrid, json.loads(path.read_text()), where=path.name))
    assert len(trials) == len({trial.trial_id for trial in trials}) == 32
    assert all(list(trial.varied) == ["learning-rate", "norm", "beta2", "amsgrad"] for trial in trials)
    assert [tuple(trial.varied.values()) for trial in trials[:3]] == [
        (1e-4, "batch", 0.99, True), (1e-4, "batch", 0.99, False), (1e-4, "batch", 0.999, True),
    ]  # fmt: skip
    # A trial on one GPU keeps its rate; one on several has it times their number.
    assert {trial.options.get("scale-by-ranks", False) for trial in trials} == {mode == "data"}
