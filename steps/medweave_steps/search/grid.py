"""From a grid to its trials, and from a trial to the command line of `train`. Pure."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
import types
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from medweave_core.contracts.search import PlannedTrials, SearchGrid, Trial
from medweave_core.documents.closest_match import closest
from medweave_core.errors import UsageError, UserInputError

RESERVED = ("training-set", "output", "training-log", "run-report", "num-threads", "checkpoint-folder", "resume-from")
"""Options that the search sets for each trial."""
_NAME = re.compile(r"[a-z][a-z0-9-]*")
_SEED = "seed"
GROUP = "group"
"""Name of the groups of a grid in a selection."""
NOT_SELECTED = "not selected"

Selection = Mapping[str, tuple[str, ...]]


def trials_of(grid: SearchGrid, repeats: int = 1, selection: Selection = types.MappingProxyType({})) -> list[Trial]:
    """Return the trials in the order of the grid: first one of each combination, then their repeats with other seeds.

    A trial's seed comes from its options, unless they name one: so it does not depend on which other trials there are. A repeat's
    seed comes from the options, the seed and its number: more repeats leave the trials of fewer ones as they are.

    Args:
        selection: as `parse_selection` returns it; only these trials are returned.
    Raises:
        UserInputError: the grid names no trials or the same one twice, or an option that no trial can have.
        UsageError: the selection does not fit the grid.
    """
    trials = _selected(_combinations(grid), selection)
    if repeats > 1 and any(_SEED in trial.varied for trial in trials):
        raise _wrong("option 'seed' in `product` or `trials`, with --repeats", "either seeds in the grid or --repeats")
    return [*trials, *(_repeat(trial, number) for number in range(1, repeats) for trial in trials)]


def planned_of(grid: SearchGrid, selection: Selection) -> tuple[PlannedTrials, ...]:
    """Return the numbers of planned, selected and skipped combinations of each group; empty without groups and selection."""
    trials = _combinations(grid)
    if not selection and not any(trial.group for trial in trials):
        return ()
    planned = Counter(trial.group for trial in trials)
    selected = Counter(trial.group for trial in _selected(trials, selection))
    return tuple(
        PlannedTrials(
            group=group, planned=number, selected=selected[group], skipped=number - selected[group],
            reason=NOT_SELECTED if number > selected[group] else "",
        )
        for group, number in planned.items()
    )  # fmt: skip


def parse_selection(words: Sequence[str]) -> Selection:
    """Return the selected values by option, from words such as `batch-size=768,1536` or `group=fine`.

    Raises:
        UsageError: a word is not of this form, or an option is named twice.
    """
    selection: dict[str, tuple[str, ...]] = {}
    for word in words:
        name, _, values = word.partition("=")
        if not name or not all(values.split(",")) or name in selection:
            raise UsageError(
                "invalid value of --only.", seen=word, expected="NAME=VALUE or NAME=VALUE,VALUE, each name once"
            )
        selection[name] = tuple(values.split(","))
    return selection


def _selected(trials: Sequence[Trial], selection: Selection) -> list[Trial]:
    """Return the trials whose options have selected values.

    Raises:
        UsageError: no trial has an option or value of the selection, or all of it.
    """
    values = [
        {GROUP: trial.group, **{name: text_of(value) for name, value in trial.varied.items()}} for trial in trials
    ]
    for name, wanted in selection.items():
        known = list(dict.fromkeys(own[name] for own in values if own.get(name)))
        for value in wanted:
            if value not in known:
                names = list(dict.fromkeys(name for own in values for name in own))
                raise UsageError(
                    "the grid has no trial with this value of --only.",
                    seen=f"{name}={value}",
                    expected=f"{name} of {', '.join(known)}" if known else f"one of {', '.join(names)}",
                    do="" if known else closest(name, names),
                )
    chosen = [
        trial
        for trial, own in zip(trials, values, strict=True)
        if all(own.get(name) in wanted for name, wanted in selection.items())
    ]
    if not chosen:
        raise UsageError(
            "no trial of the grid has all values of --only.",
            seen=" ".join(f"{name}={','.join(wanted)}" for name, wanted in selection.items()),
            expected="a combination of the grid",
        )
    return chosen


def text_of(value: Any) -> str:
    """Return the value of an option as a selection and the tables have it."""
    return value if isinstance(value, str) else json.dumps(value)


def _combinations(grid: SearchGrid) -> list[Trial]:
    """Return one trial of each combination of options."""
    trials = [_trial(grid.options, options, group) for options, group in _varied(grid)]
    if not trials:
        raise _wrong("no trial", "either `product` with at least one value per option, or `trials`")
    ids = [trial.trial_id for trial in trials]
    for place, name in enumerate(ids):
        if name in ids[:place]:
            raise _wrong(
                f"the same trial at positions {ids.index(name)} and {place} (counted from 0)", "each trial once"
            )
    return trials


def _repeat(trial: Trial, number: int) -> Trial:
    """Return the trial with another seed.

    Args:
        number: of the repeat, from 1; the trial itself is 0.
    """
    digest = _digest({"options": trial.options, "repeat": number})
    return dataclasses.replace(trial, trial_id=digest[:10], options={**trial.options, _SEED: _seed(digest)})


def _varied(grid: SearchGrid) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the options of each combination, and the names of its groups."""
    if grid.trials and not grid.product:
        yield from ((dict(options), "") for options in grid.trials)
    elif grid.product and not grid.trials:
        names = [name for key in grid.product for name in key.split(",")]
        twice = [name for name, number in Counter(names).items() if number > 1]
        if twice:
            raise _wrong(f"option {twice[0]!r} in two keys of `product`", "each option in one of them only")
        for parts in itertools.product(*(_values(key, values) for key, values in grid.product.items())):
            options = {name: value for own, _ in parts for name, value in own.items()}
            yield options, " ".join(group for _, group in parts if group)


