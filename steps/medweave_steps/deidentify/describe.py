"""The files that describe a cohort, rewritten: only the fields that later steps read, and no free text."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

from medweave_core.contracts import codec
from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.labels import CodedTerm, Label
from medweave_core.contracts.volume import DataClass
from medweave_core.errors import UserInputError
from medweave_steps.deidentify.codes import OWN_SCHEME, PUBLIC_SCHEMES
from medweave_steps.deidentify.faces import CARD_KEY, DeclaredFaces
from medweave_steps.io.cohort.files import CARD_FILE, DATASET_FILE, SPLITS_FILE, declared_channels
from medweave_steps.io.cohort.labels import parse_labels
from medweave_steps.io.cohort.nnunet import nnunet_channels
from medweave_steps.io.cohort.targets import declared_classes
from medweave_steps.io.findings import FindingError, refuse

LONGEST_NAME = 64


def read_description(path: Path) -> dict[str, Any]:
    """Return a JSON object of the cohort; empty where the file does not exist.

    Raises:
        FindingError: the file is not a JSON object.
    """
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise bad_description(path.name, "text that is not JSON") from error
    if not isinstance(data, dict):
        raise bad_description(path.name, "JSON without a top-level object")
    return data


def bad_description(file: str, seen: str) -> FindingError:
    """Return the error for a describing file in an unknown format."""
    return refuse(
        "bad-json",
        f"{file} is invalid.",
        seen=seen,
        expected="a JSON object in the documented form",
        do=f"correct {file}",
    )


def declared_faces(cohort: Path) -> DeclaredFaces:
    """Return what the cohort card declares about faces; `auto` if nothing.

    Raises:
        FindingError: another value.
    """
    declared = read_description(cohort / CARD_FILE).get(CARD_KEY, "auto")
    if declared not in get_args(DeclaredFaces):
        raise bad_description(CARD_FILE, f"'{CARD_KEY}' that is not {', '.join(get_args(DeclaredFaces))}")
    return cast(DeclaredFaces, declared)


def write_card(cohort: Path, output: Path, *, data_class: DataClass, is_synthetic: bool, faces: DeclaredFaces) -> None:
    """Write `cohort_card.json`: the current data class, the cohort's own labels and classes, and whether its data is synthetic.

    Args:
        is_synthetic: whether any card of the cohort says so.
        faces: declaration for later runs; `auto` is not written.
    """
    card: dict[str, Any] = {"data_class": data_class, "synthetic": is_synthetic}
    if faces != "auto":
        card[CARD_KEY] = faces
    described = read_description(cohort / CARD_FILE)
    if labels := _card_labels(described.get("labels")):
        card["labels"] = labels
    if classes := _public_classes(card_classes(described)):
        card["classes"] = classes
    _write(output / CARD_FILE, card)


def has_synthetic_card(cohort: Path, names: Sequence[str]) -> bool:
    """Return whether any card of the cohort says that its data is synthetic.

    Args:
        names: all files of the cohort.
    """
    cards = [read_description(cohort / name) for name in names if name.rpartition("/")[2] == CARD_FILE]
    return any(bool(card.get("synthetic")) for card in cards)


def write_splits(cohort: Path, output: Path, case_ids: Mapping[str, str]) -> None:
    """Write `splits.json` with the new case ids.

    Args:
        case_ids: case id in the source to case id in the output, of every case; empty for one that was left out.
    """
    splits = read_description(cohort / SPLITS_FILE)
    if not splits:
        return
    if not all(isinstance(ids, list) and all(isinstance(one, str) for one in ids) for ids in splits.values()):
        raise bad_description(SPLITS_FILE, "values that are not lists of case ids")
    if not set(splits) <= {"train", "validation", "test"}:
        raise bad_description(SPLITS_FILE, "a split that is not train, validation or test")
    unknown = {one for ids in splits.values() for one in ids} - set(case_ids)
    if unknown:
        raise refuse(
            "splits-file",
            "splits.json contains cases that are not in the cohort.",
            seen=f"{len(unknown)} unknown case ids",
            expected="case ids as printed by check",
            do="correct splits.json, or add the series",
        )
    _write(
        output / SPLITS_FILE,
        {name: sorted(case_ids[one] for one in ids if case_ids[one]) for name, ids in splits.items()},
    )


def read_channels(dataset: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the channel names that `dataset.json` declares.

    Raises:
        FindingError: `modality` has another form.
    """
    try:
        return declared_channels(dataset)
    except (AttributeError, TypeError, ValueError) as error:
        raise bad_description(DATASET_FILE, "'modality' in an invalid form") from error


