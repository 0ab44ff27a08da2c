"""Segmentation of several labels on one GPU: `python tests/gpu/segmentation.py FOLDER [--cases 10]`, six minutes at most.

For machines with an NVIDIA GPU; pytest does not collect it. It writes synthetic brains (four contrasts, three labels), prepares
them, and checks on the GPU:

- losses of softmax, regions and voxels without annotation equal those of the CPU;
- `train` with softmax and with regions learns, in float32 and in mixed bfloat16;
- `ddp` with one rank (NCCL) ends with the weights of `single`, float32;
- `--preset auto` trains its plan; the memory that it takes is compared with the estimate.

Prints one line for each check and writes FOLDER/gpu_segmentation.json. Exit code 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

CONTEXT_GIB = 0.5
"""Memory of the process on the GPU without tensors, GiB."""
REGIONS = ("whole tumor:1,2,3", "tumor core:2,3", "enhancing tumor:3")
SMALL = (
    "--patch-shape",
    "48",
    "48",
    "40",
    "--window-shape",
    "64",
    "64",
    "40",
    "--batch-size",
    "4",
    "--learning-rate",
    "0.005",
)


class Checks:
    """The checks so far.

    Attributes:
        results: by name: whether it holds, and its figures.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results: dict[str, Any] = {}

    def add(self, name: str, holds: bool, **figures: Any) -> None:
        """Add and print a check."""
        self.results[name] = {"holds": holds, **figures}
        print(f"{'ok  ' if holds else 'FAIL'} {name}: {json.dumps(figures)}", flush=True)
        (self.folder / "gpu_segmentation.json").write_text(json.dumps(self.results, indent=2) + "\n", encoding="utf-8")


