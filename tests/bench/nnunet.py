"""Dice on test cases compared with nnU-Net v2: the same files, plan, split and number of iterations, on the CPU.

Data: synthetic brains of `medweave-step phantom brain --grid demo` (four MR contrasts, three labels) as an nnU-Net v2 data set,
which both tools read. Plan: by nnU-Net's planner of the residual-encoder U-Net, with 8 channels in the first stage and patches of
32 voxels per side. medweave trains with `--preset auto` and spacing, patch, batch and channels of this plan; stages, kernels,
blocks and number of weights must then be equal, or the benchmark ends. Both use the last weights, windows of one patch with half
a patch between them, and no mirroring at inference. `nnunet_reference.py` runs nnU-Net.

Both train with one compute thread and cut patches in parallel: on a busy machine, two threads wait for each other most of the time.

One function computes the Dice of each case and label for both, on the grid of the source; the Dice of a case is the mean over the
labels that its reference has. Bar: the 95 % bootstrap interval over test cases of the paired difference of Dice (medweave minus
nnU-Net) reaches above -0.03.

    python tests/bench/nnunet.py [--nnunet PYTHON] [--cases 30] [--test-cases 24] [--iterations 300] [--seed 0]

nnU-Net is no dependency of medweave. Without `--nnunet`, the first run makes an environment in build/bench/nnunet-env/ with
`python -m venv` and pip, from the package index that pip is configured for. It sees the packages of the environment that runs the
benchmark, so that both tools use the same torch, and has nnunetv2 and its other dependencies (0.3 GB). `--nnunet` names the Python
of another environment with nnunetv2 2.8 or newer; both torch versions are printed. Do not compare the seconds then.

Writes build/bench/nnunet.json; the masks, models and logs of the last run are in build/bench/nnunet/.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import nibabel
import numpy as np
from nnunet_reference import DATA_SET, EPOCH_ITERATIONS, FOLDERS

from medweave_steps.metrics.bootstrap import confidence_interval, mean
from medweave_steps.metrics.overlap import dice

BAR = -0.03
NNUNET = "nnunetv2==2.8.1"
ENVIRONMENT = harness.RESULTS / "nnunet-env"
FOLDER = harness.RESULTS / "nnunet"
STEP = Path(sys.executable).with_name("medweave-step")
SEEDS = {"--seed": "3401", "--held-out-seed": "340111"}
VALIDATION_SHARE = 0.2
MASK = "lesion_mask.nii.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The data set in nnU-Net's layout.

    Attributes:
        training: folder with imagesTr, labelsTr and dataset.json.
        test: folder with imagesTs and dataset.json.
        splits: training and validation cases, as nnU-Net's splits_final.json.
        references: label map of each test case.
        labels: name of each value.
    """

    training: Path
    test: Path
    splits: Path
    references: Mapping[str, Path]
    labels: Mapping[int, str]


def main() -> int:
    """Run both tools and compare them; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nnunet", type=Path, metavar="PYTHON", help="Python of an environment with nnunetv2")
    parser.add_argument("--cases", type=int, default=30, help="for training and validation")
    parser.add_argument("--test-cases", type=int, default=24)
    parser.add_argument("--iterations", type=int, default=300, help=f"a multiple of {EPOCH_ITERATIONS}")
    parser.add_argument("--seed", type=int, default=0, help="of both trainings")
    options = parser.parse_args()
    if options.iterations < 1 or options.iterations % EPOCH_ITERATIONS:
        parser.error(f"--iterations must be a multiple of {EPOCH_ITERATIONS}")
    started, load = time.monotonic(), os.getloadavg()[0]
    python = options.nnunet or make_environment()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    data = make_data(options.cases, options.test_cases)
    theirs = run_nnunet(python, data, options.iterations, options.seed)
    ours = run_medweave(data, theirs["plan"], options.iterations, options.seed)
    check_same_plan(ours, theirs)
    notes = {
        "iterations": options.iterations, "training_seed": options.seed, "cases": options.cases,
        "test_cases": options.test_cases, "data": "synthetic", "load": load,
    }  # fmt: skip
    report = compare(data, ours, theirs, notes)
    harness.say("nnunet", f"{time.monotonic() - started:.0f} s in total, load {load:.1f} at the start")
    return 0 if report["meets_bar"] else 1


def make_environment() -> Path:
    """Return the Python of nnU-Net's environment; make it if it is missing."""
    python = ENVIRONMENT / "bin" / "python"
    if (ENVIRONMENT / ".complete").is_file():
        return python
    harness.say("nnunet", f"installing {NNUNET} into {ENVIRONMENT.relative_to(harness.ROOT)} with pip")
    venv.create(ENVIRONMENT, clear=True, with_pip=True)
    ours = sysconfig.get_path("purelib")
    theirs = sysconfig.get_path("purelib", vars={"base": str(ENVIRONMENT), "platbase": str(ENVIRONMENT)})
    (Path(theirs) / "medweave.pth").write_text(ours + "\n", encoding="utf-8")
    pip = (python, "-m", "pip", "--disable-pip-version-check", "--quiet")
    subprocess.run([*pip, "install", NNUNET], check=True)
    (ENVIRONMENT / ".complete").touch()
    return python


