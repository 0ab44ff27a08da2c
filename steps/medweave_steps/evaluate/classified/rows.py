"""The classified rows of a table, with their known classes and features."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from medweave_core.contracts.volume import is_table
from medweave_core.errors import UserInputError
from medweave_steps.evaluate.classified.cases import (
    KnownCase,
    KnownCases,
    TableRow,
    by_case,
    no_known_class,
    targets_of,
)
from medweave_steps.evaluate.same_run import check_same_run
from medweave_steps.io.cohort.prepared import CaseFolder, open_prepared, read_classifications
from medweave_steps.io.tables.row_block import NO_CLASS


def are_tables(batches: Sequence[Path]) -> bool:
    """Return True if the batches have rows of a table.

    Raises:
        UserInputError: some of them have, and others have not.
    """
    kinds = {is_table(open_prepared(folder).cohort.channels) for folder in batches}
    if len(kinds) > 1:
        raise UserInputError(
            "--case-batches has rows of a table and other cases.",
            seen=f"{len(batches)} batches of both kinds",
            expected="batches of encode-table, or of preprocess",
            do="evaluate both one after the other",
        )
    return kinds == {True}


def known_rows(folders: Sequence[Path], batches: Sequence[Path]) -> tuple[KnownCases, Any]:
    """Return the rows to evaluate, and their features, float32 [N, F].

    Args:
        folders: of classifications.
        batches: encoded batches that were classified.
    Raises:
        UserInputError: the folders come from different models; a row was classified twice, or is missing in one of both places; no
            row has a known class.
    """
    records = [read_classifications(folder) for folder in folders]
    targets, classified = targets_of(records), by_case(records)
    entries: list[tuple[TableRow, CaseFolder]] = []
    features = [np.zeros((0, 0), np.float32)][:0]
    for folder in batches:
        prepared = open_prepared(folder)
        names = [one.name for one in prepared.cohort.classes]
        for part in prepared.cases():
            block = part.rows()
            known = np.flatnonzero(np.asarray(block.targets) != NO_CLASS)
            features.append(block.dense(known, num_features=len(prepared.cohort.channels)))
            for number, group, target in zip(block.row_numbers, block.groups, block.targets, strict=True):
                classes = None if target == NO_CLASS else (names[target],)
                row = TableRow(case_id=f"row-{number:09d}", patient_key=f"group-{group}", classes=classes)
                entries.append((row, part))
    ids = {row.case_id for row, _ in entries}
    check_same_run(ids, ids, classified.keys(), classes=True)
    cases = tuple(
        KnownCase(entry=row, classified=classified[row.case_id], prepared=part)
        for row, part in entries
        if row.classes is not None
    )
    without_truth = tuple(row.case_id for row, _ in entries if row.classes is None)
    if not cases:
        raise no_known_class(len(without_truth))
    return KnownCases(targets=targets, cases=cases, without_truth=without_truth), np.concatenate(features)
