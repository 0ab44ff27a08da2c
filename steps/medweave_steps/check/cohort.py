"""The index of a whole cohort: which layout it has, its cases in order, and every finding."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.cohort import CaseEntry, CohortIndex, Finding
from medweave_core.contracts.labels import Label, Region
from medweave_core.contracts.volume import CT_CHANNELS
from medweave_core.errors import UsageError
from medweave_steps.check.cases import Examined, MaskRules, examine_nifti
from medweave_steps.check.images import examine_images, find_near_copies
from medweave_steps.check.labels import (
    NO_LABEL_OPTIONS,
    LabelOptions,
    body_part_findings,
    cohort_labels,
    segment_labels,
    usable_regions,
)
from medweave_steps.check.signals import ExaminedRecord, examine_signals, lead_of_rules, reference_targets
from medweave_steps.check.splits import find_leaks, join_same_scans, read_splits
from medweave_steps.check.studies import examine_series
from medweave_steps.check.targets import (
    CohortCases,
    CohortTargets,
    apply_targets,
    choose_targets,
    find_untrained_classes,
    read_declared_targets,
)
from medweave_steps.io.channel_grid import resampled_text
from medweave_steps.io.cohort.bids import is_bids, read_bids
from medweave_steps.io.cohort.channel_rules import ChannelRule
from medweave_steps.io.cohort.channel_selection import names_of_rules, select_declared
from medweave_steps.io.cohort.dataset_json import read_dataset
from medweave_steps.io.cohort.discovery import FoundDicom, discover_dicom, walk
from medweave_steps.io.cohort.documents import labels_of, read_json
from medweave_steps.io.cohort.files import CARD_FILE, DATASET_FILE, DEIDENTIFIED, SPLITS_FILE, has_public_file_names
from medweave_steps.io.cohort.foreign_layouts import find_unread_files
from medweave_steps.io.cohort.images import FoundImages, ImageFile, find_images
from medweave_steps.io.cohort.listed import ListedCase, ListedCohort
from medweave_steps.io.cohort.plain import read_plain
from medweave_steps.io.cohort.prepared import INDEX_FILE
from medweave_steps.io.cohort.signals import is_header
from medweave_steps.io.cohort.tables import find_tables
from medweave_steps.io.cohort.targets import declared_classes
from medweave_steps.io.findings import notice, refuse
from medweave_steps.io.nifti.volume import is_nifti
from medweave_steps.runtime.verb import REPORT_NAME, StepContext

Layout = Literal["dicom", "nifti", "msd", "bids", "images", "signals"]

# What describes a cohort, and what `check` writes where a user points it into the cohort's own folder: no strangers.
_ABOUT_THE_COHORT = {CARD_FILE, SPLITS_FILE, DATASET_FILE, INDEX_FILE, REPORT_NAME}
_HEADERS_A_LINE = 5000
_MOST_THREADS = 4

_CARD = "the cohort card"

# Findings about files or rows, that leaving them out settles.
_SETTLED_BY_SKIPPING = {"unreadable-file", "rows-without-case", "cases-without-row", "data-without-header"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The result of checking a cohort: its index, and data for the summary.

    Attributes:
        file_numbers: number of each file among all files of the cohort, sorted by path, from 1.
        rule: how file names became cases and pairs, in words; empty if the files or a list of them say it.
    """

    index: CohortIndex
    examined: tuple[Examined, ...]
    file_numbers: Mapping[str, int]
    rule: str = ""


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
    targets: Path | None = None,
    classes: tuple[str, ...] = (),
) -> Checked:
    """Read and check a whole cohort.

    Args:
        skip: leave bad cases out with a notice; otherwise their errors stay in the findings.
        label_options: labels and merges that the user requests.
        channel_rules: which DICOM series of a study is which channel, or the names of NIfTI channels; empty without such rules.
        targets: table of targets; None for the only one in a cohort of images.
        classes: of the targets to keep, whose other cases are left out; empty for all.
    """
    card = _read_card(cohort)
    everything = list(walk(cohort))
    names = [name for name in everything if PurePosixPath(name).name not in _ABOUT_THE_COHORT]
    numbers = {name: number for number, name in enumerate(names, start=1)}
    unread, unread_findings = find_unread_files(names)
    files = _Files(everything=everything, readable=[name for name in names if name not in unread], numbers=numbers)
    contents = _examine(cohort, files, card, label_options, channel_rules, context)
    of_targets = _targets(cohort, files, card, contents, targets, classes)
    examined = [e for e in contents.examined if e.name.case_id not in of_targets.left_out]
    rules = contents.rules
    findings = [*unread_findings, *contents.findings]
    labels, label_findings = cohort_labels(rules, contents.labels, examined)
    regions, region_findings = usable_regions(contents.regions, labels, rules)
    findings += of_targets.findings
    splits, split_findings = read_splits(cohort, [e.recording or e.name.case_id for e in contents.examined])
    findings += [finding for e in examined for finding in e.findings] + split_findings
    below = [name for name in everything if name.endswith((f"/{CARD_FILE}", f"/{SPLITS_FILE}"))]
    findings += _notice_below(below)
    refused = {finding.case_id for finding in findings if finding.severity == "error"}
    cases = [
        dataclasses.replace(e.entry, fixed_split=splits.get(e.recording or e.name.case_id))
        for e in examined
        if e.entry and e.name.case_id not in refused
    ]
    cases, same_scan = join_same_scans(sorted(cases, key=lambda case: case.case_id))
    findings += [*_same_ids(examined), *same_scan, *find_leaks(cases), *_one_patient(cases)]
    findings += [*find_untrained_classes(cases, of_targets.classes), *find_near_copies(cases, contents.hashes)]
    findings += [*label_findings, *region_findings, *body_part_findings(cases, labels), *_resampled(examined, cases)]
    if skip:
        findings = [_skipped(finding) for finding in findings]
    if not cases and not any(finding.severity == "error" for finding in findings):
        findings.append(_nothing_usable(names, findings))
    index = CohortIndex(
        layout=contents.layout,
        synthetic=any(bool(part.get("synthetic")) for part in [card, *_cards_below(cohort, below)]),
        labels=labels,
        merges=rules.merges,
        regions=regions,
        ignore_value=rules.ignore_value,
        cases=tuple(cases),
        findings=tuple(findings),
        channels=cases[0].channels if cases else CT_CHANNELS,
        data_class="de-identified" if card.get("data_class") == DEIDENTIFIED else "identified",
        classes=of_targets.classes,
        is_multi_label=of_targets.is_multi_label,
    )
    rules_in_words = "; ".join(filter(None, (contents.rule, of_targets.rule)))
    return Checked(index=index, examined=tuple(examined), file_numbers=numbers, rule=rules_in_words)


