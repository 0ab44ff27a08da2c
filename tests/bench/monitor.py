"""Processor time of the hardware monitor at one sample per second, beside a process that computes: at most 1 % of one core."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from harness import single_figure

from medweave_steps.runtime.hardware import HardwareReader
from medweave_steps.runtime.monitor import Monitor, read_recording

BAR = 0.01


def main() -> int:
    """Sample for some time, and write `build/bench/monitor.json`; return 1 above the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    seconds = parser.parse_args().seconds
    matrix = np.random.default_rng(0).random((256, 256))
    with tempfile.TemporaryDirectory() as name:
        reader = HardwareReader(gpu_uuid=None, counts_machine=True)
        monitor = Monitor(reader.read, Path(name) / "samples.jsonl", header={"rank": 0}, interval_s=1.0)
        monitor.start()
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            matrix @ matrix
        monitor.close()
        size = monitor.path.stat().st_size
        recording = read_recording(monitor.path)
    result = single_figure(
        "monitor",
        monitor.cpu_seconds / recording.seconds,
        unit="of one core",
        bar=BAR,
        notes={
            "seconds": recording.seconds,
            "samples": len(recording.samples),
            "bytes_per_sample": size / len(recording.samples),
            "figures": sorted({name for sample in recording.samples for name in sample}),
            "thread_cpu_ms_per_sample": 1000 * monitor.cpu_seconds / len(recording.samples),
        },
    )
    return 0 if result["meets_bar"] else 1


if __name__ == "__main__":
    sys.exit(main())
