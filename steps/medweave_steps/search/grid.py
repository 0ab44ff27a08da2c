"""From a grid to its trials, and from a trial to the command line of `train`. Pure."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from medweave_core.contracts.search import SearchGrid, Trial
from medweave_core.errors import UserInputError

RESERVED = ("training-set", "output", "training-log", "run-report", "num-threads", "checkpoint-folder", "resume-from")
"""Options that the search sets for each trial."""
_NAME = re.compile(r"[a-z][a-z0-9-]*")
_SEED = "seed"


def trials_of(grid: SearchGrid, repeats: int = 1) -> list[Trial]:
    """Return the trials in the order of the grid: first one of each combination, then their repeats with other seeds.

    A trial's seed comes from its options, unless they name one: so it does not depend on which other trials there are. A repeat's
    seed comes from the options, the seed and its number: more repeats leave the trials of fewer ones as they are.

    Raises:
        UserInputError: the grid names no trials or the same one twice, or an option that no trial can have.
    """
    varied = list(_varied(grid))
    if not varied:
        raise _wrong("no trial", "either `product` with at least one value per option, or `trials`")
    trials = [_trial(grid.options, options) for options in varied]
    ids = [trial.trial_id for trial in trials]
    for place, name in enumerate(ids):
        if name in ids[:place]:
            raise _wrong(
                f"the same trial at positions {ids.index(name)} and {place} (counted from 0)", "each trial once"
            )
    if repeats > 1 and any(_SEED in trial.varied for trial in trials):
        raise _wrong("option 'seed' in `product` or `trials`, with --repeats", "either seeds in the grid or --repeats")
    return [*trials, *(_repeat(trial, number) for number in range(1, repeats) for trial in trials)]


def _repeat(trial: Trial, number: int) -> Trial:
    """Return the trial with another seed.

    Args:
        number: of the repeat, from 1; the trial itself is 0.
    """
    digest = _digest({"options": trial.options, "repeat": number})
    return Trial(trial_id=digest[:10], options={**trial.options, _SEED: _seed(digest)}, varied=trial.varied)


def _varied(grid: SearchGrid) -> Iterator[dict[str, Any]]:
    if grid.trials and not grid.product:
        yield from (dict(options) for options in grid.trials)
    elif grid.product and not grid.trials:
        for values in itertools.product(*grid.product.values()):
            yield dict(zip(grid.product, values, strict=True))


def _trial(common: Mapping[str, Any], varied: Mapping[str, Any]) -> Trial:
    for name in varied:
        if name in common:
            raise _wrong(
                f"option {name!r} both in `options` and in `product` or `trials`", "each option in one of them only"
            )
    options = {name: _plain(name, value) for name, value in {**common, **varied}.items()}
    digest = _digest(options)
    options.setdefault(_SEED, _seed(digest))
    return Trial(trial_id=digest[:10], options=options, varied={name: options[name] for name in varied})


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
