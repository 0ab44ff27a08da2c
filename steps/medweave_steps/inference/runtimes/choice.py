"""The runtime of a model: which ones can run it, and the one that `--backend` selects."""

from __future__ import annotations

from typing import Literal

from medweave_core.contracts.model import ModelCard, Runtime
from medweave_core.errors import BackendMissingError
from medweave_steps.inference.runtimes.devices import EXTRAS, installed_runtimes
from medweave_steps.io.model.folder import network_files
from medweave_steps.networks import is_user_class
from medweave_steps.runtime.imports import require

Backend = Literal["auto", Runtime]
"""Values of `--backend`; `auto` is the runtime of the model card."""
BACKEND_HELP = (
    "runtime, the library that runs the network: auto is that of the model card; onnxruntime needs the extra segment-ort, "
    "torch the extra segment-torch"
)


def can_run(card: ModelCard, runtime: Runtime) -> bool:
    """Return True if the card lists the files that a runtime opens, and the runtime can build and run their network."""
    is_user_code = is_user_class(str(card.architecture.get("class")))
    if runtime == "torch" and (is_user_code or card.precision != "float32"):
        return False
    return all(name in card.files for name in network_files(card, runtime))


def choose_runtime(card: ModelCard, backend: Backend) -> Runtime:
    """Return the runtime that `--backend` selects.

    There is no fall-back to another runtime: the figures on the card are those of the runtime that `gate` measured.

    Raises:
        BackendMissingError: it is not installed; the message names the installed ones that can run the model.
    """
    runtime = card.runtime if backend == "auto" else backend
    try:
        require(runtime, extra=EXTRAS[runtime])
    except BackendMissingError as error:
        others = [name for name in installed_runtimes() if name != runtime and can_run(card, name)]
        if others:
            error.do += f", or use --backend {' or --backend '.join(others)}: installed here, and can run this model"
        raise
    return runtime