def make_data(num_cases: int, num_test_cases: int) -> Data:
    """Write the synthetic brains and return them in nnU-Net's layout."""
    counts = ("--cases", num_cases, "--held-out-cases", num_test_cases)
    seeds = tuple(word for pair in SEEDS.items() for word in pair)
    step("phantom", "brain", "--output", "phantom", "--grid", "demo", *counts, *seeds)
    source = FOLDER / "phantom"
    described = json.loads((source / "dataset.json").read_text(encoding="utf-8"))
    labels = {int(value): name for value, name in described["labels"].items()}
    dataset = {
        "channel_names": described["modality"], "labels": {name: value for value, name in labels.items()},
        "numTraining": num_cases, "file_ending": ".nii.gz",
    }  # fmt: skip
    training, test = FOLDER / "nnunet" / FOLDERS["nnUNet_raw"] / DATA_SET, FOLDER / "test"
    names = sorted(path.name.removesuffix(".nii.gz") for path in (source / "labelsTr").iterdir())
    held_out = [name for name in names if name.startswith("heldout")]
    developed = [name for name in names if name not in held_out]
    for folder, part, cases in ((training, "imagesTr", developed), (test, "imagesTs", held_out)):
        (folder / part).mkdir(parents=True)
        (folder / "dataset.json").write_text(json.dumps(dataset, indent=2) + "\n", encoding="utf-8")
        shutil.copy(source / "cohort_card.json", folder)
        for case in cases:
            write_channels(source / "imagesTr" / f"{case}.nii.gz", folder / part / case)
    (training / "labelsTr").mkdir()
    for case in developed:
        shutil.copy(source / "labelsTr" / f"{case}.nii.gz", training / "labelsTr")
    splits = write_splits(training, developed)
    references = {case: source / "labelsTr" / f"{case}.nii.gz" for case in held_out}
    labels = {value: name for value, name in labels.items() if value}
    return Data(training=training, test=test, splits=splits, references=references, labels=labels)


def write_channels(image: Path, target: Path) -> None:
    """Write the contrasts of a 4-D file as one file each."""
    source = nibabel.load(image)
    array_IJKC = np.asarray(source.dataobj)
    for number in range(array_IJKC.shape[3]):
        channel = nibabel.Nifti1Image(array_IJKC[..., number], source.affine)
        nibabel.save(channel, f"{target}_{number:04d}.nii.gz")


def write_splits(training: Path, cases: Sequence[str]) -> Path:
    """Write one split of the cases for both tools; return nnU-Net's file."""
    num_training = len(cases) - max(1, round(len(cases) * VALIDATION_SHARE))
    split = {"train": list(cases[:num_training]), "validation": list(cases[num_training:])}
    (training / "splits.json").write_text(json.dumps(split) + "\n", encoding="utf-8")
    path = FOLDER / "splits_final.json"
    path.write_text(json.dumps([{"train": split["train"], "val": split["validation"]}]) + "\n", encoding="utf-8")
    return path


