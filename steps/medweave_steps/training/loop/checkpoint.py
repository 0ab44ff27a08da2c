"""Checkpoints: everything that the rest of a training depends on, in one file, complete or not at all."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from medweave_core.errors import UserInputError
from medweave_steps.runtime import environment
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.verb import StepContext
from medweave_steps.runtime.write import atomic_file

CHECKPOINT_FILE, BEFORE_FILE = "checkpoint.pt", "checkpoint-before.pt"
VERSION = 1
SPREAD = ("strategy", "ranks")
"""Options that say how a training is spread over processes; a training may be resumed under other values."""


def write_checkpoint(folder: Path, content: Mapping[str, Any]) -> Path:
    """Write `checkpoint.pt`, replacing an older one only when the new one is complete; that becomes `checkpoint-before.pt`.

    Args:
        folder: made if missing.
        content: tensors, numbers, strings, lists and dicts of these.
    """
    torch = require("torch", extra="train")
    # Into memory first: torch raises RuntimeError for a full disk, a plain write OSError with its cause.
    buffer = io.BytesIO()
    torch.save({"version": VERSION, **content}, buffer)
    path = folder / CHECKPOINT_FILE
    with atomic_file(path) as aside:
        aside.write_bytes(buffer.getbuffer())
        if path.exists():
            path.replace(folder / BEFORE_FILE)
    return path


def newest_complete(folder: Path) -> Path | None:
    """Return the newest checkpoint of a folder whose records all match the checksums written with them, or None."""
    for name in (CHECKPOINT_FILE, BEFORE_FILE):
        try:
            content = (folder / name).read_bytes()
        except OSError:
            continue
        if _is_whole(content):
            return folder / name
    return None


def _is_whole(content: bytes) -> bool:
    """Return True for a zip archive whose records all match the checksums written with them; torch does not check these."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            return file.testzip() is None
    except Exception:  # whatever a damaged directory makes zipfile raise
        return False


def checkpoint_of_earlier_attempt(context: StepContext) -> Path | None:
    """Return the newest complete checkpoint of an earlier attempt at the same command; None where it wrote none."""
    folder = environment.resume_from()
    if folder is None:
        return None
    found = newest_complete(folder)
    if found is None:
        context.notice("the previous attempt left no complete checkpoint; training starts from the beginning.")
    return found


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint, or the one in a folder; only data is read from it, never code.

    Raises:
        UserInputError: it does not exist, is not complete, or was changed.
    """
    torch = require("torch", extra="train")
    file = path / CHECKPOINT_FILE if path.is_dir() else path
    older = f"use an older checkpoint, such as {BEFORE_FILE} in the same folder, or start from the beginning"
    try:
        written = file.read_bytes()
    except FileNotFoundError as error:
        raise _unusable("no file", "write a checkpoint with --checkpoint-folder, or omit --resume-from") from error
    if not _is_whole(written):
        raise _unusable("a corrupt or truncated file: its checksums do not match", older)
    try:
        content = torch.load(io.BytesIO(written), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever another archive makes torch raise
        raise _unusable(f"{type(error).__name__} while reading it", older) from error
    if not isinstance(content, dict) or content.get("version") != VERSION:
        raise _unusable("a file of another type or version", "use a checkpoint written by this version of medweave")
    return content


def random_state(device: Any) -> dict[str, Any]:
    """Return the state of torch's random numbers in this process: of the CPU, and of the GPU if it computes on one."""
    torch = require("torch", extra="train")
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(content: Mapping[str, Any], *, rank: int, device: Any) -> None:
    """Restore the random state that a checkpoint holds for the rank of this number.

    A rank without a state in the checkpoint keeps its initial state, which comes from the seed; the states of ranks that no longer
    exist are dropped.
    """
    torch = require("torch", extra="train")
    own = content["random_state"].get(str(rank), {})
    if torch.is_tensor(own):  # an older checkpoint has the state of rank 0's CPU only
        own = {"cpu": own}
    if "cpu" in own:
        torch.set_rng_state(own["cpu"])
    if "cuda" in own and device.type == "cuda":
        torch.cuda.set_rng_state(own["cuda"], device)


def check_identity(
    content: Mapping[str, Any], *, identity: Mapping[str, Any], data_sha256: str, may_differ: Collection[str] = SPREAD
) -> None:
    """Refuse a checkpoint that was written with another configuration, another architecture or other data.

    Args:
        content: the checkpoint.
        identity: what this run's weights depend on, as the verb's options and the arithmetic in use give it.
        data_sha256: digest of this run's data.
        may_differ: names in `identity` that may have another value in the checkpoint.
    Raises:
        UserInputError: names each option that differs, with both values.
    """
    before = json.loads(content["identity"])
    compared = (before.keys() | identity.keys()) - set(may_differ)
    names = sorted(name for name in compared if before.get(name) != identity.get(name))
    if names:
        raise UserInputError(
            "the checkpoint belongs to another training.",
            seen="; ".join(f"{name} = {before.get(name)!r}" for name in names),
            expected="; ".join(f"{name} = {identity.get(name)!r}" for name in names),
            do=f"{_options_to_go_on(before, identity)}, or start from the beginning without --resume-from",
        )
    if content["data_sha256"] != data_sha256:
        raise UserInputError(
            "the checkpoint belongs to a training on different data.",
            seen=f"data digest {content['data_sha256'][:16]}…",
            expected=f"data digest {data_sha256[:16]}…, as in cohort.json",
            do="resume with the training set of the checkpoint, or start from the beginning without --resume-from",
        )


def _options_to_go_on(before: Mapping[str, Any], identity: Mapping[str, Any]) -> str:
    sizes, ranks = ([of.get(name, 0) for of in (before, identity)] for name in ("batch_size", "ranks"))
    if ranks[0] == ranks[1] or not sizes[0] or sizes[0] * ranks[1] != sizes[1] * ranks[0]:
        return "resume with the options that the checkpoint was written with"
    return (
        f"with --scale-by-ranks the batch size depends on --ranks, so {ranks[1]} ranks do not continue a training of "
        f"{ranks[0]}: to resume it, use --batch-size {sizes[0]} --learning-rate {before['learning_rate']!r} "
        "without --scale-by-ranks"
    )


def strategy_of(content: Mapping[str, Any]) -> str:
    """Return the name of the strategy that a checkpoint of `train` was written under."""
    name: str = json.loads(content["identity"]).get("strategy", "single")
    return name


def spread_before(content: Mapping[str, Any], identity: Mapping[str, Any], *, names: Collection[str]) -> str:
    """Return the end of a sentence about a checkpoint that was written under another strategy or by another number of ranks.

    Args:
        names: options by which a training is spread over processes; empty text is returned if all of them are equal.
    """
    before = json.loads(content["identity"])
    if all(before.get(name) == identity.get(name) for name in names):
        return ""
    number = before["ranks"]
    return f", written by {number} rank{'s' if number > 1 else ''} under --strategy {before['strategy']}"


def _unusable(seen: str, do: str) -> UserInputError:
    return UserInputError(
        "the checkpoint of --resume-from cannot be used.",
        seen=seen,
        expected=f"a complete {CHECKPOINT_FILE}, or a folder that contains one",
        do=do,
    )
