"""The hardware monitor: a thread that samples a process's hardware at a fixed interval into a file, and readers of that file.

A recording is a file of JSON lines: a header, then one object per sample and per mark (a step of the training with its loss), each
with `t_s`, the time since the start on the monotonic clock. Each line is written at once: a killed process leaves a readable file,
`*.jsonl.partial`, whose last line may be cut.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_core.errors import UserInputError

RECORDINGS = "hardware-rank-*.jsonl*"
PARTIAL = ".partial"
SHOWN = (
    "processor_power_w", "memory_power_w", "gpu_power_w", "cpu_utilization", "gpu_utilization", "process_memory_mib",
    "gpu_memory_used_mib",
)  # fmt: skip
MOST_POINTS = 400
"""Points of a series in charts and TensorBoard; the recording has all of them."""
JOIN_S = 5.0
"""A driver that hangs in a reading must not keep a training from its end."""


def recording_name(rank: int) -> str:
    """Return the file name of a rank's recording."""
    return f"hardware-rank-{rank}.jsonl"


class Monitor:
    """Samples of one process, from `start` to `close`.

    Attributes:
        path: the recording; it has this name from `close` on.
        failure: why sampling stopped early; empty otherwise.
        cpu_seconds: processor time of the sampling thread so far.
    """

    def __init__(
        self, read: Callable[[float], Mapping[str, float]], path: Path, *, header: Mapping[str, Any], interval_s: float
    ) -> None:
        """Describe a monitor; nothing is written before `start`.

        Args:
            read: returns the figures of now, with names that end in their unit.
            header: facts about the recording, as JSON values.
            interval_s: time between two samples.
        """
        self.path, self.failure, self.cpu_seconds = path, "", 0.0
        self._read, self._interval_s, self._header = read, interval_s, header
        self._stream: Any = None
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="hardware-monitor", daemon=True)
        self._started = 0.0

    def start(self) -> None:
        """Open the recording and start the thread, with a first sample at time 0."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = self._partial().open("wb", buffering=0)
        self._started = time.monotonic()
        started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        self._write({**self._header, "interval_s": self._interval_s, "started_at": started_at})
        self._sample()
        self._thread.start()

    def mark(self, figures: Mapping[str, Any]) -> None:
        """Add a line with figures of the training now; before `start` and after `close` nothing happens."""
        self._write({"t_s": self._now(), **figures})

    def close(self) -> None:
        """Take the last sample, end the thread, and give the recording its name; a second call does nothing."""
        if self._stream is None:
            return
        self._closed.set()
        self._thread.join(JOIN_S)
        if not self._thread.is_alive():
            self._sample()
        with self._lock:
            stream, self._stream = self._stream, None
            with contextlib.suppress(OSError):  # a full disk
                os.fsync(stream.fileno())
            stream.close()
            self._partial().replace(self.path)

    def _partial(self) -> Path:
        return self.path.with_name(self.path.name + PARTIAL)

    def _now(self) -> float:
        return round(time.monotonic() - self._started, 4)

    def _run(self) -> None:
        for number in itertools.count(1):
            # By the clock, not by the time since the last sample: the samples do not drift, and missed ones are left out.
            late_s = time.monotonic() - self._started - number * self._interval_s
            if late_s > self._interval_s:
                continue
            if self._closed.wait(max(0.0, -late_s)):
                return
            self._sample()
            self.cpu_seconds = time.thread_time()

    def _sample(self) -> None:
        if self.failure:
            return
        t_s = self._now()
        self._write({"t_s": t_s, **{name: round(value, 4) for name, value in self._read(t_s).items()}})

    def _write(self, line: Mapping[str, Any]) -> None:
        with self._lock:
            if self._stream is None or self.failure:
                return
            try:
                content = json.dumps(line, separators=(",", ":")).encode() + b"\n"
                if self._stream.write(content) < len(content):
                    self.failure = "hardware samples (could not be written: the disk is full)"
            except OSError as error:  # the training continues
                self.failure = f"hardware samples (could not be written: {error.strerror})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The content of a recording.

    Attributes:
        header: rank, `started_at` (UTC, ISO 8601), `interval_s`, and the sources of energy.
        samples: figures by name, each with `t_s`; ascending.
        marks: points of the training, each with `t_s` and `step`.
    """

    header: Mapping[str, Any]
    samples: tuple[Mapping[str, float], ...]
    marks: tuple[Mapping[str, Any], ...]

    @property
    def rank(self) -> int:
        """Return the rank that was sampled."""
        return int(self.header["rank"])

    @property
    def started(self) -> datetime.datetime:
        """Return the time of `t_s` 0."""
        return datetime.datetime.fromisoformat(self.header["started_at"])

    @property
    def seconds(self) -> float:
        """Return the time from the first to the last sample, s."""
        return self.samples[-1]["t_s"] - self.samples[0]["t_s"] if self.samples else 0.0

    def series(self, name: str) -> tuple[list[float], list[float]]:
        """Return times, s, and values of one figure, where it is known."""
        known = [(sample["t_s"], sample[name]) for sample in self.samples if name in sample]
        return [t_s for t_s, _ in known], [value for _, value in known]

    def mean(self, name: str) -> float | None:
        """Return the mean of a figure over time; None with fewer than two readings."""
        times_s, values = self.series(name)
        return trapezoid(times_s, values) / (times_s[-1] - times_s[0]) if _spans_time(times_s) else None

    def increase(self, name: str) -> float | None:
        """Return the increase of a counter from its first to its last reading; None with fewer than two."""
        _, values = self.series(name)
        return values[-1] - values[0] if len(values) > 1 else None

    def maximum(self, name: str) -> float | None:
        """Return the largest reading; None without any."""
        return max(self.series(name)[1], default=None)

    def energy(self, component: str) -> tuple[float, float] | None:
        """Return the energy of a component, J, and the time in which it is known, s; None with fewer than two readings.

        It is the increase of the energy counter where there is one, else the integral of the power by the trapezoid rule.
        """
        for name, is_counter in ((f"{component}_energy_j", True), (f"{component}_power_w", False)):
            times_s, values = self.series(name)
            if _spans_time(times_s):
                joules = values[-1] - values[0] if is_counter else trapezoid(times_s, values)
                return joules, times_s[-1] - times_s[0]
        return None


