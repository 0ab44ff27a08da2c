"""Optional libraries, imported where they are used, with an error that names the extra to install.

`require` imports a library as it is. Two opt-ins make the import of large libraries shorter, for callers that know that they need
nothing of what is left out: `require_lean` and `skip_torch_compiler`. The gains below are processor seconds and peak memory of one
process on an AMD EPYC with a warm disk cache (2 runs, within 5 %).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

from medweave_core.errors import BackendMissingError

UNNEEDED = {
    # Optional for MONAI. Gain: 2.4 -> 0.4 s, 761 -> 573 MiB, 1,800 modules.
    "monai": (
        *("PIL", "ignite", "matplotlib", "nibabel", "pandas", "pydicom", "sklearn", "tensorboard", "tensorboardX"),
        *("scipy", "scipy.signal", "scipy.stats"),
    ),
    # Optional for NNCF, which quantizes OpenVINO graphs here. Gain: 2.0 -> 0.5 s, 597 -> 97 MiB.
    "nncf": ("torch",),
}
"""Modules that a library imports if they are installed, though the functions that medweave calls do not need them."""
_COMPILER = "torch._dynamo"


@contextlib.contextmanager
def hidden_modules(library: str) -> Iterator[None]:
    """Make the unneeded modules of a library fail to import within the context, except those that are loaded already.

    Args:
        library: a key of `UNNEEDED`.
    """
    hidden = [name for name in UNNEEDED[library] if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            if sys.modules.get(name, sys) is None:
                del sys.modules[name]


@contextlib.contextmanager
def log_disabled(level: int) -> Iterator[None]:
    """Drop all log messages up to a level inside the block: libraries log there what a user of the step cannot act on."""
    previous = logging.root.manager.disable
    logging.disable(level)
    try:
        yield
    finally:
        logging.disable(previous)


def is_installed(module: str) -> bool:
    """Return True if a library is installed; nothing is imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # a module that was made unavailable in this process
        return False


def require(module: str, *, extra: str) -> Any:
    """Import and return a module of a library that one role needs.

    Raises:
        BackendMissingError: it is not installed, or cannot be imported on this machine.
    """
    # OpenVINO's and NNCF's tools send usage data and write below the home folder by default; ONNX Runtime sends some to Microsoft
    # and writes `.ses` below the temporary folder. A hospital's worker must do neither. With None in sys.modules the telemetry of
    # the first cannot be imported, and they continue without it; ONNX Runtime reads the variable when it is imported.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BackendMissingError(
            f"the library '{module.partition('.')[0]}' cannot be imported on this machine.",
            seen=str(error),
            expected=f"medweave installed with its extra '{extra}'",
            do=f"pip install 'medweave[{extra}]'",
        ) from error


def require_lean(module: str, *, extra: str) -> Any:
    """Import and return a module of a library without the library's unneeded modules.

    Raises:
        BackendMissingError: as `require`.
    """
    with hidden_modules(module.partition(".")[0]):
        return require(module, extra=extra)


def skip_torch_compiler() -> None:
    """Let torch's optimizers and DistributedDataParallel do without torch's compiler, which medweave does not use.

    They import `torch._dynamo` only to find out that nothing is compiled. A stub gives them that answer, and imports the compiler
    when anything else of it is used. Gain: 1.2 s (3 to 4 s on a slow disk: some 900 modules), 700 -> 552 MiB, in each rank.
    """
    if _COMPILER not in sys.modules:
        sys.modules[_COMPILER] = _CompilerStub(
            _COMPILER,
            disable=lambda function, *_, **__: function,
            graph_break=lambda *_: None,
            utils=_CompilerStub(f"{_COMPILER}.utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"),
            trace_rules=_CompilerStub(f"{_COMPILER}.trace_rules", clear_lru_cache=lambda: None),
        )


class _CompilerStub(types.ModuleType):
    """A module of torch's compiler: has the attributes that uncompiled programs use, and imports the real one for any other."""

    def __init__(self, name: str, **attributes: Any) -> None:
        super().__init__(name)
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        # Programs that inspect all loaded modules read dunder names; an import of a submodule reads __path__.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        if isinstance(sys.modules.get(_COMPILER), _CompilerStub):
            del sys.modules[_COMPILER]
        return getattr(importlib.import_module(self.__name__), name)
