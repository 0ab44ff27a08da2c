"""The JSON report that every verb writes beside its outputs (`run_report.json`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from medweave_core.contracts.volume import DataClass


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """What one process of a training did, or one replica whatever process trained it.

    Attributes:
        rank: place among all, from 0.
        host: name of the node or pod; several, in order, where a replica was trained on more than one.
        device: `cpu` or `cuda`.
        num_threads: compute threads.
        samples: patches it trained on.
        seconds: wall time of its training steps, s; validation is not in it.
        padding: patches it was given besides, only to take part in a step that had none for it: they count nothing.
    """

    rank: int
    host: str
    device: str
    num_threads: int
    samples: int
    seconds: float
    padding: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """What one run of one verb did. Holds no patient data: cases are named by case id, no paths of inputs.

    Attributes:
        verb: the verb's name.
        started_at: UTC, ISO 8601.
        seconds: wall time, s.
        peak_memory_mib: largest resident set of the process (its children's apart in `peak_memory_children_mib`), MiB.
        num_threads: compute threads the verb was given.
        host_cpu: model name of the processor.
        config: every option's value, paths left out.
        versions: library name to version, of those that were imported.
        results: the verb's own figures. In those of a training (`training`, and each of `rounds`) `synchronised_bytes` is what all
            ranks or replicas together have given to be averaged, gradients or weights, and running statistics: the bytes of their
            numbers, each counted once, whatever way they took; what comes back, and what else travels, is not in it.
        cases: one object per case, each with `case_id`.
        notices: what the user should know, in plain words.
        ranks: of a training, one entry per process or replica.
    """

    ACCEPTS_NEWER: ClassVar[bool] = (
        True  # a worker may be newer than the driver; fields that this version lacks are ignored
    )

    verb: str
    medweave_version: str
    started_at: str
    seconds: float
    peak_memory_mib: float
    peak_memory_children_mib: float
    num_threads: int
    host_cpu: str
    config: Mapping[str, Any]
    versions: Mapping[str, str]
    results: Mapping[str, Any]
    cases: tuple[Mapping[str, Any], ...]
    notices: tuple[str, ...]
    ranks: tuple[RankFacts, ...] = ()
    report_version: Literal[1] = 1
    data_class: DataClass = "aggregate"
