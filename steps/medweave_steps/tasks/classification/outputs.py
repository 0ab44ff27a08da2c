"""The outputs of a classification: from logits to calibrated probabilities, and from these to classes; only numpy.

Suffix legend: B batch, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.cohort import PreparedCase
from medweave_core.contracts.model import ModelCard, OutputContract, Postprocessing
from medweave_core.errors import UserInputError

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTargets:
    """The classes of a model, in the order of its channels.

    Attributes:
        classes: their names and codes.
        is_multi_label: a case has any number of them; otherwise exactly one.
    """

    classes: tuple[ImageClass, ...]
    is_multi_label: bool

    @staticmethod
    def of(card: ModelCard) -> ClassTargets:
        """Return the classes of a trained model."""
        return ClassTargets(classes=card.classes, is_multi_label=card.output.activation == "sigmoid")

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the classes."""
        return tuple(one.name for one in self.classes)

    @property
    def output(self) -> OutputContract:
        """Return the output contract: softmax over exclusive classes, else a sigmoid of each class."""
        return OutputContract(activation="sigmoid" if self.is_multi_label else "softmax")

    def truth_C(self, case: PreparedCase) -> BoolArray:
        """Return which classes a case with known classes has, bool [C]."""
        return np.isin(self.names, case.classes or ())

    def probabilities(self, logits_BC: npt.NDArray[np.floating], *, temperature: float = 1.0) -> FloatArray:
        """Return the probability of each class, float64 [B, C] in [0, 1].

        Args:
            temperature: the logits are divided by it first; Guo et al. 2017, ICML.
        """
        scaled = np.asarray(logits_BC, np.float64) / temperature
        if self.is_multi_label:
            # exp(-|x|) does not overflow.
            small = np.exp(-np.abs(scaled))
            return np.asarray(np.where(scaled >= 0, 1.0, small) / (1 + small), np.float64)
        powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float64)

    def thresholds(self, postprocessing: Postprocessing) -> tuple[float, ...]:
        """Return the probability from which on a case has a class, for each class; exclusive classes have none.

        Raises:
            UserInputError: the postprocessing has thresholds for another number of classes.
        """
        own = tuple(one.threshold for one in postprocessing.by_output) or (postprocessing.threshold,) * len(
            self.classes
        )
        if len(own) != len(self.classes):
            raise UserInputError(
                "the postprocessing of the model card does not match its classes.",
                seen=f"thresholds of {len(own)} classes",
                expected=f"{len(self.classes)}: {', '.join(self.names)}",
                do="train the model again, or export it again; do not edit model_card.json by hand",
            )
        return own

    def decided(self, probability_BC: FloatArray, postprocessing: Postprocessing) -> BoolArray:
        """Return the predicted classes, bool [B, C]: the most probable one, or those that reach their thresholds."""
        if self.is_multi_label:
            return np.asarray(probability_BC >= np.array(self.thresholds(postprocessing)), np.bool_)
        place = probability_BC.argmax(axis=1)
        return np.asarray(place[:, None] == np.arange(len(self.classes)), np.bool_)

    def named(self, decided_C: Sequence[bool] | BoolArray) -> tuple[str, ...]:
        """Return the names of the classes that are True."""
        return tuple(name for name, is_decided in zip(self.names, decided_C, strict=True) if is_decided)
