"""The index of a whole cohort: which layout it has, its cases in order, and every finding."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from medweave_core.contracts.cohort import CohortIndex, Finding
from medweave_core.contracts.labels import Label
from medweave_core.contracts.volume import CT_CHANNELS
from medweave_core.errors import UsageError, UserInputError
from medweave_steps.check.cases import Examined, MaskRules, NiftiCase, examine_nifti
from medweave_steps.check.labels import (
    NO_LABEL_OPTIONS,
    LabelOptions,
    body_part_findings,
    cohort_labels,
    segment_labels,
)
from medweave_steps.check.splits import find_leaks, join_same_scans, read_splits
from medweave_steps.check.studies import examine_series
from medweave_steps.io.cohort.channel_rules import ChannelRule
from medweave_steps.io.cohort.discovery import FoundDicom, case_id_of_path, discover_dicom, walk
from medweave_steps.io.cohort.files import (
    CARD_FILE,
    DATASET_FILE,
    DEIDENTIFIED,
    SPLITS_FILE,
    case_id_of_stem,
    declared_channels,
    listed_volumes,
)
from medweave_steps.io.cohort.foreign_layouts import dataset_as_msd, find_unread_files, refuse_foreign_layout
from medweave_steps.io.cohort.labels import parse_labels
from medweave_steps.io.cohort.prepared import INDEX_FILE
from medweave_steps.io.findings import FindingError, SeriesName, notice, refuse
from medweave_steps.io.nifti.pairing import pair_masks
from medweave_steps.io.nifti.volume import is_nifti
from medweave_steps.runtime.verb import REPORT_NAME, StepContext

Layout = Literal["dicom", "nifti", "msd"]

# What describes a cohort, and what `check` writes where a user points it into the cohort's own folder: no strangers.
_ABOUT_THE_COHORT = {CARD_FILE, SPLITS_FILE, DATASET_FILE, INDEX_FILE, REPORT_NAME}
_HEADERS_A_LINE = 5000
_MOST_THREADS = 4

_MR_CONTRASTS = ("FLAIR", "T1W", "T1GD", "T2W", "T1", "T2", "PD", "ADC", "DWI", "MR", "MRI")

# A finding about one file, that leaving the file out settles.
_SETTLED_BY_SKIPPING = {"unreadable-file"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The result of checking a cohort: its index, and data for the summary.

    Attributes:
        file_numbers: number of each file among all files of the cohort, sorted by path, from 1.
    """

    index: CohortIndex
    examined: tuple[Examined, ...]
    file_numbers: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """Paths relative to the cohort, sorted: all, those that may hold volumes and masks, and their numbers in messages."""

    everything: Sequence[str]
    readable: Sequence[str]
    numbers: Mapping[str, int]