def _targets(
    cohort: Path,
    files: _Files,
    card: Mapping[str, Any],
    contents: _Contents,
    declared: Path | None,
    selected: tuple[str, ...],
) -> CohortTargets:
    """Give the cases the classes of the table of targets, and images the patients that the tables name."""
    if contents.layout == "signals":
        own_classes = declared_classes(card)
        return reference_targets(
            cohort, files.everything, contents.records, own_classes, table=declared, selected=selected
        )
    if contents.layout != "images" and declared is None and not selected:
        return CohortTargets()
    tables = find_tables(cohort, files.everything)
    if declared is None:
        chosen = choose_targets(tables, files.numbers) if contents.layout == "images" else None
    else:
        table, chosen = read_declared_targets(declared)
        tables = {str(declared): table, **tables}
    images = contents.images
    cases = CohortCases(
        examined=contents.examined,
        files={image.name.case_id: image.file for image in images},
        known_patients=frozenset(image.name.case_id for image in images if image.header and image.header.patient_id),
        issuers=contents.issuers,
    )
    return apply_targets(chosen, list(tables.values()), cases, declared_classes(card), selected=selected)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contents:
    """The volumes or images of a cohort as its layout gives them; see `ListedCohort`.

    Attributes:
        issuers: issuers of the patient ids that DICOM headers name.
        images: files of a cohort of images.
        hashes: perceptual hashes of the usable images by case id.
        records: of a cohort of ECG recordings.
    """

    layout: Layout
    examined: Sequence[Examined]
    findings: Sequence[Finding]
    labels: tuple[Label, ...]
    rules: MaskRules
    regions: tuple[Region, ...] = ()
    rule: str = ""
    issuers: frozenset[str] = frozenset()
    images: tuple[ImageFile, ...] = ()
    hashes: Mapping[str, npt.NDArray[np.uint8]] = field(default_factory=dict)
    records: tuple[ExaminedRecord, ...] = ()


