"""At the start the ranks compare what each was given: with other data or options they would wait for each other for ever."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from medweave_steps.contracts.errors import UserInputError
from medweave_steps.training.group import Group


def check_agreement(group: Group, given: Mapping[str, Any]) -> None:
    """Compares digests, and only if they differ the values; every rank must call it.

    Args:
        given: JSON values under the names that the user knows; no paths, which may differ.
    Raises:
        UserInputError: on every rank; names what differs, with the values of rank 0 and of the first rank that has others.
    """
    digests = group.gather(hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest())
    if len(set(digests)) == 1:
        return
    values: list[Mapping[str, Any]] = group.gather(dict(given))
    other = next(rank for rank, digest in enumerate(digests) if digest != digests[0])
    names = sorted(n for n in values[0].keys() | values[other].keys() if values[0].get(n) != values[other].get(n))
    raise UserInputError(
        "the ranks were not given the same training.",
        seen=f"rank {other} has {_listed(names, values[other])}",
        expected=f"{_listed(names, values[0])}, as rank 0 has",
        do="give every node the same command line and the same files, and run the step again",
    )


def _listed(names: Sequence[str], values: Mapping[str, Any]) -> str:
    return "; ".join(f"{name} = {_shown(values.get(name))}" for name in names)


def _shown(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
