"""The calibration inputs of a quantized classification: whole training images, of each class in turn."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from medweave_core.contracts.model import ModelCard
from medweave_steps.io.cohort.prepared import CaseFolder
from medweave_steps.io.hashing import sha256_of_text
from medweave_steps.tasks import Calibration, LazyInputs, no_training_case
from medweave_steps.tasks.classification.judging import network_input
from medweave_steps.tasks.classification.outputs import ClassTargets


def calibration(cases: Sequence[CaseFolder], card: ModelCard, *, num_windows: int, seed: int) -> Calibration:
    """Draw images of each class in turn, so that rare classes reach the ranges of the activations, too.

    Within a class the images come in a random order, each once before any comes again. Cases without any class, or without known
    ones, are drawn as one more class.

    Args:
        cases: training cases.
        num_windows: how many, at least 1.
        seed: the same seed and cases give the same images.
    Raises:
        UserInputError: there is no training case, or an image has another shape than the model takes.
    """
    if not cases:
        raise no_training_case()
    targets, ordered = ClassTargets.of(card), sorted(cases, key=lambda folder: folder.case.case_id)
    groups = _by_class(ordered, targets)
    rng = np.random.default_rng(seed)
    turns = {name: rng.permutation(len(own)) for name, own in groups.items()}
    names = list(groups)
    drawn: list[tuple[str, CaseFolder]] = []
    for number in range(num_windows):
        name, place = names[number % len(names)], number // len(names)
        drawn.append((name, groups[name][int(turns[name][place % len(turns[name])])]))

    def read(folder: CaseFolder) -> Any:
        return network_input(folder.volume_CIJK(), card, case_id=folder.case.case_id)

    inputs = LazyInputs([folder for _, folder in drawn], read)
    by_class = Counter(name for name, _ in drawn)
    parts = [
        f"{folder.case.case_id} {hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()}"
        for (_, folder), values in zip(drawn, inputs, strict=True)
    ]
    return Calibration(
        inputs_BCIJK=inputs,
        num_cases=len({folder.case.case_id for _, folder in drawn}),
        figures={"windows_by_class": dict(by_class)},
        text="drawn by class: " + ", ".join(f"{number} {name}" for name, number in by_class.items()),
        sha256=sha256_of_text(parts),
    )


def _by_class(cases: Sequence[CaseFolder], targets: ClassTargets) -> dict[str, list[CaseFolder]]:
    groups = {name: [folder for folder in cases if name in (folder.case.classes or ())] for name in targets.names}
    groups["no class"] = [folder for folder in cases if not folder.case.classes]
    return {name: own for name, own in groups.items() if own}
