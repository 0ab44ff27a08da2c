"""The JSON report that every verb writes next to its outputs (`run_report.json`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from medweave_core.contracts.volume import DataClass


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """Figures of one process of a training, or of one replica, whichever process trained it.

    Attributes:
        rank: place among all, from 0.
        host: name of the node or pod; several, in order, where a replica was trained on more than one.
        device: `cpu` or `cuda`.
        num_threads: compute threads.
        samples: patches it trained on.
        seconds: wall time of its training steps, s; without validation.
        padding: additional patches, used only to take part in a step without patches of its rank; they do not count.
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
    """The report of one run of one verb. It has no patient data: cases are named by case id, and there are no paths of inputs.

    Attributes:
        verb: the verb's name.
        started_at: UTC, ISO 8601.
        seconds: wall time, s.
        peak_memory_mib: largest resident set of the process (child processes: `peak_memory_children_mib`), MiB.
        num_threads: compute threads of the verb.
        host_cpu: model name of the processor.
        config: value of each option, without paths.
        versions: library name to version, of those that were imported.
        results: the verb's own figures. In those of a training (`training`, and each of `rounds`) `synchronised_bytes` counts the
            gradients, weights and running statistics that all ranks or replicas together contributed to averages: the bytes of
            these numbers, each once, by any transport. Received averages and other traffic are not included.
        cases: one object per case, each with `case_id`.
        notices: notices for the user.
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
