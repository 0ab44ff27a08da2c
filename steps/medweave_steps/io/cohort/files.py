"""The files that describe a cohort, and the volumes that they list."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from medweave_core.contracts.volume import CT_CHANNELS
from medweave_steps.io.cohort.discovery import case_id_of_path
from medweave_steps.io.nifti.volume import stem

DATASET_FILE = "dataset.json"
CARD_FILE = "cohort_card.json"
DEIDENTIFIED: Final = "de-identified"  # data_class of the card of a cohort without identifiers
SPLITS_FILE = "splits.json"

_CHANNEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.+-]{0,31}")

Pairs = list[tuple[str, str | None]]


def has_public_file_names(card: Mapping[str, Any]) -> bool:
    """Return whether file names of a cohort identify no patient, by its card: they may then name its cases."""
    return bool(card.get("synthetic")) or card.get("data_class") == DEIDENTIFIED


def in_cohort(cohort: Path, path: Path) -> Path:
    """Return the file or folder of an option: the path itself, or, if nothing is there, the path below the cohort."""
    return path if path.exists() or path.is_absolute() else cohort / path


def listed_volumes(dataset: Mapping[str, Any]) -> tuple[Pairs, Pairs]:
    """Return volumes and masks of a `dataset.json` of the Medical Segmentation Decathlon: those with a mask, and those of `test`.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: the lists have another form, or name a path outside of the data set.
    """
    training: Pairs = [(inside(item["image"]), inside(item["label"])) for item in dataset.get("training", [])]
    test: Pairs = [(inside(item if isinstance(item, str) else item["image"]), None) for item in dataset.get("test", [])]
    return training, test


def declared_channels(dataset: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the channels that a `dataset.json` declares under `modality`, in their order; CT by default.

    Raises:
        AttributeError, TypeError, ValueError: `modality` has another form, or a name that is not a short plain word.
    """
    declared = dataset.get("modality", {"0": "CT"})
    return channel_names_of({"0": declared} if isinstance(declared, str) else declared)


def channel_names_of(by_number: Mapping[Any, Any]) -> tuple[str, ...]:
    """Return the names of numbered channels in their order; CT if there are none.

    Raises:
        AttributeError, TypeError, ValueError: another form, or a name that is not a short plain word.
    """
    by_number = dict(by_number)
    names = tuple(str(by_number[key]) for key in sorted(by_number, key=int)) or CT_CHANNELS
    if not all(_CHANNEL_NAME.fullmatch(name) for name in names):
        raise ValueError("a channel name that is not a short plain name")
    return CT_CHANNELS if len(names) == 1 and names[0].upper() == "CT" else names


def case_id_of_stem(image: str) -> str:
    """Return the file's stem, since names in a public data set are public, where it can name a folder."""
    return stem(image) if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", stem(image)) else case_id_of_path(image)


def inside(path: str) -> str:
    """Return a path of dataset.json, which may begin with `./` and must not leave the cohort."""
    relative = PurePosixPath(path)
    if relative.is_absolute() or ".." in relative.parts:
        raise ValueError("a path outside the data set")
    if b"\0" in os.fsencode(path):  # also raises for text that no file name can have
        raise ValueError("a path with a NUL byte")
    return relative.as_posix()
