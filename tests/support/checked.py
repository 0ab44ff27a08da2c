"""What `check` says about a folder, for tests of what reads cohorts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from medweave_core.contracts.cohort import CaseEntry, Finding
from medweave_core.contracts.labels import Label
from medweave_steps.check.cohort import Checked, check_cohort
from medweave_steps.check.labels import LabelOptions
from medweave_steps.io.cohort.channel_rules import parse_channel_rules
from medweave_steps.io.cohort.labels import parse_merges
from medweave_steps.io.cohort.source import MaskValues, VolumeSource, open_source, read_ground_truth
from medweave_steps.runtime.verb import StepContext


def check(
    folder: Path,
    *,
    skip: bool = False,
    merge: tuple[str, ...] = (),
    ignore_value: int | None = None,
    channels: Sequence[Mapping[str, Any]] = (),
) -> Checked:
    """Run the data check in this process.

    Args:
        merge: values of `--merge-labels`.
        ignore_value: of `--ignore-label`.
        channels: rules of `--channels`.
    """
    rules = parse_channel_rules(list(channels)) if channels else ()
    options = LabelOptions(merges=parse_merges(merge), ignore_value=ignore_value)
    context = StepContext(verb="check", num_threads=2)
    return check_cohort(folder, context, skip=skip, label_options=options, channel_rules=rules)


def cases_of(folder: Path) -> tuple[CaseEntry, ...]:
    """Return the usable cases of a cohort that has no error."""
    index = check(folder).index
    assert [finding for finding in index.findings if finding.severity == "error"] == []
    return index.cases


def read_truth(cohort: Path, entry: CaseEntry, *, merge: tuple[str, ...] = ()) -> np.ndarray | None:
    """Return the ground truth of a case whose cohort has one label of the value 1."""
    return read_ground_truth(
        cohort, entry, MaskValues(labels=(Label(value=1, name="nodule"),), merges=parse_merges(merge))
    )


def open_only(folder: Path) -> VolumeSource:
    """Return the source of a cohort's only case."""
    (case,) = cases_of(folder)
    return open_source(folder, case)


def errors_of(folder: Path) -> list[Finding]:
    """Return the errors that `check` finds."""
    return [finding for finding in check(folder).index.findings if finding.severity == "error"]


def only_error(folder: Path) -> Finding:
    """Return the only error that `check` finds."""
    (error,) = errors_of(folder)
    return error


def notices_of(folder: Path) -> dict[str, Finding]:
    """Return the notices by code."""
    return {finding.code: finding for finding in check(folder).index.findings if finding.severity == "notice"}
