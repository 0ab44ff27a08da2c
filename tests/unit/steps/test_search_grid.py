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
from medweave_core.contracts.hardware import HardwareUse
from medweave_core.contracts.search import SearchGrid, SearchTable, Trial, TrialRow
from medweave_core.errors import UsageError, UserInputError
from medweave_steps.cli import build_parser, load_verb, main
from medweave_steps.runtime.options import read_options
from medweave_steps.search.choice import parse_objectives
from medweave_steps.search.config import SearchConfig
from medweave_steps.search.grid import RESERVED, parse_selection, planned_of, trials_of, words_of
from medweave_steps.search.side_by_side import LOST, _row
from medweave_steps.search.table import in_order, most_at_once, table_of, write_table
from medweave_steps.search.trial import energy_of
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


def test_repeats_keep_the_trials_of_fewer_repeats_and_have_seeds_of_their_own() -> None:
    once, twice, thrice = trials_of(GRID), trials_of(GRID, 2), trials_of(GRID, 3)
    assert thrice[:4] == once
    assert thrice[:8] == twice
    assert len({trial.trial_id for trial in thrice}) == len({trial.options["seed"] for trial in thrice}) == 12
    assert [trial.varied for trial in thrice] == [trial.varied for trial in once] * 3
    with pytest.raises(UserInputError, match="grid of the search") as message:
        trials_of(SearchGrid(product={"seed": (3, 4)}), 2)
    assert "--repeats" in message.value.seen


GROUPED = SearchGrid(
    product={
        "units,hidden-layers": {"small": ((16, 4), (32, 2)), "large": ((64, 2),)},
        "batch-size": (7, 8), "norm": ("batch",),
    },
)  # fmt: skip


def test_a_key_of_several_options_has_their_values_in_groups() -> None:
    trials = trials_of(GROUPED)
    own = [
        (*(trial.varied[name] for name in ("units", "hidden-layers", "batch-size")), trial.group) for trial in trials
    ]
    assert own == [
        (16, 4, 7, "small"), (16, 4, 8, "small"), (32, 2, 7, "small"), (32, 2, 8, "small"), (64, 2, 7, "large"),
        (64, 2, 8, "large"),
    ]  # fmt: skip
    (alone,) = trials_of(SearchGrid(trials=({"units": 32, "hidden-layers": 2, "batch-size": 8, "norm": "batch"},)))
    assert alone.options == trials[3].options, "a pair or a group changes nothing of the trial itself"
    assert all(trial.group == "large" for trial in trials_of(GROUPED, 2)[-2:])


@pytest.mark.parametrize(
    ("words", "places", "skipped"),
    [
        ((), [0, 1, 2, 3, 4, 5], {"small": (4, 4, 0, ""), "large": (2, 2, 0, "")}),
        (("units=16,64", "batch-size=8"), [1, 5], {"small": (4, 1, 3, "not selected"), "large": (2, 1, 1, "not selected")}),
        (("group=large", "norm=batch"), [4, 5], {"small": (4, 0, 4, "not selected"), "large": (2, 2, 0, "")}),
    ],
)  # fmt: skip
def test_a_selection_runs_a_part_and_counts_the_rest(words: Any, places: list[int], skipped: Any) -> None:
    selection, trials = parse_selection(words), trials_of(GROUPED)
    assert trials_of(GROUPED, selection=selection) == [trials[place] for place in places]
    planned = planned_of(GROUPED, selection)
    assert {one.group: (one.planned, one.selected, one.skipped, one.reason) for one in planned} == skipped


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("units",), "invalid value of --only"),
        (("units=16,,64",), "invalid value of --only"),
        (("units=16", "units=64"), "invalid value of --only"),
        (("units=15",), "units of 16, 32, 64"),
        (("unit=16",), "closest match"),
        (("units=16", "hidden-layers=2"), "no trial of the grid has all values"),
    ],
)
def test_a_selection_that_does_not_fit_the_grid_is_refused(words: Any, message: str) -> None:
    with pytest.raises(UsageError) as error:
        trials_of(GROUPED, selection=parse_selection(words))
    assert message in str(error.value) + error.value.expected + error.value.do


def test_a_grid_without_groups_and_selection_has_no_counts() -> None:
    assert planned_of(GRID, {}) == ()
    (only,) = planned_of(GRID, parse_selection(["learning-rate=0.1"]))
    assert (only.group, only.planned, only.selected, only.skipped) == ("", 4, 2, 2)


