"""How many updates a parameter server gets with one slow worker, and the time and bytes of a round by each transport.

    python tests/bench/parameter_server.py

One slow worker: four workers and the server as threads that talk over gloo. Every step of a worker sleeps, that of the last worker
four times as long, so that the figures do not depend on this machine's cores. Asynchronous updates are counted until the first
worker has converged. The time of a synchronous round is compared with that of the slow worker alone.

Transports: a server and two workers, each a process of this machine, exchange the weights of the scalability MLP of DiagnoseNET
(6,342,158 parameters) in synchronous rounds, without any training; the transports that are installed take turns.

Writes build/bench/parameter_server.json.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, get_args

import harness

sys.path.insert(0, str(harness.ROOT / "tests"))

from medweave_core.errors import BackendMissingError
from medweave_steps.training.distributed.transports import TransportName, check_installed
from support.server_work import Rounds, Straggling, timed_rounds
from support.strategy_work import by_ranks, case_of
from support.training_set import training_set

WORKERS, STEPS, EPOCH_STEPS = 4, 20, 2
SLEEP_S = 0.1
LEAST_RATIO = 2.0
PARAMETERS, ROUNDS, REPEATS, PEERS = 6_342_158, 20, 3, 2


def straggling(data: Path, **changes: Any) -> dict[str, float]:
    """Train with a slow worker; return updates per second, and bytes per epoch as the transport of the server counts them."""
    options = {"ranks": WORKERS + 1, "steps": STEPS, "epoch_steps": EPOCH_STEPS, "validation_interval": STEPS}
    times = Straggling(sleep_s=SLEEP_S)
    server = times.train(case_of(data, "instance", strategy="parameter-server", **options, **changes))
    num_bytes = server.strategy._transport.num_bytes  # type: ignore[attr-defined]
    return {
        "updates_per_s": round(times.updates_per_s(server), 3),
        "bytes_per_epoch": num_bytes / (STEPS // EPOCH_STEPS),
    }


def round_times(data: Path) -> dict[str, float]:
    """Return the median time of a synchronous step, and that of the slow worker alone, s."""
    times = Straggling(sleep_s=SLEEP_S)
    times.train(
        case_of(data, "instance", strategy="parameter-server", ranks=WORKERS + 1, steps=STEPS, epoch_steps=STEPS)
    )
    slow = times.computed[WORKERS]
    return {"round_s": round(statistics.median(times.rounds), 3), "slowest_worker_s": round(statistics.median(slow), 3)}


def is_installed(name: TransportName) -> bool:
    """Return whether a transport is installed; print why it is not."""
    try:
        check_installed(name)
    except BackendMissingError as error:
        harness.say("parameter_server", f"without {name}: {error.what} {error.seen}")
        return False
    return True


def transports() -> dict[str, dict[str, Any]]:
    """Return seconds and bytes of a synchronous round by transport: the median, and those of each repetition."""
    names = [name for name in get_args(TransportName) if is_installed(name)]
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(REPEATS):
        for name in names:
            job = Rounds(transport=name, size=PARAMETERS, number=ROUNDS)
            figures[name].append(by_ranks(timed_rounds, job, ranks=PEERS + 1))
    seconds = {name: [each["seconds_per_round"] for each in of_name] for name, of_name in figures.items()}
    return {
        name: {
            "seconds_per_round": statistics.median(seconds[name]),
            "repetitions": seconds[name],
            "bytes_per_round": figures[name][0]["bytes_per_round"],
        }
        for name in names
    }


def main() -> int:
    """Run both measurements and write the figures; return 1 if asynchronous training is not fast enough."""
    with tempfile.TemporaryDirectory() as name:
        data = training_set(Path(name), ["train"] * 2 + ["validation"] * WORKERS)
        figures = {"sync": straggling(data, rule="sync-weights"), "async": straggling(data, coordination="async")}
        figures["sync"] |= round_times(data)
    ratio = figures["async"]["updates_per_s"] / figures["sync"]["updates_per_s"]
    harness.say("parameter_server", f"async {ratio:.1f} x the updates of sync; {json.dumps(figures)}")
    by_transport = transports()
    harness.say("parameter_server", json.dumps(by_transport))
    result = {
        **figures, "ratio": round(ratio, 2), "least_ratio": LEAST_RATIO,
        "transports": {"parameters": PARAMETERS, "workers": PEERS, "rounds": ROUNDS, **by_transport},
        "machine": harness.machine(),
    }  # fmt: skip
    path = harness.ROOT / "build" / "bench" / "parameter_server.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if ratio >= LEAST_RATIO else 1


if __name__ == "__main__":
    raise SystemExit(main())
