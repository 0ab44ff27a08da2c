"""nnU-Net data sets: cases of one file per channel, `imagesTr/CASE_0000.nii.gz`, and labels that may be regions.

Source: nnU-Net v2, documentation/dataset_format.md and region_based_training.md (Isensee et al. 2021, Nat Methods 18:203).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from medweave_core.contracts.cohort import Finding
from medweave_core.contracts.labels import HIGHEST_VALUE, Label, Region, ascending, check_regions, own_value
from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.files import case_id_of_stem, channel_names_of
from medweave_steps.io.cohort.listed import ListedCase, ListedCohort, missing_channels
from medweave_steps.io.findings import FindingError, SeriesName, notice, refuse
from medweave_steps.io.nifti.volume import SUFFIXES, is_nifti, stem

FIRST_CHANNEL = "_0000"
MSD_FORM = (
    "modality {'0': 'CT'}, labels {'1': 'name'}, training [{'image': ..., 'label': ...}], test [...]; contrasts of one case "
    "in the fourth axis of one file"
)
RULE = "the files imagesTr/CASE_0000, CASE_0001, ... are the channels of a case, and labelsTr/CASE is its mask"
_NUMBERED = re.compile(r"(.+)_(\d{4})")
_ORDINALS = ("first", "second", "third", "fourth")
_LONGEST_NAME = 64  # DICOM SegmentLabel


def is_nnunet_2(dataset: Mapping[str, Any]) -> bool:
    """Return whether a `dataset.json` has the form of nnU-Net v2."""
    return "channel_names" in dataset or ("file_ending" in dataset and "training" not in dataset)


def read_nnunet_2(dataset: Mapping[str, Any], names: Sequence[str]) -> ListedCohort:
    """Return the cases and labels of an nnU-Net v2 data set.

    Args:
        dataset: content of its `dataset.json`.
        names: all files of the cohort, relative to it.
    Raises:
        FindingError: a form that is not read; names it and what to change.
    """
    ending = str(dataset.get("file_ending", ".nii.gz"))
    if ending not in SUFFIXES or "dataset" in dataset:
        seen = f"file_ending {ending}" if ending not in SUFFIXES else "a list 'dataset'"
        raise unsupported(seen, ".nii.gz or .nii, in imagesTr and labelsTr")
    channels = nnunet_channels(dataset)
    labels = parse_nnunet_labels(dataset.get("labels"), dataset.get("regions_class_order"))
    masks = {stem(name): name for name in _below("labelsTr", names, ending)}
    training = _files_by_case("imagesTr", names, ending, len(channels))
    test = _files_by_case("imagesTs", names, ending, len(channels))
    cases = []
    for ordinal, (folder, case) in enumerate(
        [
            *(("imagesTr", case) for case in sorted(masks.keys() | training.keys())),
            *(("imagesTs", case) for case in sorted(test)),
        ],
        start=1,
    ):
        files = (training if folder == "imagesTr" else test).get(case, {})
        mask = masks.get(case) if folder == "imagesTr" else None
        cases.append(numbered_case(files, mask, channels, base=f"{folder}/{case}", suffix=ending, ordinal=ordinal))
    return ListedCohort(
        cases=tuple(cases), labels=labels.labels, regions=labels.regions, ignore_value=labels.ignore_value, rule=RULE,
        findings=tuple(_notices(names, cases)),
    )  # fmt: skip


def numbered_case(
    files: Mapping[int, str], mask: str | None, channels: tuple[str, ...], *, base: str, suffix: str, ordinal: int
) -> ListedCase:
    """Return a case from its files by channel number; a case without any file gets the paths that it should have.

    Args:
        base: path of the case without number and suffix.
    """
    expected = tuple(files.get(number, f"{base}_{number:04d}{suffix}") for number in range(len(channels)))
    # One file: the stem of the file, as for MSD; several: the name that nnU-Net gives the case.
    case_id = case_id_of_stem(expected[0] if len(channels) == 1 else base)
    name = SeriesName(case_id=case_id, ordinal=ordinal)
    missing = [channel for number, channel in enumerate(channels) if number not in files]
    errors = (missing_channels(name, missing, channels).finding,) if files and missing else ()
    return ListedCase(name=name, files=expected, mask=mask, channels=channels, errors=errors)


def channel_files(image: str, present: set[str], num_channels: int) -> tuple[dict[int, str], str, str]:
    """Return the files of a case of nnU-Net v1, whose list names no channel, by number; else the listed file alone.

    Args:
        image: as `listed_volumes` gives it.
        present: all files of the cohort.
    Returns:
        the files, and path and suffix of the case without a channel number.
    Raises:
        FindingError: a further channel that `dataset.json` does not declare.
    """
    suffix = next((end for end in reversed(SUFFIXES) if image.endswith(end)), "")
    base = image.removesuffix(suffix)
    numbered = {number: f"{base}_{number:04d}{suffix}" for number in range(num_channels)}
    if image in present or not any(file in present for file in numbered.values()):
        return {0: image}, base, suffix
    if f"{base}_{num_channels:04d}{suffix}" in present:
        raise _undeclared(num_channels)
    return {number: file for number, file in numbered.items() if file in present}, base, suffix


@dataclass(frozen=True, slots=True, kw_only=True)
class NnunetLabels:
    """The labels of an nnU-Net data set: see `ListedCohort`."""

    labels: tuple[Label, ...]
    regions: tuple[Region, ...] = ()
    ignore_value: int | None = None


def parse_nnunet_labels(declared: Any, class_order: Any = None) -> NnunetLabels:
    """Return the labels of `labels` (name to value, or to several values for a region).

    A label that only regions declare gets the name of its region, without the regions inside: `tumor without core`.

    Args:
        class_order: `regions_class_order`: the value that each region writes, in their order; later ones overwrite.
    Raises:
        FindingError: another form, a value twice, an ignore value that is not the highest, or regions that cannot be predicted
            together.
    """
    values = {str(name): _values(value) for name, value in declared.items()} if isinstance(declared, Mapping) else {}
    if not values or None in values.values():
        raise unsupported("labels without a number", "labels {name: number}, or {name: [numbers]} for a region")
    parsed = {name: numbers for name, numbers in values.items() if numbers is not None}
    ignored = parsed.pop("ignore", ())
    foreground = {name: numbers for name, numbers in parsed.items() if numbers != (0,)}
    used = sorted({value for numbers in foreground.values() for value in numbers})
    _check_values(used, ignored)
    ignore_value = ignored[0] if ignored else None
    if all(len(numbers) == 1 for numbers in foreground.values()):
        if len(used) < len(foreground):
            raise _bad_labels(f"{len(foreground)} names for {len(used)} values", "a different value for each label")
        labels = tuple(Label(value=numbers[0], name=name) for name, numbers in foreground.items())
        return NnunetLabels(labels=ascending(labels), ignore_value=ignore_value)
    regions = tuple(Region(name=name, values=numbers) for name, numbers in foreground.items())
    _check_regions(regions, used, class_order)
    labels = tuple(Label(value=_own(region, regions), name=_own_name(region, regions)) for region in regions)
    return NnunetLabels(labels=ascending(labels), regions=regions, ignore_value=ignore_value)


def unsupported(seen: str, expected: str) -> FindingError:
    """Return the error about a form of nnU-Net data sets that is not read."""
    return refuse(
        "foreign-layout",
        "the nnU-Net data set has an unsupported layout.",
        seen=f"{seen} (dataset.json)",
        expected=f"{expected}, or the format of the Medical Segmentation Decathlon",
        do="write dataset.json in the MSD format: " + MSD_FORM,
    )


def nnunet_channels(dataset: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of `channel_names` in the order of their numbers.

    Raises:
        FindingError: another form.
    """
    declared = dataset.get("channel_names")
    expected = "channel_names {'0': name, '1': name, ...}"
    if not isinstance(declared, Mapping) or not declared:
        raise unsupported("no usable channels", expected)
    if sorted(map(str, declared)) != sorted(str(number) for number in range(len(declared))):
        raise unsupported("channel numbers that do not count from 0", expected)
    try:
        return channel_names_of(declared)
    except (AttributeError, TypeError, ValueError) as error:
        raise unsupported("a channel name that is not a short plain name", expected) from error


