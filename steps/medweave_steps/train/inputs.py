"""The inputs of a training as its options describe them: the training set, and what is learned from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from medweave_core.contracts.tables import ENCODER_FILE
from medweave_core.contracts.volume import is_table
from medweave_steps.io.cohort.prepared import CaseFolder, PreparedFolder, open_prepared
from medweave_steps.io.model.folder import holds_window
from medweave_steps.runtime.options import check_option
from medweave_steps.runtime.verb import StepContext
from medweave_steps.tasks import task_named
from medweave_steps.tasks.training import TrainingTask
from medweave_steps.train.config import RECIPE_OPTIONS, TrainConfig


def task_of(config: TrainConfig, prepared: PreparedFolder) -> TrainingTask:
    """Return what the model learns from the training set."""
    return task_named(config.task).training_of_cohort(prepared.cohort, config.task_options)


def count_samples(cases: Sequence[CaseFolder]) -> int:
    """Return the number of inputs of a network in some cases: the rows of a table, else the cases."""
    return sum(folder.case.num_samples for folder in cases)


def copy_encoder(prepared: PreparedFolder, model: Path) -> None:
    """Copy the encoder of a table into a model folder: other rows are encoded by it. Other training sets have none."""
    if is_table(prepared.cohort.channels):
        (model / ENCODER_FILE).write_bytes((prepared.folder / ENCODER_FILE).read_bytes())


def prepared_for(config: TrainConfig) -> PreparedFolder:
    """Open the training set for a network with the intensities of the options.

    Raises:
        UsageError: an intensity window for MR, or one beyond that of preprocess.
    """
    prepared = open_prepared(config.training_set)
    window = prepared.cohort.window_hu
    if config.window_hu is None and config.scaled_range == prepared.scaled_range:
        return prepared
    expected = (
        "no value: MR has no intensity window" if window is None else f"a window within {window[0]:g} {window[1]:g}"
    )
    fits = window is not None and holds_window(window, config.window_hu or window)
    check_option(fits, "window_hu", config.window_hu or config.scaled_range, expected)
    return prepared.with_input(window_hu=config.window_hu or window, scaled_range=config.scaled_range)


def describe_demo_recipe(config: TrainConfig) -> str:
    """Return the notice for options that were chosen for the demo, and are used for other data."""
    if task_named(config.task).output_kind == "classes":
        return (
            f"the training options have their defaults ({config.steps} steps of {config.batch_size} cases, learning rate "
            f"{config.learning_rate:g}, network {config.network}), which suit small synthetic images, and these cases are not "
            "synthetic. Choose options for your data: --steps --epochs --batch-size --learning-rate --network."
        )
    patch = " x ".join(map(str, config.patch_shape))
    options = " ".join(f"--{name.replace('_', '-')}" for name in RECIPE_OPTIONS)
    return (
        f"the training options have their defaults, which were chosen for the synthetic scans of the demo ({config.steps} steps of "
        f"{config.batch_size} patches of {patch} voxels, network {config.network}), and these scans are not synthetic. "
        "Use `train --preset auto`, which chooses options by the training set and the memory, or set them yourself. "
        f"Choose options for your data: {options}."
    )


def scaled(config: TrainConfig, context: StepContext) -> TrainConfig:
    """Return the training with the batch size and the learning rate of all ranks together; reports both."""
    together = config.for_all_ranks()
    if config.scale_by_ranks:
        replicas = config.strategy_options.replicas(config.ranks)
        noun = "rank" if replicas == config.ranks else "replica"
        context.notice(
            f"--scale-by-ranks with {replicas} {noun}{'s' if replicas > 1 else ''}: batch size {config.batch_size} × "
            f"{replicas} = {together.batch_size}, learning rate {config.learning_rate:g} × {replicas} = "
            f"{together.learning_rate:g}."
        )
    return together
