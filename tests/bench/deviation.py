"""How far two ranks come from one process where that is in the nature of things: Adam, batch norm, Dice over a batch.

    python tests/bench/deviation.py

Twenty steps on tiny patches, as in tests/unit/steps/test_strategy_ddp.py, which holds the rest to rounding. Writes
build/bench/deviation.json.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import harness

sys.path.insert(0, str(harness.ROOT / "tests"))

from medweave_steps.training.distributed.group import Alone
from support.rank_work import run_to_its_end, seeded, trainer_for
from support.strategy_work import by_two_ranks, largest_difference, options
from support.training_set import training_set

# Normalisation, Dice over the patches of a rank together, optimiser.
KINDS = {
    "nothing of a rank's own": ("INSTANCE", False, "sgd"),
    "Adam": ("INSTANCE", False, "adam"),
    "batch norm": ("BATCH", False, "sgd"),
    "batch Dice": ("INSTANCE", True, "sgd"),
    "all three": ("BATCH", True, "adam"),
}
SPREADS: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp", "ranks": 2},
    "local-sgd": {"strategy": "local-sgd", "ranks": 2, "sync_interval": 1},
}


def trained(config: Any, kind: str, group: Any) -> dict[str, Any]:
    """Return the weights after twenty steps, without running statistics; under `loss` that of the second half."""
    import torch
    from monai.losses import DiceCELoss

    norm, over_batch, optimiser = KINDS[kind]
    network = seeded(config, norm)
    trainer = trainer_for(config, network, group)
    stepper = trainer.stepper
    stepper.loss = DiceCELoss(sigmoid=True, batch=over_batch, smooth_nr=1.0, smooth_dr=1.0)
    weights = network.parameters()
    stepper.optimiser = torch.optim.SGD(weights, lr=0.1) if optimiser == "sgd" else torch.optim.Adam(weights, lr=1e-3)
    stepper.schedule = torch.optim.lr_scheduler.ConstantLR(stepper.optimiser, factor=1.0)
    history = run_to_its_end(trainer)
    found: dict[str, Any] = {name: weight.detach().numpy().copy() for name, weight in network.named_parameters()}
    return found | {"loss": [point["loss"] for point in history.points if "loss" in point][-1]}


def all_trained(data: str, group: Any) -> dict[str, dict[str, dict[str, Any]]]:
    """Train every kind with every strategy, by the same two ranks; return the results."""
    return {
        kind: {name: trained(options(Path(data), **changes), kind, group) for name, changes in SPREADS.items()}
        for kind in KINDS
    }


def main() -> None:
    """Print a line for each kind and strategy."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="medweave-deviation-") as name:
        data = training_set(Path(name) / "data")
        by_two = by_two_ranks(sys.modules["deviation"].all_trained, str(data))
        for kind, (norm, _, _) in KINDS.items():
            alone = trained(options(data), kind, Alone())
            start = {name: weight.detach().numpy() for name, weight in seeded(options(data), norm).named_parameters()}
            for spread, run in by_two[kind].items():
                row = {
                    "kind": kind, "strategy": spread, "largest_difference": largest_difference(run, alone),
                    "largest_step": largest_difference(alone, start), "loss": run["loss"], "loss_alone": alone["loss"],
                }  # fmt: skip
                rows.append(row)
                harness.say("deviation", ", ".join(f"{key} {value}" for key, value in row.items()))
    harness.RESULTS.mkdir(parents=True, exist_ok=True)
    (harness.RESULTS / "deviation.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    import deviation

    deviation.main()  # under its own name, by which the ranks import it
