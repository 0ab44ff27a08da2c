"""Correction of MR intensities for the bias field of the receiver coil.

Source: Tustison et al. 2010, IEEE Transactions on Medical Imaging 29(6), "N4ITK: improved N3 bias correction".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import Triple_mm
from medweave_steps.io.findings import refuse
from medweave_steps.io.geometry import FloatArray
from medweave_steps.runtime.imports import require

FIT_SPACING_MM = 4.0
"""Voxel size that the field is fitted on; it is smooth, and the time grows with the number of voxels."""
_ITERATIONS = (50, 50, 50, 50)
_LEAST_VOXELS = 1000


def correct_bias_field(
    channel_IJK: FloatArray, brain_IJK: npt.NDArray[np.bool_], spacing_mm: Triple_mm, *, case_id: str
) -> FloatArray:
    """Return an MR contrast divided by its bias field, float32 [I, J, K]; N4 of SimpleITK on one thread.

    The field is fitted to the positive voxels of the brain, on voxels of about 4 mm, with 4 levels of 50 iterations. Its mean is 1
    in the brain, so that the mean intensity stays about the same.

    Args:
        channel_IJK: arbitrary units.
        brain_IJK: voxels that the field is fitted to.
        spacing_mm: of both arrays.
    Raises:
        FindingError: fewer than 1000 voxels of the brain are positive; N4 takes logarithms.
    """
    itk = require("SimpleITK", extra="bias-correction")
    positive = brain_IJK & (channel_IJK > 0)
    if np.count_nonzero(positive) < _LEAST_VOXELS:
        raise refuse(
            "no-bias-field",
            f"{case_id}: no bias field can be fitted.",
            seen=f"{np.count_nonzero(positive)} voxels above 0 in the brain mask",
            expected=f"{_LEAST_VOXELS} or more",
            do="omit --bias-correction, or correct the brain mask",
            case_id=case_id,
        )
    image, mask = (
        _image(itk, array, spacing_mm) for array in (channel_IJK.astype(np.float32), positive.view(np.uint8))
    )
    factors = [max(1, round(FIT_SPACING_MM / side)) for side in reversed(spacing_mm)]
    corrector = itk.N4BiasFieldCorrectionImageFilter()
    corrector.SetMaximumNumberOfIterations(_ITERATIONS)
    corrector.SetNumberOfThreads(1)  # cases run in parallel, and sums of threads differ in their last bits
    corrector.Execute(itk.Shrink(image, factors), itk.Shrink(mask, factors))
    log_field = itk.GetArrayFromImage(corrector.GetLogBiasFieldAsImage(image)).astype(np.float64)
    field = np.exp(log_field)
    corrected: FloatArray = (channel_IJK / (field / field[brain_IJK].mean())).astype(np.float32)
    return corrected


def _image(itk: Any, array_IJK: npt.NDArray[np.generic], spacing_mm: Triple_mm) -> Any:
    """Return an ITK image whose axes are K, J, I, as `GetArrayFromImage` returns them."""
    image = itk.GetImageFromArray(np.ascontiguousarray(array_IJK))
    image.SetSpacing(tuple(reversed(spacing_mm)))
    return image
