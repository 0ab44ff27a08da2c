"""A WFDB record of one lead in the form of the PhysioNet/CinC Challenge 2017: MATLAB v4 data, and a header without comments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from medweave_steps.runtime.imports import require

_MATLAB_BYTES = 24
"""Of a MATLAB v4 header for a matrix named `val`."""


def write_record(
    folder: Path, name: str, digital: npt.NDArray[np.int16], *, rate_hz: float, gain: float, baseline: int, lead: str
) -> None:
    """Write NAME.mat and NAME.hea.

    Args:
        digital: int16 [samples]; -32768 is a missing sample.
        gain: digital units per mV.
        baseline: digital value of 0 mV.
    """
    require("scipy.io", extra="signals").savemat(folder / f"{name}.mat", {"val": digital[None]}, format="4")
    checksum = int(np.sum(digital, dtype=np.int64).astype(np.int16))
    (folder / f"{name}.hea").write_text(
        f"{name} 1 {rate_hz:g} {len(digital)}\n"
        f"{name}.mat 16+{_MATLAB_BYTES} {gain:g}({baseline})/mV 16 0 {digital[0]} {checksum} 0 {lead}\n",
        encoding="ascii",
    )
