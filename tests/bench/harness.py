"""What every benchmark shares: alternating pairs, medians, quartiles, and one JSON file per benchmark in `build/bench/`.

A figure is a ratio measured in one run on one machine: ours and the reference take turns, the ratio is taken per pair, and the
median of the ratios is reported with its quartiles. A ratio is always turned so that more is better for us.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "build" / "bench"
SAMPLING_S = 0.02
os.environ.setdefault("MEDWEAVE_REUSE", "0")  # no cache: repeated measurements repeat the work

Measure = Callable[[], float | None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one benchmark, as in its JSON file.

    Attributes:
        ours, reference: medians, in `unit`; `reference` is None where there is only a bar.
        ratio: median over the pairs of reference/ours (ours/reference where more is better), None without a reference.
        quartiles: first and third quartile of the ratio per pair.
        pairs: how many alternating pairs were measured.
        bar: what the ratio must reach, or, without a reference, what `ours` must stay below (reach where more is better).
        meets_bar: None where no bar is set.
        measurements: (ours, reference) per pair, in `unit`, in order.
    """

    name: str
    ours: float
    reference: float | None
    unit: str
    ratio: float | None
    quartiles: tuple[float, float] | None
    pairs: int
    bar: float | None
    meets_bar: bool | None
    reference_tool: str | None
    higher_is_better: bool
    measurements: tuple[tuple[float, float | None], ...]
    machine: Mapping[str, Any]
    measured_at: str
    notes: Mapping[str, Any]


