"""The outputs of a Bundle's network in the terms of the model card: labels, regions or classes. Nothing is guessed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medweave_core.contracts.classes import ImageClass, check_classes
from medweave_core.contracts.labels import Label, check_regions, declared_or_lesion, shown
from medweave_core.contracts.model import OutputContract
from medweave_core.errors import UserInputError
from medweave_steps.bundle.contract import BundleContract
from medweave_steps.bundle.probe import NetworkOutput, not_supported
from medweave_steps.io.cohort.labels import parse_labels, read_labels
from medweave_steps.runtime.options import check_option
from medweave_steps.tasks.segmentation.targets import parse_regions

BACKGROUND = "background"
_NAMED = "channel_def of the outputs in configs/metadata.json, with a name for each channel"


def card_outputs(
    output: NetworkOutput,
    contract: BundleContract,
    metadata: Mapping[str, Any],
    *,
    labels: Path | None,
    regions: Sequence[str],
) -> dict[str, Any]:
    """Return the fields of the model card that describe the outputs, and `kind`, the `output` of its architecture.

    Args:
        output: what the network gives.
        labels, regions: as the user declares them; they take precedence over the Bundle's names.
    Raises:
        UserInputError: the Bundle does not say what its channels mean, or says something else than the user.
    """
    has_labels = output.kind == "voxels"
    check_option(has_labels or labels is None, "labels", labels, "no value: a classification has classes, not labels")
    fits = not regions or (has_labels and contract.activation == "sigmoid" and output.channels > 1)
    check_option(fits, "regions", tuple(regions), "no value: regions are those of several sigmoid channels")
    if not has_labels:
        return _classes(output, contract)
    activation, channels = contract.activation, output.channels
    seen = f"{channels} output channels" + (f", and the activation {activation}" if activation else "")
    if channels == 1 and activation != "softmax":
        return {"labels": _only_label(labels, contract, metadata), "kind": "sigmoid"}
    if channels == 2 and activation != "sigmoid":
        return {"labels": _only_label(labels, contract, metadata), "kind": "softmax"}
    if channels > 1 and activation == "sigmoid":
        return _regions(channels, seen, contract, metadata, labels=labels, regions=regions)
    if channels > 2 and activation == "softmax":
        own = _several_labels(channels, seen, contract, metadata, labels)
        return {"labels": own, "output": OutputContract(activation="softmax"), "kind": ""}
    do = "add the activation of the training to the postprocessing (Activationsd) in configs/inference.json"
    raise not_supported(seen, do=do if activation is None else "")


def _classes(output: NetworkOutput, contract: BundleContract) -> dict[str, Any]:
    activation, names = contract.activation, contract.output_names
    if activation is None or len(names) != output.channels or (activation == "softmax" and output.channels == 1):
        shown_names = f"{len(names)} names ({', '.join(names)})" if names else "no names"
        raise UserInputError(
            "the Bundle does not define the classes of its network.",
            seen=f"one logit for each of {output.channels} classes, activation {activation or 'unknown'}, {shown_names}",
            expected=f"Activationsd (softmax or sigmoid) in the postprocessing, and {_NAMED}",
            do="add what is missing to configs/inference.json and configs/metadata.json, as the network was trained",
        )
    classes = tuple(ImageClass(name=name) for name in names)
    check_classes(classes)
    contract_of_output = OutputContract(activation="softmax" if activation == "softmax" else "sigmoid")
    return {"labels": (), "classes": classes, "output": contract_of_output, "task_name": "classification", "kind": ""}


def _only_label(path: Path | None, contract: BundleContract, metadata: Mapping[str, Any]) -> tuple[Label, ...]:
    labels = _declared(path, metadata) or (Label(value=1, name=contract.label),)
    if len(labels) > 1:
        raise UserInputError(
            f"{len(labels)} labels are declared for the Bundle, but its network has one.",
            seen=f"label {shown(labels)}",
            expected="one foreground label",
            do="set --labels to the label of the network's lesion class",
        )
    return declared_or_lesion(labels)


def _declared(path: Path | None, metadata: Mapping[str, Any]) -> tuple[Label, ...]:
    if path is not None:
        return read_labels(path)
    if isinstance(metadata.get("labels"), list):  # as medweave writes them
        return parse_labels(metadata["labels"], where="the labels of the Bundle (configs/metadata.json)")
    return ()


def _several_labels(
    channels: int, seen: str, contract: BundleContract, metadata: Mapping[str, Any], path: Path | None
) -> tuple[Label, ...]:
    """Return the labels of a softmax, whose first channel is the background."""
    names, labels = contract.output_names, _declared(path, metadata)
    if len(names) != channels or names[0].lower() != BACKGROUND:
        raise not_supported(
            f"{seen}, named {', '.join(names) or 'nowhere'}",
            expected=f"{_NAMED}, the first one '{BACKGROUND}'",
            do="correct configs/metadata.json, as the network was trained",
        )
    labels = labels or tuple(Label(value=place, name=name) for place, name in enumerate(names) if place)
    if len(labels) != channels - 1:
        raise UserInputError(
            f"{len(labels)} labels are declared for the Bundle, but its network has {channels - 1}.",
            seen=f"label {shown(labels)}",
            expected=f"one label for each of {', '.join(names[1:])}, ascending by value",
            do="correct --labels",
        )
    return labels


def _regions(
    channels: int, seen: str, contract: BundleContract, metadata: Mapping[str, Any], *, labels: Path | None,
    regions: Sequence[str],
) -> dict[str, Any]:  # fmt: skip
    """Return the regions of several sigmoid channels; a Bundle names them, but does not say which labels they unite."""
    own, declared = parse_regions(regions), _declared(labels, metadata)
    if len(own) != channels or not declared:
        names = f" ({', '.join(contract.output_names)})" if contract.output_names else ""
        raise not_supported(
            f"{seen}{names}; {len(own)} regions and {len(declared)} labels are declared",
            expected="sigmoid channels that are regions, which may overlap: the labels, and a region for each channel",
            do="set --labels, and --regions in the order of the channels, such as --regions 'tumor core:1,3' 'whole tumor:1,2,3'",
        )
    check_regions(own, declared)
    return {"labels": declared, "output": OutputContract(regions=own), "kind": ""}
