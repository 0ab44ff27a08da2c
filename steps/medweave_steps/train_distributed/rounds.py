"""The rounds: train the replicas separately, average, validate, and store the best average. The same under every engine."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

from medweave_core.contracts.report import RankFacts
from medweave_steps.runtime.progress import Progress
from medweave_steps.train_distributed.course import Course, RoundCheckpoints
from medweave_steps.train_distributed.engines import ReplicaEngine
from medweave_steps.train_distributed.engines.replica import ReplicaJob
from medweave_steps.training.distributed.average import averaged, num_bytes_of, packed, unpacked
from medweave_steps.training.loop.energy import RanksEnergy, wh_of
from medweave_steps.training.loop.history import History
from medweave_steps.training.loop.validator import Figures, Validator, interleaved


def run_rounds(
    job: ReplicaJob,
    engine: ReplicaEngine,
    validator: Validator,
    course: Course,
    checkpoints: RoundCheckpoints,
    history: History,
    energy: RanksEnergy,
    make_progress: Callable[[int, int], Progress],
) -> None:
    """Run the remaining rounds and write a checkpoint after each.

    Args:
        validator: judges the tallies of the replicas.
        course: as it is before them; the engine has the memories that belong to it.
        history: gets a training and a validation point per round.
    Raises:
        StepError: a replica failed; the first one in their order.
    """
    if not course.rounds:
        course.consider(validator.score(_figures(job, engine, validator, course)))
    for number, wh in enumerate(course.each_wh):
        history.add_event(_step_after(job, number), "energy_wh", wh)
    progress = make_progress(job.rounds, len(course.rounds))
    energy.begin()
    for number in range(len(course.rounds), job.rounds):
        loss = _train(job, engine, course, history)
        figures = _figures(job, engine, validator, course)
        text, numbers = validator.progress(figures)
        own = {"dice": figures["dice"]} if "dice" in figures else numbers
        course.rounds[-1] = {**course.rounds[-1], **own}
        course.consider(validator.score(figures))
        history.add(_step_after(job, number), figures)
        course.each_wh.append(wh_of(energy.joules()))
        history.add_event(_step_after(job, number), "energy_wh", course.each_wh[-1])
        if checkpoints.folder is not None:  # every rank must give its optimizer state
            checkpoints.write(course, engine.memories(), history.points)
        progress.step(f"loss {loss:.3f}, {text}", loss=round(loss, 4), **numbers)


def _step_after(job: ReplicaJob, number: int) -> int:
    return job.first_step + (number + 1) * job.steps_per_round


def _figures(job: ReplicaJob, engine: ReplicaEngine, validator: Validator, course: Course) -> Figures:
    """Return the figures of the current weights on the validation split."""
    plain = [validator.plain]
    shares = engine.tallies(packed(course.weights), plain, job.config.validation_cases or None, course.bfloat16)
    return validator.figures([case[0] for case in interleaved(shares)])


def _train(job: ReplicaJob, engine: ReplicaEngine, course: Course, history: History) -> float:
    """Train and average one round; return the mean loss."""
    number, started = len(course.rounds), time.monotonic()
    shares = engine.train(number, packed(course.weights), course.bfloat16)
    states, samples = [unpacked(share.weights) for share in shares], [share.samples for share in shares]
    course.weights = averaged(states, samples)
    seconds = time.monotonic() - started
    loss = sum(share.loss * share.samples for share in shares) / sum(samples)
    history.add(_step_after(job, number), {"loss": round(loss, 6), "learning_rate": shares[0].learning_rate})
    course.rounds.append(
        {
            "round": number + 1,
            "seconds": round(seconds, 3),
            "loss": round(loss, 6),
            "divergence": divergence(states, course.weights),
            "synchronised_bytes": sum(num_bytes_of(state) for state in states) if len(states) > 1 else 0,
            "hosts": [share.host for share in shares],
        }
    )
    course.shares.append([dataclasses.replace(share, weights=b"") for share in shares])
    return loss


def divergence(states: list[dict[str, Any]], mean: Mapping[str, Any]) -> float:
    """Return the divergence of the replicas: the largest difference of one weight or running statistic from the average."""
    return max(
        float((state[name] - tensor).abs().max())
        for state in states
        for name, tensor in mean.items()
        if tensor.is_floating_point()
    )


def pace_of(job: ReplicaJob, course: Course) -> dict[str, Any]:
    """Return figures of all rounds under the names that `train` uses, without validation."""
    first = [shares[0] for shares in course.shares]
    patches = sum(share.samples for shares in course.shares for share in shares)
    return {
        "step_seconds": round(sum(share.seconds for share in first), 3),
        "data_wait_seconds": round(sum(share.waited_s for share in first), 3),
        "patches_per_second": round(patches / max(sum(record["seconds"] for record in course.rounds), 1e-9), 2),
        "synchronised_bytes": sum(record["synchronised_bytes"] for record in course.rounds),
    }


def facts_of(job: ReplicaJob, course: Course) -> list[RankFacts]:
    """Return the facts of each replica over all rounds."""
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
