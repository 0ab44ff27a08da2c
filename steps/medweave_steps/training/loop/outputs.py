"""The folders that a training fills, on the first node only: the model complete or absent, the log from its first figure on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from medweave_core.errors import UsageError
from medweave_steps.runtime.environment import NodeGroup
from medweave_steps.runtime.monitor import RECORDINGS
from medweave_steps.runtime.write import atomic_directory
from medweave_steps.training.distributed.async_server import ARRIVALS_FILE
from medweave_steps.training.loop.history import CURVES_FILE, EVENTS, rename_events
from medweave_steps.training.recipe import Recipe


@contextlib.contextmanager
def open_outputs(recipe: Recipe, node_group: NodeGroup, *, log_stays: bool = False) -> Iterator[tuple[Path, Path]]:
    """Yield folders for the model and the training log; they get their own names only if the block succeeds.

    On other nodes than the first nothing is created, and nothing may be written: the nodes may share their file system.

    Args:
        log_stays: the log has its own name from the start, so that it can be followed. After a failure its figures stay, without
            the curves.json of a complete one, and so do the hardware samples of a training with figures. The next training in the
            same folder removes it.
    Raises:
        UsageError: both are the same folder, or one of them exists already.
    """
    if recipe.output.resolve() == recipe.training_log.resolve():
        raise UsageError("--output and --training-log are the same folder.", expected="two folders")
    if node_group.node_rank > 0:
        yield recipe.output, recipe.training_log
        return
    opened = _open_log if log_stays else atomic_directory
    with atomic_directory(recipe.output) as folder, opened(recipe.training_log) as log_folder:
        yield folder, log_folder


@contextlib.contextmanager
def _open_log(path: Path) -> Iterator[Path]:
    of_failed = [*path.glob(EVENTS), *path.glob(RECORDINGS)] if path.is_dir() else []
    if path.exists() and not (path.is_dir() and len(of_failed) == len(list(path.iterdir()))):
        raise UsageError(
            f"the training log '{path.name}' exists already.",
            expected="a path that does not exist, or the log of a failed training: nothing else is overwritten",
            do="remove it or choose another --training-log",
        )
    for file in of_failed:
        file.unlink()
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield path
    except BaseException:
        for name in (CURVES_FILE, ARRIVALS_FILE):  # written before the model, which is not there
            (path / name).unlink(missing_ok=True)
        for file in path.glob(RECORDINGS) if not any(path.glob(EVENTS)) else ():
            file.unlink(missing_ok=True)
        raise
    finally:
        rename_events(path)
        with contextlib.suppress(OSError):  # it is not empty
            path.rmdir()
