"""BIDS-like folders: `sub-01/ses-1/anat/sub-01_ses-1_T1w.nii.gz`, masks in `derivatives/`, `participants.tsv`.

Source: Brain Imaging Data Structure 1.9 (Gorgolewski et al. 2016, Sci Data 3:160044). Of participants.tsv only the column
participant_id is read: age and sex enter neither messages nor the index.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath

from medweave_core.contracts.cohort import Finding
from medweave_core.contracts.labels import Label
from medweave_steps.io.cohort.bids_tables import read_mask_labels, read_participants
from medweave_steps.io.cohort.channel_names import check_channels
from medweave_steps.io.cohort.channel_selection import select_files
from medweave_steps.io.cohort.discovery import case_id_of_path
from medweave_steps.io.cohort.listed import CHANNEL_RULE, ListedCase, ListedCohort, choose_channels, files_of_channels
from medweave_steps.io.findings import FindingError, SeriesName, first_of, notice, refuse
from medweave_steps.io.nifti.volume import stem

RULE = (
    "a case is a subject and session; its channels are the suffixes of the files in anat/ (T1w with ce-gadolinium is T1gd); "
    f"{CHANNEL_RULE}; its mask is the file *_dseg, else *_mask other than *_desc-brain_mask, of that subject and session in "
    "derivatives/"
)
_CHANNEL_ORDER = ("T1w", "T1gd", "T2w", "FLAIR")
_PATH = re.compile(r"(sub-[A-Za-z0-9]+)/(?:(ses-[A-Za-z0-9]+)/)?anat/[^/]+")
_MASK_SUFFIXES = ("dseg", "mask")
_GADOLINIUM = "gadolinium"
GADOLINIUM_CHANNEL = "T1gd"


@dataclass(frozen=True, slots=True, kw_only=True)
class _BidsFile:
    """A path in its parts.

    Attributes:
        folders: entities of its folders: {sub: 01, ses: 1}.
        entities: of its name, such as {sub: 01, ses: 1, ce: gadolinium}.
        suffix: last part of its name, such as T1w.
    """

    path: str
    folders: Mapping[str, str]
    entities: Mapping[str, str]
    suffix: str

    @property
    def case(self) -> tuple[str, str]:
        """Subject and session by the folders, else by the name; the session is empty if neither has one."""
        places = {**self.entities, **self.folders}
        return places.get("sub", ""), places.get("ses", "")

    @property
    def is_misplaced(self) -> bool:
        """Return whether the name has another subject or session than the folders."""
        return any(self.entities.get(key, value) != value for key, value in self.folders.items())

    @property
    def channel(self) -> str:
        """Name of the contrast: the suffix, and the contrast agent where there is one."""
        agent = self.entities.get("ce", "")
        if not agent:
            return self.suffix
        return (
            GADOLINIUM_CHANNEL if (self.suffix, agent.lower()) == ("T1w", _GADOLINIUM) else f"{self.suffix}_ce-{agent}"
        )


def is_bids(names: Sequence[str]) -> bool:
    """Return whether NIfTI files lie in `sub-<label>/[ses-<label>/]anat/` of the cohort."""
    return any(_PATH.fullmatch(name) for name in names)


def subject_and_session(path: str) -> tuple[str, str]:
    """Return the subject and the session of a file, without `sub-` and `ses-`; the session is empty if it has none."""
    return _parse(path).case


def title_of(path: str) -> str:
    """Return subject and session of a file as file names begin: `sub-01_ses-1`, or `sub-01`."""
    subject, session = subject_and_session(path)
    return f"sub-{subject}" + (f"_ses-{session}" if session else "")


def read_bids(
    cohort: Path,
    names: Sequence[str],
    everything: Sequence[str],
    numbers: Mapping[str, int],
    *,
    has_public_names: bool,
    wanted: Sequence[str] = (),
) -> ListedCohort:
    """Return the cases of a BIDS-like folder.

    Args:
        names: the NIfTI files, sorted.
        everything: all files of the cohort.
        numbers: of each file among all files of the cohort, sorted by path, from 1.
        has_public_names: name the cases after subject and session; else subjects may identify patients, and cases are named after
            a digest.
        wanted: channels to read, in order; empty for those that at least half of the cases have.
    Raises:
        UsageError: no case has a wanted channel.
        FindingError: participants.tsv or a table of labels cannot be used, or a file lies in the folder of another subject.
    """
    groups = select_files(_group_scans(names, numbers), wanted)
    suffixes, findings = (tuple(wanted), []) if wanted else choose_channels(list(groups.values()), _CHANNEL_ORDER)
    channels, notices = check_channels(suffixes)
    participants, participant_findings = read_participants(cohort, {subject for subject, _ in groups})
    masks = _masks_by_case(names, groups)
    shared = {mask for mask, number in Counter(chain(*masks.values())).items() if number > 1}
    cases = []
    for ordinal, (case, by_channel) in enumerate(sorted(groups.items()), start=1):
        name = SeriesName(case_id=_case_id(case, has_public_names=has_public_names), ordinal=ordinal)
        files, errors = files_of_channels(name, by_channel, suffixes)
        mask, mask_errors = _only_mask(name, masks.get(case, []), shared)
        if participants is not None and case[0] not in participants:
            errors.append(_not_a_participant(name))
        errors += mask_errors
        patient = f"subject {case[0]}"
        cases.append(
            ListedCase(name=name, files=files, mask=mask, channels=channels, patient=patient, errors=tuple(errors))
        )
    used_masks = [case.mask for case in cases if case.mask]
    used = {file for case in cases for file in case.files}.union(used_masks)
    findings += [*notices, *participant_findings, *_other_files(sum(name not in used for name in names))]
    labels = read_mask_labels(cohort, used_masks, everything) or _label_of_names(used_masks)
    return ListedCohort(cases=tuple(cases), labels=labels, findings=tuple(findings), rule=RULE)


def _group_scans(names: Sequence[str], numbers: Mapping[str, int]) -> dict[tuple[str, str], dict[str, list[str]]]:
    """Return the files of each subject and session by channel.

    Raises:
        FindingError: a file lies in the folder of another subject or session.
    """
    files = [_parse(name) for name in names]
    misplaced = [numbers[file.path] for file in files if file.is_misplaced]
    if misplaced:
        raise _misplaced(misplaced)
    groups: dict[tuple[str, str], dict[str, list[str]]] = {}
    for file in files:
        if _PATH.fullmatch(file.path) and not file.suffix.endswith("mask"):
            groups.setdefault(file.case, {}).setdefault(file.channel, []).append(file.path)
    return groups


def _parse(name: str) -> _BidsFile:
    *parts, suffix = stem(name).split("_")
    folders = [folder for folder in PurePosixPath(name).parts[:-1] if folder.startswith(("sub-", "ses-"))]
    return _BidsFile(path=name, folders=_pairs(folders), entities=_pairs(parts), suffix=suffix)


def _pairs(parts: Sequence[str]) -> dict[str, str]:
    pairs = [part.partition("-") for part in parts]
    return {key: value for key, _, value in pairs if value}


def _case_id(case: tuple[str, str], *, has_public_names: bool) -> str:
    title = "_".join(f"{key}-{value}" for key, value in zip(("sub", "ses"), case, strict=True) if value)
    return title if has_public_names else case_id_of_path(title)


def _masks_by_case(names: Sequence[str], groups: Mapping[tuple[str, str], object]) -> dict[tuple[str, str], list[str]]:
    """Return the masks of each case: those with the suffix dseg, else those with the suffix mask.

    A mask without session is listed for each session of its subject.
    """
    sessions: dict[str, list[str]] = {}
    for subject, session in groups:
        sessions.setdefault(subject, []).append(session)
    by_case: dict[tuple[str, str], dict[str, list[str]]] = {}
    for name in names:
        mask = _parse(name)
        if PurePosixPath(name).parts[0] != "derivatives" or mask.suffix not in _MASK_SUFFIXES or _is_brain_mask(mask):
            continue
        subject, session = mask.case
        for other in sessions.get(subject, ()):
            if session in ("", other):
                by_case.setdefault((subject, other), {}).setdefault(mask.suffix, []).append(name)
    return {
        case: next(by_suffix[suffix] for suffix in _MASK_SUFFIXES if suffix in by_suffix)
        for case, by_suffix in by_case.items()
    }


def _is_brain_mask(mask: _BidsFile) -> bool:
    return mask.suffix == "mask" and mask.entities.get("desc") == "brain"


def _only_mask(name: SeriesName, masks: Sequence[str], shared: Collection[str]) -> tuple[str | None, list[Finding]]:
    """Return the mask of a case, or an error if it has several or shares one with another session."""
    if len(masks) == 1 and masks[0] not in shared:
        return masks[0], []
    seen = (
        f"{len(masks)} masks of the subject and session"
        if len(masks) > 1
        else "one mask for several sessions of the subject"
    )
    return None, [_ambiguous_mask(name, seen)] if masks else []


def _label_of_names(masks: Sequence[str]) -> tuple[Label, ...]:
    """Return the label that the entity `label` of all binary masks (`*_mask`), else `desc`, names; empty if it is not one name."""
    parsed = [_parse(mask) for mask in masks]
    names = {mask.entities.get("label", mask.entities.get("desc", "")) for mask in parsed if mask.suffix == "mask"}
    is_binary = bool(parsed) and all(mask.suffix == "mask" for mask in parsed)
    return tuple(Label(value=1, name=name) for name in names if name) if is_binary and len(names) == 1 else ()


def _misplaced(numbers: Sequence[int]) -> FindingError:
    return refuse(
        "misplaced-file",
        "files have another subject or session in their name than in their folder.",
        seen=f"file {first_of(numbers)} of the cohort, sorted by path",
        expected="sub-01/ses-1/anat/sub-01_ses-1_...",
        do="move or rename the files",
    )


def _not_a_participant(name: SeriesName) -> Finding:
    return name.refuse(
        "no-participant",
        "the subject of the case is not in participants.tsv.",
        seen="no row for the subject",
        expected="a row in participants.tsv for each subject with scans",
        do="add the row, remove the scans, or skip the case with --on-error skip",
    ).finding


def _ambiguous_mask(name: SeriesName, seen: str) -> Finding:
    return name.refuse(
        "ambiguous-mask",
        "the mask of the case is ambiguous.",
        seen=f"{seen} in derivatives/",
        expected="one file *_dseg, or one file *_mask, per subject and session",
        do="keep one mask, with the entities sub and ses of its scans",
    ).finding


def _other_files(number: int) -> list[Finding]:
    if not number:
        return []
    what = f"{number} NIfTI {'file' if number == 1 else 'files'} ignored: other data types (func, dwi), channels or derivatives."
    return [notice("other-files", what)]
