"""Optional libraries, imported where they are used, with an error that names the extra to install."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from medweave_steps.contracts.errors import BackendMissingError


def require(module: str, *, extra: str) -> Any:
    """Imports a library that one role needs.

    Raises:
        BackendMissingError: it is not installed, or it does not load on this machine.
    """
    # OpenVINO's and NNCF's tools send usage data and write below the home folder unless told otherwise; a hospital's
    # worker must do neither. With None in its place their telemetry cannot be imported, which they take as absent.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BackendMissingError(
            f"the library '{module.partition('.')[0]}' cannot be used on this machine.",
            seen=str(error),
            expected=f"medweave installed with its extra '{extra}'",
            do=f"pip install 'medweave[{extra}]'",
        ) from error