def write_dataset(
    output: Path, source: Mapping[str, Any], training: Sequence[tuple[str, str]], test: Sequence[str]
) -> None:
    """Write `dataset.json` of the Medical Segmentation Decathlon: the source's modality and labels, new names, no authors."""
    channels = read_channels(source)
    described = {
        "name": "de-identified",
        "tensorImageSize": "3D" if len(channels) == 1 else "4D",
        "modality": {str(number): name for number, name in enumerate(channels)},
        "labels": _labels(source.get("labels"), DATASET_FILE),
        "numTraining": len(training),
        "numTest": len(test),
        "training": [{"image": f"./{image}", "label": f"./{mask}"} for image, mask in training],
        "test": [f"./{image}" for image in test],
    }
    _write(output / DATASET_FILE, described)


def write_nnunet_dataset(output: Path, source: Mapping[str, Any], *, num_training: int) -> None:
    """Write `dataset.json` of nnU-Net v2: the source's channels, labels, regions and file ending, and no description.

    Args:
        source: content of a file that `read_nnunet_2` accepts.
    """
    labels = {str(name)[:LONGEST_NAME]: value for name, value in source["labels"].items()}
    if len(labels) < len(source["labels"]):
        raise bad_description(DATASET_FILE, f"'labels' with equal names in the first {LONGEST_NAME} characters")
    described = {
        "channel_names": {str(number): name for number, name in enumerate(nnunet_channels(source))},
        "labels": labels,
        "numTraining": num_training,
        "file_ending": str(source.get("file_ending", ".nii.gz")),
    }
    if any(isinstance(value, list) and len(value) > 1 for value in labels.values()) and "regions_class_order" in source:
        described["regions_class_order"] = source["regions_class_order"]
    _write(output / DATASET_FILE, described)


def _card_labels(labels: Any) -> Any:
    """Return the labels of a cohort card with their DICOM codes; those without codes as an object of value to name."""
    if not isinstance(labels, list):
        return _labels(labels, CARD_FILE)
    try:
        parsed = parse_labels(labels, where=CARD_FILE)
    except UserInputError as error:
        raise bad_description(CARD_FILE, error.seen) from error
    return codec.to_json([_public(label) for label in parsed])


def card_classes(card: Mapping[str, Any]) -> tuple[ImageClass, ...]:
    """Return the classes that a cohort card declares.

    Raises:
        FindingError: it has another form, or a long name.
    """
    try:
        classes = declared_classes(card)
    except UserInputError as error:
        raise bad_description(CARD_FILE, error.seen) from error
    if any(len(one.name) > LONGEST_NAME for one in classes):
        raise bad_description(CARD_FILE, f"a class with a name of more than {LONGEST_NAME} characters")
    return classes


def _public_classes(classes: Sequence[ImageClass]) -> Any:
    return codec.to_json(tuple(dataclasses.replace(one, code=_public_term(one.code)) for one in classes))


def _public(label: Label) -> Label:
    """Return a label without codes of a local scheme, which name a hospital."""
    return Label(
        value=label.value,
        name=label.name[:LONGEST_NAME],
        category=_public_term(label.category),
        type=_public_term(label.type),
        anatomy=_public_term(label.anatomy),
        laterality=_public_term(label.laterality),
    )


def _public_term(term: CodedTerm | None) -> CodedTerm | None:
    return term if term and term.scheme in {*PUBLIC_SCHEMES, OWN_SCHEME} else None


def _labels(labels: Any, file: str) -> dict[str, str]:
    """Return label values and their names, each name cut at 64 characters: longer text is no name of a structure.

    Raises:
        FindingError: `labels` is not an object of number to name.
    """
    if labels is None:
        return {}
    if not isinstance(labels, Mapping) or not all(str(key).isdecimal() for key in labels):
        raise bad_description(file, "'labels' that are not an object (value: name)")
    return {str(int(key)): str(text)[:LONGEST_NAME] for key, text in labels.items()}


def _write(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
