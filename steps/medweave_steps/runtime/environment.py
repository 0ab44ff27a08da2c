"""The sole reader of environment variables and machine facts."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

_REPORTED = (
    "numpy", "scipy", "pydicom", "highdicom", "nibabel", "torch", "monai", "openvino", "nncf", "onnx",
    "onnxruntime", "matplotlib",
)  # fmt: skip


def available_cpus() -> int:
    """Processors this process may use: its affinity mask, capped by the cgroup's CPU quota; at least 1."""
    cpus = len(os.sched_getaffinity(0))
    for quota_file, period_file in (
        ("/sys/fs/cgroup/cpu.max", None),
        ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
    ):
        try:
            words = Path(quota_file).read_text(encoding="ascii").split()
            period = words[1] if period_file is None else Path(period_file).read_text(encoding="ascii")
            if words[0] not in ("max", "-1"):
                cpus = min(cpus, max(1, int(words[0]) // int(period)))
        except (OSError, ValueError, IndexError):
            continue
    return cpus


def limit_threads(num_threads: int) -> None:
    """Bounds the threads of numerical libraries that read the environment when they load."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(num_threads)


@contextlib.contextmanager
def on_cpus(num_cpus: int) -> Iterator[None]:
    """Keeps the calling thread, and threads that it starts, on so many of its processors: for libraries that take no number."""
    before = sorted(os.sched_getaffinity(0))
    # Steps that share a machine should not all choose the first processors.
    first = os.getpid() % len(before)
    os.sched_setaffinity(0, (before[first:] + before[:first])[: max(num_cpus, 1)])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def wants_json_progress() -> bool:
    """True where whoever started the verb asked for machine-readable progress lines."""
    return os.environ.get("MEDWEAVE_PROGRESS") == "json"


def wants_traceback() -> bool:
    """True where internal errors should show their traceback."""
    return os.environ.get("MEDWEAVE_DEBUG", "") not in ("", "0")


def cpu_model() -> str:
    """The processor's model name, as the kernel gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def computes_in_bfloat16() -> bool:
    """True where the processor multiplies bfloat16 in hardware (AVX-512 BF16, AMX, or Arm's BF16)."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags)


def peak_memory_mib() -> tuple[float, float]:
    """Largest resident set of this process, and of the largest child it waited for, MiB."""
    own, children = (
        resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    # rusage begins with the memory of whatever started this program; the high-water mark is the program's own.
    with contextlib.suppress(OSError, IndexError, ValueError):
        status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
        own = int(status.partition("VmHWM:")[2].split()[0]) / 1024
    return round(own, 1), round(children, 1)


def library_versions() -> Mapping[str, str]:
    """Versions of the reported libraries that this process has imported, and Python's."""
    found = {"python": platform.python_version()}
    for name in _REPORTED:
        if name in sys.modules:
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
    return found
