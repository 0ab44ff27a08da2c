"""Which runtimes are installed on this machine, and the device that each of them computes on."""

from __future__ import annotations

import ctypes
import typing
from collections.abc import Mapping
from typing import Literal

from medweave_core.contracts.model import Runtime
from medweave_core.errors import UsageError
from medweave_steps.runtime.imports import is_installed, require

Device = Literal["auto", "cpu", "cuda"]
DEVICE_HELP = (
    "auto is an NVIDIA GPU where the runtime can use one (onnxruntime with its CUDA build, torch), else the CPU"
)
UsedDevice = Literal["cpu", "cuda"]

RUNTIMES: tuple[Runtime, ...] = typing.get_args(Runtime)
EXTRAS: Mapping[Runtime, str] = {"openvino": "segment", "onnxruntime": "segment-ort", "torch": "segment-torch"}
"""The extra of medweave that installs a runtime; each runtime has the name of its Python module."""
_EXPECTED: Mapping[Runtime, tuple[str, str]] = {
    "openvino": ("a runtime that uses GPUs: onnxruntime or torch", "use --device auto or --device cpu"),
    "onnxruntime": (
        "an NVIDIA GPU, its driver and the CUDA build of ONNX Runtime",
        "install onnxruntime-gpu in place of onnxruntime, or use --device auto or --device cpu",
    ),
    "torch": ("an NVIDIA GPU, its driver and a CUDA build of torch", "use --device auto or --device cpu"),
}
CUDA_PROVIDER = "CUDAExecutionProvider"


def installed_runtimes() -> tuple[Runtime, ...]:
    """Return the runtimes whose library is installed, in the order of `RUNTIMES`; nothing is imported."""
    return tuple(name for name in RUNTIMES if is_installed(name))


def choose_device(runtime: Runtime, wanted: Device) -> UsedDevice:
    """Return the device that a runtime computes on: `auto` is a GPU where the runtime can use one.

    Raises:
        UsageError: `cuda` is wanted, and the runtime can use no GPU on this machine.
        BackendMissingError: there is a GPU, and the runtime is not installed.
    """
    if wanted == "cpu":
        return "cpu"
    if can_use_cuda(runtime):
        return "cuda"
    if wanted == "cuda":
        raise no_cuda(runtime, seen=f"no CUDA device that {runtime} can use")
    return "cpu"


def can_use_cuda(runtime: Runtime) -> bool:
    """Return True if a runtime can use a GPU of this machine; without a GPU, nothing is imported.

    Raises:
        BackendMissingError: there is a GPU, and the runtime is not installed.
    """
    # The builds of ONNX Runtime list their CUDA provider without a GPU, too; the import of torch takes seconds.
    if runtime == "openvino" or not _num_cuda_devices():
        return False
    library = require(runtime, extra=EXTRAS[runtime])
    if runtime == "torch":
        return bool(library.cuda.is_available())
    return CUDA_PROVIDER in library.get_available_providers()


def no_cuda(runtime: Runtime, *, seen: str, do: str = "") -> UsageError:
    """Return the error about a GPU that was requested and cannot be used; `do` is by default that of the runtime."""
    expected, usual = _EXPECTED[runtime]
    return UsageError(
        f"--device cuda is not available on this machine with the runtime {runtime}.",
        seen=seen,
        expected=expected,
        do=do or usual,
    )


def _num_cuda_devices() -> int:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    return count.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0
