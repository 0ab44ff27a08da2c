"""What medweave adds to a training step: its loop beside a bare one of torch, over the same network, loss, optimiser and patches.

    python tests/bench/training_loop.py [--steps 100] [--side 48] [--device auto] [--precision float32] [--pairs 7]
        [--strategy single]

The bare loop has all its patches on the device before it begins; ours cuts each step's while the one before is computed. On a
GPU it is the time by the clock of one loop after the other. On a CPU one thread computes, and it is that thread's processor time,
for others may have the machine's other cores and a part of this one; both take their steps in turns, for the same reason. Writes
build/bench/training_loop.json, with the share of our time that was spent
waiting for patches. `--strategy ddp` is ours by one rank of torch.distributed: NCCL on a GPU, gloo on a CPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness

sys.path.insert(0, str(harness.ROOT / "tests"))

from medweave_steps.io.prepared import open_prepared
from medweave_steps.runtime.environment import Place, available_cpus
from medweave_steps.runtime.signals import Deferred
from medweave_steps.train.config import TrainConfig
from medweave_steps.train.loop import Trainer
from medweave_steps.train.network import seeded_network
from medweave_steps.train.strategies import strategy_class
from medweave_steps.training.cases import open_sampler, open_validator, usable_cases
from medweave_steps.training.energy import RanksEnergy
from medweave_steps.training.group import Alone, Group, RankGroup, choose_device
from medweave_steps.training.stepper import uses_bfloat16
from support.rank_work import run_to_its_end
from support.training_set import training_set

BAR = 1 / 1.02  # ours may take 1.02 times as long
MOST_WAIT = 0.05


class Unvalidated(Trainer):
    """The steps alone: the last of them would be followed by a validation."""

    def _validate(self, history: Any) -> dict[str, float | None]:
        return {"dice": 0.0, "sensitivity": 0.0, "false_positives_per_scan": 0.0}


def seconds_of(device: Any) -> float:
    """Now, by what is measured on this device; a GPU has ended its work then."""
    import torch

    if device.type != "cuda":
        return time.thread_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def one_rank(device: Any) -> RankGroup:
    """A group of torch.distributed that this process is alone in."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    place = Place(rank=0, local_rank=0, world_size=1, store=("127.0.0.1", port))
    return RankGroup(place, uses_gpu=device.type == "cuda")


def trainer_of(config: TrainConfig, device: Any, group: Group) -> Trainer:
    """A whole training by the verb's own parts."""
    prepared = open_prepared(config.training_set)
    training, validation = usable_cases(prepared)
    window = config.window_shape
    return Unvalidated(
        config=config, network=seeded_network(config), sampler=open_sampler(config, prepared, training),
        validator=open_validator(prepared, validation, window_shape=window, overlap=0.0, device=device),
        strategy=strategy_class(config.strategy)(config=config, group=group, device=device),
        uses_bfloat16=uses_bfloat16(config, device), data_sha256="", signals=Deferred(),
        energy=RanksEnergy(Alone(), device), num_threads=available_cpus() if device.type == "cuda" else 1,
    )  # fmt: skip


class Bare:
    """The same steps by ten lines of torch."""

    def __init__(self, config: TrainConfig, device: Any) -> None:
        import torch

        # A network that is wrapped for ddp would do more than a bare one.
        trainer = trainer_of(dataclasses.replace(config, strategy="single"), device, Alone())
        self.network, self.loss_of, self.optimiser = (
            trainer.network.train(), trainer.stepper.loss, trainer.stepper.optimiser,
        )  # fmt: skip
        batches = [trainer.sampler.batch(step) for step in range(config.steps)]
        self.pairs = [
            (torch.from_numpy(b.image_BCIJK).to(device), torch.from_numpy(b.label_BCIJK).float().to(device))
            for b in batches
        ]
        self.mixed = torch.autocast(device.type, torch.bfloat16, enabled=trainer.stepper.uses_bfloat16)

    def step(self, number: int) -> None:
        """One of them."""
        image, label = self.pairs[number]
        self.optimiser.zero_grad()
        with self.mixed:
            logits = self.network(image)
        loss = self.loss_of(logits.float(), label)
        loss.backward()
        self.optimiser.step()

    def run(self, device: Any) -> float:
        """All of them, s."""
        started = seconds_of(device)
        for number in range(len(self.pairs)):
            self.step(number)
        return seconds_of(device) - started


class Turns:
    """Our loop, with a step of the bare one after each of its own; what that takes is not ours."""

    def __init__(self, config: TrainConfig, device: Any, group: Group, waits: list[float]) -> None:
        self.config, self.device, self.group, self.waits = config, device, group, waits
        self._found = dict[str, float]()

    def take(self, name: str) -> float:
        """`ours` or `bare`, s; the first of the two that is asked for runs both."""
        if name not in self._found:
            self._found = self._run()
        return self._found.pop(name)

    def _run(self) -> dict[str, float]:
        trainer, bare_s = trainer_of(self.config, self.device, self.group), 0.0
        other = Bare(self.config, self.device)
        own_step = trainer._train_step

        def both(batch: Any) -> bool:
            nonlocal bare_s
            number, together = trainer.state.step, own_step(batch)
            started = seconds_of(self.device)
            other.step(number)
            bare_s += seconds_of(self.device) - started
            return together

        trainer._train_step = both  # type: ignore[method-assign]
        started = seconds_of(self.device)
        run_to_its_end(trainer)
        ours = seconds_of(self.device) - started - bare_s
        self.waits.append(trainer.state.data_wait_seconds / trainer.state.train_seconds)
        return {"ours": ours, "bare": bare_s}


def main() -> None:
    """Alternating pairs on one device."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--side", type=int, default=48, help="voxels of a patch along each side")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--strategy", choices=("single", "ddp"), default="single")
    options = parser.parse_args()
    device, waits = choose_device(options.device), []
    group = one_rank(device) if options.strategy == "ddp" else Alone()
    if device.type != "cuda":
        torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="medweave-loop-") as name:
        data = training_set(Path(name) / "data", shape=(80, 80, 80))
        side = (options.side,) * 3
        config = TrainConfig(
            training_set=data, output=Path(name) / "model", steps=options.steps, epoch_steps=options.steps, batch_size=2,
            patch_shape=side, window_shape=side, precision=options.precision, validation_interval=10**6,
            strategy=options.strategy,
        )  # fmt: skip

        def ours() -> float:
            trainer = trainer_of(config, device, group)
            started = seconds_of(device)
            run_to_its_end(trainer)
            took = seconds_of(device) - started
            waits.append(trainer.state.data_wait_seconds / trainer.state.train_seconds)
            return took

        turns = Turns(config, device, group, waits)
        measures = (
            (ours, lambda: Bare(config, device).run(device))
            if device.type == "cuda"
            else (lambda: turns.take("ours"), lambda: turns.take("bare"))
        )
        harness.run_pairs(
            "training_loop", *measures, reference_tool=f"a bare loop of torch {torch.__version__}",
            pairs=options.pairs, bar=BAR,
            notes={**{key: str(value) for key, value in vars(options).items()}, "device": device.type, "waits": waits},
        )  # fmt: skip
    if isinstance(group, RankGroup):
        group.close()
    harness.say("training_loop", f"waiting for patches: {max(waits[1:]):.1%} of the time at most (bar {MOST_WAIT:.0%})")


if __name__ == "__main__":
    main()
