"""The inputs of a training as its options describe them: the training set, and what is learned from it."""

from __future__ import annotations

from medweave_steps.io.cohort.prepared import PreparedFolder, open_prepared
from medweave_steps.io.model.folder import holds_window
from medweave_steps.runtime.options import check_option
from medweave_steps.tasks import task_named
from medweave_steps.tasks.training import TrainingTask
from medweave_steps.train.config import TrainConfig


def task_of(config: TrainConfig, prepared: PreparedFolder) -> TrainingTask:
    """Return what the model learns from the training set."""
    return task_named(config.task).training_of_cohort(prepared.cohort, config.task_options)


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
