"""The cases of a NIfTI cohort as its layout lists them, before a file is opened; and the rule that picks their channels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from medweave_core.contracts.cohort import Finding
from medweave_core.contracts.labels import Label, Region
from medweave_core.contracts.volume import CT_CHANNELS
from medweave_steps.io.findings import FindingError, SeriesName, first_of, notice

CHANNEL_RULE = "a channel is what at least half of the cases have, and each case must have every channel"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCase:
    """A NIfTI volume to examine.

    Attributes:
        files: paths relative to the cohort: one file, or one for each channel.
        mask: path of its mask relative to the cohort, or None.
        patient: identity of the patient, for the patient key; empty if the layout names none: the volume then counts as a patient.
        errors: why the case cannot be used, as far as its file names show.
    """

    name: SeriesName
    files: tuple[str, ...]
    mask: str | None
    channels: tuple[str, ...] = CT_CHANNELS
    patient: str = ""
    errors: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCohort:
    """The cases of a cohort, and what the cohort declares about them.

    Attributes:
        labels: foreground labels that the layout declares; empty if it declares none.
        regions: unions of labels that it declares as training targets.
        ignore_value: value of voxels without annotation that it declares.
        rule: how files became cases and pairs, in words; empty where a file lists them.
    """

    cases: tuple[ListedCase, ...]
    labels: tuple[Label, ...] = ()
    regions: tuple[Region, ...] = ()
    ignore_value: int | None = None
    findings: tuple[Finding, ...] = ()
    rule: str = ""


def choose_channels(
    files_by_case: Sequence[Mapping[str, Sequence[str]]], order: Sequence[str]
) -> tuple[tuple[str, ...], list[Finding]]:
    """Return the channels of a cohort by its file names: those that at least half of the cases have.

    Args:
        files_by_case: files of each case by channel.
        order: names of channels that come first, in their order; others follow by name.
    Returns:
        the channels, and a notice for those that fewer cases have.
    """
    counts: dict[str, int] = {}
    for files in files_by_case:
        for channel in files:
            counts[channel] = counts.get(channel, 0) + 1
    least = math.ceil(len(files_by_case) / 2)
    place = {channel: index for index, channel in enumerate(order)}
    ordered = sorted(counts, key=lambda channel: (place.get(channel, len(place)), channel))
    rare = [f"{channel} in {counts[channel]}" for channel in ordered if counts[channel] < least]
    if not rare:
        return tuple(ordered), []
    finding = notice(
        "channels-ignored",
        f"fewer than half of the {len(files_by_case)} cases have these channels, which are ignored.",
        seen=first_of(rare),
        do="add the files if the channels are needed",
    )
    return tuple(channel for channel in ordered if counts[channel] >= least), [finding]


def files_of_channels(
    name: SeriesName, files: Mapping[str, Sequence[str]], channels: Sequence[str]
) -> tuple[tuple[str, ...], list[Finding]]:
    """Return the file of each channel of one case, and the errors about channels with no file or several files."""
    several = {channel: len(files[channel]) for channel in channels if len(files.get(channel, ())) > 1}
    errors = []
    if several:
        errors.append(
            name.refuse(
                "ambiguous-channel",
                "several files are the same channel of one case.",
                seen=", ".join(f"{number} files of {channel}" for channel, number in several.items()),
                expected="one file per channel",
                do="keep one of the files (one run, one reconstruction), or skip the case with --on-error skip",
            ).finding
        )
    missing = [channel for channel in channels if not files.get(channel)]
    if missing:
        errors.append(missing_channels(name, missing, channels).finding)
    return tuple(files[channel][0] for channel in channels if files.get(channel)), errors


def missing_channels(name: SeriesName, missing: Sequence[str], channels: Sequence[str]) -> FindingError:
    """Return the error about a case that lacks channels which its cohort has."""
    present = [channel for channel in channels if channel not in missing]
    return name.refuse(
        "missing-channel",
        f"the case has no file of channel {', '.join(missing)}.",
        seen=f"files of {', '.join(present)}" if present else "no file of a channel of the cohort",
        expected=f"a file for each of {len(channels)} channels: {', '.join(channels)}",
        do="add the file, remove the case, or skip the case with --on-error skip",
    )
