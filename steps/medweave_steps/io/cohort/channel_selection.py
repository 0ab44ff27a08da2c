"""Channels of a NIfTI cohort that `check --channels` names: which ones are read, in which order, and the first one's grid."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeVar

from medweave_core.errors import UsageError
from medweave_steps.io.cohort.channel_rules import ChannelRule
from medweave_steps.io.cohort.listed import ListedCase, ListedCohort

_Case = TypeVar("_Case")


def names_of_rules(rules: Sequence[ChannelRule]) -> tuple[str, ...]:
    """Return the channel names of rules for a NIfTI cohort, in their order.

    Raises:
        UsageError: a rule has attributes of a DICOM series.
    """
    for rule in rules:
        matchers = [one for one in dataclasses.fields(rule) if one.name not in ("name", "modality")]
        if any(getattr(rule, one.name) != one.default for one in matchers):
            raise UsageError(
                "attributes in the rules of --channels are for DICOM series only, and the cohort is NIfTI.",
                seen=f"the rule of {rule.name}",
                expected="a name alone for each channel, such as [{name: FLAIR}, {name: T1w}]",
                do="write the names of the channels as check prints them, the one with the grid of the masks first",
            )
    return tuple(rule.name for rule in rules)


def select_files(
    files_by_case: Mapping[_Case, Mapping[str, Sequence[str]]], wanted: Sequence[str]
) -> dict[_Case, dict[str, list[str]]]:
    """Return the files of the wanted channels by case, under the wanted names; all of them if no channel is named.

    Upper and lower case of channel names are equal.

    Raises:
        UsageError: no case has a channel of a wanted name.
    """
    if not wanted:
        return {
            case: {channel: list(paths) for channel, paths in files.items()} for case, files in files_by_case.items()
        }
    names = {name.casefold(): name for name in wanted}
    present = sorted({channel for files in files_by_case.values() for channel in files})
    _check_present(wanted, present)
    selected: dict[_Case, dict[str, list[str]]] = {case: {} for case in files_by_case}
    for case, files in files_by_case.items():
        for channel, paths in files.items():
            if channel.casefold() in names:
                selected[case].setdefault(names[channel.casefold()], []).extend(paths)
    return selected


def select_declared(listed: ListedCohort, wanted: Sequence[str]) -> ListedCohort:
    """Return the cases of a data set with `dataset.json` with the wanted channels; unchanged if no channel is named.

    Raises:
        UsageError: the data set declares no channel of a wanted name, or one file holds all channels.
    """
    channels = listed.cases[0].channels if listed.cases else ()
    if not wanted or tuple(wanted) == channels:
        return listed
    _check_present(wanted, channels)
    if any(len(case.files) < len(channels) or len(channels) == 1 for case in listed.cases):
        raise UsageError(
            "--channels cannot select channels of this data set: one file holds all channels of a case.",
            seen=f"channels {', '.join(channels)}",
            expected="one file per channel (nnU-Net, BIDS, one file per MR contrast)",
            do="omit --channels",
        )
    places = [[name.casefold() for name in channels].index(name.casefold()) for name in wanted]

    def selected(case: ListedCase) -> ListedCase:
        return dataclasses.replace(case, files=tuple(case.files[place] for place in places), channels=tuple(wanted))

    return dataclasses.replace(listed, cases=tuple(map(selected, listed.cases)))


def _check_present(wanted: Sequence[str], present: Sequence[str]) -> None:
    known = {name.casefold() for name in present}
    absent = [name for name in wanted if name.casefold() not in known]
    if absent:
        raise UsageError(
            "--channels names a channel that the cohort does not have.",
            seen=", ".join(absent),
            expected=f"one of {', '.join(present)}" if present else "a cohort with named channels",
            do="correct the names, or omit --channels to read all channels",
        )
