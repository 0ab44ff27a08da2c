"""Channel rules: which DICOM series of a study is which channel, by attributes of the acquisition (`check --channels`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_core.contracts import codec
from medweave_core.contracts.volume import CT_CHANNELS, Modality, is_pet_channel
from medweave_core.errors import UsageError, UserInputError
from medweave_steps.io.cohort.json_or_yaml import read_document
from medweave_steps.io.dicom.header import load_pydicom
from medweave_steps.io.dicom.values import HeaderValues, has_other_cause

Range = tuple[float, float]

_WHERE = "the file of --channels"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.+-]{0,31}")
_NO_AGENT = re.compile(r"\s*(none|no|non|without|wo|w/o|n/?a|not|native|pre|0)(?![^\W_])", re.I)
_TIMES = ("echo_time_ms", "inversion_time_ms", "repetition_time_ms")
_SUGGESTED_MARGIN = 0.1  # share of a time by which a suggested range is wider

# Attribute of a single-frame image, and its name and functional group in a multi-frame image.
_TIME_ATTRIBUTES = {
    "echo_time_ms": ("EchoTime", "EffectiveEchoTime", "MREchoSequence"),
    "inversion_time_ms": ("InversionTime", "InversionTimes", "MRModifierSequence"),
    "repetition_time_ms": ("RepetitionTime", "RepetitionTime", "MRTimingAndRelatedParametersSequence"),
}
_TAGS = [
    "SpecificCharacterSet", "SeriesDescription", "ContrastBolusAgent", "ContrastBolusAgentSequence", "ScanningSequence",
    "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence",
    *(names[0] for names in _TIME_ATTRIBUTES.values()),
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesProtocol:
    """The attributes of a series that rules compare; None or empty where its header has none.

    Attributes:
        description: free text; it may hold a name and is never shown.
    """

    modality: Modality
    description: str = ""
    contrast: bool = False
    echo_time_ms: float | None = None
    inversion_time_ms: float | None = None
    repetition_time_ms: float | None = None
    scanning_sequence: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return the attributes as messages show them: `contrast no, echo time 90 ms, repetition time 4000 ms`."""
        times = [(key, getattr(self, key)) for key in _TIMES]
        shown = [
            f"{key.removesuffix('_ms').replace('_', ' ')} {value:g} ms" for key, value in times if value is not None
        ]
        return ", ".join([self.modality, f"contrast agent {'yes' if self.contrast else 'no'}", *shown])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRule:
    """A channel of all cases, and the series that holds it: the one for which all given matchers hold.

    Attributes:
        name: name of the channel: CT for CT, PET (or PET and a word) for PET, any other for MR.
        modality: DICOM modality of the series.
        series_description: regular expression that SeriesDescription contains; upper and lower case are equal.
        contrast: whether a contrast agent was given: ContrastBolusAgent is filled, and does not begin with a word for none.
        echo_time_ms, inversion_time_ms, repetition_time_ms: lowest and highest value, both included.
        scanning_sequence: values that ScanningSequence has, such as SE and IR.
    """

    name: str
    modality: Modality = "MR"
    series_description: str | None = None
    contrast: bool | None = None
    echo_time_ms: Range | None = None
    inversion_time_ms: Range | None = None
    repetition_time_ms: Range | None = None
    scanning_sequence: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise UserInputError for a rule that can match no series."""
        if not _NAME.fullmatch(self.name):
            raise _bad_rules(f"the name {self.name!r}", "up to 32 letters, digits, spaces, or any of _ . + -")
        by_name: Modality = "CT" if (self.name,) == CT_CHANNELS else "PT" if is_pet_channel(self.name) else "MR"
        if by_name != self.modality:
            raise _bad_rules(
                f"modality {self.modality} for the name {self.name!r}", "the name CT for CT, PET for PT, another for MR"
            )
        for key in _TIMES:
            limits = getattr(self, key)
            if limits is not None and not 0 <= limits[0] <= limits[1]:
                raise _bad_rules(f"{key} [{limits[0]:g}, {limits[1]:g}] of {self.name}", "[lowest, highest]")
        try:
            re.compile(self.series_description or "")
        except re.error as error:
            raise _bad_rules(
                f"series_description of {self.name}: {error}", "a regular expression, such as 't2.*flair'"
            ) from error

    def matches(self, protocol: SeriesProtocol) -> bool:
        """Return True if the series has the attributes of this channel."""
        pattern = self.series_description
        return (
            protocol.modality == self.modality
            and (pattern is None or re.search(pattern, protocol.description, re.IGNORECASE) is not None)
            and self.contrast in (None, protocol.contrast)
            and all(_is_inside(getattr(protocol, key), getattr(self, key)) for key in _TIMES)
            and {word.upper() for word in self.scanning_sequence} <= set(protocol.scanning_sequence)
        )


def read_channel_rules(path: Path) -> tuple[ChannelRule, ...]:
    """Return the rules of a JSON or YAML file, in their order.

    Raises:
        UsageError: there is no such file.
        UserInputError: it holds something else than rules, two rules of one name, or rules of several modalities.
    """
    if not path.is_file():
        raise UsageError(
            "--channels is not a file.",
            expected="a JSON or YAML file with a list of channel rules",
            do="correct the path",
        )
    try:
        parsed = read_document(path)
    except ValueError as error:
        raise _bad_rules("text that is neither JSON nor YAML", "a list of rules") from error
    return parse_channel_rules(parsed)


def parse_channel_rules(parsed: Any) -> tuple[ChannelRule, ...]:
    """Return the rules of a parsed document; see `read_channel_rules`."""
    if not isinstance(parsed, list) or not parsed:
        raise _bad_rules(f"a {type(parsed).__name__}", "a list of rules, each with a name and matchers")
    rules = tuple(codec.from_json(ChannelRule, item, where=_WHERE) for item in parsed)
    names = [rule.name for rule in rules]
    if len(set(names)) < len(names):
        raise _bad_rules(f"the names {', '.join(names)}", "a different name for each channel")
    if len({rule.modality for rule in rules}) > 1:
        # One input contract has one modality and one unit: HU, SUV or standard deviations.
        raise _bad_rules(
            f"channels of {', '.join(sorted({rule.modality for rule in rules}))} in one case",
            "channels of one modality; CT together with PET or MR is not supported",
        )
    return rules


def read_protocol(path: Path, modality: Modality) -> SeriesProtocol:
    """Return the attributes of a series from the header of one of its files; an unusable header gives the modality only."""
    try:
        dataset = load_pydicom().dcmread(path, stop_before_pixels=True, specific_tags=_TAGS, force=True)
    except Exception as error:  # `check` reports unusable files
        if has_other_cause(error):
            raise
        return SeriesProtocol(modality=modality)
    values = HeaderValues(dataset)
    times: dict[str, float | None] = {key: _time_of(values, *names) for key, names in _TIME_ATTRIBUTES.items()}
    return SeriesProtocol(
        modality=modality,
        description=values.text("SeriesDescription"),
        contrast=names_agent(values.text("ContrastBolusAgent")) or bool(values.items("ContrastBolusAgentSequence")),
        scanning_sequence=tuple(word.upper() for word in values.words("ScanningSequence")),
        **times,
    )


def names_agent(text: str) -> bool:
    """Return whether ContrastBolusAgent says that an agent was given: it is filled, and not with a word for none."""
    return bool(text.strip()) and not _NO_AGENT.match(text)


def _time_of(values: HeaderValues, keyword: str, in_group: str, sequence: str) -> float | None:
    groups = [
        *values.items("PerFrameFunctionalGroupsSequence")[:1],
        *values.items("SharedFunctionalGroupsSequence"),
    ]
    holders = [item for group in groups for item in values.items(sequence, group)]
    numbers = (values.number(in_group, holder) for holder in holders)
    return next((number for number in numbers if number is not None), values.number(keyword))


def differing_matchers(protocols: Sequence[SeriesProtocol]) -> list[str]:
    """Return the matchers that could tell series apart; empty where none can."""
    keys = ("contrast", *_TIMES, "scanning_sequence", "description")
    differing = [key for key in keys if len({getattr(protocol, key) for protocol in protocols}) > 1]
    return ["series_description" if key == "description" else key for key in differing]


def suggested_rules(protocols: Sequence[SeriesProtocol]) -> str:
    """Return a rules file (YAML) for the series of one study, to start from: attributes that differ, without free text."""
    keys = [key for key in differing_matchers(protocols) if key in ("contrast", *_TIMES)]
    lines = []
    for number, protocol in enumerate(protocols, start=1):
        name = f"{'PET ' if protocol.modality == 'PT' else ''}channel{number}"
        parts = [f"name: {name}", *([] if protocol.modality == "MR" else [f"modality: {protocol.modality}"])]
        for key in keys:
            value = getattr(protocol, key)
            if key == "contrast":
                parts.append(f"contrast: {str(value).lower()}")
            elif value is not None:
                parts.append(f"{key}: [{value * (1 - _SUGGESTED_MARGIN):g}, {value * (1 + _SUGGESTED_MARGIN):g}]")
        if len(parts) == 1 or not keys:
            parts.append("series_description: WORDS")
        lines.append("- {" + ", ".join(parts) + "}")
    return "\n".join(lines)


def _is_inside(value: float | None, limits: Range | None) -> bool:
    return limits is None or (value is not None and limits[0] <= value <= limits[1])


def _bad_rules(seen: str, expected: str) -> UserInputError:
    return UserInputError(
        f"{_WHERE} contains no valid channel rules.", seen=seen, expected=expected, do="correct the rules"
    )
