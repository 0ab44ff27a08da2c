"""Measurement of models over cases: predictions and times, in alternating order on the same volumes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from medweave_core.contracts.model import ModelCard
from medweave_core.errors import InternalError
from medweave_steps.inference.engine import Engine, open_engine
from medweave_steps.io.cohort.prepared import CaseFolder
from medweave_steps.tasks import task_named


@dataclass(slots=True, kw_only=True)
class Contender:
    """An opened model with its measurements so far.

    Attributes:
        seconds: per round, s.
        cases: findings as `Task.judge_case` returns them.
        failure: why it cannot be used, where its network gave values that are not finite.
    """

    folder: Path
    card: ModelCard
    engine: Engine
    seconds: list[float] = field(default_factory=list)
    cases: list[Any] = field(default_factory=list)
    failure: str = ""


def open_contender(folder: Path, card: ModelCard, *, num_threads: int) -> Contender:
    """Open a model as `segment` does, and run its network twice so that nothing is measured cold."""
    engine = open_engine(folder, card, num_threads=num_threads)
    for _ in range(2):
        engine.infer(np.zeros(engine.batch_shape, np.float32))
    return Contender(folder=folder, card=card, engine=engine)


def measure(
    contenders: Sequence[Contender], cases: Sequence[CaseFolder], *, num_rounds: int, on_volume: Callable[[str], None]
) -> list[Any]:
    """Run every contender over the cases in turn; append seconds and findings to each.

    In every round all contenders predict the same volume, one after the other, in an order that turns, so that a machine that
    grows slower favours none. Findings come from the first round of each case; more rounds than cases only add times.

    Args:
        contenders: the first is the float32 model; a failure of its network is raised, of any other noted.
        num_rounds: at least the number of cases.
        on_volume: called with a few words after each volume.
    """
    task = task_named(contenders[0].card.task_name)
    for number in range(num_rounds):
        folder = cases[number % len(cases)]
        volume_CIJK = np.array(folder.volume_CIJK())
        turn = number % len(contenders)
        for contender in [*contenders[turn:], *contenders[:turn]]:
            if contender.failure:
                on_volume("skipped")
                continue
            try:
                started = time.perf_counter()
                prediction = task.predict(contender.engine, volume_CIJK, contender.card)
                contender.seconds.append(time.perf_counter() - started)
            except InternalError as error:
                if contender is contenders[0]:
                    raise
                contender.failure = error.seen
                on_volume(f"{contender.card.precision}: failed")
                continue
            if number < len(cases):
                contender.cases.append(task.judge_case(folder, prediction, contender.card))
            on_volume(f"{contender.card.precision} {contender.seconds[-1]:.2f} s")
    return contenders[0].cases
