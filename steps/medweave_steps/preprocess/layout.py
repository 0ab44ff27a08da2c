"""The folders of a prepared cohort: which case lies where, and the cohort file of each folder."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from medweave_core.contracts import codec
from medweave_core.contracts.cohort import CaseEntry, CohortIndex, PreparedCase, PreparedCohort, Split
from medweave_steps.io.cohort.prepared import COHORT_FILE
from medweave_steps.io.cohort.signals import recording_of
from medweave_steps.io.hashing import sha256_of_text
from medweave_steps.preprocess.case import CaseDone
from medweave_steps.preprocess.config import CaseSettings

TRAINING_SET = "training_set"
BATCHES = "inference_batches"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPart:
    """A folder of prepared cases that is to be written.

    Attributes:
        name: relative to the output.
        entries: its cases, in order of case id.
    """

    name: str
    entries: tuple[CaseEntry, ...]


def parts_of(splits: Mapping[str, Split], entries: Sequence[CaseEntry], *, cases_per_batch: int) -> list[PreparedPart]:
    """Return the training set, then the batches; the batches are as equal in size as their number allows.

    The samples of an ECG recording stay in one batch, which may then be larger: they are classified together.
    """
    ordered = sorted((entry for entry in entries if entry.case_id in splits), key=lambda entry: entry.case_id)
    training = [entry for entry in ordered if splits[entry.case_id] != "test"]
    test = [entry for entry in ordered if splits[entry.case_id] == "test"]
    number = -(-len(test) // cases_per_batch)
    equal = (round(i * len(test) / number) for i in range(number + 1)) if number else (0,)
    borders = sorted({_end_of_recording(test, border) for border in equal})
    batches = [
        PreparedPart(name=f"{BATCHES}/batch-{i:03d}", entries=tuple(test[low:high]))
        for i, (low, high) in enumerate(itertools.pairwise(borders))
    ]
    return [PreparedPart(name=TRAINING_SET, entries=tuple(training)), *batches]


def _end_of_recording(entries: Sequence[CaseEntry], border: int) -> int:
    """Return a border between two batches, moved behind the last sample of the recording that it would divide."""
    while 0 < border < len(entries) and entries[border].beats:
        if recording_of(entries[border].case_id) != recording_of(entries[border - 1].case_id):
            break
        border += 1
    return border


def make_folders(output: Path, places: Sequence[PreparedPart]) -> dict[str, Path]:
    """Make the folder of every case and return them by case id."""
    (output / BATCHES).mkdir(parents=True)
    folders = {}
    for place in places:
        (output / place.name / "cases").mkdir(parents=True)
        for entry in place.entries:
            folders[entry.case_id] = output / place.name / "cases" / entry.case_id
            folders[entry.case_id].mkdir()
    return folders


def write_cohort_file(
    output: Path,
    place: PreparedPart,
    *,
    index: CohortIndex,
    settings: CaseSettings,
    splits: Mapping[str, Split],
    split_seed: int,
    done: Mapping[str, CaseDone],
) -> None:
    """Write `cohort.json` of one folder, with the cases that were prepared."""
    entries = [entry for entry in place.entries if entry.case_id in done]
    # Where a cohort has masks, has_label promises label.npy; the target of a cohort without masks is the class.
    has_classes_only = bool(index.classes) and all(entry.ground_truth is None for entry in index.cases)
    cohort = PreparedCohort(
        spacing_mm=settings.spacing_mm,
        window_hu=settings.window_hu,
        crop=settings.crop,
        margin_mm=settings.margin_mm,
        split_seed=split_seed,
        synthetic=index.synthetic,
        labels=index.labels,
        merges=index.merges,
        regions=index.regions,
        ignore_value=index.ignore_value,
        channels=settings.channels,
        classes=index.classes,
        is_multi_label=index.is_multi_label,
        has_brain_masks=settings.has_brain_masks,
        bias_correction=settings.bias_correction,
        data_sha256=sha256_of_text(entry.content_sha256 for entry in entries),
        cases=tuple(
            PreparedCase(
                case_id=entry.case_id,
                patient_key=entry.patient_key,
                split=splits[entry.case_id],
                has_label=entry.classes is not None if has_classes_only else done[entry.case_id].has_label,
                num_lesions=done[entry.case_id].num_lesions,
                num_label_voxels=done[entry.case_id].num_label_voxels,
                voxels_by_label=done[entry.case_id].voxels_by_label,
                classes=entry.classes,
            )
            for entry in entries
        ),
    )
    (output / place.name / COHORT_FILE).write_text(codec.dumps(cohort), encoding="utf-8")
