"""How far stages and replicas come from one process, and the all-reduce of torch from the mean.

    python tests/bench/hybrid_numerics.py

Every contiguous cut of small networks in one process; twenty steps on tiny patches by 2 to 4 processes (gloo); and an all-reduce of
1.2 million numbers. tests/unit/steps/test_cut.py and test_strategy_hybrid.py hold these to a tolerance. Writes
build/bench/hybrid_numerics.json.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness

sys.path.insert(0, str(harness.ROOT / "tests"))

from medweave_steps.training.distributed.group import Alone
from support import ring_work, strategy_work
from support.cut_networks import NETWORKS, largest_differences
from support.strategy_work import by_ranks, case_of, largest_difference
from support.training_set import training_set

LAYOUTS = ((1, 2), (2, 1), (3, 1), (1, 4), (2, 2), (4, 1))
"""Stages and replicas."""
KINDS = ("instance", "group", "uneven", "float64")
WIDE: dict[str, Any] = {"channels": (4, 8, 8), "strides": (2, 2)}
"""Five partitions, for up to four stages."""
LENGTH = 1_200_000


def cuts() -> Iterator[dict[str, Any]]:
    """Yield the differences of outputs and gradients between a network and its stages."""
    for network in NETWORKS:
        for stages, (outputs, gradients) in largest_differences(network).items():
            yield {"network": network, "stages": stages, "outputs": outputs, "gradients": gradients}


def layouts(data: Path) -> Iterator[dict[str, Any]]:
    """Yield the differences of the weights after twenty steps between a layout and one process."""
    alone = {kind: strategy_work.trained(case_of(data, kind, **WIDE), Alone()) for kind in KINDS}
    for ranks in sorted({stages * replicas for stages, replicas in LAYOUTS}):
        cases = {
            (stages, kind): case_of(data, kind, **WIDE, strategy="hybrid", ranks=ranks, stages=stages)
            for stages, replicas in LAYOUTS
            for kind in KINDS
            if stages * replicas == ranks
        }
        results: Any = by_ranks(strategy_work.all_trained, cases, ranks=ranks)
        for (stages, kind), result in results.items():
            difference = largest_difference(result, alone[kind])
            yield {"stages": stages, "replicas": ranks // stages, "kind": kind, "weights": difference}


def main() -> None:
    """Print a line for each result."""
    found: dict[str, list[dict[str, Any]]] = {"cuts": [], "layouts": [], "all_reduce": []}
    with tempfile.TemporaryDirectory(prefix="medweave-hybrid-") as name:
        data = training_set(Path(name) / "data")
        rings = by_ranks(ring_work.reduced, LENGTH, ranks=4)
        sources = (
            ("cuts", cuts()),
            ("layouts", layouts(data)),
            ("all_reduce", (dataclasses.asdict(ring) for ring in rings)),
        )
        for part, rows in sources:
            for row in rows:
                found[part].append(row)
                harness.say("hybrid", f"{part}: " + ", ".join(f"{key} {value}" for key, value in row.items()))
    harness.RESULTS.mkdir(parents=True, exist_ok=True)
    (harness.RESULTS / "hybrid_numerics.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
