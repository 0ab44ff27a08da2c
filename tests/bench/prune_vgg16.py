"""Structured pruning of a quarter-width VGG16 at 64 x 64 pixels, trained on the synthetic skin lesions of `make demo-skin`.

    python tests/bench/prune_vgg16.py [--cases N] [--steps N] [-- OPTIONS OF prune]

Writes build/bench/prune_vgg16.json: the ratio of operations before and after pruning, whose bar is 2. Its notes have parameters,
bytes, torch's seconds and all validation metrics before and after, and the time of both graphs in OpenVINO float32.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import time

import harness
import prune_unet

NAME, BAR = "prune_vgg16", 2.0
DATA = harness.ROOT / "build" / "bench" / NAME
WIDTH, SIZE, SEED = 0.25, 64, 31
TRAINING = ("--learning-rate", "0.001", "--batch-size", "32", "--dropout", "0.2", "--epoch-steps", "150")
PRUNING = (
    "--optimizer", "adam", "--learning-rate", "0.0003", "--batch-size", "32", "--epoch-steps", "50", "--plateau-epochs", "3",
    "--budget-epochs", "20", "--removal-tolerance", "0.3",
)  # fmt: skip


def prepare(cases: int) -> None:
    """Write and prepare the photographs."""
    words = ("skin", "--cases", str(cases), "--seed", str(SEED), "--image-size", str(SIZE))
    prune_unet.step(DATA, "phantom", *words, "--output", DATA / "cohort")
    index = ("--cohort", DATA / "cohort")
    prune_unet.step(DATA, "check", *index, "--output", DATA / "cohort_index.json")
    index += ("--cohort-index", DATA / "cohort_index.json")
    prune_unet.step(DATA, "preprocess", *index, "--purpose", "training", "--output", DATA / "prepared")


def seconds_of(name: str) -> list[float]:
    """Return the seconds of several runs of one graph."""
    run, seconds = prune_unet.network_of(DATA / name), []
    for _ in range(7):
        started = time.perf_counter()
        run()
        seconds.append((time.perf_counter() - started) / prune_unet.REPEATS)
    return seconds


def main() -> int:
    """Train, prune and measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=560, help="patients")
    parser.add_argument("--steps", type=int, default=1500, help="of the training")
    parser.add_argument("options", nargs="*", help="of prune, after --")
    arguments = parser.parse_args()
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir(parents=True)
    prepare(arguments.cases)
    training_set = DATA / "prepared" / "training_set"
    words = ("--task", "classification", "--network", "vgg16", "--width", str(WIDTH), "--steps", str(arguments.steps))
    prune_unet.step(DATA, "train", "--training-set", training_set, "--output", DATA / "trained", *words, *TRAINING)
    shutil.rmtree(DATA / "training_log")
    facts = prune_unet.pruned(DATA, DATA / "trained", training_set, (*PRUNING, *arguments.options))
    before, after = facts["before"], facts["after"]
    seconds = {name: statistics.median(seconds_of(name)) for name in ("whole", "smaller")}
    harness.single_figure(
        NAME, before["flops"] / after["flops"], unit="times fewer operations", bar=BAR, higher_is_better=True,
        notes={
            "parameters_ratio": round(before["parameters"] / after["parameters"], 3), "openvino_seconds": seconds,
            "width": WIDTH, "image": [SIZE, SIZE], "data": "synthetic", **facts,
        },
    )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
