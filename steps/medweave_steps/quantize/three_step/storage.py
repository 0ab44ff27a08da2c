"""The memory that parameters need, in float32 and after step 3."""

from __future__ import annotations

from dataclasses import dataclass

WEIGHT_BITS, BIAS_BITS, FLOAT_BITS = 8, 16, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Parameters of the quantized layers.

    Attributes:
        weights, biases: how many there are.
    """

    weights: int
    biases: int

    @property
    def float32_bytes(self) -> int:
        """Return the bytes in float32."""
        return (self.weights + self.biases) * FLOAT_BITS // 8

    @property
    def int8_bits(self) -> int:
        """Return the bits with int8 weights and int16 biases, without one 8-bit rescale factor per layer.

        As the paper counts: VGG16 with 8 classes has 134,280,896 weights and 12,424 biases, hence 1,074,445,952 bits.

        Source: The DeepHealth HPC Infrastructure, book chapter 10, memory of the quantized VGG16.
        """
        return self.weights * WEIGHT_BITS + self.biases * BIAS_BITS

    @property
    def ratio(self) -> float:
        """Return how many times smaller the parameters are; 3.9996 for VGG16 with 8 classes."""
        return self.float32_bytes * 8 / self.int8_bits