def check_cohort(
    cohort: Path,
    context: StepContext,
    *,
    skip: bool,
    label_options: LabelOptions = NO_LABEL_OPTIONS,
    channel_rules: tuple[ChannelRule, ...] = (),
) -> Checked:
    """Read and check a whole cohort.

    Args:
        skip: leave bad cases out with a notice; otherwise their errors stay in the findings.
        label_options: labels and merges that the user requests.
        channel_rules: which DICOM series of a study is which channel; empty without such rules.
    """
    card = _read_card(cohort)
    everything = list(walk(cohort))
    names = [name for name in everything if PurePosixPath(name).name not in _ABOUT_THE_COHORT]
    numbers = {name: number for number, name in enumerate(names, start=1)}
    unread, unread_findings = find_unread_files(names)
    files = _Files(everything=everything, readable=[name for name in names if name not in unread], numbers=numbers)
    layout, examined, findings, own, rules = _examine(cohort, files, card, label_options, channel_rules, context)
    if channel_rules and layout != "dicom":
        raise UsageError(
            "--channels is for DICOM series only.",
            seen="a cohort of NIfTI volumes",
            expected="DICOM series",
            do="omit --channels; dataset.json declares the channels of NIfTI volumes",
        )
    findings = [*unread_findings, *findings]
    labels, label_findings = cohort_labels(rules, own, examined)
    splits, split_findings = read_splits(cohort, [e.name.case_id for e in examined])
    findings += [finding for e in examined for finding in e.findings] + split_findings
    below = [name for name in everything if name.endswith((f"/{CARD_FILE}", f"/{SPLITS_FILE}"))]
    findings += _notice_below(below)
    refused = {finding.case_id for finding in findings if finding.severity == "error"}
    cases = [
        dataclasses.replace(e.entry, fixed_split=splits.get(e.name.case_id))
        for e in examined
        if e.entry and e.name.case_id not in refused
    ]
    cases, same_scan = join_same_scans(sorted(cases, key=lambda case: case.case_id))
    findings += [*_same_ids(examined), *same_scan, *find_leaks(cases), *_one_patient(cases)]
    findings += [*label_findings, *body_part_findings(cases, labels)]
    if skip:
        findings = [_skipped(finding) for finding in findings]
    if not cases and not any(finding.severity == "error" for finding in findings):
        findings.append(_nothing_usable(names, findings))
    index = CohortIndex(
        layout=layout,
        synthetic=any(bool(part.get("synthetic")) for part in [card, *_cards_below(cohort, below)]),
        labels=labels,
        merges=rules.merges,
        ignore_value=rules.ignore_value,
        cases=tuple(cases),
        findings=tuple(findings),
        channels=cases[0].channels if cases else CT_CHANNELS,
        data_class="de-identified" if card.get("data_class") == DEIDENTIFIED else "identified",
    )
    return Checked(index=index, examined=tuple(examined), file_numbers=numbers)


def _examine(
    cohort: Path,
    files: _Files,
    card: Mapping[str, Any],
    options: LabelOptions,
    channel_rules: tuple[ChannelRule, ...],
    context: StepContext,
) -> tuple[Layout, list[Examined], list[Finding], tuple[Label, ...], MaskRules]:
    declared: tuple[Label, ...] = card.get("labels", ())
    if (cohort / DATASET_FILE).is_file():
        listed = _read_msd(cohort, files.everything)
        declared = declared or listed.labels
        rules = options.rules(declared or None)
        return "msd", _examine_nifti(cohort, listed.cases, rules, context), list(listed.findings), declared, rules
    rules = options.rules(declared or None)
    found = _discover(cohort, [name for name in files.readable if not is_nifti(name)], channel_rules, context)
    nifti = [name for name in files.readable if is_nifti(name)]
    if nifti and not found.series and not any(f.severity == "error" for f in found.findings):
        cases, ambiguous, findings = _pair_nifti(nifti, files)
        return "nifti", [*_examine_nifti(cohort, cases, rules, context), *ambiguous], findings, declared, rules
    if nifti:
        found.findings.append(notice("other-files", f"{len(nifti)} NIfTI files next to the DICOM series were ignored."))
    checked = examine_series(cohort, found.series, channel_rules, rules, context)
    labels, differing = segment_labels(checked.usable)
    findings = [*found.findings, *checked.findings, *(() if declared else differing)]
    return "dicom", checked.examined, findings, declared or labels, rules


def _discover(
    cohort: Path, names: list[str], channel_rules: tuple[ChannelRule, ...], context: StepContext
) -> FoundDicom:
    """Return the headers of all files; prints a line now and then, because tens of thousands of files take a while."""
    blocks = len(names) // _HEADERS_A_LINE
    progress = context.progress(unit=f"{_HEADERS_A_LINE} headers", total=blocks)

    def tick(number: int) -> None:
        if number % _HEADERS_A_LINE == 0:
            progress.step()

    modality = channel_rules[0].modality if channel_rules else None
    return discover_dicom(cohort, names, modality=modality, tick=tick)


