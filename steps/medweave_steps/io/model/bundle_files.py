"""What makes a model folder a MONAI Bundle: `configs/metadata.json` and `configs/inference.json`.

MONAI runs it by `python -m monai.bundle run --config_file configs/inference.json --bundle_root . --dataset_dir DIR`.
Source: MONAI Bundle Specification 1.x, docs.monai.io/en/stable/mb_specification.html.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from medweave_core.contracts.codec import to_json
from medweave_core.contracts.model import ModelCard
from medweave_steps.io.model.folder import INFERENCE_FILE, METADATA_FILE
from medweave_steps.runtime.write import write_text

_LIBRARIES = {"monai_version": "monai", "pytorch_version": "torch", "numpy_version": "numpy"}


def write_bundle_configs(folder: Path, card: ModelCard) -> None:
    """Write the configuration files of a model folder from its card; call it before `write_card`.

    A classification has no inference.json: MONAI has no transforms for the resize of `preprocess` and for the calibration.
    """
    documents = {METADATA_FILE: metadata(card)}
    if not card.classes:
        documents[INFERENCE_FILE] = inference_config(card)
    for name, document in documents.items():
        write_text(folder / name, json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def metadata(card: ModelCard) -> dict[str, Any]:
    """Return `configs/metadata.json`: the network's inputs and outputs, in the MONAI Bundle's terms."""
    names = _output_names(card)
    return {
        "version": "1.0.0",
        "changelog": {"1.0.0": "written by medweave"},
        **{key: _version(library) for key, library in _LIBRARIES.items()},
        "required_packages_version": {"nibabel": _version("nibabel")},
        "name": card.name,
        "task": card.task,
        "description": f"{card.task}. {card.intended_use}",
        "authors": "see model_card.json",
        "copyright": "see model_card.json",
        "intended_use": card.intended_use,
        "data_type": "dicom or nifti",
        "labels": to_json(card.labels),
        "network_data_format": {
            "inputs": {
                "image": {
                    "type": "image",
                    "format": "hounsfield" if card.input.window_hu else "magnitude",
                    "modality": card.input.modality,
                    "num_channels": card.input.channels,
                    "spatial_shape": list(card.input.patch_shape),
                    "dtype": "float32",
                    "value_range": list(card.input.scaled_range),
                    "is_patch_data": not card.classes,
                    "channel_def": {str(i): name for i, name in enumerate(_channel_names(card))},
                }
            },
            "outputs": {
                "pred": {
                    "type": "probabilities" if card.classes else "image",
                    "format": "classes" if card.classes else "segmentation",
                    "num_channels": len(names),
                    "spatial_shape": [] if card.classes else list(card.input.patch_shape),
                    "dtype": "float32",
                    "value_range": [0, 1],
                    "is_patch_data": not card.classes,
                    "channel_def": {str(i): name for i, name in enumerate(names)},
                }
            },
        },
    }


def inference_config(card: ModelCard) -> dict[str, Any]:
    """Return `configs/inference.json`: preprocessing, network, sliding window and postprocessing as MONAI runs them.

    It has no crop and no smallest volume: MONAI has no transforms for them, `medweave-step segment` applies them.
    """
    return {
        "bundle_root": ".",
        "dataset_dir": "$@bundle_root + '/data'",
        "output_dir": "$@bundle_root + '/eval'",
        "imports": ["$import glob", "$import os"],
        "device": "$torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')",
        "datalist": "$sorted(glob.glob(os.path.join(@dataset_dir, '*.nii.gz')))",
        "network_def": _network_definition(card),
        "network": "$@network_def.to(@device)",
        "preprocessing": {
            "_target_": "Compose",
            "transforms": [
                {"_target_": "LoadImaged", "keys": "image", "image_only": True},
                {"_target_": "EnsureChannelFirstd", "keys": "image"},
                {"_target_": "Orientationd", "keys": "image", "axcodes": card.input.orientation},
                {"_target_": "Spacingd", "keys": "image", "pixdim": list(card.input.spacing_mm), "mode": "bilinear"},
                _to_network_input(card),
                {"_target_": "EnsureTyped", "keys": "image"},
            ],
        },
        "dataset": {"_target_": "Dataset", "data": "$[{'image': i} for i in @datalist]", "transform": "@preprocessing"},
        "dataloader": {"_target_": "DataLoader", "dataset": "@dataset", "batch_size": 1, "shuffle": False},
        "inferer": {
            "_target_": "SlidingWindowInferer", "roi_size": list(card.input.patch_shape), "sw_batch_size": 1,
            "overlap": card.postprocessing.overlap, "mode": "gaussian",
        },
        "postprocessing": {
            "_target_": "Compose",
            "transforms": [
                *_to_probability(card),
                {
                    "_target_": "Invertd", "keys": "pred", "transform": "@preprocessing", "orig_keys": "image",
                    "nearest_interp": False, "to_tensor": True,
                },
                *_to_mask(card),
                {"_target_": "SaveImaged", "keys": "pred", "output_dir": "@output_dir"},
            ],
        },
        "handlers": [
            {
                "_target_": "CheckpointLoader", "load_path": "$@bundle_root + '/models/model.pt'",
                "load_dict": {"model": "@network"}, "map_location": "@device",
            },
        ],
        "evaluator": {
            "_target_": "SupervisedEvaluator", "device": "@device", "val_data_loader": "@dataloader",
            "network": "@network", "inferer": "@inferer", "postprocessing": "@postprocessing",
            "val_handlers": "@handlers",
        },
        "run": ["$@evaluator.run()"],
    }  # fmt: skip


def _to_network_input(card: ModelCard) -> Mapping[str, Any]:
    if card.input.window_hu is None:
        return {"_target_": "NormalizeIntensityd", "keys": "image", "channel_wise": True}
    low, high = card.input.window_hu
    b_min, b_max = card.input.scaled_range
    return {
        "_target_": "ScaleIntensityRanged", "keys": "image",
        "a_min": low, "a_max": high, "b_min": b_min, "b_max": b_max, "clip": True,
    }  # fmt: skip


def _to_probability(card: ModelCard) -> list[Mapping[str, Any]]:
    if card.output.activation == "softmax":
        return [{"_target_": "Activationsd", "keys": "pred", "softmax": True}]
    if not _is_difference(card):
        return [{"_target_": "Activationsd", "keys": "pred", "sigmoid": True}]
    return [
        {"_target_": "Activationsd", "keys": "pred", "softmax": True},
        {"_target_": "Lambdad", "keys": "pred", "func": "$lambda probability: probability[1:]"},
    ]


def _to_mask(card: ModelCard) -> list[Mapping[str, Any]]:
    """Return the transforms to a mask: of the label, of each region in a channel of its own, or to label values."""
    if card.output.activation == "softmax":
        values = [0, *(region.values[0] for region in card.outputs)]
        to_values = {"_target_": "MapLabelValued", "keys": "pred", "orig_labels": [*range(len(values))]}
        return [{"_target_": "AsDiscreted", "keys": "pred", "argmax": True}, to_values | {"target_labels": values}]
    thresholds = [one.threshold for one in card.postprocessing.filters]
    if len(thresholds) == 1:
        return [{"_target_": "AsDiscreted", "keys": "pred", "threshold": thresholds[0]}]
    column = f"torch.tensor({thresholds}, device=probability.device).reshape(-1, 1, 1, 1)"
    return [{"_target_": "Lambdad", "keys": "pred", "func": f"$lambda probability: (probability >= {column}).float()"}]


def _network_definition(card: ModelCard) -> dict[str, Any]:
    """Return class and arguments of the network; a pruned one is no longer that of its class, and is built by medweave."""
    if "channels" in card.architecture:
        return {"_target_": "medweave_steps.io.model.network.build_network", "architecture": dict(card.architecture)}
    return {"_target_": _target(card), **card.architecture["arguments"]}


def _target(card: ModelCard) -> str:
    """Return the class of the network; MONAI finds the user's file in the folder `scripts`, from the Bundle's root."""
    name, code = str(card.architecture["class"]).replace(":", "."), card.architecture.get("code", {})
    return f"{PurePosixPath(code['file']).parent.name}.{name}" if "file" in code else name


def _output_names(card: ModelCard) -> list[str]:
    if card.classes:
        return list(card.output_names)
    if _is_difference(card):
        return ["background", *(label.name for label in card.labels)][-2:]
    background = ["background"] if card.output.activation == "softmax" else []
    return background + [output.name for output in card.outputs]


def _channel_names(card: ModelCard) -> tuple[str, ...]:
    return ("image",) if card.input.window_hu else card.input.channel_names


def _is_difference(card: ModelCard) -> bool:
    """Return whether the logit of the only label is the difference of two channels; see `network.one_logit`."""
    return card.output.activation == "sigmoid" and str(card.architecture.get("output", "sigmoid")) == "softmax"


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