def _files_by_case(folder: str, names: Sequence[str], ending: str, num_channels: int) -> dict[str, dict[int, str]]:
    """Return the files of each case by channel number; a file without number is the only channel of its case."""
    cases: dict[str, dict[int, str]] = {}
    for name in _below(folder, names, ending):
        match = _NUMBERED.fullmatch(stem(name))
        case, number = (match[1], int(match[2])) if match else (stem(name), 0)
        if number >= num_channels:
            raise _undeclared(number)
        if match is None and num_channels > 1:
            raise unsupported(
                f"a file in {folder} without a channel number",
                f"{num_channels} files per case: CASE_0000, CASE_0001, ...",
            )
        if number in cases.setdefault(case, {}):
            raise unsupported(
                f"two files in {folder} of one case and channel (_{number:04d})", "one file per case and channel"
            )
        cases[case][number] = name
    return cases


def _below(folder: str, names: Sequence[str], ending: str) -> list[str]:
    return [name for name in names if name.startswith(f"{folder}/") and name.endswith(ending) and is_nifti(name)]


def _undeclared(number: int) -> FindingError:
    ordinal = _ORDINALS[number] if number < len(_ORDINALS) else "further"
    return unsupported(
        f"a {ordinal} channel (_{number:04d}) that dataset.json does not declare", "the declared channels only"
    )


