"""Cases of several DICOM series: the series of a study grouped into channels, and all checks of one such case."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from medweave_core.contracts.cohort import CaseEntry, ChannelSeries, Finding
from medweave_core.contracts.volume import PET_CHANNELS, Modality
from medweave_steps.check.cases import (
    Examined,
    MaskRules,
    check_defects,
    check_ground_truth,
    check_pixels,
    check_references,
    check_whole,
    examine_dicom,
    middle_plane,
    patient_of,
)
from medweave_steps.check.intensities import check_one_contrast, check_rescale
from medweave_steps.io.channel_grid import covered_share, is_same_grid
from medweave_steps.io.cohort.channel_rules import (
    ChannelRule,
    SeriesProtocol,
    differing_matchers,
    read_protocol,
    suggested_rules,
)
from medweave_steps.io.cohort.digest import joined_files_digest
from medweave_steps.io.cohort.discovery import FoundSeries, patient_key_of
from medweave_steps.io.cohort.patients import without_absent_issuers
from medweave_steps.io.dicom.series import COSINE_TOLERANCE, DicomVolume, assemble, is_stack
from medweave_steps.io.dicom.suv import planes_in_unit
from medweave_steps.io.findings import FindingError, SeriesName, notice, refuse
from medweave_steps.runtime.progress import Progress
from medweave_steps.runtime.verb import StepContext

_MOST_SHOWN = 6


@dataclass(slots=True, kw_only=True)
class ExaminedStudies:
    """The result of checking the studies of a cohort.

    Attributes:
        usable: series of the usable cases.
        findings: about the cohort.
    """

    examined: list[Examined] = field(default_factory=list)
    usable: list[FoundSeries] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    series: FoundSeries
    protocol: SeriesProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class _Channel:
    """One series of a case, checked.

    Attributes:
        volume: planes in the unit of the modality.
    """

    name: str
    series: FoundSeries
    volume: DicomVolume
    content_sha256: str


def examine_series(
    cohort: Path,
    series: Sequence[FoundSeries],
    channel_rules: Sequence[ChannelRule],
    rules: MaskRules,
    context: StepContext,
) -> ExaminedStudies:
    """Check the DICOM series of a cohort: each CT series is a case; those of MR and PET, or of the rules, are channels of a study.

    Args:
        series: all series of the wanted modalities.
        channel_rules: of `--channels`; empty where each study has one series.
        rules: label values that masks may hold.
    """
    if not channel_rules and all(one.modality == "CT" for one in series):
        progress = context.progress(unit="series", total=len(series))
        examined = [
            _shown(examine_dicom(cohort, one, rules, num_threads=context.num_threads), progress) for one in series
        ]
        usable = [one for one, its in zip(series, examined, strict=True) if its.entry]
        return ExaminedStudies(examined=examined, usable=usable)
    return _examine_studies(cohort, series, channel_rules, rules, context)


def _shown(examined: Examined, progress: Progress) -> Examined:
    progress.step(examined.line)
    return examined


def _examine_studies(
    cohort: Path,
    series: Sequence[FoundSeries],
    channel_rules: Sequence[ChannelRule],
    rules: MaskRules,
    context: StepContext,
) -> ExaminedStudies:
    """Group the series of each study into channels and check the cases; see `examine_series`."""
    result = ExaminedStudies()
    studies: dict[str, list[_Candidate]] = {}
    for one in series:
        if _is_volume(one):
            protocol = read_protocol(cohort / one.files[0].file, one.modality)
            studies.setdefault(one.study_uid, []).append(_Candidate(series=one, protocol=protocol))
        else:
            what = f"{one.name}: no stack of parallel slices (single images or a localizer), ignored."
            result.findings.append(notice("not-a-volume", what, case_id=one.name.case_id))
    if not channel_rules:
        channel_rules = _default_rules(list(studies.values()))
    unmatched, progress = 0, context.progress(unit="case", total=len(studies))
    for candidates in studies.values():
        name = _case_name(candidates, channel_rules)
        try:
            channels = _assign(candidates, channel_rules, name)
        except FindingError as error:
            result.examined.append(_shown(Examined(name=name, findings=[error.finding]), progress))
            continue
        unmatched += len(candidates) - len(channels)
        examined = _shown(_examine(cohort, channels, rules, num_threads=context.num_threads), progress)
        result.examined.append(examined)
        result.usable += channels.values() if examined.entry else ()
    if unmatched:
        verbs = ("matches", "was") if unmatched == 1 else ("match", "were")
        what = f"{unmatched} series {verbs[0]} no channel and {verbs[1]} ignored."
        result.findings.append(notice("other-series", what))
    return result


def _is_volume(series: FoundSeries) -> bool:
    """Return False for single images and for slices that are not parallel, as localizers of MR have them."""
    cosines = [plane.orientation for plane in series.planes if plane.orientation is not None]
    if cosines and np.ptp(np.asarray(cosines), axis=0).max() > 10 * COSINE_TOLERANCE:
        return False
    return is_stack(series.planes) or bool(series.defective)


def _default_rules(studies: Sequence[Sequence[_Candidate]]) -> tuple[ChannelRule, ...]:
    """Return the rule of a cohort whose studies have one series each: its channel is named after the modality.

    Raises:
        FindingError: series of several modalities, or several series in a study.
    """
    modalities: list[Modality] = sorted({c.protocol.modality for candidates in studies for c in candidates})
    largest = max(studies, key=len, default=())
    if len(modalities) < 2 and len(largest) < 2:
        modality: Modality = modalities[0] if modalities else "MR"
        return (ChannelRule(name=PET_CHANNELS[0] if modality == "PT" else modality, modality=modality),)
    several = sum(len(candidates) > 1 for candidates in studies)
    raise refuse(
        "no-channel-rules",
        f"{several} of {len(studies)} studies have several series, and no rules say which series is which channel.",
        seen=f"{' and '.join(modalities)}; up to {len(largest)} series in a study",
        expected="--channels FILE with a rule for each channel, or one series in each study",
        do="write the rules to a file, name the channels, and remove the ones that you do not need:\n"
        + suggested_rules([candidate.protocol for candidate in largest]),
    )


def _case_name(candidates: Sequence[_Candidate], rules: Sequence[ChannelRule]) -> SeriesName:
    """Return the name of a case: that of the series of its first channel which is there, else of its first series."""
    matching = (c for rule in rules for c in candidates if rule.matches(c.protocol))
    return next(matching, candidates[0]).series.name


def _assign(candidates: Sequence[_Candidate], rules: Sequence[ChannelRule], name: SeriesName) -> dict[str, FoundSeries]:
    """Return the series of each channel of one study, in the order of the rules.

    Raises:
        FindingError: no series or several for a channel, or one series for two channels.
    """
    chosen: dict[str, FoundSeries] = {}
    matching = {rule.name: [c for c in candidates if rule.matches(c.protocol)] for rule in rules}
    for channel, matches in matching.items():
        if not matches:
            raise name.refuse(
                "missing-channel",
                f"no series of the study matches the channel {channel}.",
                seen=_listed(candidates),
                expected=f"one series for {channel}, by the rules of --channels",
                do="correct the rule, add the series, or skip the case with --on-error skip",
            )
        if len(matches) > 1:
            matchers = differing_matchers([match.protocol for match in matches])
            raise name.refuse(
                "ambiguous-channel",
                f"{len(matches)} series of the study match the channel {channel}.",
                seen=_listed(matches),
                expected=f"one series for {channel}",
                do=f"add a matcher that separates them ({', '.join(matchers)}) to the rule"
                if matchers
                else "keep one of these series: no matcher separates them",
            )
        for other, series in chosen.items():
            if series is matches[0].series:
                raise name.refuse(
                    "ambiguous-channel",
                    f"one series of the study matches the channels {other} and {channel}.",
                    seen=_listed(matches),
                    expected="a series for each channel",
                    do="add a matcher that separates the channels to their rules",
                )
        chosen[channel] = matches[0].series
    for series in chosen.values():  # messages name the case, and the place of the series
        series.name = SeriesName(case_id=name.case_id, ordinal=series.name.ordinal)
    return chosen


def _listed(candidates: Sequence[_Candidate]) -> str:
    shown = [f"{c.protocol.text}, {len(c.series.planes)} slices" for c in candidates[:_MOST_SHOWN]]
    more = f"; and {len(candidates) - len(shown)} more" if len(candidates) > len(shown) else ""
    return (
        "; ".join(f"series {c.series.name.ordinal} ({text})" for c, text in zip(candidates, shown, strict=False)) + more
    )


def _examine(cohort: Path, series: dict[str, FoundSeries], rules: MaskRules, *, num_threads: int) -> Examined:
    """Check one case. Every pixel byte is read once; one plane of each series is decoded."""
    first = next(iter(series.values()))
    if first.modality == "CT":
        return examine_dicom(cohort, first, rules, num_threads=num_threads)
    result = Examined(name=first.name)
    try:
        for one in series.values():
            check_defects(one)
        _check_one_patient(list(series.values()), first.name)
        patient = patient_of(first, result)
        check_references(first, result)
        channels = [_check_series(cohort, name, one, result, num_threads) for name, one in series.items()]
        _check_one_space(channels, result)
        annotated = _annotated(channels)
        mask_file = None if annotated is None else _check_mask(cohort, channels[0], annotated, rules, result)
    except FindingError as error:
        result.findings.append(error.finding)
        return result
    result.entry = CaseEntry(
        case_id=first.name.case_id,
        series_ordinal=first.name.ordinal,
        patient_key=patient_key_of(patient),
        source_format="dicom",
        files=channels[0].volume.files,
        ground_truth=mask_file,
        grid=channels[0].volume.grid,
        fixed_split=None,
        content_sha256=joined_files_digest([channel.content_sha256 for channel in channels]),
        channels=tuple(series),
        body_part=first.body_part,
        series=tuple(_channel_series(one, result.resampled_channels, annotated) for one in channels)
        if len(channels) > 1
        else (),
    )
    return result


def _check_series(cohort: Path, name: str, series: FoundSeries, result: Examined, num_threads: int) -> _Channel:
    check_whole(series.planes, series.name)
    check_rescale(series.planes, series.name)
    planes, by_acquisition = planes_in_unit(cohort, series.planes, series.modality, series.name)
    if by_acquisition:
        what = f"{series.name}: SUV count decay to the earliest AcquisitionTime, since SeriesTime is later or absent."
        result.findings.append(notice("suv-by-acquisition-time", what, case_id=series.name.case_id))
    if series.modality == "MR":
        check_one_contrast(planes, series.name)
    volume = assemble(planes, series.name)
    content = check_pixels(cohort, volume, series.name, result, num_threads)
    middle_plane(cohort, volume, series.name)
    return _Channel(name=name, series=series, volume=volume, content_sha256=content)


def _check_one_patient(series: Sequence[FoundSeries], name: SeriesName) -> None:
    patients = without_absent_issuers(patient for one in series for patient in one.patients)
    if len(patients) > 1:
        raise name.refuse(
            "mixed-patients",
            "the channels have different patients under one StudyInstanceUID.",
            seen=f"{len(patients)} patient identities in {len(series)} series",
            expected="the same PatientID in all series of a study",
            do="separate the files by patient and export each study again",
        )


def _check_one_space(channels: Sequence[_Channel], result: Examined) -> None:
    """Refuse channels whose positions cannot be compared; record those on another grid than the first."""
    first = channels[0]
    for other in channels[1:]:
        frames = {channel.volume.planes[0].frame_of_reference for channel in (first, other)}
        if len(frames) > 1 or frames == {""}:
            raise first.series.name.refuse(
                "mixed-frames-of-reference",
                f"the positions of the channels {first.name} and {other.name} cannot be compared.",
                seen="different FrameOfReferenceUIDs (0020,0052)"
                if len(frames) > 1
                else "no FrameOfReferenceUID (0020,0052)",
                expected="one FrameOfReferenceUID in all channels of a case",
                do=f"register {other.name} to {first.name} and store it in the frame of reference of {first.name}, or leave "
                "the channel out of the rules",
            )
        share = covered_share(other.volume.grid, first.volume.grid)
        if share == 0:
            raise first.series.name.refuse(
                "channels-apart",
                f"the channels {first.name} and {other.name} show different parts of the body.",
                seen="no voxel of the first inside the other",
                expected="channels of one field of view",
                do="correct the rules, or leave the channel out",
            )
        if not is_same_grid(other.volume.grid, first.volume.grid):
            result.resampled_channels[other.name] = share


def _annotated(channels: Sequence[_Channel]) -> _Channel | None:
    """Return the channel that the ground truth was drawn on; None if the case has none."""
    annotated = [channel for channel in channels if channel.series.masks]
    if len(annotated) > 1:
        raise channels[0].series.name.refuse(
            "several-masks",
            "several channels of the case have a mask.",
            seen=f"masks on {', '.join(channel.name for channel in annotated)}",
            expected="one mask for a case, with one segment for each label",
            do="keep only the mask that is the ground truth, or merge the masks",
        )
    return annotated[0] if annotated else None


def _check_mask(cohort: Path, first: _Channel, annotated: _Channel, rules: MaskRules, result: Examined) -> str | None:
    if not is_same_grid(annotated.volume.grid, first.volume.grid):
        raise first.series.name.refuse(
            "mask-on-another-grid",
            f"the mask lies on the grid of {annotated.name}, not on that of the first channel, {first.name}.",
            seen=f"{_times(annotated.volume)} voxels in {annotated.name}",
            expected=f"{_times(first.volume)} voxels, as in {first.name}; masks are never resampled to another series",
            do=f"list {annotated.name} first in the rules of --channels",
        )
    return check_ground_truth(cohort, annotated.series, annotated.volume, rules, result)


def _times(volume: DicomVolume) -> str:
    return " x ".join(map(str, volume.grid.shape))


def _channel_series(channel: _Channel, resampled: Collection[str], annotated: _Channel | None) -> ChannelSeries:
    return ChannelSeries(
        name=channel.name,
        ordinal=channel.series.name.ordinal,
        files=channel.volume.files,
        grid=channel.volume.grid,
        content_sha256=channel.content_sha256,
        is_resampled=channel.name in resampled,
        has_ground_truth=channel is annotated,
    )
