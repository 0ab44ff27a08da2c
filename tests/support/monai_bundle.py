"""MONAI Bundles as other projects write them: small networks with random weights, written with MONAI alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

UNET: Mapping[str, Any] = {
    "_target_": "UNet", "spatial_dims": 3, "in_channels": 1, "out_channels": "@classes", "channels": [4, 8, 8],
    "strides": [2, 2], "num_res_units": 1, "norm": "batch",
}  # fmt: skip

PREPROCESSING = [
    {"_target_": "LoadImaged", "keys": "image"},
    {"_target_": "EnsureChannelFirstd", "keys": "image"},
    {"_target_": "Orientationd", "keys": "image", "axcodes": "RAS"},
    {"_target_": "Spacingd", "keys": "image", "pixdim": "@spacing", "mode": "bilinear"},
    {"_target_": "monai.transforms.ScaleIntensityRanged", "keys": "image", "a_min": -1000, "a_max": 500, "b_min": 0,
     "b_max": 1, "clip": True},
]  # fmt: skip


def write_bundle(folder: Path, *, classes: int = 2, yaml: bool = False, **changes: Any) -> Path:
    """Write a Bundle with random weights; return its folder. `changes` replace top-level keys of inference.json."""
    import torch
    from monai.bundle import ConfigParser

    config: dict[str, Any] = {
        "imports": ["$import glob"],
        "classes": classes,
        "spacing": [1.5, 1.5, 2.0],
        "network_def": dict(UNET),
        "network": "$@network_def.to(@device)",
        "preprocessing": {"_target_": "Compose", "transforms": PREPROCESSING},
        "inferer": {"_target_": "SlidingWindowInferer", "roi_size": [16, 16, 8], "overlap": 0.5},
        "postprocessing": {
            "_target_": "Compose",
            "transforms": [
                {"_target_": "Activationsd", "keys": "pred", "softmax": classes == 2, "sigmoid": classes == 1},
                {"_target_": "AsDiscreted", "keys": "pred", "threshold": 0.4},
            ],
        },
    } | changes
    metadata = {
        "version": "0.3.1", "name": "Third-party nodules", "task": "nodule segmentation",
        "network_data_format": {"outputs": {"pred": {"channel_def": {"0": "background", "1": "nodule"}}}},
    }  # fmt: skip
    (folder / "configs").mkdir(parents=True)
    (folder / "models").mkdir()
    ConfigParser.export_config_file(
        config, folder / f"configs/inference.{'yaml' if yaml else 'json'}", "yaml" if yaml else "json"
    )
    (folder / "configs/metadata.json").write_text(json.dumps(metadata))
    torch.manual_seed(7)
    network = monai_network(folder)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm3d):
            module.running_mean.normal_(0, 0.2)
    torch.save({"model": network.state_dict()}, folder / "models/model.pt")
    return folder


def monai_network(folder: Path) -> Any:
    """Return the network as MONAI itself builds it from the Bundle; a small one where its configuration is broken on purpose."""
    from monai.bundle import ConfigParser

    parser = ConfigParser()
    path = next((folder / "configs").glob("inference.*"))
    parser.read_config(str(path))
    plain = dict(UNET) | {"out_channels": 2}
    if not str(parser.get("network_def", {}).get("_target_", "")).endswith(("UNet", "DenseNet")) or "$" in str(
        parser["network_def"]
    ):
        parser = ConfigParser({"network_def": plain})
    return parser.get_parsed_content("network_def").eval()