def run_nnunet(python: Path, data: Data, iterations: int, seed: int) -> dict[str, Any]:
    """Run nnU-Net from the files to the masks; return its figures."""
    figures = FOLDER / "nnunet.json"
    command: list[str | Path] = [
        python, Path(__file__).with_name("nnunet_reference.py"), "--data", FOLDER / "nnunet", "--splits", data.splits,
        "--test-images", data.test / "imagesTs", "--iterations", str(iterations), "--seed", str(seed),
        "--output", FOLDER / "theirs", "--figures", figures,
    ]  # fmt: skip
    harness.say("nnunet", f"nnU-Net: {iterations} iterations")
    log = FOLDER / "nnunet.log"
    with log.open("w", encoding="utf-8") as stream:
        done = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        sys.exit(f"nnU-Net ended with exit code {done.returncode}; see {log.relative_to(harness.ROOT)}")
    result: dict[str, Any] = json.loads(figures.read_text(encoding="utf-8"))
    return result


def run_medweave(data: Data, plan: Mapping[str, Any], iterations: int, seed: int) -> dict[str, Any]:
    """Run medweave from the files to the masks with this plan; return its figures."""
    harness.say("nnunet", f"medweave: {iterations} iterations")
    started = time.perf_counter()
    cohort = ("--cohort", data.training, "--cohort-index", "index.json")
    step("check", "--cohort", data.training, "--output", "index.json")
    step("preprocess", *cohort, "--output", "prepared", "--spacing-mm", *plan["spacing_mm"])
    prepared = time.perf_counter()
    step(
        "train", "--training-set", "prepared/training_set", "--output", "trained", "--training-log", "log",
        "--preset", "auto", "--precision", "float32", "--threads-per-rank", 1,
        "--seed", seed, "--steps", iterations, "--epoch-steps", iterations,
        "--patch-shape", *plan["patch_shape"], "--batch-size", plan["batch_size"], "--channels", *plan["channels"],
    )  # fmt: skip
    trained = time.perf_counter()
    step("export", "--trained-model", "trained", "--output", "exported")
    test = ("--cohort", data.test, "--cohort-index", "test_index.json", "--cases-per-batch", len(data.references))
    step("check", "--cohort", data.test, "--output", "test_index.json")
    model = ("--segmentation-model", "exported")
    step("preprocess", *test, "--output", "prepared_test", "--purpose", "inference", *model)
    step("segment", *model, "--case-batch", "prepared_test/inference_batches/batch-000", "--output", "ours")
    ended = time.perf_counter()
    card = json.loads((FOLDER / "trained" / "model_card.json").read_text(encoding="utf-8"))
    training = card["training"]
    return {
        "card": card,
        "seconds_per_iteration": training["step_seconds"] / training["steps_done"],
        "seconds": {"prepare": prepared - started, "train": trained - prepared, "predict": ended - trained},
        "num_threads": training["num_threads"],
        "versions": {name: importlib.metadata.version(name) for name in ("medweave", "torch", "monai", "numpy")},
    }


def step(verb: str, *words: object) -> None:
    """Run one verb in the benchmark's folder; exit if it fails."""
    command = [STEP, verb, *map(str, words), "--run-report", f"{verb}_report.json"]
    with (FOLDER / "medweave.log").open("a", encoding="utf-8") as stream:
        done = subprocess.run(command, cwd=FOLDER, stderr=stream, check=False)
    if done.returncode:
        log = (FOLDER / "medweave.log").relative_to(harness.ROOT)
        sys.exit(f"medweave-step {verb} ended with exit code {done.returncode}; see {log}")


