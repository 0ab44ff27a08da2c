"""NIfTI cohorts by layout: their cases as `check` lists them, the new names of their files, and the files that describe them.

The output has the layout of the source, so that `check` finds the same cases: MSD, nnU-Net 1 and 2, BIDS, one file per MR contrast,
or volumes in `images/` with masks in `labels/`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from medweave_core.contracts.cohort import Finding
from medweave_steps.deidentify.bids_output import BidsNames, bids_title, check_suffixes, write_bids_tables
from medweave_steps.deidentify.describe import bad_description, read_description, write_dataset, write_nnunet_dataset
from medweave_steps.deidentify.participants import Kind
from medweave_steps.deidentify.pseudonyms import Pseudonyms
from medweave_steps.io.cohort.bids import is_bids, read_bids
from medweave_steps.io.cohort.brain_mask import names_in_bids, names_of_volume
from medweave_steps.io.cohort.contrast_files import contrast_of, has_contrast_files
from medweave_steps.io.cohort.dataset_json import read_dataset
from medweave_steps.io.cohort.discovery import walk
from medweave_steps.io.cohort.files import CARD_FILE, DATASET_FILE, has_public_file_names
from medweave_steps.io.cohort.listed import ListedCase, ListedCohort
from medweave_steps.io.cohort.nnunet import FIRST_CHANNEL, is_nnunet_2
from medweave_steps.io.cohort.plain import read_plain
from medweave_steps.io.findings import FindingError, SeriesName, refuse
from medweave_steps.io.nifti.pairing import pair_masks
from medweave_steps.io.nifti.volume import is_nifti, stem

Layout = Literal["msd", "nnunet", "bids", "contrasts", "plain"]

# Notices of the readers about files that are not written.
_NOT_WRITTEN = {"channels-ignored", "other-files", "test-masks", "splits-of-nnunet", "participants-without-scans"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NiftiCohort:
    """A cohort of NIfTI files.

    Attributes:
        dataset: content of dataset.json; empty without that file.
        num_orphans: masks that fit no volume.
    """

    layout: Layout
    listed: ListedCohort
    dataset: Mapping[str, Any] = field(default_factory=dict)
    num_orphans: int = 0

    @property
    def not_written(self) -> list[str]:
        """Return the notices about files that are not written; none names a file or a channel."""
        return [finding.what for finding in self.listed.findings if finding.code in _NOT_WRITTEN]

    def errors_of(self, case: ListedCase) -> list[Finding]:
        """Return the errors about the file names of one case."""
        of_list = [one for one in self.listed.findings if one.severity == "error" and one.case_id == case.name.case_id]
        return [*case.errors, *of_list]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFiles:
    """The files of one case in the output.

    Attributes:
        name: pseudonym of the case, for messages.
        images: one path for each file of the case.
        mask: None without a mask.
    """

    name: SeriesName
    images: tuple[str, ...]
    mask: str | None


def list_data_set(cohort: Path, everything: Sequence[str]) -> NiftiCohort:
    """Return the cases of a data set with dataset.json.

    Raises:
        FindingError: the file cannot be used, or lists a form of data set that is not read.
    """
    dataset = read_description(cohort / DATASET_FILE)
    try:
        listed = read_dataset(cohort, everything)
    except FindingError as error:
        if error.finding.code != "bad-json":
            raise
        raise bad_description(DATASET_FILE, error.seen) from error
    return NiftiCohort(layout="nnunet" if is_nnunet_2(dataset) else "msd", listed=listed, dataset=dataset)


def list_folder(
    cohort: Path, names: Sequence[str], everything: Sequence[str], *, has_public_names: bool | None = None
) -> NiftiCohort:
    """Return the cases of a folder without dataset.json.

    Args:
        names: files that may hold volumes and masks, sorted.
        everything: all files of the cohort.
        has_public_names: of BIDS, see `read_bids`; None to follow the cohort card.
    Raises:
        FindingError: a layout that is not read.
    """
    nifti = [name for name in names if is_nifti(name)]
    numbers = {name: number for number, name in enumerate(names, start=1)}
    if is_bids(nifti):
        if has_public_names is None:
            has_public_names = has_public_file_names(read_description(cohort / CARD_FILE))
        listed = read_bids(cohort, nifti, everything, numbers, has_public_names=has_public_names)
        check_suffixes(listed)
        return NiftiCohort(layout="bids", listed=listed)
    pairing = pair_masks(nifti)
    listed = read_plain(nifti, everything, numbers)
    if not has_contrast_files(list(pairing.masks)):
        return NiftiCohort(layout="plain", listed=listed, num_orphans=len(pairing.orphans()))
    if not has_contrast_files([file for case in listed.cases for file in case.files]):
        raise _ambiguous_contrasts()
    used = {case.mask for case in listed.cases}
    return NiftiCohort(layout="contrasts", listed=listed, num_orphans=sum(mask not in used for mask in pairing.volumes))


def new_files(cohort: NiftiCohort, case: ListedCase, pseudonyms: Pseudonyms) -> NewFiles:
    """Return the names of a case in the output, by pseudonyms."""
    suffixes, mask_suffix = [_suffix(file) for file in case.files], _suffix(case.mask or "")
    if cohort.layout == "bids":
        names = BidsNames.of(case, pseudonyms)
        images = tuple(
            names.image(channel, suffix) for channel, suffix in zip(case.channels, suffixes, strict=False)
        )  # a case with errors has fewer files
        return _new_files(names.title, case, images, names.mask(mask_suffix))
    identity = case.patient if cohort.layout == "contrasts" else case.files[0]
    name = f"case-{pseudonyms.token('nifti', identity, digits=12)}"
    if cohort.layout == "contrasts":
        images = tuple(
            f"{name}/{name}_{contrast_of(file)}{suffix}" for file, suffix in zip(case.files, suffixes, strict=True)
        )
        return _new_files(name, case, images, f"{name}/{name}_seg{mask_suffix}")
    part = "" if cohort.layout == "plain" else "Tr" if case.mask else "Ts"
    is_numbered = cohort.layout == "nnunet" or len(case.files) > 1
    images = tuple(
        f"images{part}/{name}{f'_{number:04d}' if is_numbered else ''}{suffix}"
        for number, suffix in enumerate(suffixes)
    )
    return _new_files(name, case, images, f"labels{part}/{name}{mask_suffix}")


def names_for_brain_mask(cohort: NiftiCohort, case: ListedCase) -> list[str]:
    """Return the names that the brain mask of a case may have: of each of its files, and of the case; no suffix."""
    names = [name for file in case.files for name in names_of_volume(file)]
    if cohort.layout == "bids":
        names += [name for file in case.files[:1] for name in names_in_bids(bids_title(case), file)]
    elif cohort.layout == "contrasts":
        names += names_of_volume(case.patient.removeprefix("file "))
    elif stem(case.files[0]).endswith(FIRST_CHANNEL):
        names += [name.removesuffix(FIRST_CHANNEL) for name in names_of_volume(case.files[0])]
    return names


def describe_output(
    cohort: NiftiCohort,
    source: Path,
    output: Path,
    written: Sequence[tuple[ListedCase, NewFiles]],
    kinds: Mapping[str, Kind],
    *,
    retain: bool,
) -> list[str]:
    """Write the files that describe the output, without the card and the splits.

    Args:
        kinds: columns of participants.tsv to keep.
        retain: keep the characteristics of participants.
    Returns:
        notices about columns that were dropped.
    """
    if cohort.layout == "msd":
        pairs = [(_listed_image(new), new.mask) for _, new in written]
        with_mask = [(image, mask) for image, mask in pairs if mask is not None]
        write_dataset(output, cohort.dataset, with_mask, [image for image, mask in pairs if mask is None])
    elif cohort.layout == "nnunet":
        write_nnunet_dataset(output, cohort.dataset, num_training=sum(new.mask is not None for _, new in written))
    elif cohort.layout == "bids":
        subjects = {case.patient.removeprefix("subject "): new.images[0].partition("/")[0] for case, new in written}
        return write_bids_tables(source, output, subjects, cohort.listed.labels, kinds, retain=retain)
    return []


def case_ids_in(output: Path, layout: Layout, *, has_public_names: bool) -> dict[str, str]:
    """Return the id that `check` gives each case of the output, by its first file."""
    names = list(walk(output))
    if layout in ("msd", "nnunet"):
        listed = list_data_set(output, names).listed
    else:
        listed = list_folder(output, names, names, has_public_names=has_public_names).listed
    return {case.files[0]: case.name.case_id for case in listed.cases}


def _new_files(name: str, case: ListedCase, images: tuple[str, ...], mask: str) -> NewFiles:
    title = SeriesName(case_id=name, ordinal=case.name.ordinal)
    return NewFiles(name=title, images=images, mask=mask if case.mask else None)


def _listed_image(new: NewFiles) -> str:
    """Return the path that dataset.json of MSD lists: of several files, which nnU-Net 1 numbers, that without number."""
    image = new.images[0]
    return image if len(new.images) == 1 else image.replace(f"{FIRST_CHANNEL}.nii", ".nii")


def _suffix(name: str) -> str:
    return ".nii.gz" if name.endswith(".gz") else ".nii"


def renamed(finding: Finding, old: SeriesName, new: SeriesName) -> Finding:
    """Return an error about a case under its pseudonym: the name in the source may identify a patient."""
    return dataclasses.replace(finding, what=finding.what.replace(str(old), str(new)), case_id=new.case_id)


def _ambiguous_contrasts() -> FindingError:
    return refuse(
        "ambiguous-contrasts",
        "the folder has files named after MR contrasts, but its cases have only T1, T2 or PD in common.",
        seen="fewer than half of the cases have another contrast",
        expected="a contrast such as flair, t1ce or t2w in the names of most cases; T1 and T2 alone may be time points of CT",
        do="rename t1 to t1w and t2 to t2w, or list the cases in dataset.json",
    )
