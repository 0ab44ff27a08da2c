"""Structured pruning of the demo's U-Net: time of the network in OpenVINO float32 before and after, in alternation.

    python tests/bench/prune_unet.py [--model DIR] [--training-set DIR] [--steps N] [-- OPTIONS OF prune]

Without --model it trains the demo's network first, on the cases of quality.py. Writes build/bench/prune_unet.json; its notes have
parameters, operations, bytes, torch's seconds and all validation metrics before and after. The bar is 1.3 times less time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import harness
import quality

NAME, BAR, THREADS, REPEATS = "prune_unet", 1.3, 2, 10
DATA = harness.ROOT / "build" / "bench" / NAME
PRUNING = (
    "--optimizer", "adam", "--learning-rate", "0.003", "--epoch-steps", "50", "--plateau-epochs", "4", "--budget-epochs", "60",
    "--removal-tolerance", "0.6",
)  # fmt: skip


def step(folder: Path, verb: str, *words: str | Path) -> None:
    """Run one verb; its report goes to the folder."""
    report = ("--run-report", folder / f"{verb}_report.json")
    subprocess.run([quality.STEP, verb, *map(str, (*words, *report))], cwd=folder, check=True)


def pruned(folder: Path, model: Path, training_set: Path, options: Sequence[str]) -> dict[str, Any]:
    """Prune a model and export both; return the figures of the pruning."""
    data = ("--training-set", training_set)
    step(folder, "prune", "--trained-model", model, *data, "--output", folder / "pruned", *PRUNING, *options)
    for source, name in ((model, "whole"), (folder / "pruned", "smaller")):
        step(folder, "export", "--trained-model", source, "--output", folder / name)
    facts: dict[str, Any] = json.loads((folder / "prune_report.json").read_text())["results"]["pruning"]
    return facts


def network_of(model: Path) -> Callable[[], None]:
    """Return a function that runs a model's float32 graph several times on an input of its shape."""
    import numpy as np
    import openvino

    core = openvino.Core()
    compiled = core.compile_model(model / "models" / "float32.xml", "CPU", {"INFERENCE_NUM_THREADS": THREADS})
    request, image = compiled.create_infer_request(), np.zeros(compiled.input(0).shape, np.float32)

    def run() -> None:
        for _ in range(REPEATS):
            request.infer([image])

    return run


def write(name: str, folder: Path, facts: Mapping[str, Any], *, bar: float | None) -> None:
    """Measure both graphs in alternation and write the result file."""
    before, after = facts["before"], facts["after"]
    notes = {
        "flops_ratio": round(before["flops"] / after["flops"], 3),
        "parameters_ratio": round(before["parameters"] / after["parameters"], 3),
        "channels": json.loads((folder / "pruned" / "model_card.json").read_text())["architecture"].get("channels", {}),
        "threads": THREADS,
        "inputs_per_measurement": REPEATS,
        "data": "synthetic",
        **facts,
    }
    harness.run_pairs(
        name, network_of(folder / "smaller"), network_of(folder / "whole"), pairs=11, bar=bar, notes=notes,
        reference_tool="the same model before pruning, OpenVINO float32",
    )  # fmt: skip


def main() -> int:
    """Prune and measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="model folder of train; by default it is trained")
    parser.add_argument("--training-set", type=Path, help="prepared cases; by default those of quality.py")
    parser.add_argument("--steps", type=int, default=2000, help="of the training")
    parser.add_argument("options", nargs="*", help="of prune, after --")
    arguments = parser.parse_args()
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir(parents=True)
    training_set = arguments.training_set
    if training_set is None:
        quality.prepare()
        training_set = quality.DATA / "prepared" / "training_set"
    model = arguments.model
    if model is None:
        model = DATA / "trained"
        step(DATA, "train", "--training-set", training_set, "--output", model, "--steps", str(arguments.steps))
        shutil.rmtree(DATA / "training_log")
    facts = pruned(DATA, model.resolve(), training_set.resolve(), arguments.options)
    write(NAME, DATA, facts, bar=BAR)
    return 0


if __name__ == "__main__":
    sys.exit(main())
