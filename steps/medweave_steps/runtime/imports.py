"""Optional libraries, imported where they are used, with an error that names the extra to install."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

from medweave_core.errors import BackendMissingError

# What these libraries import at once when it is there, though none of it serves what we call of them; both work without. It takes
# 3.3 of MONAI's 4 s and 2 of NNCF's 3 s (and 490 MB), in each process that makes a network.
_TAKEN_ALONG = {
    "monai": (
        *("PIL", "ignite", "matplotlib", "nibabel", "pandas", "pydicom", "sklearn", "tensorboard", "tensorboardX"),
        *("scipy", "scipy.signal", "scipy.stats"),
    ),
    "nncf": ("torch",),
}
_COMPILER = "torch._dynamo"


class _WhenAsked(types.ModuleType):
    """Stands for a module of torch's compiler, gives the answers that one gives who compiles nothing, and loads it for all else."""

    def __init__(self, name: str, **answers: Any) -> None:
        super().__init__(name)
        self.__dict__.update(answers)

    def __getattr__(self, name: str) -> Any:
        # Who looks through all modules asks for these; who imports one below, for __path__.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        if isinstance(sys.modules.get(_COMPILER), _WhenAsked):
            del sys.modules[_COMPILER]
        return getattr(importlib.import_module(self.__name__), name)


def _compiler_when_asked() -> types.ModuleType:
    """What torch's optimizers and DistributedDataParallel ask of its compiler where nothing is compiled.

    They import it for nothing else, which takes 3 to 4 s of processor time and some 900 modules from the file system, in each rank.
    """
    return _WhenAsked(
        _COMPILER,
        disable=lambda function, *_, **__: function,
        graph_break=lambda *_: None,
        utils=_WhenAsked(f"{_COMPILER}.utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"),
        trace_rules=_WhenAsked(f"{_COMPILER}.trace_rules", clear_lru_cache=lambda: None),
    )


@contextlib.contextmanager
def without(library: str) -> Iterator[None]:
    """What a library would take along is as if it were not installed, unless it is loaded already.

    Args:
        library: its module's name.
    """
    hidden = [name for name in _TAKEN_ALONG.get(library, ()) if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            if sys.modules.get(name, sys) is None:
                del sys.modules[name]


def require(module: str, *, extra: str) -> Any:
    """Imports a library that one role needs.

    Raises:
        BackendMissingError: it is not installed, or it does not load on this machine.
    """
    # OpenVINO's and NNCF's tools send usage data and write below the home folder unless told otherwise; a hospital's
    # worker must do neither. With None in its place their telemetry cannot be imported, which they take as absent.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        with without(module.partition(".")[0]):
            found = importlib.import_module(module)
    except ImportError as error:
        raise BackendMissingError(
            f"the library '{module.partition('.')[0]}' cannot be used on this machine.",
            seen=str(error),
            expected=f"medweave installed with its extra '{extra}'",
            do=f"pip install 'medweave[{extra}]'",
        ) from error
    if "torch" in sys.modules and _COMPILER not in sys.modules:
        sys.modules[_COMPILER] = _compiler_when_asked()
    return found
