"""Time that memory for cases (`--cache-mib`) saves in cutting a batch: cases cached in memory, against memory-mapped files.

    python tests/bench/data_path.py [--pairs 7] [--device cpu] [--precision bfloat16] [--data-workers N] [--epochs 20]

Four cases of 240 x 240 x 152 voxels, one channel, one a step, each read before, so that the system's page cache has their files:
the saving is the conversion to the network's input. On a GPU (`--device cuda`) it is the time of a whole training's steps, by
`--data-workers` as `train` has them, without the first epochs, in which the memory fills, and the share of the time in which
it waited for cases. Writes build/bench/data_path.json.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness

sys.path.insert(0, str(harness.ROOT / "tests"))

from training_loop import name_of, steps_after, trainer_of

from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.tasks.segmentation.sampler import PatchSampler
from medweave_steps.train.config import TrainConfig
from medweave_steps.training.device import choose_device
from medweave_steps.training.distributed.group import Alone
from support.one_label import open_sampler, usable_cases
from support.training_set import training_set

SHAPE = (240, 240, 152)
NUM_CASES = 4
FIRST_EPOCHS = 5
CACHE_MIB = 2048


def sampler_of(data: Path, cache_mib: int | None) -> PatchSampler:
    """Return a sampler over whole cases."""
    config = TrainConfig(
        training_set=data, output=data / "model", epochs=1, batch_size=1, patch_shape=SHAPE,
        window_shape=SHAPE, cache_mib=cache_mib,
    )  # fmt: skip
    prepared = open_prepared(data)
    return open_sampler(config, prepared, usable_cases(prepared)[0], whole_volumes=True, cache_mib=cache_mib)


def seconds(sampler: PatchSampler) -> float:
    """Return the seconds of an epoch's batches, one after the other."""
    started = time.perf_counter()
    for step in range(NUM_CASES):
        sampler.batch(step)
    return time.perf_counter() - started


class Trainings:
    """Trainings on one device, with and without memory for cases.

    Attributes:
        waits: of each training, with memory and without, the share of its time in which it waited for cases.
    """

    def __init__(self, data: Path, device: Any, options: argparse.Namespace) -> None:
        self.data, self.device, self.options = data, device, options
        self.waits = dict[str, list[float]]()

    def seconds(self, cache_mib: int | None) -> float:
        """Return the seconds of the steps after the first epochs."""
        config = TrainConfig(
            training_set=self.data, output=self.data / "model", epochs=self.options.epochs, batch_size=1,
            patch_shape=SHAPE, window_shape=SHAPE, cache_mib=cache_mib, precision=self.options.precision,
            data_workers=self.options.data_workers, validation_interval=10**6,
        ).for_cases(NUM_CASES, num_channels=1)  # fmt: skip
        steps = steps_after(trainer_of(config, self.device, Alone()), FIRST_EPOCHS * NUM_CASES)
        self.waits.setdefault(f"{cache_mib} MiB cached" if cache_mib else "mapped files", []).append(steps["wait"])
        return steps["took"]


def main() -> None:
    """Measure alternating pairs over the same files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cpu: no network computes")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="bfloat16", help="on a GPU")
    parser.add_argument("--data-workers", type=int, help="on a GPU; else as many as train has")
    parser.add_argument("--epochs", type=int, default=20, help="on a GPU")
    options = parser.parse_args()
    device = choose_device(options.device)
    with tempfile.TemporaryDirectory(prefix="medweave-data-") as name:
        data = training_set(Path(name) / "data", ("train",) * NUM_CASES + ("validation",), shape=SHAPE)
        trainings = Trainings(data, device, options)
        cached, mapped = sampler_of(data, 1024), sampler_of(data, None)
        measures = (
            (lambda: trainings.seconds(CACHE_MIB), lambda: trainings.seconds(None))
            if device.type == "cuda"
            else (lambda: seconds(cached), lambda: seconds(mapped))
        )
        harness.run_pairs(
            "data_path", *measures, reference_tool="memory-mapped files, in the page cache", pairs=options.pairs,
            notes={
                **{key: str(value) for key, value in vars(options).items()}, "device": name_of(device),
                "waits": trainings.waits,
            },
        )  # fmt: skip
        for name_of_run, waits in trainings.waits.items():
            harness.say("data_path", f"{name_of_run}: waiting for cases {statistics.median(waits):.1%} of the time")


if __name__ == "__main__":
    main()
