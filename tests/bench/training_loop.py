"""The overhead of medweave's training loop against a bare torch loop, with the same network, loss, optimizer and patches.

    python tests/bench/training_loop.py [--steps 100] [--side 48] [--batch-size 2] [--device auto] [--precision float32]
        [--pairs 7] [--strategy single] [--reference-layout ours]

The bare loop has all its patches on the device before it begins; ours cuts each step's while the one before is computed. On a
GPU it is the time by the clock of one loop after the other, without the first steps of each, in which torch looks for kernels and
ours starts the processes that cut patches. On a CPU one thread computes, and it is that thread's processor time, for others may
have the machine's other cores and a part of this one; both take their steps in turns, for the same reason. Writes
build/bench/training_loop.json, with the share of our time that was spent waiting for patches. `--strategy ddp` is ours by one
rank of torch.distributed: NCCL on a GPU, gloo on a CPU.
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
from typing import Any, ClassVar

import harness

sys.path.insert(0, str(harness.ROOT / "tests"))

from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.runtime.environment import RankPlace, available_cpus
from medweave_steps.runtime.signals import Deferred
from medweave_steps.train.config import TrainConfig
from medweave_steps.train.loop import Trainer
from medweave_steps.train.network import seeded_network
from medweave_steps.training.data.batch import Batch
from medweave_steps.training.device import choose_device
from medweave_steps.training.distributed.group import Alone, Group, RankGroup
from medweave_steps.training.loop.energy import RanksEnergy
from medweave_steps.training.loop.stepper import uses_bfloat16
from support.one_label import TASK, open_sampler, open_validator, usable_cases
from support.rank_work import run_to_its_end
from support.training_set import training_set

BAR = 1 / 1.02  # ours may take 1.02 times as long
MOST_WAIT = 0.05
FIRST_STEPS = 20
"""Of a loop on a GPU, which are not measured."""


class Unvalidated(Trainer):
    """A trainer without validation, which would follow the last step."""

    def _validate(self, history: Any) -> dict[str, float | None]:
        return {"dice": 0.0, "sensitivity": 0.0, "false_positives_per_scan": 0.0}


def seconds_of(device: Any) -> float:
    """Return the current time after the device's queued work has ended."""
    import torch

    if device.type != "cuda":
        return time.thread_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def name_of(device: Any) -> str:
    """Return the name of the GPU, or `cpu`."""
    import torch

    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else "cpu"


def one_rank(device: Any) -> RankGroup:
    """Return a torch.distributed group of this process alone."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    place = RankPlace(rank=0, local_rank=0, world_size=1, store=("127.0.0.1", port))
    return RankGroup(place, uses_gpu=device.type == "cuda")


def trainer_of(config: TrainConfig, device: Any, group: Group) -> Trainer:
    """Return a complete trainer, made from the verb's own parts."""
    prepared = open_prepared(config.training_set)
    training, validation = usable_cases(prepared)
    window = config.window_shape
    return Unvalidated(
        config=config, network=seeded_network(config, TASK), task=TASK,
        sampler=open_sampler(config, prepared, training, **config.of_sampler()),
        validator=open_validator(config, prepared, validation, window_shape=window, overlap=0.0, device=device),
        strategy=config.open_strategy(
            num_cases=len(training), num_channels=len(prepared.cohort.channels), group=group, device=device
        ),
        uses_bfloat16=uses_bfloat16(config, device), data_sha256="", signals=Deferred(),
        energy=RanksEnergy(Alone(), device), num_threads=available_cpus() if device.type == "cuda" else 1,
    )  # fmt: skip


def steps_after(trainer: Trainer, first: int) -> dict[str, float]:
    """Train to the end; return the seconds of the steps after the first ones (no other loop has turns), and the waiting share."""
    own_step, state, device = trainer._train_step, trainer.state, trainer.strategy.device
    begun = dict[str, float]()

    def marked(batch: Any) -> bool:
        if state.step == first:
            begun.update(at=seconds_of(device), waited=state.data_wait_seconds, trained=state.train_seconds)
        return own_step(batch)

    trainer._train_step = marked  # type: ignore[method-assign]
    run_to_its_end(trainer)
    trained = state.train_seconds - begun["trained"]
    return {
        "took": seconds_of(device) - begun["at"],
        "wait": (state.data_wait_seconds - begun["waited"]) / trained,
        "first": begun["trained"],
    }