def _spans_time(times_s: Sequence[float]) -> bool:
    return len(times_s) > 1 and times_s[-1] > times_s[0]


def trapezoid(times_s: Sequence[float], values: Sequence[float]) -> float:
    """Return the integral of a figure over time by the trapezoid rule; the times ascend and may be uneven."""
    return sum(
        (b - a) * (before + after) / 2
        for (a, before), (b, after) in itertools.pairwise(zip(times_s, values, strict=True))
    )


def read_recording(path: Path) -> Recording:
    """Read the recording of one rank, also of a process that was killed: a last line that is cut is left out.

    Raises:
        UserInputError: it is not a recording.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
        header, *rest = [json.loads(line) for line in lines[:-1]]
        if not {"rank", "started_at", "interval_s"} <= header.keys() or any("t_s" not in line for line in rest):
            raise ValueError("a line without a key")
        datetime.datetime.fromisoformat(header["started_at"])
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserInputError(
            f"the hardware samples '{path.name}' cannot be read.",
            seen=f"{type(error).__name__}: {error}",
            expected="a file that train wrote into its training log",
            do="remove the file, or run train again",
        ) from error
    return Recording(
        header=header,
        samples=tuple(line for line in rest if "step" not in line),
        marks=tuple(line for line in rest if "step" in line),
    )


def read_recordings(folder: Path) -> list[Recording]:
    """Return the recordings of all ranks in a training log, in order of their ranks; none if the training had no monitor."""
    return sorted((read_recording(path) for path in folder.glob(RECORDINGS)), key=lambda recording: recording.rank)


def thinned_series(recording: Recording) -> dict[str, list[tuple[float, float]]]:
    """Return times, s, and values of power, utilization and memory, for charts: means over equal parts of the time.

    The utilization of the process is that of its processor time: 1 is one core.
    """
    series = {name: recording.series(name) for name in SHOWN}
    times_s, cpu_s = recording.series("process_cpu_s")
    busy = [
        (b, (after - before) / (b - a))
        for (a, before), (b, after) in itertools.pairwise(zip(times_s, cpu_s, strict=True))
        if b > a
    ]
    series["process_cores"] = [t_s for t_s, _ in busy], [cores for _, cores in busy]
    width_s = recording.seconds / MOST_POINTS
    return {name: _thinned(*points, width_s=width_s) for name, points in series.items() if points[0]}


def _thinned(times_s: Sequence[float], values: Sequence[float], *, width_s: float) -> list[tuple[float, float]]:
    """Return the mean time and value of each part of the time."""
    if len(times_s) <= MOST_POINTS:
        return list(zip(times_s, values, strict=True))
    parts = itertools.groupby(zip(times_s, values, strict=True), key=lambda point: point[0] // width_s)
    groups = [list(points) for _, points in parts]
    return [(sum(t for t, _ in part) / len(part), sum(v for _, v in part) / len(part)) for part in groups]