@pytest.mark.parametrize(("name", "ranks"), [("paper", [5, 7, 9, 11, 13]), ("demo", [2, 3, 4, 5, 6])])
def test_the_care_purpose_grids_have_720_trials_in_three_groups_by_parameters(name: str, ranks: list[int]) -> None:
    text = (WORKFLOWS / "care-purpose" / "jobs" / f"{name}-grid.json").read_text()
    grid = codec.from_json(SearchGrid, json.loads(text), where=name)
    trials = trials_of(grid)
    assert len(trials) == 24 * 6 * 5
    assert [one.planned for one in planned_of(grid, {})] == [8 * 6 * 5] * 3
    parameters: dict[str, set[int]] = {}
    for trial in trials:
        units, layers = trial.varied["units"], trial.varied["hidden-layers"]
        number = 14_637 * units + units + (layers - 1) * (units**2 + units) + 14 * units + 14
        parameters.setdefault(trial.group, set()).add(number)
    assert {group: (min(own), max(own)) for group, own in parameters.items()} == {
        "fine": (238_526, 1_925_006), "middle": (1_991_054, 8_289_806), "coarse": (9_340_430, 76_795_918),
    }  # fmt: skip
    assert sorted({trial.varied["ranks"] for trial in trials}) == ranks
    (one,) = {trial.options["strategy"] for trial in trials}
    assert one == "parameter-server"


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
        (SearchGrid(product={"steps,seed": ((1, 2), (3,))}), "steps,seed: [3]"),
        (SearchGrid(product={"steps,seed": (1,)}), "steps,seed: 1"),
        (SearchGrid(product={"steps,seed": ((1, 2),), "seed": (1,)}), "option 'seed' in two keys"),
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


def _value(config: Any, name: str) -> Any:
    """Return the value of an option, or of an option of the selected network or strategy."""
    parts = (config, config.network_options, config.strategy_options, config.task_options)
    return next(getattr(part, name) for part in parts if hasattr(part, name))


@pytest.mark.parametrize("path", sorted(WORKFLOWS.glob("*/**/*grid*.json")), ids=lambda path: path.name)
def test_each_trial_of_a_committed_grid_is_valid_for_train(path: Path) -> None:
    trials = trials_of(codec.from_json(SearchGrid, json.loads(path.read_text()), where=path.name))
    verb = load_verb("train")
    parser = build_parser(verb)
    for trial in trials:
        words = [*words_of(trial.options), "--training-set", "t", "--output", "o"]
        config = read_options(verb.config, parser.parse_args(words))
        for name, value in trial.options.items():
            arguments = _value(config, name.replace("-", "_"))
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


def test_the_best_mean_over_repeats_is_chosen(tmp_path: Path) -> None:
    scores = {"a": (0.9, 0.1, 0.2), "b": (0.5, 0.6, 0.7), "c": (0.95, 0.95, None)}
    rows = [
        row(f"{name}{number}", score=own[number], seconds=10.0 * (number + 1), varied={"norm": name},
            state="completed" if own[number] is not None else "failed")
        for number in range(3)
        for name, own in scores.items()
    ]  # fmt: skip
    table = table_of(rows, "validation_dice", choose=True, repeats=3)
    assert table.best == "b2", "c has one trial less, and a the lower mean"
    _, b, c = table.repeated
    assert (b.trial_ids, b.completed, b.seconds_mean, b.energy_wh_mean) == (("b0", "b1", "b2"), 3, 20.0, None)
    assert (b.score_mean, b.score_sd) == pytest.approx((0.6, 0.1))
    assert (c.completed, c.score_mean, c.score_sd) == (2, pytest.approx(0.95), pytest.approx(0.0))
    write_table(tmp_path, table)
    lines = (tmp_path / "repeats.csv").read_text().splitlines()
    assert lines[0] == "trial,norm,repeats,completed,score_mean,score_sd,seconds_mean,energy_wh_mean"
    assert lines[2].startswith("b0,b,3,3,0.6")
    assert codec.from_json(SearchTable, json.loads(codec.dumps(table)), where="t") == table


def test_the_pareto_front_has_what_no_other_trial_beats(tmp_path: Path) -> None:
    rows = [
        row("a", score=0.9, seconds=30.0, energy_wh=5.0, energy_kind="modelled"),
        row("b", score=0.8, seconds=10.0, energy_wh=2.0, energy_kind="measured"),
        row("c", score=0.8, seconds=11.0, energy_wh=2.0, energy_kind="measured"),
        row("d", score=0.7, seconds=40.0, energy_wh=1.0, energy_kind="measured"),
        row("e", score=0.99, seconds=1.0),
    ]
    objectives = parse_objectives(("score:max", "seconds:min", "wh:min"))
    table = table_of(rows, "validation_dice", choose=True, objectives=objectives)
    assert table.front == ("a", "b", "d"), "b is quicker than c and as good; the electricity of e is unknown"
    assert table.best == "e", "the first objective selects the model"
    assert table_of(rows, "m", choose=True, objectives=parse_objectives(("wh:min", "score:max"))).best == "d"
    write_table(tmp_path, table)
    lines = (tmp_path / "trials.csv").read_text().splitlines()
    assert lines[0].endswith(",cause,energy_wh,energy_kind,front")
    assert lines[1].endswith(",5.0,modelled,True")
    assert lines[3].endswith(",2.0,measured,False")