def _values(key: str, values: Any) -> list[tuple[dict[str, Any], str]]:
    """Return the options of each value of a key of `product`, and the name of its group."""
    names = key.split(",")
    groups = values if isinstance(values, Mapping) else {"": values}
    found = []
    for group, value in ((group, value) for group, own in groups.items() for value in own):
        of_names = value if len(names) > 1 else [value]
        if not isinstance(of_names, list | tuple) or len(of_names) != len(names):
            raise _wrong(
                f"{key}: {json.dumps(value, default=str)[:60]}", f"a list of {len(names)} values, one for each of {key}"
            )
        found.append((dict(zip(names, of_names, strict=True)), group))
    return found


def _trial(common: Mapping[str, Any], varied: Mapping[str, Any], group: str) -> Trial:
    for name in varied:
        if name in common:
            raise _wrong(
                f"option {name!r} both in `options` and in `product` or `trials`", "each option in one of them only"
            )
    options = {name: _plain(name, value) for name, value in {**common, **varied}.items()}
    digest = _digest(options)
    options.setdefault(_SEED, _seed(digest))
    return Trial(trial_id=digest[:10], options=options, varied={name: options[name] for name in varied}, group=group)


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _seed(digest: str) -> int:
    return int(digest[:8], 16) & 0x7FFFFFFF


def _plain(name: str, value: Any) -> Any:
    """Return the value in a normal form, equal for equal values (2 and 2.0)."""
    if not _NAME.fullmatch(name):
        raise _wrong(f"option {name!r}", "the name of an option of `train` without the dashes, such as learning-rate")
    if name in RESERVED:
        raise _wrong(f"option {name!r}", f"options of train, except {', '.join(RESERVED)}, which the search sets")
    if name == "folds":
        raise _wrong("option 'folds'", "trials of one model each; cross-validate the best options with `train --folds`")
    if isinstance(value, list | tuple) and value and all(_is_scalar(item) for item in value):
        return [_number(item) for item in value]
    if not _is_scalar(value):
        raise _wrong(
            f"{name}: {json.dumps(value, default=str)[:60]}", "a number, a string, true or false, or a list of these"
        )
    return _number(value)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, bool | int | str) or (isinstance(value, float) and value - value == 0)


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def words_of(options: Mapping[str, Any]) -> list[str]:
    """Return the options as words of a command line, in the order of their names."""
    words: list[str] = []
    for name in sorted(options):
        value = options[name]
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            words += [f"--{name}", *map(str, value)]
        else:
            words.append(f"--{name}={value}")
    return words


def _wrong(seen: str, expected: str) -> UserInputError:
    return UserInputError(
        "the grid of the search is invalid.",
        seen=seen,
        expected=expected,
        do="correct the grid file; `medweave-step train --help` lists the options",
    )
