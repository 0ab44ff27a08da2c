"""Small training sets of images made straight from arrays, as `preprocess` would write them, and a tiny network for them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from medweave_core.contracts import codec
from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.cohort import PreparedCase, PreparedCohort
from medweave_core.contracts.volume import COLOR_CHANNELS, Grid, VolumeInfo
from medweave_steps.io.geometry import affine_rows
from support.third_party import install

SHAPE = (16, 12, 1)
CLASSES = ("MEL", "NV", "BCC")

NETWORK = """
from dataclasses import dataclass

from medweave_steps.networks import NetworkOptions, NetworkType
from medweave_steps.runtime.options import option


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(NetworkOptions):
    growth: int = option("channels of a layer", default=4)


NETWORK = NetworkType(
    class_name="monai.networks.nets.DenseNet",
    arguments=lambda config, channels: {
        "spatial_dims": 3, "in_channels": channels, "out_channels": 1, "init_features": 8,
        "growth_rate": config.network_options.growth, "block_config": [2], "norm": ["INSTANCE", {"affine": True}],
    },
    output_kind="classes",
    spatial_dims=(2, 3),
    out_channels="out_channels",
    Options=Options,
)
"""

# Options with which a training takes about two seconds.
TINY = (
    "--task", "classification", "--network", "tiny-classifier", "--steps", "6", "--batch-size", "4", "--epoch-steps", "2",
    "--validation-interval", "1", "--patch-shape", *map(str, SHAPE), "--window-shape", *map(str, SHAPE),
    "--precision", "float32", "--num-threads", "1",
)  # fmt: skip


def install_network(folder: Path) -> Path:
    """Write an installed package that registers the network `tiny-classifier`; return the folder for PYTHONPATH."""
    install(folder, "tinyclassifier", "[medweave.networks]\ntiny-classifier = tinyclassifier:NETWORK\n")
    (folder / "tinyclassifier.py").write_text(NETWORK)
    return folder


@contextmanager
def installed_network(folder: Path) -> Iterator[None]:
    """Install the network for this process and those that it starts."""
    sys.path.insert(0, str(install_network(folder)))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("tinyclassifier", None)


def image_of(names: Sequence[str], seed: int, shape: tuple[int, int, int] = SHAPE) -> np.ndarray:
    """Return an image with a spot in the color of each class: float32 [3, I, J, 1] in [0, 1]."""
    rng = np.random.default_rng(seed)
    image = rng.uniform(0.3, 0.5, (3, *shape))
    i, j = np.ogrid[: shape[0], : shape[1]]
    for name in sorted(set(names) & set(CLASSES)):
        middle = rng.uniform(4, 8, 2)
        inside = (i - middle[0]) ** 2 + (j - middle[1]) ** 2 <= 9
        image[CLASSES.index(name), inside] = 0.95
    return image.astype(np.float32)


def image_set(
    folder: Path,
    *,
    of_split: dict[str, int] | None = None,
    is_multi_label: bool = False,
    classes: Sequence[tuple[str, ...] | None] | None = None,
    shapes: dict[int, tuple[int, int, int]] | None = None,
    patients: Sequence[str] | None = None,
    **cohort: Any,
) -> Path:
    """Write a folder of prepared images `case-00`, `case-01`, …; return it.

    Args:
        of_split: number of cases; their classes come in turn.
        classes: of each case, instead.
        shapes: other shapes of some cases, by place.
        patients: of each case; by default each case is its own.
        cohort: other values for `cohort.json`.
    """
    splits = [split for split, number in (of_split or {"train": 9, "validation": 6}).items() for _ in range(number)]
    kinds = [(), ("MEL",), ("NV",), ("BCC",), ("MEL", "BCC")] if is_multi_label else [(name,) for name in CLASSES]
    own = list(classes) if classes is not None else [kinds[place % len(kinds)] for place in range(len(splits))]
    cases = []
    for place, (split, names) in enumerate(zip(splits, own, strict=True)):
        case_id, shape = f"case-{place:02}", (shapes or {}).get(place, SHAPE)
        path = folder / "cases" / case_id
        path.mkdir(parents=True)
        np.save(path / "volume.npy", image_of(names or (), place, shape))
        (path / "volume_info.json").write_text(codec.dumps(_info(case_id, shape)), encoding="utf-8")
        patient = patients[place] if patients else case_id
        case = PreparedCase(
            case_id=case_id, patient_key=patient, split=split, has_label=False, num_lesions=0, num_label_voxels=0,
            classes=names,
        )  # fmt: skip
        cases.append(case)
    values: dict[str, Any] = {
        "spacing_mm": (1.0, 1.0, 1.0), "window_hu": None, "crop": "none", "margin_mm": 0.0, "split_seed": 0,
        "synthetic": True, "labels": (), "data_sha256": "cd" * 32, "cases": tuple(cases), "channels": COLOR_CHANNELS,
        "classes": tuple(ImageClass(name=name) for name in CLASSES), "is_multi_label": is_multi_label,
    }  # fmt: skip
    (folder / "cohort.json").write_text(codec.dumps(PreparedCohort(**values | cohort)), encoding="utf-8")
    return folder


def _info(case_id: str, shape: tuple[int, int, int]) -> VolumeInfo:
    grid = Grid(shape=shape, affine=affine_rows(np.eye(4)))
    return VolumeInfo(
        case_id=case_id, source_format="image", source_grid=grid, source_sha256="0" * 64, source_axis=(0, 1, 2),
        source_flipped=(False, False, False), grid=grid, crop_start=(0, 0, 0), window_hu=None, unit="1",
        channels=COLOR_CHANNELS,
    )  # fmt: skip