def step(*words: object, may_fail: bool = False) -> str:
    """Run a verb; return what it printed to stderr. Its run report goes to the temporary folder, unless the words name another."""
    report = () if "--run-report" in words else ("--run-report", str(Path(tempfile.gettempdir()) / "run_report.json"))
    done = subprocess.run(
        [sys.executable, "-m", "medweave_steps", *map(str, words), *report],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and not may_fail:
        sys.exit(f"{words[0]} ended with exit code {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stderr


def prepared(folder: Path, cases: int, grid: str, spacing_mm: float) -> Path:
    """Write, check and prepare synthetic brains; return the training set."""
    step("phantom", "brain", "--output", folder / "cohort", "--cases", cases, "--grid", grid)
    step("check", "--cohort", folder / "cohort", "--output", folder / "index.json")
    words = ("--cohort", folder / "cohort", "--cohort-index", folder / "index.json", "--output", folder / "prepared")
    step("preprocess", *words, "--spacing-mm", spacing_mm, spacing_mm, spacing_mm, "--fractions", 0.8, 0.2, 0)
    return folder / "prepared" / "training_set"


def card_of(model: Path) -> dict[str, Any]:
    """Return the card of a model."""
    card: dict[str, Any] = json.loads((model / "model_card.json").read_text(encoding="utf-8"))
    return card


def check_losses(checks: Checks) -> None:
    """Compare losses and gradients of the GPU with those of the CPU."""
    from medweave_core.contracts.labels import Label
    from medweave_core.contracts.model import OutputContract
    from medweave_steps.inference.head import OutputHead
    from medweave_steps.tasks.segmentation.loss import dice_cross_entropy
    from medweave_steps.tasks.segmentation.targets import Targets, parse_regions

    labels = tuple(Label(value=value, name=f"label {value}") for value in (1, 2, 3))
    contracts = {
        "softmax": OutputContract(activation="softmax"),
        "regions": OutputContract(activation="sigmoid", regions=parse_regions(REGIONS)),
    }
    rng = np.random.default_rng(0)
    for name, output in contracts.items():
        for ignore_value in (None, 9):
            targets = Targets(head=OutputHead(output=output, labels=labels), ignore_value=ignore_value)
            values = rng.choice([0, 1, 2, 3] + ([9] if ignore_value else []), (2, 24, 24, 24)).astype(np.float32)
            label = torch.from_numpy(np.stack([targets.encoded(one) for one in values]))
            logits = torch.from_numpy(rng.normal(size=(2, targets.head.num_channels, 24, 24, 24)).astype(np.float32))
            loss = dice_cross_entropy(dice_weight=1, cross_entropy_weight=1, targets=targets)
            results = []
            for device in ("cpu", "cuda"):
                own = logits.detach().clone().to(device).requires_grad_()
                value = loss(own, label.to(device))
                value.backward()
                results.append((float(value.detach()), own.grad.cpu()))
            apart = abs(results[0][0] - results[1][0])
            gradient = float((results[0][1] - results[1][1]).abs().max())
            kind = f"loss of {name}{' with ignored voxels' if ignore_value else ''}, GPU and CPU"
            checks.add(kind, apart < 1e-5 and gradient < 1e-7, loss=results[0][0], apart=apart, gradient_apart=gradient)


def check_training(checks: Checks, training_set: Path, folder: Path) -> None:
    """Train softmax and regions in both precisions."""
    for precision in ("float32", "bfloat16"):
        for name, options in (("softmax", ()), ("regions", ("--regions", *REGIONS))):
            model, started = folder / f"{name}-{precision}", time.monotonic()
            words = (
                "--training-set",
                training_set,
                "--output",
                model,
                "--training-log",
                folder / f"log-{name}-{precision}",
            )
            step(
                "train", *words, *SMALL, "--steps", 300, "--validation-interval", 3, "--device", "cuda", "--precision", precision,
                *options,
            )  # fmt: skip
            card = card_of(model)
            dices = {key: value for key, value in card["metrics"].items() if key.startswith("validation_dice")}
            checks.add(
                f"train, {name}, {precision}", (card["metrics"]["validation_dice"] or 0) > 0.3, **dices,
                patches_per_second=card["training"]["patches_per_second"], seconds=round(time.monotonic() - started, 1),
            )  # fmt: skip


def check_ddp(checks: Checks, training_set: Path, folder: Path) -> None:
    """Compare `ddp` of one rank with `single`."""
    from safetensors.torch import load_file

    weights = []
    for strategy in ("single", "ddp"):
        model = folder / f"strategy-{strategy}"
        words = ("--training-set", training_set, "--output", model, "--training-log", folder / f"log-{strategy}")
        options = (
            "--steps",
            30,
            "--epoch-steps",
            30,
            "--device",
            "cuda",
            "--precision",
            "float32",
            "--norm",
            "instance",
        )
        step("train", *words, *SMALL, *options, "--strategy", strategy)
        weights.append(load_file(str(model / "models" / "model.safetensors")))
    apart = max(float((weights[0][name] - weights[1][name]).abs().max()) for name in weights[0])
    checks.add("ddp of one rank and single, softmax, 30 steps", apart < 1e-3, largest_difference=apart)


def check_auto(checks: Checks, training_set: Path, folder: Path, *, steps: int) -> None:
    """Train the plan of preset auto, and compare its memory with the estimate."""
    model, started = folder / "auto", time.monotonic()
    words = ("--training-set", training_set, "--output", model, "--training-log", folder / "log-auto")
    printed = step(
        "train", *words, "--preset", "auto", "--steps", steps, "--epoch-steps", steps // 2, "--validation-interval", 2,
        "--device", "cuda", "--run-report", folder / "auto_report.json",
    )  # fmt: skip
    card = card_of(model)
    estimate = card["training"]["preset"]["estimated_memory_gib"]
    print("\n".join(line for line in printed.splitlines() if line.startswith(("  ", "train: note"))), flush=True)
    checks.add(
        "preset auto", math.isfinite(card["metrics"]["validation_dice"] or math.nan), estimated_gib=estimate,
        choices=card["training"]["preset"]["choices"], patches_per_second=card["training"]["patches_per_second"],
        dice={key: value for key, value in card["metrics"].items() if key.startswith("validation_dice")},
        seconds=round(time.monotonic() - started, 1),
    )  # fmt: skip


def check_memory(checks: Checks, training_set: Path, precision: str) -> None:
    """Measure the memory of a step of the plan in this process, with what torch keeps for later steps."""
    from medweave_steps.io.cohort.prepared import open_prepared
    from medweave_steps.runtime.options import build_config
    from medweave_steps.tasks import task_named
    from medweave_steps.train.config import TrainConfig
    from medweave_steps.train.network import seeded_network
    from medweave_steps.train.preset import apply_auto, step_memory
    from medweave_steps.training.device import choose_device, move_to_device
    from medweave_steps.training.loop.stepper import Stepper, uses_bfloat16

    set_ = frozenset({"training_set", "output"})
    values = {
        "training_set": training_set,
        "output": Path("model"),
        "preset": "auto",
        "device": "cuda",
        "steps": 4,
        "precision": precision,
    }
    config = build_config(TrainConfig, values)
    opened = open_prepared(training_set)
    task = task_named("segmentation").training_of_cohort(opened.cohort, config.task_options)
    training, _ = task.usable_cases(opened)
    memory = step_memory(config, ranks_on_node=1)
    preset = apply_auto(config, opened, training, options_set=set_, memory=memory, out_channels=task.num_channels)
    config, device = preset.config, choose_device("cuda")
    sampler = task.open_sampler(config, opened, training)
    network = move_to_device(seeded_network(config, task, channels=len(opened.cohort.channels)), device)
    stepper = Stepper(
        recipe=config, learning_rate=config.learning_rate, num_steps=100, loss=task.open_loss(config), network=network,
        wrapped=network, device=device, uses_bfloat16=uses_bfloat16(config, device),
    )  # fmt: skip
    seconds = []
    torch.cuda.reset_peak_memory_stats()
    batches = [sampler.batch(number) for number in range(2)]
    for number in range(8):
        torch.cuda.synchronize()
        started = time.monotonic()
        stepper.begin()
        stepper.backward(stepper.loss_of(batches[number % 2]))
        stepper.apply()
        torch.cuda.synchronize()
        seconds.append(time.monotonic() - started)
    allocated, reserved = (
        peak / 2**30 for peak in (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
    )
    estimate = preset.facts["estimated_memory_gib"]
    checks.add(
        f"memory of a step of preset auto, {precision}", 0.7 < (reserved + CONTEXT_GIB) / estimate < 1.1,
        allocated_gib=round(allocated, 2), reserved_gib=round(reserved, 2), estimated_gib=estimate, patch=list(config.patch_shape),
        batch=config.batch_size, channels=list(config.channels), seconds_per_step=round(sorted(seconds)[len(seconds) // 2], 4),
    )  # fmt: skip
    del stepper, network
    torch.cuda.empty_cache()


def main() -> int:
    """Run all checks; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder to write; must not exist")
    parser.add_argument("--cases", type=int, default=10, help="synthetic brains of each grid (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="steps of preset auto (default: %(default)s)")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no CUDA device that torch can use")
    folder: Path = options.folder.resolve()
    folder.mkdir(parents=True)
    checks, started = Checks(folder), time.monotonic()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}", flush=True)
    check_losses(checks)
    coarse = prepared(folder / "coarse", options.cases, "demo", 3.75)
    print(f"coarse cohort prepared after {time.monotonic() - started:.0f} s", flush=True)
    check_training(checks, coarse, folder)
    check_ddp(checks, coarse, folder)
    fine = prepared(folder / "fine", options.cases, "scanner", 1.0)
    print(f"fine cohort prepared after {time.monotonic() - started:.0f} s", flush=True)
    for precision in ("bfloat16", "float32"):
        check_memory(checks, fine, precision)
    check_auto(checks, fine, folder, steps=options.steps)
    print(f"{time.monotonic() - started:.0f} s in all", flush=True)
    return 0 if all(result["holds"] for result in checks.results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
