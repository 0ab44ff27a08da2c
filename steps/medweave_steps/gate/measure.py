"""Measurement of models over cases: predictions and times, in alternating order on the same volumes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from medweave_core.contracts.model import RUNTIME_TITLES, ModelCard, Runtime
from medweave_core.errors import InternalError
from medweave_steps.gate.models import GateModel
from medweave_steps.inference.engine import Engine, open_engine
from medweave_steps.inference.runtimes.devices import UsedDevice, choose_device
from medweave_steps.io.cohort.prepared import CaseFolder
from medweave_steps.io.model.folder import card_sha256, network_bytes
from medweave_steps.tasks import task_named


@dataclass(slots=True, kw_only=True)
class Contender:
    """A model opened in one runtime, with its measurements so far.

    Attributes:
        device: of the runtime: a GPU where it can use one.
        engine: None for a candidate that no installed runtime can run.
        seconds: per round, s.
        cases: findings as `Task.judge_case` returns them.
        failure: why it cannot be used, such as a network that gave values that are not finite.
    """

    model: GateModel
    runtime: Runtime
    device: UsedDevice
    engine: Engine | None
    seconds: list[float] = field(default_factory=list)
    cases: list[Any] = field(default_factory=list)
    failure: str = ""

    @property
    def card(self) -> ModelCard:
        """Return the card of the model."""
        return self.model.card

    @property
    def card_sha256(self) -> str:
        """Return the digest of the card."""
        return card_sha256(self.model.card)

    @property
    def num_bytes(self) -> int:
        """Return the size of the files that the runtime opens, bytes."""
        return network_bytes(self.model.folder, self.model.card, self.runtime)

    @property
    def title(self) -> str:
        """Return model and runtime in words."""
        return f"{self.model.name} ({RUNTIME_TITLES[self.runtime]})"


def open_contender(model: GateModel, runtime: Runtime, *, num_threads: int) -> Contender:
    """Open a model as `segment` does, and run its network twice so that nothing is measured cold."""
    device = choose_device(runtime, "auto")
    engine = open_engine(model.folder, model.card, runtime=runtime, device=device, num_threads=num_threads)
    for _ in range(2):
        engine.infer(np.zeros(engine.batch_shape, np.float32))
    return Contender(model=model, runtime=runtime, device=device, engine=engine)


def not_measured(model: GateModel, runtime: Runtime) -> Contender:
    """Return a candidate that no installed runtime can run."""
    failure = "no installed runtime can run it"
    return Contender(model=model, runtime=runtime, device="cpu", engine=None, failure=failure)


def measure(
    contenders: Sequence[Contender],
    cases: Sequence[CaseFolder],
    *,
    rounds: range,
    on_volume: Callable[[str], None],
) -> None:
    """Run every contender over the cases in turn; append seconds and findings to each.

    In every round all contenders predict the same volume, one after the other, in an order that turns, so that a machine that
    grows slower favours none. Findings come from the first round of each case; more rounds than cases only add times.

    Args:
        contenders: the first is the reference; a failure of its network is raised, of any other noted.
        rounds: numbers of the rounds; the first of all is 0.
        on_volume: called with a few words after each volume.
    """
    task = task_named(contenders[0].card.task_name)
    for number in rounds:
        folder = cases[number % len(cases)]
        volume_CIJK = np.array(folder.volume_CIJK())
        turn = number % len(contenders)
        for contender in [*contenders[turn:], *contenders[:turn]]:
            if contender.failure:
                on_volume("skipped")
                continue
            assert contender.engine is not None
            try:
                started = time.perf_counter()
                prediction = task.predict(contender.engine, volume_CIJK, contender.card)
                contender.seconds.append(time.perf_counter() - started)
            except InternalError as error:
                if contender is contenders[0]:
                    raise
                contender.failure = f"inference failed on the {folder.case.split} split: {error.seen}"
                on_volume(f"{contender.title}: failed")
                continue
            if number < len(cases):
                contender.cases.append(task.judge_case(folder, prediction, contender.card))
            on_volume(f"{contender.title} {contender.seconds[-1]:.2f} s")
