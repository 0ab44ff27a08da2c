"""Data sets with a `dataset.json`: the Medical Segmentation Decathlon, and nnU-Net v1 and v2."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medweave_core.contracts.cohort import Finding
from medweave_steps.io.cohort.channel_names import check_channels
from medweave_steps.io.cohort.documents import bad_json, labels_of, read_json
from medweave_steps.io.cohort.files import DATASET_FILE, case_id_of_stem, declared_channels, listed_volumes
from medweave_steps.io.cohort.listed import ListedCase, ListedCohort
from medweave_steps.io.cohort.nnunet import (
    channel_files,
    is_nnunet_2,
    nnunet_channels,
    numbered_case,
    read_nnunet_2,
)
from medweave_steps.io.findings import SeriesName, notice

_WHAT = "the data set"


def read_dataset(cohort: Path, names: Sequence[str]) -> ListedCohort:
    """Return the cases that `dataset.json` lists.

    MSD: Antonelli et al. 2022, Nat Commun 13:4128.

    Args:
        names: all files of the cohort, relative to it.
    Raises:
        FindingError: the file cannot be used, or lists a form of data set that is not read.
    """
    dataset = read_json(cohort / DATASET_FILE, _WHAT)
    if not is_nnunet_2(dataset):
        return _read_msd(dataset, names)
    _, notices = check_channels(nnunet_channels(dataset))
    listed = read_nnunet_2(dataset, names)
    return dataclasses.replace(listed, findings=(*notices, *listed.findings))


def _read_msd(dataset: Mapping[str, Any], names: Sequence[str]) -> ListedCohort:
    try:
        channels, findings = check_channels(declared_channels(dataset))
        training, test = listed_volumes(dataset)
        labels = labels_of(dataset, _WHAT, DATASET_FILE)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        form = "'modality', 'training', 'test' or 'labels' in an invalid form"
        raise bad_json(_WHAT, DATASET_FILE, form) from error
    present = set(names)
    cases = []
    for ordinal, (image, mask) in enumerate([*training, *test], start=1):
        files, base, suffix = channel_files(image, present, len(channels))
        if files == {0: image}:  # one file with all channels
            name = SeriesName(case_id=case_id_of_stem(image), ordinal=ordinal)
            cases.append(ListedCase(name=name, files=(image,), mask=mask, channels=channels))
        else:
            cases.append(numbered_case(files, mask, channels, base=base, suffix=suffix, ordinal=ordinal))
    findings += _masks_listed_twice(cases)
    unlabelled = sum(case.mask is None for case in cases)
    if unlabelled:
        findings.append(notice("no-mask", f"{unlabelled} volumes of the list 'test' have no mask."))
    return ListedCohort(cases=tuple(cases), labels=labels, findings=tuple(findings))


def _masks_listed_twice(cases: Sequence[ListedCase]) -> list[Finding]:
    """Return an error for each volume whose mask dataset.json lists for another volume too."""
    count = Counter(case.mask for case in cases if case.mask is not None)
    return [
        case.name.refuse(
            "ambiguous-mask",
            "dataset.json lists the same mask for another volume.",
            seen=f"one mask for {count[case.mask]} volumes",
            expected="one mask per volume",
            do="correct 'label' of these volumes in dataset.json",
        ).finding
        for case in cases
        if case.mask is not None and count[case.mask] > 1
    ]
