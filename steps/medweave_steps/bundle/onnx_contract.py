"""The contract of an ONNX file: read from a YAML or JSON file or from the file's metadata, and checked for contradictions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from medweave_core.contracts import codec
from medweave_core.contracts.classes import check_classes
from medweave_core.contracts.labels import check_regions, shown
from medweave_core.contracts.model import ModelContract
from medweave_core.contracts.volume import modality_of, unit_of
from medweave_core.errors import UsageError, UserInputError
from medweave_steps.io.cohort.json_or_yaml import read_document
from medweave_steps.io.model.onnx_file import CONTRACT_KEY, contract_text

_SCHEMA = "`medweave schema model-contract` prints the JSON Schema"


def read_contract_of_onnx(model: Any, path: Path | None) -> ModelContract:
    """Return the contract of an ONNX model.

    Args:
        model: the onnx.ModelProto.
        path: YAML or JSON file of the user, which takes precedence over the metadata of the model.
    Raises:
        UsageError: there is no such file.
        UserInputError: there is no contract, it has another form, or its parts contradict each other.
    """
    where = "the file of --contract" if path else f"the contract in the ONNX file (metadata {CONTRACT_KEY})"
    document = _document(path, where) if path else _metadata(model, where)
    try:
        contract = codec.from_json(ModelContract, _completed(document), where=where)
        _check(contract, where)
    except UserInputError as error:
        error.do = f"correct the contract; {_SCHEMA}"
        raise
    return contract


def _document(path: Path, where: str) -> Any:
    if not path.is_file():
        raise UsageError("--contract is not a file.", expected="a YAML or JSON file", do="correct the path")
    try:
        return read_document(path)
    except ValueError as error:
        raise _unreadable(where, str(error)) from error


def _metadata(model: Any, where: str) -> Any:
    text = contract_text(model)
    if text is None:
        keys = ", ".join(sorted(one.key for one in model.metadata_props)[:5])
        raise UserInputError(
            "the ONNX file does not define the input and output of its network.",
            seen=f"no metadata {CONTRACT_KEY} in the file" + (f"; its metadata are {keys}" if keys else ""),
            expected="an ONNX file of `medweave-step export`, or a file with the contract",
            do=f"set --contract to a YAML file with the values of the training; {_SCHEMA}",
        )
    try:
        return json.loads(text)
    except ValueError as error:
        raise _unreadable(where, "text that is not JSON") from error


def _unreadable(where: str, seen: str) -> UserInputError:
    return UserInputError(
        f"{where} cannot be read.", seen=seen, expected="a YAML or JSON object", do=f"correct the contract; {_SCHEMA}"
    )


def _completed(document: Any) -> Any:
    """Return a contract with modality, unit and number of channels by the names of its channels, where it has none."""
    requirements = document.get("input") if isinstance(document, Mapping) else None
    names = requirements.get("channel_names") if isinstance(requirements, Mapping) else None
    if (
        not isinstance(requirements, Mapping)
        or not isinstance(names, list)
        or not all(isinstance(name, str) for name in names)
    ):
        return document
    by_names = {"modality": modality_of(tuple(names)), "unit": unit_of(tuple(names)), "channels": len(names)}
    return {**document, "input": {**by_names, **requirements}}


def _check(contract: ModelContract, where: str) -> None:
    for seen, expected in (*_wrong_input(contract), *_wrong_output(contract), *_wrong_postprocessing(contract)):
        raise UserInputError(f"{where} contradicts itself.", seen=seen, expected=expected)
    check_classes(contract.classes)
    if contract.output.regions:
        check_regions(contract.output.regions, contract.labels)


Wrong = Iterator[tuple[str, str]]
"""Pairs of observed and expected values, in words."""


def _wrong_input(contract: ModelContract) -> Wrong:
    own = contract.input
    names = own.channel_names
    if own.channels != len(names) or not names or len(set(names)) < len(names):
        yield f"input: {own.channels} channels, named {', '.join(names)}", "a different name for each channel"
    if own.modality != modality_of(names) or own.unit != unit_of(names):
        yield (
            f"input: modality {own.modality}, unit {own.unit}, channels {', '.join(names)}",
            f"modality {modality_of(names)} and unit {unit_of(names)} for these channels",
        )
    if (own.window_hu is not None) != (own.modality == "CT"):
        yield f"input: window_hu {own.window_hu} for {own.modality}", "a window in HU for CT, null for any other input"
    ranges = [own.scaled_range, *([own.window_hu] if own.window_hu else [])]
    if any(not low < high for low, high in ranges):
        yield f"input: window_hu {own.window_hu}, scaled_range {own.scaled_range}", "ranges in ascending order"
    if not all(spacing > 0 for spacing in own.spacing_mm):
        yield f"input: spacing_mm {own.spacing_mm}", "voxel sizes above 0 mm"
    if own.patch_multiple < 1 or any(side < 1 or side % own.patch_multiple for side in own.patch_shape):
        yield (
            f"input: patch_shape {own.patch_shape}, patch_multiple {own.patch_multiple}",
            "sides above 0 that are multiples of patch_multiple (1 for any side)",
        )


def _wrong_output(contract: ModelContract) -> Wrong:
    activation, regions, labels = contract.output.activation, contract.output.regions, contract.labels
    if contract.task_name == "classification":
        if labels or regions or not contract.classes or (activation == "softmax" and len(contract.classes) < 2):
            yield (
                f"{len(contract.classes)} classes, {len(labels)} labels, {len(regions)} regions, activation {activation}",
                "a classification has classes (two or more with softmax), no labels and no regions",
            )
        return
    if contract.classes:
        yield f"task {contract.task_name} with {len(contract.classes)} classes", "classes only for a classification"
    values = [label.value for label in labels]
    if not labels or values != sorted(set(values)):
        yield f"labels {shown(labels) or 'none'}", "labels with different values, in ascending order"
    if regions and activation == "softmax":
        yield f"activation softmax and {len(regions)} regions", "regions only with the activation sigmoid"
    if len(labels) > 1 and activation == "sigmoid" and not regions:
        yield f"activation sigmoid and {len(labels)} labels", "a region for each channel, or the activation softmax"


def _wrong_postprocessing(contract: ModelContract) -> Wrong:
    own = contract.postprocessing
    count = len(contract.classes or contract.output.regions or contract.labels)
    if own.by_output and len(own.by_output) != count:
        yield f"postprocessing: by_output with {len(own.by_output)} entries", f"{count} entries, one for each output"
    if not all(0 < one.threshold < 1 and one.min_volume_mm3 >= 0 for one in own.filters):
        yield (
            f"postprocessing: threshold {own.threshold}, min_volume_mm3 {own.min_volume_mm3}",
            "thresholds between 0 and 1, volumes of at least 0 mm³",
        )
    if not 0 <= own.overlap < 1:
        yield f"postprocessing: overlap {own.overlap}", "a share of at least 0 and below 1"
