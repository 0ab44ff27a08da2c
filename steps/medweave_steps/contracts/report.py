"""The JSON report that every verb writes beside its outputs (`run_report.json`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from medweave_steps.contracts.volume import DataClass


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
        results: the verb's own figures.
        cases: one object per case, each with `case_id`.
        notices: what the user should know, in plain words.
    """

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
    report_version: Literal[1] = 1
    data_class: DataClass = "aggregate"
