"""Validation: what the training loop needs of a task to compare weights and to choose the postprocessing."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from medweave_core.contracts.model import Postprocessing
from medweave_steps.io.cohort.prepared import CaseFolder
from medweave_steps.runtime.verb import StepContext

T = TypeVar("T")
Figures = dict[str, float | None]


class Validator(abc.ABC):
    """The validation of a network on the validation cases; a task supplies a subclass.

    A tally is what the network's output for one case counts under one choice of postprocessing. Ranks exchange tallies.

    Attributes:
        cases: validation cases.
    """

    cases: Sequence[CaseFolder]

    @property
    @abc.abstractmethod
    def plain(self) -> Any:
        """Return the choice of postprocessing under which weights are compared; one of `choices`."""

    @property
    @abc.abstractmethod
    def choices(self) -> Sequence[Any]:
        """Return all choices of postprocessing that are tried for the best weights."""

    @abc.abstractmethod
    def tallies(
        self,
        predictor: Callable[[Any], Any],
        choices: Sequence[Any],
        *,
        num_cases: int | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> list[list[Any]]:
        """Return per case, in order, the tally of each choice.

        Args:
            predictor: from scaled windows [1, C, I, J, K] to float32 outputs of the network.
            num_cases: only the first ones; None for all.
            rank, world_size: only this rank's share, every `world_size`-th case; `interleaved` joins the shares.
        """

    @abc.abstractmethod
    def figures(self, tallies: Sequence[Any]) -> Figures:
        """Return the figures over all cases; None for undefined ones.

        Args:
            tallies: of each case, under one choice.
        """

    @abc.abstractmethod
    def score(self, figures: Mapping[str, float | None]) -> float:
        """Return the score of weights with these figures, 0 or more: weights with a larger score are better."""

    @abc.abstractmethod
    def progress(self, figures: Mapping[str, float | None]) -> tuple[str, dict[str, float]]:
        """Return the text and the numbers of a progress line."""

    @abc.abstractmethod
    def choose(self, context: StepContext, per_case: Sequence[Sequence[Any]]) -> tuple[Postprocessing, Figures]:
        """Choose the postprocessing on all validation cases and add the cases' figures to the report.

        Args:
            per_case: for each validation case, the tallies in the order of `choices`.
        Returns:
            the choice, and its figures on the validation split.
        """


def interleaved(shares: Sequence[Sequence[T]]) -> list[T]:
    """Return the cases' results in order, from those of all ranks."""
    total = sum(len(share) for share in shares)
    return [shares[place % len(shares)][place // len(shares)] for place in range(total)]
