"""CT noise with the texture of a reconstruction kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import fft

from medweave_steps.phantom.fields import Float

KernelName = Literal["soft", "medium", "sharp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """The effect of a reconstruction kernel on an image, in two numbers."""

    noise_peak_per_mm: float
    """Spatial frequency in 1/mm at which the noise power spectrum is largest."""

    blur_mm: float
    """Full width in mm of the edge blur that the kernel adds to the voxel's own."""


# Peaks: soft-tissue kernels near 0.2 and lung kernels near 0.5 per mm (Solomon, Christianson, Samei 2012, Med Phys
# 39(10):6048, noise texture across manufacturers); blur from the same kernels' MTF50 of about 0.3 to 0.6 per mm
# (Boedeker, Cooper, McNitt-Gray 2007, Phys Med Biol 52:4027).
KERNELS: dict[KernelName, Kernel] = {
    "soft": Kernel(noise_peak_per_mm=0.20, blur_mm=1.3),
    "medium": Kernel(noise_peak_per_mm=0.30, blur_mm=0.9),
    "sharp": Kernel(noise_peak_per_mm=0.48, blur_mm=0.6),
}


def noise_amplitude(matrix_size: int, pixel_mm: float, kernel: Kernel) -> Float:
    """Return the square root of the noise power spectrum on the FFT grid (matrix_size, matrix_size), for unit variance.

    NPS(f) = f exp(-(f / c)^2): the ramp of filtered back-projection times the kernel's roll-off, a band-pass whose peak
    lies at c / sqrt(2) (form after Boedeker et al. 2007; the small floor is the electronic, white part).
    """
    cutoff = kernel.noise_peak_per_mm * np.sqrt(2)
    frequency = fft.fftfreq(matrix_size, pixel_mm).astype(np.float32)
    radial = np.hypot(frequency[:, None], frequency[None, :])
    power = radial * np.exp(-((radial / cutoff) ** 2)) + 0.01 * cutoff
    amplitude: Float = np.sqrt(power / power.mean()).astype(np.float32)
    return amplitude


def noise_slices(num_slices: int, amplitude_JI: Float, correlation: float, rng: np.random.Generator) -> Iterator[Float]:
    """Yield unit-variance noise, one (J, I) slice at a time.

    Args:
        num_slices: how many slices to yield.
        amplitude_JI: from `noise_amplitude`.
        correlation: of neighboring slices, 0 to 1; overlapping reconstructions share projections.
        rng: the only source of randomness.
    """
    size = amplitude_JI.shape[0]
    scale = np.float32(size)  # the inverse transform divides by size^2, a sum of size^2 terms grows by size
    fresh_weight = np.float32(np.sqrt(1 - correlation**2))
    previous: Float | None = None
    for first in range(0, num_slices, 2):
        white = rng.standard_normal((size, size, 2), dtype=np.float32).view(np.complex64)[..., 0]
        white *= amplitude_JI * scale
        pair = fft.ifft2(white, overwrite_x=True)
        for fresh in (pair.real, pair.imag)[: num_slices - first]:
            if previous is None:
                previous = np.ascontiguousarray(fresh)
            else:
                previous = np.float32(correlation) * previous + fresh_weight * fresh
            yield previous
