"""Models for `train-distributed`: a network of the verb's own kind with weights from a seed, and its training set."""

from __future__ import annotations

from pathlib import Path

from support.model_folders import tiny_card, trained_model
from support.training_set import SHAPE, training_set

SPLITS = ("train", "train", "validation", "validation", "validation")

# Options with which three rounds take about a second.
ROUNDS = (
    "--rounds", "3", "--steps-per-round", "2", "--replicas", "2", "--batch-size", "3", "--patch-shape", "8", "8", "8",
    "--precision", "float32", "--learning-rate", "0.01",
)  # fmt: skip


def folder_to_continue(folder: Path) -> Path:
    """Make `data` and `parent` in a folder; return it."""
    training_set(folder / "data", SPLITS)
    (folder / "parent").mkdir()
    contract = tiny_card().input
    contract = type(contract)(
        spacing_mm=contract.spacing_mm, window_hu=contract.window_hu, patch_shape=SHAPE, patch_multiple=2
    )
    trained_model(folder / "parent", input=contract, training={"strategy": "single", "seed": 0, "steps_done": 40})
    return folder


def words(folder: Path, *options: str, name: str = "model", data: Path | None = None) -> list[str]:
    """Return the verb's command line, over the folder's data and parent."""
    source = data or folder
    command = ["train-distributed", "--training-set", str(source / "data"), "--trained-model", str(source / "parent")]
    command += ["--output", str(folder / name), "--training-log", str(folder / f"{name}_log")]
    return [*command, "--run-report", str(folder / f"{name}_report.json"), *ROUNDS, "--num-threads", "1", *options]
