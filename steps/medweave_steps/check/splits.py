"""Checks across cases: fixed splits, one patient in two of them, one scan twice."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

from medweave_core.contracts.cohort import CaseEntry, Finding, Split
from medweave_core.contracts.volume import are_images
from medweave_steps.io.cohort.files import SPLITS_FILE
from medweave_steps.io.findings import notice, refuse


def read_splits(cohort: Path, known: Iterable[str]) -> tuple[dict[str, Split], list[Finding]]:
    """Read `splits.json` (split name to case ids) where there is one.

    Args:
        known: every case id of the cohort, usable or not.
    Returns:
        case id to split, and the errors in the file.
    """
    path = cohort / SPLITS_FILE
    if not path.is_file():
        return {}, []
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        _check_form(data)
    except (ValueError, RecursionError) as error:
        finding = refuse(
            "splits-file",
            "splits.json is invalid.",
            seen=str(error),
            expected=f"an object with lists of case ids under {', '.join(get_args(Split))}",
            do="correct the file, or remove it for a random split",
        ).finding
        return {}, [finding]
    splits: dict[str, Split] = {}
    findings: list[Finding] = []
    known_ids = set(known)
    for split, case_ids in data.items():
        for case_id in case_ids:
            if splits.setdefault(case_id, cast(Split, split)) != split:
                findings.append(_in_two("case-in-two-splits", case_id, {splits[case_id], split}, [case_id]))
    unknown = sorted(set(splits) - known_ids)
    if unknown:
        findings.append(
            refuse(
                "splits-file",
                "splits.json contains cases that are not in the cohort.",
                seen=", ".join(unknown[:6]) + (f" and {len(unknown) - 6} more" if len(unknown) > 6 else ""),
                expected="case ids as printed by check",
                do="correct splits.json, or add the series",
            ).finding
        )
    return splits, findings


def _check_form(data: Any) -> None:
    if not isinstance(data, Mapping) or not all(isinstance(value, list) for value in data.values()):
        raise ValueError("not an object with lists")
    wrong = sorted(set(data) - set(get_args(Split)))
    if wrong:
        raise ValueError(f"the split '{wrong[0]}'")
    if not all(isinstance(case_id, str) for value in data.values() for case_id in value):
        raise ValueError("a case id that is not text")


def join_same_scans(cases: Sequence[CaseEntry]) -> tuple[list[CaseEntry], list[Finding]]:
    """Return the entries with one patient key for cases of equal voxels, so that no draw separates them.

    Returns:
        the cases in their order, and a notice for each scan that occurs more than once.
    """
    findings = []
    keys = {case.patient_key: case.patient_key for case in cases}

    def root(key: str) -> str:
        while keys[key] != key:
            key = keys[key]
        return key

    for same in _grouped(cases, "content_sha256"):
        if len(same) > 1:
            for case in same:
                keys[root(case.patient_key)] = root(same[0].patient_key)
            kind = "pixels" if are_images(same[0].channels) else "values" if same[0].beats else "voxels"
            what = f"{' and '.join(case.case_id for case in same)} have identical {kind}; they count as one patient."
            findings.append(notice("same-scan-twice", what, do="keep one copy"))
    return [dataclasses.replace(case, patient_key=root(case.patient_key)) for case in cases], findings


def find_leaks(cases: Sequence[CaseEntry]) -> list[Finding]:
    """Return findings about one scan, or one patient, in two fixed splits."""
    findings = []
    reported: set[str] = set()
    for attribute, what in (("content_sha256", "the same scan"), ("patient_key", "the same patient")):
        for same in _grouped(cases, attribute):
            ids = [case.case_id for case in same if case.fixed_split]
            splits = {str(case.fixed_split) for case in same if case.fixed_split}
            if len(splits) > 1 and not reported.issuperset(ids):
                code = "scan-in-two-splits" if attribute == "content_sha256" else "patient-in-two-splits"
                findings.append(_in_two(code, what, splits, ids))
                reported.update(ids)
    return findings


def _grouped(cases: Sequence[CaseEntry], attribute: str) -> list[list[CaseEntry]]:
    groups: dict[str, list[CaseEntry]] = {}
    for case in cases:
        groups.setdefault(getattr(case, attribute), []).append(case)
    return list(groups.values())


def _in_two(code: str, what: str, splits: Iterable[str], ids: list[str]) -> Finding:
    return refuse(
        code,
        f"{what} is in {len(set(splits))} splits: test data was used for training.",
        seen=f"{', '.join(sorted(splits))} for {', '.join(ids)}",
        expected="each patient in one split only",
        do="correct splits.json",
    ).finding
