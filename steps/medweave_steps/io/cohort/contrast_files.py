"""Plain folders with one NIfTI file for each MR contrast, such as BraTS: `CASE/CASE_flair.nii.gz`, `CASE/CASE_seg.nii.gz`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from medweave_steps.io.cohort.channel_names import check_channels
from medweave_steps.io.cohort.channel_selection import select_files
from medweave_steps.io.cohort.discovery import case_id_of_path
from medweave_steps.io.cohort.listed import CHANNEL_RULE, ListedCase, ListedCohort, choose_channels, files_of_channels
from medweave_steps.io.findings import FindingError, SeriesName, first_of, refuse
from medweave_steps.io.nifti.pairing import Pairing, pair_masks
from medweave_steps.io.nifti.volume import stem

RULE = (
    "volumes of one folder whose names differ only in their last word, a contrast such as flair or t1ce, are the channels of a "
    f"case; {CHANNEL_RULE}; the mask of a case has its name without the contrast, with a word such as seg, or lies in labels/"
)
# T1 and T2 alone may be two time points of CT, so one file of the folder must have another of these words.
_CONTRASTS = (
    "t1", "t1n", "t1w", "t1pre", "mprage", "t1c", "t1ce", "t1gd", "t1post", "t2", "t2w", "t2f", "flair", "pd", "pdw", "dwi", "hbv",
    "adc", "swi", "stir", "bold",
)  # fmt: skip
_AMBIGUOUS = {"t1", "t2", "pd"}


def contrast_of(name: str) -> str:
    """Return the last word of a file name if it is a contrast, in lower case; else an empty text."""
    word = re.split(r"[^a-z0-9]+", stem(name).lower())[-1]
    return word if word in _CONTRASTS else ""


def has_contrast_files(volumes: Sequence[str]) -> bool:
    """Return whether the volumes of a plain folder are named after MR contrasts."""
    return any(contrast_of(volume) not in {"", *_AMBIGUOUS} for volume in volumes)


def read_contrast_files(pairing: Pairing, numbers: Mapping[str, int], wanted: Sequence[str] = ()) -> ListedCohort:
    """Return the cases of a folder with one file for each contrast.

    Args:
        pairing: masks and volumes among the NIfTI files.
        numbers: of each file among all files of the cohort, sorted by path, from 1.
        wanted: channels to read, in order; empty for those that at least half of the cases have.
    Raises:
        UsageError: no case has a wanted channel.
        FindingError: a volume without a contrast in its name.
    """
    volumes = _group_volumes(list(pairing.masks), numbers)
    groups = select_files(volumes, wanted)
    order = [word.upper() for word in _CONTRASTS]
    channels, findings = (tuple(wanted), []) if wanted else choose_channels(list(groups.values()), order)
    channels, notices = check_channels(channels)
    # The masks are paired with the names that the volumes have without their contrast.
    of_cases = pair_masks(sorted([*groups, *pairing.volumes]))
    names = {
        path: SeriesName(case_id=case_id_of_path(path), ordinal=ordinal) for ordinal, path in enumerate(groups, start=1)
    }
    first_files = {path: numbers[next(iter(files.values()))[0]] for path, files in volumes.items()}
    refusals = of_cases.refusals(names.__getitem__, {**numbers, **first_files})
    masks = dict(of_cases.pairs())
    cases = []
    for path, by_channel in groups.items():
        files, errors = files_of_channels(names[path], by_channel, channels)
        if path in refusals:
            errors.append(refusals[path])
        cases.append(
            ListedCase(
                name=names[path],
                files=files,
                mask=masks.get(path),
                channels=channels,
                patient=f"file {path}",
                errors=tuple(errors),
            )
        )
    return ListedCohort(cases=tuple(cases), findings=(*findings, *notices, *of_cases.notices(numbers)), rule=RULE)


def _group_volumes(volumes: Sequence[str], numbers: Mapping[str, int]) -> dict[str, dict[str, list[str]]]:
    """Return the volumes by case path and channel.

    Raises:
        FindingError: a volume without a contrast in its name.
    """
    without = [numbers[volume] for volume in volumes if not contrast_of(volume)]
    if without:
        raise _no_contrast(len(volumes), without)
    groups: dict[str, dict[str, list[str]]] = {}
    for volume in volumes:
        groups.setdefault(_case_path(volume), {}).setdefault(contrast_of(volume).upper(), []).append(volume)
    return groups


def _case_path(volume: str) -> str:
    """Return the path that a volume would have without its contrast; `volume.nii.gz` if no other word is left."""
    folder, _, _ = volume.rpartition("/")
    rest = stem(volume)[: -len(contrast_of(volume))].rstrip("_-. ")
    return f"{folder}/{rest or 'volume'}.nii.gz" if folder else f"{rest or 'volume'}.nii.gz"


def _no_contrast(num_volumes: int, without: Sequence[int]) -> FindingError:
    return refuse(
        "foreign-layout",
        "the folder has an unsupported layout: volumes with and without an MR contrast in their names.",
        seen=f"{len(without)} of {num_volumes} volumes without a contrast: file {first_of(without, 6)}, sorted by path",
        expected="the contrast as the last word of each volume's name, such as CASE_flair.nii.gz and CASE_t2.nii.gz",
        do="rename or remove these files, or list the cases in dataset.json",
    )
