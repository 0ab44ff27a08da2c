"""The rounds: train the replicas apart, average, validate; the best average is kept. The same under every engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from medweave_steps.contracts.report import RankFacts
from medweave_steps.runtime.progress import Progress
from medweave_steps.train_distributed.engines import Engine
from medweave_steps.train_distributed.replica import Ability, ReplicaJob, Share
from medweave_steps.training import validate
from medweave_steps.training.average import averaged, packed, unpacked
from medweave_steps.training.energy import RanksEnergy, wh_of
from medweave_steps.training.history import History


@dataclass(slots=True)
class Course:
    """What came of the rounds.

    Attributes:
        abilities: of the process that trained each replica.
        bfloat16: the arithmetic of all of them.
        best_score, best_round, best_weights: of the best average so far; round 0 is the model that was given.
        rounds: for the report, one object per round.
        shares: what the replicas brought, without the weights, per round.
        each_wh: of each round, Wh; None where nothing was counted.
    """

    abilities: list[Ability]
    bfloat16: bool
    best_score: float = -1.0
    best_round: int = 0
    best_weights: dict[str, Any] = field(default_factory=dict)
    rounds: list[Mapping[str, Any]] = field(default_factory=list)
    shares: list[list[Share]] = field(default_factory=list)
    each_wh: list[float | None] = field(default_factory=list)

    def consider(self, round_number: int, weights: dict[str, Any], figures: Mapping[str, float | None]) -> None:
        """Keeps these weights if no earlier ones were better."""
        score = validate.score(figures)
        if score >= self.best_score:
            self.best_score, self.best_round, self.best_weights = score, round_number, weights


def run_rounds(
    job: ReplicaJob,
    engine: Engine,
    weights: dict[str, Any],
    history: History,
    energy: RanksEnergy,
    make_progress: Callable[[int], Progress],
) -> Course:
    """Goes through all rounds.

    Args:
        weights: state dict of the model that is continued, on the CPU.
        history: gets a training and a validation point per round.
    Raises:
        StepError: a replica failed; the first one in their order.
    """
    config = job.config
    abilities = engine.abilities()
    course = Course(abilities=abilities, bfloat16=all(able.bfloat16 for able in abilities))
    plain = [validate.plain(job.overlap)]

    def figures_of(content: bytes) -> dict[str, float | None]:
        shares = engine.tallies(content, plain, config.validation_cases or None, course.bfloat16)
        return validate.summary([case[0] for case in validate.interleaved(shares)])

    content = packed(weights)
    course.consider(0, weights, figures_of(content))
    progress = make_progress(config.rounds)
    energy.begin()
    for number in range(config.rounds):
        started = time.monotonic()
        shares = engine.train(number, content, course.bfloat16)
        states = [unpacked(share.weights) for share in shares]
        weights = averaged(states, [share.samples for share in shares])
        content = packed(weights)
        seconds = time.monotonic() - started
        figures = figures_of(content)
        course.consider(number + 1, weights, figures)
        loss = sum(share.loss * share.samples for share in shares) / sum(share.samples for share in shares)
        step = job.first_step + (number + 1) * config.steps_per_round
        history.add(step, {"loss": round(loss, 6), "learning_rate": shares[0].learning_rate})
        history.add(step, figures)
        course.rounds.append(
            {
                "round": number + 1,
                "seconds": round(seconds, 3),
                "loss": round(loss, 6),
                "dice": figures["dice"],
                "divergence": divergence(states, weights),
                "bytes": sum(len(share.weights) for share in shares) + len(shares) * len(content),
                "hosts": [share.host for share in shares],
            }
        )
        course.shares.append(shares)
        course.each_wh.append(wh_of(energy.joules()))
        history.tell(step, "energy_wh", course.each_wh[-1])
        progress.step(
            f"loss {loss:.3f}, validation Dice {figures['dice'] or 0:.2f}, sensitivity {figures['sensitivity'] or 0:.2f}",
            loss=round(loss, 4), dice=figures["dice"] or 0.0, sensitivity=figures["sensitivity"] or 0.0,
        )  # fmt: skip
    return course


def divergence(states: list[dict[str, Any]], mean: Mapping[str, Any]) -> float:
    """How far the replicas had gone apart: the largest difference of one weight or running statistic from the average."""
    return max(
        float((state[name] - tensor).abs().max())
        for state in states
        for name, tensor in mean.items()
        if tensor.is_floating_point()
    )


def facts_of(job: ReplicaJob, course: Course) -> list[RankFacts]:
    """What each replica did, over all rounds."""
    facts = []
    for replica, able in enumerate(course.abilities):
        shares = [shares[replica] for shares in course.shares]
        hosts = list(dict.fromkeys(share.host for share in shares))
        facts.append(
            RankFacts(
                rank=replica,
                host=", ".join(hosts),
                device=able.device,
                num_threads=job.num_threads,
                samples=sum(share.samples for share in shares),
                seconds=round(sum(share.seconds for share in shares), 3),
            )
        )
    return facts
