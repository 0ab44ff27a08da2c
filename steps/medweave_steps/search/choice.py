"""Which trials of a search are the best: by the mean over repeats, and for several objectives by Pareto dominance. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from medweave_core.contracts.search import Objective, RepeatedTrial, TrialRow
from medweave_core.documents.closest_match import closest
from medweave_core.errors import UsageError

SCORE, SECONDS, WH = "score", "seconds", "wh"
NAMES = (SCORE, SECONDS, WH)
DIRECTIONS = ("max", "min")


def parse_objectives(words: Sequence[str]) -> tuple[Objective, ...]:
    """Return objectives from words such as `seconds:min`.

    Raises:
        UsageError: a word is not of this form, or an objective is unknown or named twice.
    """
    objectives: list[Objective] = []
    for word in words:
        name, _, direction = word.partition(":")
        if name not in NAMES or direction not in DIRECTIONS or name in [one.name for one in objectives]:
            raise UsageError(
                "invalid value of --objectives.",
                seen=word,
                expected=f"NAME:max or NAME:min, each name once: {', '.join(NAMES)}",
                do=closest(name, NAMES) if name not in NAMES else "",
            )
        objectives.append(Objective(name=name, direction="max" if direction == "max" else "min"))
    return tuple(objectives)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """All trials with the same options, which differ in their seed; a single one without repeats."""

    rows: tuple[TrialRow, ...]

    @property
    def completed(self) -> list[TrialRow]:
        """Return the trials that have a model and a score."""
        return [row for row in self.rows if row.state == "completed" and row.score is not None]

    def mean(self, name: str) -> float | None:
        """Return the mean of an objective over the completed trials; None if a trial has no value."""
        values = [{SCORE: row.score, SECONDS: row.seconds, WH: row.energy_wh}[name] for row in self.completed]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known and len(known) == len(values) else None

    def score_sd(self) -> float | None:
        """Return the standard deviation of the score, with the divisor n − 1; None for fewer than two completed trials."""
        scores, mean = [row.score or 0.0 for row in self.completed], self.mean(SCORE)
        if len(scores) < 2 or mean is None:
            return None
        return math.sqrt(sum((score - mean) ** 2 for score in scores) / (len(scores) - 1))

    def values(self, objectives: Sequence[Objective]) -> list[float] | None:
        """Return the objectives as numbers of which larger is better; None if one is unknown."""
        means = [self.mean(objective.name) for objective in objectives]
        known = [
            mean if objective.direction == "max" else -mean
            for mean, objective in zip(means, objectives, strict=True)
            if mean is not None
        ]
        return known if len(known) == len(objectives) else None


def candidates_of(rows: Sequence[TrialRow], repeats: int) -> list[Candidate]:
    """Return the candidates in the order of the grid.

    Args:
        rows: of all trials in the order of `trials_of`: first one of each candidate, then their repeats.
    """
    number = len(rows) // repeats
    return [Candidate(rows=tuple(rows[place::number])) for place in range(number)]


def choose_best(candidates: Sequence[Candidate], objective: Objective) -> str:
    """Return the trial id of the best model: of the best candidate, the trial with the best score.

    Only the candidates with the most completed trials take part: a mean over fewer trials could be luck. Of equal candidates the
    first is the best.

    Args:
        candidates: at least one has a completed trial.
    """
    most = max(len(candidate.completed) for candidate in candidates)
    complete = [candidate for candidate in candidates if len(candidate.completed) == most]
    best = max(complete, key=lambda candidate: (candidate.values([objective]) or [-math.inf])[0])
    return _best_trial(best, objective).trial_id


def _best_trial(candidate: Candidate, objective: Objective) -> TrialRow:
    sign = -1.0 if objective.name == SCORE and objective.direction == "min" else 1.0
    return max(candidate.completed, key=lambda row: sign * (row.score or 0.0))


def pareto_front(candidates: Sequence[Candidate], objectives: Sequence[Objective]) -> tuple[str, ...]:
    """Return the trial ids of the candidates that no other one dominates, in the order of the grid.

    A candidate dominates another one if it is at least as good in every objective, and better in one. Candidates without a value of
    an objective are left out. A candidate with repeats is named by its first trial.
    """
    known = [(candidate, values) for candidate in candidates if (values := candidate.values(objectives)) is not None]
    return tuple(
        candidate.rows[0].trial_id for candidate, own in known if not any(_dominates(other, own) for _, other in known)
    )


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    pairs = list(zip(one, other, strict=True))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def repeated_trial(candidate: Candidate) -> RepeatedTrial:
    """Return the means of a candidate over its repeats."""
    return RepeatedTrial(
        trial_ids=tuple(row.trial_id for row in candidate.rows),
        varied=candidate.rows[0].varied,
        completed=len(candidate.completed),
        score_mean=candidate.mean(SCORE),
        score_sd=candidate.score_sd(),
        seconds_mean=candidate.mean(SECONDS),
        energy_wh_mean=candidate.mean(WH),
    )
