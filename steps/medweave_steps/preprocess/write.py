"""Arrays on disk, so that a full disk is an error and not a crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def save_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Writes a `.npy` file in C order, to be memory-mapped by later steps.

    `numpy.save` hides why a write fails, and a memory map raises a bus error on a full disk; plain writes raise OSError.

    Raises:
        OSError: with its errno (ENOSPC on a full disk).
    """
    ordered = np.ascontiguousarray(array)
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(ordered))
        stream.write(ordered.reshape(-1).view(np.uint8).data)
