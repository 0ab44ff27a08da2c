"""The order in which a job tries locations: those with the GPUs it requests, then those with its data, then the least loaded.

No StreamFlow in this module: it takes the facts about the locations, and returns their order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A location or target that could run the job now.

    Attributes:
        gpus: the most GPUs that a job can have; None if unknown.
        num_bytes: size of the job's inputs at this location, bytes.
        load: running jobs as a share of the jobs for which it has room.
    """

    name: str
    gpus: float | None = None
    num_bytes: int = 0
    load: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInput:
    """A file or folder that the job reads.

    Attributes:
        num_bytes: its size, bytes; None if it is not known yet.
        at: names of the candidates that have a copy.
    """

    path: str
    num_bytes: int | None
    at: frozenset[str]


def rank_candidates(candidates: Iterable[Candidate], *, gpus: int) -> list[Candidate]:
    """Return the candidates that can take the job, best first; equal ones keep their order.

    A job that requests no GPU avoids locations with GPUs, so that they stay free for jobs that need them.

    Args:
        gpus: number that the job requests; a candidate that is known to have fewer is excluded.
    """
    able = [candidate for candidate in candidates if candidate.gpus is None or candidate.gpus >= gpus]

    def rank(candidate: Candidate) -> tuple[bool, int, float]:
        is_second_best = candidate.gpus is None if gpus else bool(candidate.gpus)
        return is_second_best, -candidate.num_bytes, candidate.load

    return sorted(able, key=rank)


def inputs_to_measure(inputs: Iterable[JobInput]) -> list[JobInput]:
    """Return the inputs of unknown size whose size could change the order.

    There are none if the sets of copies are nested: then one location has at least as much data as another, whatever the sizes.
    """
    inputs = list(inputs)
    holders = sorted({item.at for item in inputs}, key=len)
    if all(fewer <= more for fewer, more in itertools.pairwise(holders)):
        return []
    return [item for item in inputs if item.num_bytes is None and item.at]


def bytes_at(inputs: Iterable[JobInput], sizes: Mapping[str, int], names: Sequence[str]) -> dict[str, int]:
    """Return the size of the inputs that each location has, bytes.

    Args:
        sizes: by path, of inputs that were measured. An input of unknown size counts as one byte: a copy is better than none.
    """
    totals = dict.fromkeys(names, 0)
    for item in inputs:
        num_bytes = sizes.get(item.path, 1) if item.num_bytes is None else item.num_bytes
        for name in item.at & totals.keys():
            totals[name] += num_bytes
    return totals