def run_pairs(
    name: str,
    ours: Measure,
    reference: Measure,
    *,
    reference_tool: str,
    pairs: int = 7,
    unit: str = "s",
    bar: float | None = None,
    higher_is_better: bool = False,
    warm_up: bool = True,
    notes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Measure alternating pairs, print each, and write `build/bench/<name>.json`.

    Args:
        name: of the benchmark and of its file.
        ours, reference: do the work once; they return their figure in `unit`, or None to be timed in seconds.
        reference_tool: with its version ("SimpleITK 2.5.7, 2 threads").
        pairs: at least 7 (3 where one pair takes more than a minute); the order within a pair alternates.
        bar: what the ratio must reach; None where nothing was promised.
        higher_is_better: the figures are throughputs rather than durations.
        warm_up: run both once before the first pair, unmeasured (page cache, imports).
        notes: anything a reader needs to judge the figure (sizes, options, stages).
    Returns:
        the content of the JSON file.
    """
    if warm_up:
        measure(ours)
        measure(reference)
    values: list[tuple[float, float]] = []
    for index in range(pairs):
        if index % 2 == 0:
            mine, other = measure(ours), measure(reference)
        else:
            other, mine = measure(reference), measure(ours)
        values.append((mine, other))
        ratio = mine / other if higher_is_better else other / mine
        say(name, f"pair {index + 1}/{pairs}: ours {mine:.4g} {unit}, reference {other:.4g} {unit}, ratio {ratio:.2f}")
    ratios = [mine / other if higher_is_better else other / mine for mine, other in values]
    middle = statistics.median(ratios)
    return write_result(
        Result(
            name=name,
            ours=statistics.median(mine for mine, _ in values),
            reference=statistics.median(other for _, other in values),
            unit=unit,
            ratio=middle,
            quartiles=quartiles(ratios),
            pairs=pairs,
            bar=bar,
            meets_bar=None if bar is None else middle >= bar,
            reference_tool=reference_tool,
            higher_is_better=higher_is_better,
            measurements=tuple(values),
            machine=machine(),
            measured_at=now(),
            notes=notes or {},
        )
    )


def single_figure(
    name: str,
    value: float,
    *,
    unit: str,
    bar: float | None,
    higher_is_better: bool = False,
    notes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write a figure that is compared with a bar and not with a reference, such as peak memory."""
    meets = None if bar is None else (value >= bar if higher_is_better else value < bar)
    return write_result(
        Result(
            name=name,
            ours=value,
            reference=None,
            unit=unit,
            ratio=None,
            quartiles=None,
            pairs=1,
            bar=bar,
            meets_bar=meets,
            reference_tool=None,
            higher_is_better=higher_is_better,
            measurements=((value, None),),
            machine=machine(),
            measured_at=now(),
            notes=notes or {},
        )
    )


def measure(work: Measure) -> float:
    """Return the figure that the work returns, or the seconds it took."""
    gc.collect()
    started = time.perf_counter()
    value = work()
    return time.perf_counter() - started if value is None else value


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Return first and third quartile, both inclusive of the sample's ends."""
    if len(values) < 2:
        return (values[0], values[0])
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return (first, third)


def write_result(result: Result) -> dict[str, Any]:
    """Print the summary and write the JSON file, complete or not at all."""
    data = dataclasses.asdict(result)
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{result.name}.json"
    aside = path.with_suffix(".json.partial")
    aside.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    aside.replace(path)
    verdict = {None: "no bar", True: "meets the bar", False: "MISSES the bar"}[result.meets_bar]
    against = f" against {result.reference:.4g} ({result.reference_tool})" if result.reference is not None else ""
    ratio = ""
    if result.ratio is not None and result.quartiles is not None:
        ratio = f", ratio {result.ratio:.2f} [{result.quartiles[0]:.2f} to {result.quartiles[1]:.2f}]"
    bar = "" if result.bar is None else f" {result.bar:g}"
    say(result.name, f"{result.ours:.4g} {result.unit}{against}{ratio}: {verdict}{bar}; {path.relative_to(ROOT)}")
    return data


@dataclasses.dataclass(frozen=True, slots=True)
class ChildRun:
    """A finished command: its exit code, wall time in s, and peak resident memory of its whole process tree in MiB."""

    exit_code: int
    seconds: float
    peak_memory_mib: float


def run_measuring_memory(command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> ChildRun:
    """Run a command and sample its process tree's memory; slower than without, so never use its seconds for a ratio.

    The peak is the larger of the sum over the tree and the kernel's high-water mark of any one process, both as sampled.
    Memory shared between processes counts once per process, so the figure is an upper bound. (The rusage of a child is of no use
    here: it begins with the memory of the process that forked it.)
    """
    started = time.perf_counter()
    child = subprocess.Popen(list(command), env={**os.environ, **(environment or {})})
    peak_kib = 0
    while child.poll() is None:
        tree = _tree_memory_kib(child.pid)
        peak_kib = max([peak_kib, sum(now for now, _ in tree), *(high for _, high in tree)])
        time.sleep(SAMPLING_S)
    return ChildRun(child.returncode, time.perf_counter() - started, peak_kib / 1024)


def _tree_memory_kib(pid: int) -> list[tuple[int, int]]:
    """Return the current and the peak resident memory of a process and its descendants."""
    found: list[tuple[int, int]] = []
    with contextlib.suppress(OSError, ValueError, KeyError):
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        words = {line.split()[0]: line.split()[1] for line in text.splitlines() if line.startswith("Vm")}
        found.append((int(words["VmRSS:"]), int(words["VmHWM:"])))
        for task in Path(f"/proc/{pid}/task").iterdir():
            for word in (task / "children").read_text(encoding="ascii").split():
                found += _tree_memory_kib(int(word))
    return found


def machine() -> dict[str, Any]:
    """Return the facts of this machine: processor, usable cores, memory in MiB, Python."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cpu": model,
        "cpus": len(os.sched_getaffinity(0)),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "python": platform.python_version(),
    }


def say(name: str, text: str) -> None:
    """Print one line on stdout, unbuffered."""
    print(f"bench {name}: {text}", flush=True)


def now() -> str:
    """Return the time in UTC, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    sys.exit("harness.py is shared by the benchmarks; run bench/preprocess.py or another one")
