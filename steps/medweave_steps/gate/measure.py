"""Measurement of models over cases: predictions and times, in alternating order on the same volumes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.gate import GateCase, GateFigures
from medweave_core.contracts.model import ModelCard
from medweave_core.errors import InternalError
from medweave_steps.inference.components import lesion_components
from medweave_steps.inference.engine import Engine, open_engine
from medweave_steps.inference.windows import predict_probability
from medweave_steps.io.cohort.prepared import CaseFolder
from medweave_steps.metrics.lesions import match_lesions
from medweave_steps.metrics.overlap import dice

FloatArray = npt.NDArray[np.float32]


@dataclass(slots=True, kw_only=True)
class Contender:
    """An opened model with its measurements so far.

    Attributes:
        seconds: per round, s.
        failure: why it cannot be used, where its network gave values that are not finite.
    """

    folder: Path
    card: ModelCard
    engine: Engine
    seconds: list[float] = field(default_factory=list)
    cases: list[GateCase] = field(default_factory=list)
    failure: str = ""


def open_contender(folder: Path, card: ModelCard, *, num_threads: int) -> Contender:
    """Open a model as `segment` does, and run its network twice so that nothing is measured cold."""
    engine = open_engine(folder, card, num_threads=num_threads)
    for _ in range(2):
        engine.infer(np.zeros(engine.batch_shape, np.float32))
    return Contender(folder=folder, card=card, engine=engine)


def measure(
    contenders: Sequence[Contender], cases: Sequence[CaseFolder], *, num_rounds: int, on_volume: Callable[[str], None]
) -> list[GateCase]:
    """Run every contender over the cases in turn; append seconds and findings to each.

    In every round all contenders segment the same volume, one after the other, in an order that turns, so that a machine that
    grows slower favours none. Findings come from the first round of each case; more rounds than cases only add times.

    Args:
        contenders: the first is the float32 model; a failure of its network is raised, of any other noted.
        num_rounds: at least the number of cases.
        on_volume: called with a few words after each volume.
    """
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
                probability_IJK = predict_probability(contender.engine, volume_CIJK, contender.card)[0]
                contender.seconds.append(time.perf_counter() - started)
            except InternalError as error:
                if contender is contenders[0]:
                    raise
                contender.failure = error.seen
                on_volume(f"{contender.card.precision}: failed")
                continue
            if number < len(cases):
                contender.cases.append(judge_case(folder, probability_IJK, contender.card))
            on_volume(f"{contender.card.precision} {contender.seconds[-1]:.2f} s")
    return contenders[0].cases


def judge_case(folder: CaseFolder, probability_IJK: FloatArray, card: ModelCard) -> GateCase:
    """Compare one prediction with the case's label, on the prepared grid."""
    lesions = lesion_components(probability_IJK, card.postprocessing, card.input.spacing_mm)
    predicted = lesions.probability_IJK >= np.float32(card.postprocessing.threshold)
    reference = np.asarray(folder.label_IJK()) > 0
    match = match_lesions(predicted, reference, spacing_mm=card.input.spacing_mm)
    overlap = dice(predicted, reference)
    return GateCase(
        case_id=folder.case.case_id,
        patient_key=folder.case.patient_key,
        # Both masks empty: the models agree with the reader that there is nothing.
        dice=1.0 if math.isnan(overlap) else overlap,
        lesions=len(match.reference_hit),
        lesions_hit=sum(match.reference_hit),
        false_positives=match.num_false_positives,
    )


def figures(cases: Sequence[GateCase]) -> GateFigures:
    """Return mean Dice, pooled sensitivity and false positives per scan of one model."""
    lesions = sum(case.lesions for case in cases)
    return GateFigures(
        dice_mean=float(np.mean([case.dice for case in cases])),
        lesion_sensitivity=sum(case.lesions_hit for case in cases) / lesions if lesions else None,
        false_positives_per_scan=float(np.mean([case.false_positives for case in cases])),
        cases=tuple(cases),
    )
