"""Which of several places a job gets: one with the GPUs that it asks for, then the one with its data, then the least loaded.

No streamflow in here: what is known about the places comes in, their order comes out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A place that could run the job now.

    Attributes:
        gpus: the most that a job can have there; None where nobody knows.
        num_bytes: how much of the job's inputs lies there, bytes.
        load: running jobs as a share of those that it has room for.
    """

    name: str
    gpus: float | None = None
    num_bytes: int = 0
    load: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A file or folder that the job reads.

    Attributes:
        num_bytes: its size, bytes; None where it is not known yet.
        at: names of the candidates where it lies.
    """

    path: str
    num_bytes: int | None
    at: frozenset[str]


def in_order(candidates: Iterable[Candidate], *, gpus: int) -> list[Candidate]:
    """Those that can take the job, best first; what nothing tells apart stays as it came.

    A job without a request keeps away from GPUs, which one that needs them may wait for.

    Args:
        gpus: what the job asks for; a place that is known to have less is left out.
    """
    able = [each for each in candidates if each.gpus is None or each.gpus >= gpus]

    def rank(each: Candidate) -> tuple[bool, int, float]:
        second_best = each.gpus is None if gpus else bool(each.gpus)
        return second_best, -each.num_bytes, each.load

    return sorted(able, key=rank)


def to_measure(inputs: Iterable[Input]) -> list[Input]:
    """The inputs without a known size whose size could change the order.

    None, where each place has all that another one has: it holds more then, whatever the sizes are.
    """
    known = list(inputs)
    patterns = sorted({each.at for each in known}, key=len)
    if all(less <= more for less, more in itertools.pairwise(patterns)):
        return []
    return [each for each in known if each.num_bytes is None and each.at]


def bytes_at(inputs: Iterable[Input], sizes: Mapping[str, int], names: Sequence[str]) -> dict[str, int]:
    """How much of the inputs lies at each place, bytes.

    Args:
        sizes: by path, of inputs that had to be measured. What has no size at all counts as one byte: it is better there than not.
    """
    found = dict.fromkeys(names, 0)
    for each in inputs:
        num_bytes = sizes.get(each.path, 1) if each.num_bytes is None else each.num_bytes
        for name in each.at & found.keys():
            found[name] += num_bytes
    return found