def test_a_search_for_the_score_alone_writes_the_same_keys_as_before() -> None:
    document = json.loads(codec.dumps(table_of([row("a")], "validation_dice", choose=True)))
    assert list(document) == ["metric", "rows", "best", "most_at_once", "seconds", "table_version", "data_class"]
    assert list(document["rows"][0])[-3:] == ["host", "weights_sha256", "ranks"]


@pytest.mark.parametrize(
    ("energy", "expected"),
    [
        (None, (None, None)),
        ({"each_wh": [1.0, 2.0], "components": [{"kind": "modelled", "wh": 9.0}]}, (3.0, "measured")),
        ({"each_wh": [1.0, None]}, (None, None)),
        ({"each_wh": [None], "components": [{"kind": "measured", "wh": 2.0}]}, (2.0, "measured")),
        ({"components": [{"kind": "measured", "wh": 2.0}, {"kind": "modelled", "wh": 1.0}]}, (3.0, "modelled")),
    ],
)
def test_the_electricity_of_a_trial_is_that_of_its_run_report(energy: Any, expected: Any) -> None:
    assert energy_of({"training": {"energy": energy} if energy else {}}) == expected


def test_the_electricity_of_a_training_on_a_gpu_is_unknown_without_that_of_the_gpu() -> None:
    processor, gpu = ({"component": name, "kind": "measured", "wh": 2.0} for name in ("processor", "gpu"))
    use = HardwareUse(
        seconds=1.0, idle_of="gpu", idle_share=None, joules_per_sample=None, sent_bytes_per_epoch=None,
        received_bytes_per_epoch=None, loopback_bytes_per_epoch=None, peak_memory_mib=None, peak_gpu_memory_mib=None,
        monitor_cpu_share=0.0,
    )  # fmt: skip
    training: dict[str, Any] = {"hardware": codec.to_json(use)}
    assert energy_of({"training": training | {"energy": {"components": [processor]}}}) == (None, None)
    assert energy_of({"training": training | {"energy": {"components": [processor, gpu]}}}) == (None, None), (
        "of one of two"
    )
    training["hardware"]["joules_per_sample"] = 5.0
    assert energy_of({"training": training | {"energy": {"components": [processor, gpu]}}}) == (4.0, "measured")
    counted = {"each_wh": [1.0], "missing": ["no counter of the processor"]}
    assert energy_of({"training": training | {"energy": counted}}) == (None, None)
    counted |= {"components": [processor | {"kind": "modelled"}, gpu]}
    assert energy_of({"training": training | {"energy": counted}}) == (4.0, "modelled")


def test_the_sheet_has_group_parameters_and_electricity_where_a_trial_has_them(tmp_path: Path) -> None:
    metrics = {"validation_log_loss": 0.25, "validation_macro_f1": 0.5, "validation_weighted_f1": 0.75}
    more = {"group": "fine", "parameters": 238_526, "metrics": metrics, "energy_wh": 2.0, "energy_kind": "modelled"}
    write_table(tmp_path, table_of([row("a", **more), row("b")], "validation_macro_f1", choose=True))
    lines = (tmp_path / "trials.csv").read_text().splitlines()
    names = "group,parameters,validation_log_loss,validation_weighted_f1,energy_wh,energy_kind"
    assert [line.split(",cause,")[-1] for line in lines[:1]] == [names]
    assert lines[1].endswith(",fine,238526,0.25,0.75,2.0,modelled")
    assert lines[2].endswith(",,,,,,")


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
        ({"part": "plan", "grid": Path("g"), "repeats": 0}, "invalid value of --repeats"),
        ({"part": "plan", "grid": Path("g"), "objectives": ("secnods:min",)}, "write 'seconds' (closest match)"),
        ({"part": "plan", "grid": Path("g"), "objectives": ("score:up",)}, "invalid value of --objectives"),
        (
            {"grid": Path("g"), "training_set": Path("t"), "repeats": 2, "scheduler": "asha"},
            "--scheduler asha is not allowed with --repeats",
        ),
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
