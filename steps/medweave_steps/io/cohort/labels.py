"""Label declarations: presets and files for `--labels`, merges for `--merge-labels`, and both applied to masks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts import codec
from medweave_core.contracts.labels import HIGHEST_VALUE, PRESETS, Label, LabelMerge, ascending, declared_as_mapping
from medweave_core.errors import UsageError, UserInputError
from medweave_steps.io.cohort.json_or_yaml import read_document

LabelArray = npt.NDArray[np.uint8]


def parse_labels(declared: Any, *, where: str) -> tuple[Label, ...]:
    """Return the labels of a parsed document, ascending by value.

    Args:
        declared: a list of labels, or the older object of value to name; `background` (0) is left out.
        where: role of the document, for the error.
    Raises:
        UserInputError: another form, a value twice, or a term that DICOM cannot hold.
    """
    if isinstance(declared, Mapping) and "labels" in declared:
        declared = declared["labels"]
    if isinstance(declared, Mapping) and not all(str(key).isdecimal() for key in declared):
        raise _bad_labels(where, "an object with keys that are not numbers")
    items = declared_as_mapping(declared)
    if not isinstance(items, list):
        raise _bad_labels(where, f"a {type(items).__name__}")
    items = [item for item in items if not (isinstance(item, Mapping) and item.get("value") == 0)]
    labels = [codec.from_json(Label, item, where=where) for item in items]
    values = [label.value for label in labels]
    if len(set(values)) < len(values):
        raise _bad_labels(where, f"values {', '.join(map(str, values))}")
    return ascending(labels)


def read_labels(declared: Path) -> tuple[Label, ...]:
    """Return the labels of a preset or of a JSON or YAML file.

    Args:
        declared: name of a preset, or path of a file.
    Raises:
        UsageError: neither.
        UserInputError: the file holds something else than labels.
    """
    if str(declared) in PRESETS:
        return PRESETS[str(declared)]
    if not declared.is_file():
        raise UsageError(
            "--labels is neither a preset nor a file.",
            expected=f"one of {', '.join(PRESETS)}, or a JSON or YAML file with a list of labels",
            do="correct the name or the path",
        )
    where = "the file of --labels"
    try:
        parsed = read_document(declared)
    except ValueError as error:
        raise _bad_labels(where, str(error)) from error
    return parse_labels(parsed, where=where)


def parse_merges(texts: Sequence[str]) -> tuple[LabelMerge, ...]:
    """Return the merges of `--merge-labels`, each `VALUES:NAME` such as `1,2:tumor`.

    Raises:
        UsageError: another form, a value above 255, fewer than two values, or a value in two merges.
    """
    merges = []
    for text in texts:
        match = re.fullmatch(r"\s*(\d{1,3}(?:\s*,\s*\d{1,3})+)\s*:\s*(\S.{0,63})", text)
        values = sorted({int(value) for value in match[1].split(",")}) if match else []
        if match is None or len(values) < 2 or values[-1] > HIGHEST_VALUE:
            raise _bad_merge(text, f"two or more values up to {HIGHEST_VALUE} and a name, such as 1,2:tumor")
        merges.append(LabelMerge(values=tuple(values), name=match[2].strip()))
    counted = [value for merge in merges for value in merge.values]
    if len(set(counted)) < len(counted):
        raise _bad_merge(" ".join(texts), "each value in one merge only")
    return tuple(merges)


def merged_labels(labels: Sequence[Label], merges: Sequence[LabelMerge]) -> tuple[Label, ...]:
    """Return the labels after merging; a merged label has codes only if a label of its value and name is declared with them."""
    result = {label.value: label for label in labels}
    for merge in merges:
        declared = result.get(merge.value)
        for value in merge.values:
            result.pop(value, None)
        if merge.value:
            is_declared = declared is not None and declared.name == merge.name
            result[merge.value] = declared if is_declared and declared else Label(value=merge.value, name=merge.name)
    return tuple(result[value] for value in sorted(result))


def merge_values(mask: LabelArray, merges: Sequence[LabelMerge]) -> LabelArray:
    """Return a mask whose merged values are the value of their merge; the array itself if nothing is merged.

    Args:
        mask: uint8 label values.
    """
    return value_table(merges)[mask] if merges else mask


def value_table(merges: Sequence[LabelMerge]) -> LabelArray:
    """Return the value after merging of each value before, uint8 of shape (256,)."""
    table = np.arange(HIGHEST_VALUE + 1, dtype=np.uint8)
    for merge in merges:
        table[list(merge.values)] = merge.value
    return table


def renamed(labels: Sequence[Label], own: Sequence[Label]) -> list[tuple[Label, Label]]:
    """Return the pairs of labels that have one value and two names; the case of letters does not count."""
    names = {label.value: label for label in own}
    return [
        (label, names[label.value])
        for label in labels
        if label.value in names and names[label.value].name.casefold() != label.name.casefold()
    ]


def _bad_labels(where: str, seen: str) -> UserInputError:
    return UserInputError(
        f"{where} contains no valid labels.",
        seen=seen,
        expected="a list of {value, name, category, type, anatomy, laterality}; unique values, codes optional",
        do="correct the labels",
    )


def _bad_merge(seen: str, expected: str) -> UsageError:
    return UsageError("invalid value of --merge-labels.", seen=seen, expected=expected)
