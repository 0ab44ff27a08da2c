"""How `gate` judges the models of a task: figures, paired differences with float32, tolerances and reasons."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from medweave_core.contracts.gate import GateDifference
from medweave_steps.tasks.difference_words import decimals_beside, decimals_for, signed

_SLACK = 1e-12

Judged = tuple[bool, str]
"""Whether a figure stays within its tolerance, and the reason in words."""


class Judge(abc.ABC):
    """The contract between a task and `gate`. Its dataclasses are those of `medweave_core.contracts.gate`.

    Attributes:
        options: names of the options of `gate` that are tolerances of this task.
    """

    options: ClassVar[tuple[str, ...]]

    @abc.abstractmethod
    def tolerances(self, limits: Mapping[str, float], *, min_speedup: float, max_slowdown: float) -> Any:
        """Return the limits of a candidate.

        Args:
            limits: value of each of `options`.
        """

    @abc.abstractmethod
    def figures(self, cases: Sequence[Any]) -> Any:
        """Return the figures of one model over cases that `Task.judge_case` returned, at least one."""

    @abc.abstractmethod
    def compare(self, base: Sequence[Any], candidate: Sequence[Any], *, seed: int) -> Any:
        """Return the paired differences, candidate minus float32, with confidence intervals over patients.

        Args:
            base, candidate: the same cases in the same order.
            seed: seed of the bootstrap.
        """

    @abc.abstractmethod
    def judged(self, comparison: Any, tolerances: Any) -> list[Judged]:
        """Return for each judged figure whether it stays within its tolerance, and the reason in words."""

    @abc.abstractmethod
    def metrics(self, figures: Any) -> dict[str, float | None]:
        """Return the figures under the names that a trained model's card has for them."""


def judged_interval(name: str, difference: GateDifference, tolerance: float) -> Judged:
    """Judge a figure by its interval: the lower bound must lie above minus the tolerance.

    Args:
        name: of the figure, as reasons have it.
    """
    if difference.value is None:
        return False, f"{name} cannot be judged: it is not defined on the validation split"
    if difference.lower is None or difference.upper is None:
        return False, f"{name} cannot be judged: the validation split has fewer than two patients"
    figures = (difference.value, difference.lower, difference.upper)
    decimals = decimals_beside(difference.lower, -tolerance, decimals_for(figures))
    value, low, high = (signed(figure, decimals) for figure in figures)
    sentence = f"{name} {value} (95 % interval {low} to {high})"
    return within(difference.lower > -tolerance, sentence, f"must stay above −{tolerance:g}")


def change_text(change: float, bound: float) -> str:
    """Format a change with the digits that separate it from its bound; within the slack of `at_most` it is shown as the bound."""
    change = bound if abs(change - bound) <= _SLACK else change
    return signed(change, decimals_beside(change, bound, decimals_for((change,))))


def within(good: bool, sentence: str, rule: str) -> Judged:
    """Return a judged figure; the rule is added where it was broken."""
    return good, sentence if good else f"{sentence}, {rule}"


def at_most(value: float, bound: float) -> bool:
    """Return True up to the bound: 0.1 more is within a tolerance of 0.1, whatever the last bit of the mean says."""
    return value <= bound + _SLACK


def number_or_none(value: float) -> float | None:
    """Return a figure for a contract, which has None where a figure is not defined (NaN)."""
    return None if math.isnan(value) else value