def _notices(names: Sequence[str], cases: Sequence[ListedCase]) -> list[Finding]:
    findings = []
    num_unlabelled = sum(case.mask is None for case in cases)
    if num_unlabelled:
        findings.append(notice("no-mask", f"{num_unlabelled} volumes of the data set have no mask."))
    if any(PurePosixPath(name).name == "splits_final.json" for name in names):
        findings.append(
            notice(
                "splits-of-nnunet",
                "splits_final.json of nnU-Net is not used.",
                do="write splits.json with the case ids as printed by check to define the splits",
            )
        )
    used = {file for case in cases for file in (*case.files, case.mask)}
    others = sum(is_nifti(name) and name not in used and not name.startswith("labelsTs/") for name in names)
    if others:
        what = f"{others} NIfTI {'file' if others == 1 else 'files'} ignored: another folder, or another ending."
        findings.append(
            notice("other-files", what, do="correct 'file_ending' in dataset.json if these files belong to the cases")
        )
    hidden = sum(name.startswith("labelsTs/") for name in names)
    if hidden:
        what = f"{hidden} {'file' if hidden == 1 else 'files'} in labelsTs ignored: cases of imagesTs are read without masks."
        findings.append(notice("test-masks", what))
    return findings


def _values(value: Any) -> tuple[int, ...] | None:
    """Return the values of a label, ascending; None if they are no whole numbers."""
    values = value if isinstance(value, list) and value else [value]
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in values):
        return None
    return tuple(sorted(set(values)))


def _check_values(used: Sequence[int], ignored: Sequence[int]) -> None:
    if not used or used[0] < 1 or used[-1] > HIGHEST_VALUE:
        seen = f"values {', '.join(map(str, used))}" if used else "no foreground label"
        raise _bad_labels(seen, f"foreground values from 1 to {HIGHEST_VALUE}; 0 is the background alone")
    if ignored and (len(ignored) > 1 or not used[-1] < ignored[0] <= HIGHEST_VALUE):
        raise _bad_labels(
            f"ignore {', '.join(map(str, ignored))}, highest label {used[-1]}",
            f"one value for ignore, above all labels and at most {HIGHEST_VALUE}",
        )


def _check_regions(regions: Sequence[Region], used: Sequence[int], class_order: Any) -> None:
    try:
        check_regions(regions, [Label(value=value, name=str(value)) for value in used])
    except UserInputError as error:
        raise refuse(
            "bad-regions",
            "the regions of dataset.json cannot be predicted together.",
            seen=error.seen,
            expected="regions that are nested or separate, each with one label that is in no smaller region",
            do="correct 'labels' in dataset.json, or give each label one number there",
        ) from error
    if class_order is None:
        return
    expected = [_own(region, regions) for region in regions]
    later = [
        other
        for place, region in enumerate(regions)
        for other in regions[:place]
        if set(other.values) < set(region.values)
    ]
    if class_order != expected or later:
        seen = "a region listed before the larger region around it" if later else f"regions_class_order {class_order}"
        raise refuse(
            "bad-regions",
            "regions_class_order contradicts the regions of dataset.json.",
            seen=seen,
            expected=f"larger regions first, and for each the label that is in no smaller region: {expected}"
            if not later
            else "larger regions first",
            do="correct 'labels' or 'regions_class_order' in dataset.json",
        )


def _own(region: Region, regions: Sequence[Region]) -> int:
    value = own_value(region, regions)
    assert value is not None, "check_regions accepts only regions with one label outside of smaller regions"
    return value


def _own_name(region: Region, regions: Sequence[Region]) -> str:
    """Return a name for the label of a region that is in no smaller region."""
    inside_it = [other for other in regions if set(other.values) < set(region.values)]
    largest = [one for one in inside_it if not any(set(one.values) < set(other.values) for other in inside_it)]
    name = f"{region.name} without {' and '.join(one.name for one in largest)}" if largest else region.name
    return name if len(name) <= _LONGEST_NAME else f"{region.name[: _LONGEST_NAME - 12]} (remainder)"


def _bad_labels(seen: str, expected: str) -> FindingError:
    return refuse(
        "bad-json", "the labels of the data set (dataset.json) cannot be used.", seen=seen, expected=expected,
        do="correct 'labels' in dataset.json",
    )  # fmt: skip
