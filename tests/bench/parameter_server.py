"""How many updates a parameter server gets with one slow worker, and the bytes of an epoch.

    python tests/bench/parameter_server.py

Four workers and the server as threads that talk over gloo. Every step of a worker sleeps, that of the last worker four times as
long, so that the figures do not depend on this machine's cores. Asynchronous updates are counted until the first worker has
converged. Writes build/bench/parameter_server.json.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness

sys.path.insert(0, str(harness.ROOT / "tests"))

from medweave_steps.training.distributed.async_server import AsyncServer
from support.server_work import train_in_threads
from support.strategy_work import case_of
from support.training_set import training_set

WORKERS, STEPS, EPOCH_STEPS = 4, 20, 2
SLEEP_S, SLOWDOWN = 0.1, 4
LEAST_RATIO = 2.0


def slow_down(trainer: Any, rank: int) -> None:
    """Make every step of a worker take a while, and those of the last one longer."""
    backward, seconds = trainer.stepper.backward, SLEEP_S * (SLOWDOWN if rank == WORKERS else 1)

    def backward_slowly(*arguments: Any) -> float:
        time.sleep(seconds)
        value: float = backward(*arguments)
        return value

    trainer.stepper.backward = backward_slowly


def run(data: Path, **changes: Any) -> dict[str, float]:
    """Train, and return updates per second and bytes per epoch as the transport of the server counts them."""
    times, ends = [], []
    update, report = AsyncServer.update, AsyncServer.report

    def count_update(self: AsyncServer, worker: int, vector: Any) -> list[int]:
        times.append(time.monotonic())
        return update(self, worker, vector)

    def count_report(self: AsyncServer, worker: int, *, has_converged: bool) -> list[int]:
        ends.extend([time.monotonic()] if has_converged else [])
        return report(self, worker, has_converged=has_converged)

    AsyncServer.update, AsyncServer.report = count_update, count_report  # type: ignore[method-assign]
    options = {"ranks": WORKERS + 1, "steps": STEPS, "epoch_steps": EPOCH_STEPS, "validation_interval": STEPS}
    case = case_of(data, "instance", strategy="parameter-server", **options, **changes)
    try:
        server, *_ = train_in_threads(case, prepare=slow_down)
    finally:
        AsyncServer.update, AsyncServer.report = update, report  # type: ignore[method-assign]
    epochs = STEPS // EPOCH_STEPS
    if times:
        num_updates, seconds = sum(moment <= ends[0] for moment in times), ends[0] - times[0] + SLEEP_S * EPOCH_STEPS
    else:
        num_updates, seconds = WORKERS * epochs, server.state.train_seconds
    return {
        "updates_per_s": round(num_updates / seconds, 3),
        "bytes_per_epoch": server.strategy._transport.num_bytes / epochs,  # type: ignore[attr-defined]
    }


def main() -> int:
    """Run both coordinations and write the figures; return 1 if asynchronous training is not fast enough."""
    with tempfile.TemporaryDirectory() as name:
        data = training_set(Path(name), ["train"] * 2 + ["validation"] * WORKERS)
        figures = {"sync": run(data, rule="sync-weights"), "async": run(data, coordination="async")}
    ratio = figures["async"]["updates_per_s"] / figures["sync"]["updates_per_s"]
    result = {**figures, "ratio": round(ratio, 2), "least_ratio": LEAST_RATIO, "machine": harness.machine()}
    path = harness.ROOT / "build" / "bench" / "parameter_server.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    harness.say("parameter_server", f"async {ratio:.1f} x the updates of sync; {json.dumps(figures)}")
    return 0 if ratio >= LEAST_RATIO else 1


if __name__ == "__main__":
    raise SystemExit(main())