def _examine(
    cohort: Path,
    files: _Files,
    card: Mapping[str, Any],
    options: LabelOptions,
    channel_rules: tuple[ChannelRule, ...],
    context: StepContext,
) -> _Contents:
    declared: tuple[Label, ...] = card.get("labels", ())
    if (cohort / DATASET_FILE).is_file():
        listed = select_declared(read_dataset(cohort, files.everything), names_of_rules(channel_rules))
        return _listed("msd", listed, cohort, declared, options, context)
    rules = options.rules(declared or None)
    is_public = has_public_file_names(card)
    nifti = [name for name in files.readable if is_nifti(name)]
    if not nifti and any(map(is_header, files.readable)):
        lead = lead_of_rules(channel_rules, options)
        return _examine_signals(cohort, files, rules, context, lead=lead, has_public_names=is_public)
    images = None if nifti else find_images(cohort, files.readable, has_public_names=is_public)
    if images is not None:
        _refuse_volume_options(options, channel_rules)
        return _examine_images(cohort, images, rules, context)
    found = _discover(cohort, [name for name in files.readable if not is_nifti(name)], channel_rules, context)
    if nifti and not found.series and not any(f.severity == "error" for f in found.findings):
        wanted = names_of_rules(channel_rules)
        if is_bids(nifti):
            listed = read_bids(
                cohort, nifti, files.everything, files.numbers, has_public_names=is_public, wanted=wanted
            )
            return _listed("bids", listed, cohort, declared, options, context)
        listed = read_plain(nifti, files.everything, files.numbers, wanted)
        return _listed("nifti", listed, cohort, declared, options, context)
    if nifti:
        found.findings.append(notice("other-files", f"{len(nifti)} NIfTI files next to the DICOM series were ignored."))
    checked = examine_series(cohort, found.series, channel_rules, rules, context)
    labels, differing = segment_labels(checked.usable, rules.merges)
    findings = [*found.findings, *checked.findings, *(() if declared else differing)]
    return _Contents(
        layout="dicom", examined=checked.examined, findings=findings, labels=declared or labels, rules=rules,
        issuers=frozenset(file.issuer for one in found.series for file in one.files),
    )  # fmt: skip


def _refuse_volume_options(options: LabelOptions, channel_rules: tuple[ChannelRule, ...]) -> None:
    if options != NO_LABEL_OPTIONS or channel_rules:
        raise UsageError(
            "--labels, --merge-labels, --ignore-label and --channels apply to volumes, and the cohort has images.",
            expected="none of these options",
            do="declare codes of classes in 'classes' of cohort_card.json",
        )


def _examine_images(cohort: Path, found: FoundImages, rules: MaskRules, context: StepContext) -> _Contents:
    checked = examine_images(cohort, found.images, context)
    return _Contents(
        layout="images", examined=checked.examined, findings=(*found.findings, *checked.findings), labels=(), rules=rules,
        images=found.images, hashes=checked.hashes,
    )  # fmt: skip


def _examine_signals(cohort: Path, files: _Files, rules: MaskRules, context: StepContext, **options: Any) -> _Contents:
    checked = examine_signals(cohort, files.readable, files.numbers, context, **options)
    samples = [sample for one in checked.records for sample in one.samples]
    return _Contents(
        layout="signals", examined=samples, findings=checked.findings, labels=(), rules=rules, records=checked.records
    )


def _listed(
    layout: Layout,
    listed: ListedCohort,
    cohort: Path,
    declared: tuple[Label, ...],
    options: LabelOptions,
    context: StepContext,
) -> _Contents:
    """Examine the cases of a NIfTI layout; the labels of the cohort card come before those of the layout."""
    labels = declared or listed.labels
    rules = options.rules(labels or None, ignore_value=listed.ignore_value)
    return _Contents(
        layout=layout, examined=_examine_nifti(cohort, listed.cases, rules, context), findings=listed.findings, labels=labels,
        rules=rules, regions=listed.regions, rule=listed.rule,
    )  # fmt: skip


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


def _examine_nifti(cohort: Path, cases: Sequence[ListedCase], rules: MaskRules, context: StepContext) -> list[Examined]:
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
    card = read_json(path, _CARD)
    return {**card, "labels": labels_of(card, _CARD, CARD_FILE)}


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


def _resampled(examined: Sequence[Examined], cases: Sequence[CaseEntry]) -> list[Finding]:
    """Return a notice about the channels that later steps resample to the grid of the first channel."""
    usable = {case.case_id for case in cases}
    resampled = [
        (channel, share)
        for one in examined
        if one.name.case_id in usable
        for channel, share in one.resampled_channels.items()
    ]
    if not resampled:
        return []
    least = ", ".join(
        f"{channel} {min(share for other, share in resampled if other == channel):.0%}" for channel in dict(resampled)
    )
    return [
        notice(
            "channels-resampled",
            resampled_text(Counter(channel for channel, _ in resampled), cases[0].channels[0]),
            seen=f"smallest share of the first channel's field of view that they cover: {least}; other voxels become 0",
            do="check that the channels show the same position of the patient: they are resampled, not registered",
        )
    ]


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
        "the cohort contains no usable CT, MR or PET volume.",
        seen=seen,
        expected="DICOM series, NIfTI volumes, a data set with dataset.json, images (JPEG, PNG, DICOM CR, DX, MG), or ECG "
        "recordings (WFDB)",
        do=do,
    ).finding
