"""The check that cohort index, prepared batches and results list the same cases."""

from __future__ import annotations

from collections.abc import Collection

from medweave_core.errors import UserInputError
from medweave_steps.io.findings import first_of


def check_same_run(
    in_index: Collection[str], prepared: Collection[str], delivered: Collection[str], *, classes: bool = False
) -> None:
    """Compare the case ids of the three.

    Args:
        classes: the results are classes; otherwise masks.
    Raises:
        UserInputError: a prepared case has no result or is not in the index, or a result belongs to no prepared case.
    """
    done, result = ("classified", "result") if classes else ("segmented", "mask")
    _refuse(
        set(prepared) - set(in_index),
        "preprocessed, but not in the cohort index",
        "the cohort index of these cases",
        classes,
    )
    _refuse(
        set(prepared) - set(delivered),
        f"preprocessed, but without {result}",
        f"one {result} per preprocessed case",
        classes,
    )
    _refuse(
        set(delivered) - set(prepared),
        f"{done}, but not in any case batch",
        f"the case batches that were {done}",
        classes,
    )


def _refuse(case_ids: set[str], seen: str, expected: str, classes: bool) -> None:
    if case_ids:
        results = "classifications" if classes else "segmentations"
        raise UserInputError(
            f"cohort index, case batches and {results} do not match.",
            seen=f"{first_of(sorted(case_ids), 5)}: {seen}",
            expected=expected,
            do=f"use --cohort-index and all --case-batches and --{results} of the same run",
        )
