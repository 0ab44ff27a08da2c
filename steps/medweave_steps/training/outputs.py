"""The folders that a training fills: complete or absent, and on the first node only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from medweave_steps.contracts.errors import UsageError
from medweave_steps.runtime.environment import Gang
from medweave_steps.runtime.write import atomic_directory
from medweave_steps.training.recipe import Recipe


@contextlib.contextmanager
def open_outputs(recipe: Recipe, gang: Gang) -> Iterator[tuple[Path, Path]]:
    """Folders for the model and the training log; they appear under their own names when the block ends well.

    On other nodes than the first nothing is made, and nothing may be written: the nodes may share their file system.

    Raises:
        UsageError: both are the same folder, or one is there already.
    """
    if recipe.output.resolve() == recipe.training_log.resolve():
        raise UsageError("--output and --training-log name the same folder.", expected="two folders")
    if gang.node_rank > 0:
        yield recipe.output, recipe.training_log
        return
    with atomic_directory(recipe.output) as folder, atomic_directory(recipe.training_log) as log_folder:
        yield folder, log_folder