def check_same_plan(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Exit if the networks, patches or spacings differ."""
    card, plan = ours["card"], theirs["plan"]
    network = card["architecture"]["arguments"]
    seen = {name: network[name] for name in ("channels", "strides", "kernels", "blocks")}
    seen |= {
        "patch_shape": card["training"]["patch_shape"],
        "batch_size": card["training"]["batch_size"],
        "spacing_mm": card["input"]["spacing_mm"],
        "num_weights": card["training"]["preset"]["num_weights"],
    }
    expected = {**plan, "num_weights": theirs["num_weights"]}
    different = [name for name, value in seen.items() if value != expected[name]]
    if different:
        name = different[0]
        sys.exit(f"the plans differ in {', '.join(different)}: {seen[name]} and, in nnU-Net, {expected[name]}")


def case_dices(masks: Mapping[str, Path], data: Data) -> dict[str, dict[int, float]]:
    """Return the Dice of each test case for each label of its reference, on the grid of the source."""
    result = {}
    for case, path in data.references.items():
        reference, image = nibabel.load(path), nibabel.load(masks[case])
        if image.shape != reference.shape or not np.allclose(image.affine, reference.affine, atol=1e-3):
            sys.exit(f"the mask of {case} is on another grid than its image")
        expected, seen = np.asarray(reference.dataobj), np.asarray(image.dataobj)
        present = [value for value in data.labels if (expected == value).any()]
        result[case] = {value: dice(seen == value, expected == value) for value in present}
    return result


def compare(data: Data, ours: Any, theirs: Any, notes: Mapping[str, Any]) -> dict[str, Any]:
    """Print and write the Dice and the seconds of both; return the content of the JSON file."""
    sides = {"medweave": ours, "nnU-Net": theirs}
    masks = {
        "medweave": {case: FOLDER / "ours" / case / MASK for case in data.references},
        "nnU-Net": {case: FOLDER / "theirs" / f"{case}.nii.gz" for case in data.references},
    }
    dices = {name: case_dices(masks[name], data) for name in sides}
    means = {name: [statistics.fmean(case.values()) for case in dices[name].values()] for name in sides}
    by_label = {name: label_dices(dices[name], data.labels) for name in sides}
    for name, side in sides.items():
        labels = ", ".join(f"{label} {value:.3f}" for label, value in by_label[name].items())
        seconds, versions = side["seconds_per_iteration"], side["versions"]
        harness.say("nnunet", f"{name}: Dice {statistics.fmean(means[name]):.3f} ({labels})")
        harness.say("nnunet", f"{name}: {seconds:.3f} s per iteration")
        harness.say("nnunet", f"{name}: {', '.join(f'{key} {value}' for key, value in versions.items())}")
    differences = np.subtract(means["medweave"], means["nnU-Net"])
    difference, (low, high) = float(differences.mean()), confidence_interval(differences, mean, seed=0)
    harness.say(
        "nnunet", f"difference of Dice {difference:+.3f}, 95 % interval {low:+.3f} to {high:+.3f} (bar {BAR:+})"
    )
    return harness.write_result(
        harness.Result(
            name="nnunet", ours=statistics.fmean(means["medweave"]), reference=statistics.fmean(means["nnU-Net"]),
            unit="Dice", ratio=None, quartiles=None, pairs=len(differences), bar=BAR, meets_bar=high > BAR,
            reference_tool=f"nnU-Net {theirs['versions']['nnunetv2']}", higher_is_better=True,
            measurements=tuple(zip(means["medweave"], means["nnU-Net"], strict=True)),
            machine=harness.machine(), measured_at=harness.now(),
            notes={
                **notes, "difference": difference, "interval": [low, high], "dice_by_label": by_label,
                "dice_by_case": {name: list(dices[name].values()) for name in sides},
                "plan": theirs["plan"], "num_weights": theirs["num_weights"],
                **{
                    key: {name: side[key] for name, side in sides.items()}
                    for key in ("seconds_per_iteration", "seconds", "num_threads", "versions")
                },
            },
        )
    )  # fmt: skip


def label_dices(dices: Mapping[str, Mapping[int, float]], labels: Mapping[int, str]) -> dict[str, float]:
    """Return the mean Dice of each label over the cases whose reference has it."""
    values = {name: [case[value] for case in dices.values() if value in case] for value, name in labels.items()}
    return {name: statistics.fmean(numbers) for name, numbers in values.items() if numbers}


if __name__ == "__main__":
    sys.exit(main())
