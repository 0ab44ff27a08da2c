"""What memory for cases (`--cache-mib`) saves of the time to cut a batch: whole cases kept ready to use beside mapped files.

    python tests/bench/data_path.py [--pairs 7]

Four cases of 240 x 240 x 152 voxels, one channel, one a step, each read before, so that the system's page cache has their files:
what is saved is the conversion to the network's input. Writes build/bench/data_path.json.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import harness

sys.path.insert(0, str(harness.ROOT / "tests"))

from medweave_steps.io.prepared import open_prepared
from medweave_steps.train.config import TrainConfig
from medweave_steps.training.cases import open_sampler, usable_cases
from medweave_steps.training.data import PatchSampler
from support.training_set import training_set

SHAPE = (240, 240, 152)
NUM_CASES = 4


def sampler_of(data: Path, cache_mib: int | None) -> PatchSampler:
    """Over whole cases."""
    config = TrainConfig(
        training_set=data, output=data / "model", epochs=1, batch_size=1, patch_shape=SHAPE,
        window_shape=SHAPE, cache_mib=cache_mib,
    )  # fmt: skip
    prepared = open_prepared(data)
    return open_sampler(config, prepared, usable_cases(prepared)[0], whole_volumes=True, cache_mib=cache_mib)


def seconds(sampler: PatchSampler) -> float:
    """Of an epoch's batches, one after the other, s."""
    started = time.perf_counter()
    for step in range(NUM_CASES):
        sampler.batch(step)
    return time.perf_counter() - started


def main() -> None:
    """Alternating pairs over the same files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="medweave-data-") as name:
        data = training_set(Path(name) / "data", ("train",) * NUM_CASES + ("validation",), shape=SHAPE)
        kept, mapped = sampler_of(data, 1024), sampler_of(data, None)
        harness.run_pairs(
            "data_path", lambda: seconds(kept), lambda: seconds(mapped), reference_tool="memory-mapped files, in the page cache",
            pairs=options.pairs,
        )  # fmt: skip


if __name__ == "__main__":
    main()