class Bare:
    """The same steps by ten lines of torch; the patches of one training are cut once for all of its loops."""

    _batches: ClassVar[dict[TrainConfig, list[Batch]]] = {}

    def __init__(self, config: TrainConfig, device: Any, *, as_torch_lays: bool = False) -> None:
        import torch

        # A network that is wrapped for ddp would do more than a bare one.
        trainer = trainer_of(dataclasses.replace(config, strategy="single"), device, Alone())
        self.network, self.loss_of, self.optimiser = (
            trainer.network.train(), trainer.stepper.loss, trainer.stepper.optimiser,
        )  # fmt: skip
        for weight in self.network.parameters() if as_torch_lays else ():
            weight.data = weight.data.contiguous()
        if config not in self._batches:
            self._batches[config] = [trainer.sampler.batch(step) for step in range(config.steps)]
        self.pairs = [
            (torch.from_numpy(b.image_BCIJK).to(device), torch.from_numpy(b.label_BCIJK).float().to(device))
            for b in self._batches[config]
        ]
        self.mixed = torch.autocast(device.type, torch.bfloat16, enabled=trainer.stepper.uses_bfloat16)

    def step(self, number: int) -> None:
        """Run one step."""
        image, label = self.pairs[number]
        self.optimiser.zero_grad()
        with self.mixed:
            logits = self.network(image)
        loss = self.loss_of(logits.float(), label)
        loss.backward()
        self.optimiser.step()

    def run(self, device: Any, first: int) -> float:
        """Run all steps; return the seconds of those after the first ones."""
        for number in range(first):
            self.step(number)
        started = seconds_of(device)
        for number in range(first, len(self.pairs)):
            self.step(number)
        return seconds_of(device) - started


class Turns:
    """Our loop, with a bare step after each of its steps; the bare step's time is not counted."""

    def __init__(self, config: TrainConfig, device: Any, group: Group, waits: list[float]) -> None:
        self.config, self.device, self.group, self.waits = config, device, group, waits
        self._found = dict[str, float]()

    def take(self, name: str) -> float:
        """Return the seconds of `ours` or `bare`; the first call runs both."""
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
    """Measure alternating pairs on one device."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--side", type=int, default=48, help="voxels of a patch along each side")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--strategy", choices=("single", "ddp"), default="single")
    parser.add_argument(
        "--reference-layout", choices=("ours", "torch"), default="ours", help="of weights on a GPU, in the bare loop"
    )
    options = parser.parse_args()
    as_torch_lays = options.reference_layout == "torch"
    device, waits, firsts = choose_device(options.device), list[float](), list[float]()
    group = one_rank(device) if options.strategy == "ddp" else Alone()
    if device.type != "cuda":
        torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="medweave-loop-") as name:
        data = training_set(Path(name) / "data", shape=(80, 80, 80))
        side = (options.side,) * 3
        config = TrainConfig(
            training_set=data, output=Path(name) / "model", steps=options.steps, epoch_steps=options.steps,
            batch_size=options.batch_size, patch_shape=side, window_shape=side, precision=options.precision,
            validation_interval=10**6, strategy=options.strategy,
        )  # fmt: skip

        def ours() -> float:
            steps = steps_after(trainer_of(config, device, group), FIRST_STEPS)
            waits.append(steps["wait"])
            firsts.append(steps["first"])
            return steps["took"]

        turns = Turns(config, device, group, waits)
        measures = (
            (ours, lambda: Bare(config, device, as_torch_lays=as_torch_lays).run(device, FIRST_STEPS))
            if device.type == "cuda"
            else (lambda: turns.take("ours"), lambda: turns.take("bare"))
        )
        harness.run_pairs(
            "training_loop", *measures, reference_tool=f"a bare loop of torch {torch.__version__}",
            pairs=options.pairs, bar=BAR,
            notes={
                **{key: str(value) for key, value in vars(options).items()}, "device": name_of(device), "waits": waits,
                "seconds of the first steps": firsts,
            },
        )  # fmt: skip
    if isinstance(group, RankGroup):
        group.close()
    harness.say("training_loop", f"waiting for patches: {max(waits[1:]):.1%} of the time at most (bar {MOST_WAIT:.0%})")


if __name__ == "__main__":
    main()