def _examine_nifti(cohort: Path, cases: Sequence[NiftiCase], rules: MaskRules, context: StepContext) -> list[Examined]:
    progress = context.progress(unit="series", total=len(cases))
    examined = []
    # Inflating and hashing release Python's lock; each thread holds one mask, so there are few of them.
    pool = ThreadPoolExecutor(max(1, min(context.num_threads, _MOST_THREADS)), thread_name_prefix="check-case")
    try:
        for result in pool.map(lambda case: examine_nifti(cohort, case, rules), cases):
            examined.append(result)
            progress.step(result.line)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return examined


def _notice_below(below: Sequence[str]) -> list[Finding]:
    if not any(name.endswith(SPLITS_FILE) for name in below):
        return []
    what = "splits.json in a subfolder of --cohort was ignored."
    return [notice("splits-below", what, do="set --cohort to that folder, or move the file to --cohort")]


def _cards_below(cohort: Path, below: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the cards in subfolders of the cohort: if one of them is synthetic, the cohort must be reported as such."""
    return [_read_card((cohort / name).parent) for name in below if name.endswith(CARD_FILE)]


def _read_card(cohort: Path) -> Mapping[str, Any]:
    path = cohort / CARD_FILE
    if not path.is_file():
        return {}
    card = _read_json(path, "the cohort card")
    return {**card, "labels": _labels_of(card, "the cohort card", CARD_FILE)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    cases: tuple[NiftiCase, ...]
    labels: tuple[Label, ...]
    findings: tuple[Finding, ...]
    channels: tuple[str, ...]


def _read_msd(cohort: Path, names: Sequence[str]) -> _Listed:
    """Read `dataset.json` of the Medical Segmentation Decathlon (Antonelli et al. 2022, Nat Commun 13:4128) or nnU-Net."""
    dataset = _read_json(cohort / DATASET_FILE, "the data set")
    try:
        data = dataset_as_msd(dataset, names)
        channels = _supported_channels(declared_channels(data))
        training, test = listed_volumes(data)
        declared = _labels_of(data, "the data set", DATASET_FILE)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        form = "'modality', 'training', 'test' or 'labels' in an invalid form"
        raise _bad_json("the data set", DATASET_FILE, form) from error
    cases = [
        NiftiCase(
            name=SeriesName(case_id=case_id_of_stem(image), ordinal=ordinal), image=image, mask=mask, channels=channels
        )
        for ordinal, (image, mask) in enumerate([*training, *test], start=1)
    ]
    findings = _masks_listed_twice(cases)
    unlabelled = sum(case.mask is None for case in cases)
    if unlabelled:
        findings.append(notice("no-mask", f"{unlabelled} volumes of the list 'test' have no mask."))
    return _Listed(cases=tuple(cases), labels=declared, findings=tuple(findings), channels=channels)


def _labels_of(document: Mapping[str, Any], what: str, file: str) -> tuple[Label, ...]:
    """Return the labels that a describing file declares, before merging."""
    try:
        return parse_labels(document.get("labels", {}), where=f"{what} ({file})")
    except UserInputError as error:
        raise _bad_json(
            what, file, f"labels that are neither an object (value: name) nor a list: {error.seen}"
        ) from error


def _masks_listed_twice(cases: Sequence[NiftiCase]) -> list[Finding]:
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


def _supported_channels(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the channels of a data set unchanged.

    Raises:
        FindingError: neither CT nor contrasts of MR.
    """
    if names == CT_CHANNELS:
        return names
    unknown = [name for name in names if name.upper() not in _MR_CONTRASTS]
    if unknown or len(set(names)) < len(names):
        raise refuse(
            "wrong-modality",
            "the modality of the data set is neither CT nor MR.",
            seen=f"modality {', '.join(unknown or names)} in dataset.json",
            expected=f"CT alone, or several of {', '.join(_MR_CONTRASTS)}",
            do="use a CT or MR data set, such as MSD Task06 (lung) or Task01 (brain tumours)",
        )
    return names


def _pair_nifti(names: Sequence[str], files: _Files) -> tuple[list[NiftiCase], list[Examined], list[Finding]]:
    """Return the volumes of a plain folder with their masks, those whose mask is not certain, and findings.

    Raises:
        FindingError: the folder has the layout of another tool.
    """
    pairing = pair_masks(names)
    refuse_foreign_layout(names, files.everything, pairing)
    case_names = {
        image: SeriesName(case_id=case_id_of_path(image), ordinal=ordinal)
        for ordinal, image in enumerate(pairing.masks, start=1)
    }
    cases = [NiftiCase(name=case_names[image], image=image, mask=mask) for image, mask in pairing.pairs()]
    refusals = pairing.refusals(case_names.__getitem__, files.numbers)
    ambiguous = [Examined(name=case_names[image], findings=[finding]) for image, finding in refusals.items()]
    findings = [
        notice(
            "no-patient-id",
            "NIfTI files have no patient ID: each volume counts as one patient in the split.",
            do="define the splits in splits.json if a patient has several volumes",
        )
    ]
    orphans = pairing.orphans()
    if orphans:
        findings.append(
            notice(
                "orphan-mask",
                f"{len(orphans)} {'mask fits' if len(orphans) == 1 else 'masks fit'} no volume and ignored.",
                seen=f"file {', '.join(str(files.numbers[name]) for name in orphans[:6])} of the cohort, sorted by path",
                do="move each mask to a folder labels/ next to its volume, under the name of the volume",
            )
        )
    return cases, ambiguous, findings


def _read_json(path: Path, what: str) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise _bad_json(what, path.name, "text that is not JSON") from error
    if not isinstance(data, dict):
        raise _bad_json(what, path.name, "JSON without a top-level object")
    return data


def _bad_json(what: str, file: str, seen: str) -> FindingError:
    return refuse(
        "bad-json", f"{what} ({file}) cannot be used.", seen=seen, expected="a JSON object in the documented form",
        do=f"correct {file}",
    )  # fmt: skip


def _same_ids(examined: Sequence[Examined]) -> list[Finding]:
    ids = [e.name.case_id for e in examined]
    return [
        refuse(
            "same-case-id", f"{case_id}: two volumes have the same name.", seen=f"{ids.count(case_id)} volumes",
            expected="unique volume names", do="rename one of the files", case_id=None,
        ).finding
        for case_id in dict.fromkeys(ids)
        if ids.count(case_id) > 1
    ]  # fmt: skip


def _one_patient(cases: Sequence[Any]) -> list[Finding]:
    if len(cases) > 1 and len({case.patient_key for case in cases}) == 1:
        return [
            notice(
                "one-patient",
                f"all {len(cases)} series have the same patient, so the cohort cannot be split by patient.",
                do="if one ID stands for several patients (anonymized data), define the splits in splits.json",
            )
        ]
    return []


def _skipped(finding: Finding) -> Finding:
    if finding.severity == "error" and (finding.case_id is not None or finding.code in _SETTLED_BY_SKIPPING):
        return dataclasses.replace(finding, severity="notice", what=f"skipped: {finding.what}")
    return finding


def _nothing_usable(names: Sequence[str], findings: Sequence[Finding]) -> Finding:
    suffixes = sorted({Path(name).suffix.lower() or "(none)" for name in names})
    seen = f"{len(names)} files ({', '.join(suffixes[:6])})" if names else "an empty folder"
    if findings and names:
        seen += f"; {findings[0].what}"
    do = next((finding.do for finding in findings if finding.do), "set --cohort to the folder that contains the series")
    return refuse(
        "no-volumes",
        "the cohort contains no usable CT or MR volume.",
        seen=seen,
        expected="DICOM series, NIfTI volumes, or a data set with dataset.json",
        do=do,
    ).finding
