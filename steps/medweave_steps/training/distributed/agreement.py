"""A check at the start that all ranks have the same options and data: with different ones they would wait forever."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.prepared import CaseFolder
from medweave_steps.io.hashing import sha256_of_blocks, sha256_of_file, sha256_of_text
from medweave_steps.training.distributed.group import Group

WHOLE_BYTES = 1 << 30
"""Arrays of so many bytes are read whole, in seconds; 411 brain tumours have sixty times as many."""
NUM_BLOCKS, BLOCK_BYTES = 16, 16 << 10
"""Of larger sets, from each file: a quarter of a MiB in places that a shared file system can find quickly."""
MOST_NAMES = 40
"""All options have their place in a message; not all cases of a large set."""


def check_agreement(group: Group, facts: Mapping[str, Any]) -> None:
    """Check that all ranks have equal facts; compares digests, and only if they differ the values. Every rank must call it.

    Args:
        facts: JSON values under the names that the user knows; no paths, which may differ.
    Raises:
        UserInputError: on every rank; names what differs, with the values of rank 0 and of the first rank that has others.
    """
    digests = group.gather(hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest())
    if len(set(digests)) == 1:
        return
    values: list[Mapping[str, Any]] = group.gather(dict(facts))
    other = next(rank for rank, digest in enumerate(digests) if digest != digests[0])
    names = sorted(n for n in values[0].keys() | values[other].keys() if values[0].get(n) != values[other].get(n))
    raise UserInputError(
        "the ranks have different options or data.",
        seen=f"rank {other} has {_listed(names, values[other])}",
        expected=f"{_listed(names, values[0])}, as on rank 0",
        do="use the same command line and the same files on every node, and run the step again",
    )


def check_arrays(group: Group, cases: Sequence[CaseFolder]) -> None:
    """Check that all ranks have equal files of the cases' arrays, byte by byte up to `WHOLE_BYTES`; every rank must call it.

    For a larger set, each file's size and `NUM_BLOCKS` evenly spread blocks are compared. That detects a volume or label that is
    another one, was scaled or shifted, is empty, or was truncated. It does not detect a change of a few voxels between the blocks.

    Args:
        cases: for training and validation; on all ranks the same ones, of which the files may differ.
    Raises:
        UserInputError: on every rank; names the cases, and the first rank that has others than rank 0.
    """
    if group.world_size == 1:
        return
    files = {case.case.case_id: case.array_files() for case in cases}
    # All ranks compute the digests in the same way: otherwise every case would seem to differ where one does.
    is_whole = max(group.gather(sum(path.stat().st_size for paths in files.values() for path in paths))) <= WHOLE_BYTES

    def digest(path: Path) -> str:
        return (
            sha256_of_file(path) if is_whole else sha256_of_blocks(path, num_blocks=NUM_BLOCKS, block_bytes=BLOCK_BYTES)
        )

    digests = {
        f"digest of the arrays of {case_id}": sha256_of_text(f"{path.name} {digest(path)}" for path in paths)[:16]
        for case_id, paths in files.items()
    }
    check_agreement(group, digests)


def _listed(names: Sequence[str], values: Mapping[str, Any]) -> str:
    parts = [f"{name} = {_shown(values.get(name))}" for name in names[:MOST_NAMES]]
    return "; ".join([*parts, *([f"and {len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else [])])


def _shown(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
