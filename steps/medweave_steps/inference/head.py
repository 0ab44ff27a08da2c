"""The output head of a segmentation model: from logits to probabilities, and from these to one label map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.labels import Label, Region, as_regions, own_value
from medweave_core.contracts.model import ComponentFilter, ModelCard, OutputContract, Postprocessing
from medweave_core.errors import UserInputError

FloatArray = npt.NDArray[np.float32]
LabelArray = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputHead:
    """The channels of a network's output (see `OutputContract`), and the labels that they stand for.

    Attributes:
        output: activation and regions.
        labels: foreground labels, ascending by value.
    """

    output: OutputContract
    labels: tuple[Label, ...]

    @staticmethod
    def of(card: ModelCard) -> OutputHead:
        """Return the head of a model."""
        return OutputHead(output=card.output, labels=card.foreground_labels)

    @property
    def num_channels(self) -> int:
        """Number of channels of the network's output, with the background of softmax."""
        if self.output.activation == "softmax":
            return 1 + len(self.labels)
        return len(self.output.regions) or 1

    @property
    def outputs(self) -> tuple[Region, ...]:
        """What is predicted and judged, without the background: the regions, or the labels."""
        return self.output.regions or as_regions(self.labels)

    @property
    def is_binary(self) -> bool:
        """Return True for one logit: the voxels of the only label."""
        return self.num_channels == 1

    def filters_of(self, postprocessing: Postprocessing) -> tuple[ComponentFilter, ...]:
        """Return threshold and filters of each output; those of the whole model for outputs without their own.

        Raises:
            UserInputError: the card has filters for another number of outputs.
        """
        filters = postprocessing.filters
        if not postprocessing.by_output:
            return filters * len(self.outputs)
        if len(filters) != len(self.outputs):
            raise UserInputError(
                "the postprocessing of the model card does not match its outputs.",
                seen=f"thresholds and filters of {len(filters)} outputs",
                expected=f"{len(self.outputs)}: {', '.join(output.name for output in self.outputs)}",
                do="train the model again, or export it again; do not edit model_card.json by hand",
            )
        return filters

    def probabilities(self, logits_CIJK: FloatArray) -> FloatArray:
        """Return the probability of each channel in each voxel; the logits are overwritten.

        Args:
            logits_CIJK: float32 of `num_channels`.
        Returns:
            float32 [C, I, J, K] in [0, 1]; with softmax the first channel is the background.
        """
        if self.output.activation == "softmax":
            logits_CIJK -= logits_CIJK.max(axis=0, keepdims=True)
            np.exp(logits_CIJK, out=logits_CIJK)
            logits_CIJK /= logits_CIJK.sum(axis=0, keepdims=True)
            return logits_CIJK
        return logistic(logits_CIJK)

    def outside(self, channel: int) -> float:
        """Return the probability of a channel outside the field of view: everything is background there."""
        return float(self.output.activation == "softmax" and channel == 0)

    def channel_of(self, output: int) -> int:
        """Return the channel of an output by its place in `outputs`."""
        return output + (self.output.activation == "softmax")

    def masks(self, probability_CIJK: FloatArray, filters: Sequence[ComponentFilter]) -> list[npt.NDArray[np.bool_]]:
        """Return for each output the voxels that belong to it, bool [I, J, K]; regions may overlap.

        Args:
            probability_CIJK: as `probabilities` returns it.
            filters: one for each output; only their thresholds are used, and not those of softmax.
        """
        if self.output.activation == "softmax":
            largest = probability_CIJK.argmax(axis=0)
            return [largest == self.channel_of(place) for place in range(len(self.labels))]
        return [
            channel_IJK >= np.float32(one.threshold) for channel_IJK, one in zip(probability_CIJK, filters, strict=True)
        ]

    def drop(self, probability_CIJK: FloatArray, inside: npt.NDArray[np.bool_], output: int) -> None:
        """Take voxels out of an output, in place: a region gets probability 0 there, a label of softmax becomes background."""
        if self.output.activation == "softmax":
            probability_CIJK[:, inside] = 0
            probability_CIJK[0, inside] = 1
        else:
            probability_CIJK[output, inside] = 0

    def label_map(self, masks: Sequence[npt.NDArray[np.bool_]]) -> LabelArray:
        """Return one label value for each voxel, uint8 of the masks' shape, 0 for background.

        Of nested regions the smallest one counts: each region writes the label that is in none of the regions inside it.

        Args:
            masks: one for each output.
        """
        label, outputs = np.zeros(masks[0].shape, np.uint8), self.outputs
        largest_first = sorted(zip(outputs, masks, strict=True), key=lambda pair: -len(pair[0].values))
        for output, mask in largest_first:
            value = own_value(output, outputs)
            assert value is not None, "check_regions has accepted the regions"
            label[mask] = value
        return label


def logistic(logits: FloatArray) -> FloatArray:
    """Return the logistic function of logits, float32."""
    # exp(-x) overflows float32 below -88; at that point the probability is 0 in float32 anyway.
    probability = np.maximum(logits, np.float32(-80))
    np.negative(probability, out=probability)
    np.exp(probability, out=probability)
    probability += np.float32(1)
    np.reciprocal(probability, out=probability)
    return probability
