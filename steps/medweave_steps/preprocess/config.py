"""Options of `preprocess`, and the settings that follow from them and from the card of a model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from medweave_core.contracts.model import ModelCard
from medweave_core.contracts.volume import (
    CT_CHANNELS,
    MODALITY_NAMES,
    BiasCorrection,
    Crop,
    Triple,
    Triple_mm,
    are_images,
    are_signals,
    modality_of,
    unit_of,
)
from medweave_core.errors import UsageError, UserInputError
from medweave_steps.io.cohort.files import in_cohort
from medweave_steps.runtime.options import option

Fractions = tuple[float, float, float]

DEFAULT_SPACING_MM: Triple_mm = (2.0, 2.0, 2.0)
DEFAULT_MR_SPACING_MM: Triple_mm = (1.0, 1.0, 1.0)
DEFAULT_IMAGE_SIZE = (64, 64)
IMAGE_SIDES = (8, 4096)
DEFAULT_MARGIN_MM = 10.0
DEFAULT_WINDOW_HU = (-1000.0, 400.0)
DEFAULT_FRACTIONS: Fractions = (0.70, 0.15, 0.15)
DEFAULT_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PreprocessConfig:
    """Options of `preprocess`; None means the default, or the value of the model's card."""

    cohort: Path = option("cohort folder that `check` validated")
    cohort_index: Path = option("cohort_index.json that `check` wrote")
    output: Path = option("folder to write; must not exist yet")
    spacing_mm: Triple_mm | None = option(
        "voxel size after resampling along Right, Anterior, Superior, mm (default: 2 2 2, for MR 1 1 1, or "
        "the model's)",
        default=None, metavar="R A S",
    )  # fmt: skip
    spacing_rule: Literal["fixed", "nnunet"] = option(
        "fixed takes --spacing-mm, nnunet the voxel size of nnU-Net's rule for the scans of the cohort: the median along each "
        "axis, and a low percentile along an axis of few thick slices",
        default="fixed",
    )
    window_hu: tuple[float, float] | None = option(
        "intensity window after resampling, HU (default: -1000 400, or the model's); not for MR, whose contrasts "
        "get mean 0 and standard deviation 1 each, and PET, which keeps its SUV",
        default=None, metavar="LOW HIGH",
    )  # fmt: skip
    crop: Crop | None = option(
        "field of view: the box around the lungs, the whole volume, the volume cropped to multiples of 8 voxels, or --shape "
        "(default: lungs, for MR and PET multiple-of-8, or the model's)",
        default=None,
    )
    shape: Triple | None = option(
        "voxels of a prepared volume of MR or PET along Right, Anterior, Superior, for a classification; it is cropped or padded "
        "with 0 around the middle of the scan, or of its brain mask (default: no fixed shape, or the model's)",
        default=None, metavar="R A S",
    )  # fmt: skip
    brain_masks: Path | None = option(
        "folder of brain masks (NIfTI), one for each case of MR or PET: voxels outside become 0, and MR gets mean 0 and standard "
        "deviation 1 inside. Names: CASE_ID.nii.gz, the file name of a volume, or as BIDS derivatives "
        "(sub-01_desc-brain_mask.nii.gz). Also a path below the cohort, such as derivatives/brain",
        default=None, metavar="DIR",
    )  # fmt: skip
    bias_correction: BiasCorrection | None = option(
        "correct each MR contrast for its bias field: by N4 inside of the brain mask (n4; needs --brain-masks), or not (default: "
        "none, or the model's)",
        default=None,
    )
    image_size: tuple[int, int] | None = option(
        "columns and rows of prepared images, pixels (default: 64 64, or the model's); an image keeps its aspect ratio and is "
        "centered on black",
        default=None, metavar="COLUMNS ROWS",
    )  # fmt: skip
    margin_mm: float = option("margin around the lungs when cropping, mm", default=DEFAULT_MARGIN_MM)
    fractions: Fractions | None = option(
        "fractions of patients for training, validation and test, with sum 1 (default: 0.7 0.15 0.15); patients assigned in the "
        "cohort's splits.json keep their split; for --purpose training only",
        default=None, metavar="TRAIN VALIDATION TEST",
    )  # fmt: skip
    split_seed: int = option("random seed of the assignment of patients to splits", default=DEFAULT_SEED)
    cases_per_batch: int = option(
        "maximum number of cases in one inference batch; samples of one ECG recording stay together", default=8
    )
    purpose: Literal["training", "inference"] = option(
        "training: train and validation cases into training_set/, test cases into inference_batches/; "
        "inference: every case into inference_batches/, no mask needed",
        default="training",
    )  # fmt: skip
    segmentation_model: Path | None = option(
        "model folder that will segment or classify the cases; spacing, window, crop, shape and image size are taken from its card",
        default=None,
    )

    def __post_init__(self) -> None:
        """Raise UsageError for a value that cannot be used."""
        if self.spacing_mm is not None and not all(math.isfinite(x) and 0.2 <= x <= 10 for x in self.spacing_mm):
            raise _unusable("spacing-mm", self.spacing_mm, "three numbers from 0.2 to 10 mm")
        if self.spacing_rule != "fixed" and (self.spacing_mm is not None or self.segmentation_model is not None):
            raise _unusable("spacing-rule", self.spacing_rule, "fixed with --spacing-mm or --segmentation-model")
        if self.window_hu is not None and not (
            all(map(math.isfinite, self.window_hu)) and self.window_hu[0] < self.window_hu[1]
        ):
            raise _unusable("window-hu", self.window_hu, "two numbers in HU, in ascending order")
        if not (math.isfinite(self.margin_mm) and 0 <= self.margin_mm <= 200):
            raise _unusable("margin-mm", self.margin_mm, "a number from 0 to 200 mm")
        if self.shape is not None and not all(8 <= side <= 1024 for side in self.shape):
            raise _unusable("shape", self.shape, "three numbers of voxels from 8 to 1024")
        if self.shape is not None and self.crop not in (None, "fixed-shape"):
            raise _unusable("crop", self.crop, "fixed-shape with --shape")
        if self.shape is None and self.crop == "fixed-shape" and self.segmentation_model is None:
            raise _unusable("crop", self.crop, "fixed-shape only with --shape")
        if self.brain_masks is not None and not in_cohort(self.cohort, self.brain_masks).is_dir():
            raise UsageError("--brain-masks is not an existing folder.", expected="a folder of NIfTI files")
        low, high = IMAGE_SIDES
        if self.image_size is not None and not all(low <= side <= high for side in self.image_size):
            raise _unusable("image-size", self.image_size, f"two numbers of pixels from {low} to {high}")
        if self.split_seed < 0:
            raise _unusable("split-seed", self.split_seed, "an integer of 0 or more")
        if self.cases_per_batch < 1:
            raise _unusable("cases-per-batch", self.cases_per_batch, "an integer of 1 or more")
        if self.fractions is not None:
            _check_fractions(self.fractions)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSettings:
    """Settings for preparing the cases of one run; sent to the worker processes.

    Attributes:
        spacing_mm: voxel size along I, J, K.
        window_hu: values are clipped to this range; None for MR and PET.
        margin_mm: around the lungs when cropping.
        channels: names of the contrasts.
        image_size: columns and rows of prepared images; None for volumes.
        shape: voxels along I, J, K of every prepared volume; None for volumes of their own shapes.
        has_brain_masks: voxels outside of brain masks become 0.
        bias_correction: of MR.
    """

    spacing_mm: Triple_mm
    window_hu: tuple[float, float] | None
    crop: Crop
    margin_mm: float
    channels: tuple[str, ...] = CT_CHANNELS
    image_size: tuple[int, int] | None = None
    shape: Triple | None = None
    has_brain_masks: bool = False
    bias_correction: BiasCorrection = "none"


def settings_of(
    config: PreprocessConfig, card: ModelCard | None, channels: tuple[str, ...] = CT_CHANNELS
) -> CaseSettings:
    """Return the settings of a run: the model's where there is one, else the options, else the defaults.

    Args:
        channels: of the cohort.
    Raises:
        UsageError: an option contradicts the model's card.
        UserInputError: the card asks for an input that `preprocess` does not make.
    """
    modality = modality_of(channels)
    if are_images(channels) or are_signals(channels):
        return _flat_settings(config, card, channels)
    if config.image_size is not None:
        raise _unusable("image-size", config.image_size, f"no value: the cohort has {MODALITY_NAMES[modality]} volumes")
    is_ct = modality == "CT"
    if not is_ct and config.window_hu is not None:
        raise _unusable(
            "window-hu", config.window_hu, f"no window: the cohort is {MODALITY_NAMES[modality]}, which has no HU"
        )
    if not is_ct and config.crop == "lungs":
        raise _unusable(
            "crop", config.crop, f"multiple-of-8, fixed-shape or none: the cohort is {MODALITY_NAMES[modality]}"
        )
    if is_ct:
        _refuse_options_of_brains(config, "CT")
    if config.bias_correction == "n4" and (modality != "MR" or config.brain_masks is None):
        seen = f"a cohort of {MODALITY_NAMES[modality]}" if modality != "MR" else "no --brain-masks"
        raise UsageError(
            "--bias-correction n4 applies to MR with brain masks.", seen=seen, expected="MR and --brain-masks"
        )
    if card is not None:
        _check_card(config, card, channels)
        return CaseSettings(
            spacing_mm=card.input.spacing_mm,
            window_hu=card.input.window_hu,
            crop=card.input.crop,
            margin_mm=config.margin_mm,
            channels=channels,
            shape=card.input.patch_shape if card.input.crop == "fixed-shape" else None,
            has_brain_masks=card.input.has_brain_mask,
            bias_correction=card.input.bias_correction,
        )
    return CaseSettings(
        spacing_mm=config.spacing_mm or (DEFAULT_MR_SPACING_MM if modality == "MR" else DEFAULT_SPACING_MM),
        window_hu=(config.window_hu or DEFAULT_WINDOW_HU) if is_ct else None,
        crop=config.crop or _default_crop(config, is_ct=is_ct),
        margin_mm=config.margin_mm,
        channels=channels,
        shape=config.shape,
        has_brain_masks=config.brain_masks is not None,
        bias_correction=config.bias_correction or "none",
    )


def _default_crop(config: PreprocessConfig, *, is_ct: bool) -> Crop:
    if config.shape is not None:
        return "fixed-shape"
    return "lungs" if is_ct else "multiple-of-8"


def _refuse_options_of_brains(config: PreprocessConfig, kind: str) -> None:
    options = {"shape": config.shape, "brain-masks": config.brain_masks, "bias-correction": config.bias_correction}
    for name, value in options.items():
        if value is not None:
            raise UsageError(f"--{name} applies to MR and PET.", seen=f"a cohort of {kind}", expected="no such option")


def _flat_settings(config: PreprocessConfig, card: ModelCard | None, channels: tuple[str, ...]) -> CaseSettings:
    """Return the settings for 2-D images and signals, whose grid counts pixels or samples and not mm; see `settings_of`."""
    is_image = are_images(channels)
    kind = "images, whose size --image-size sets" if is_image else "ECG recordings"
    _refuse_options_of_brains(config, "images" if is_image else "ECG recordings")
    for name, value in (
        ("spacing-mm", config.spacing_mm),
        ("spacing-rule", None if config.spacing_rule == "fixed" else config.spacing_rule),
        ("window-hu", config.window_hu),
        ("crop", config.crop),
        ("margin-mm", None if config.margin_mm == DEFAULT_MARGIN_MM else config.margin_mm),
        ("image-size", None if is_image else config.image_size),
    ):
        if value is not None:
            raise _unusable(name, value, f"no value: the cohort has {kind}")
    size = (config.image_size or DEFAULT_IMAGE_SIZE) if is_image else None
    if card is not None:
        _check_card(config, card, channels)
        size = card.input.patch_shape[:2] if is_image else None
    return CaseSettings(
        spacing_mm=(1.0, 1.0, 1.0), window_hu=None, crop="none", margin_mm=0.0, channels=channels, image_size=size
    )


def _check_card(config: PreprocessConfig, card: ModelCard, channels: tuple[str, ...]) -> None:
    wanted = card.input
    for name, value, of_card in (
        ("spacing-mm", config.spacing_mm, wanted.spacing_mm),
        ("window-hu", config.window_hu, wanted.window_hu),
        ("crop", config.crop, wanted.crop),
        ("shape", config.shape, wanted.patch_shape if wanted.crop == "fixed-shape" else ()),
        ("image-size", config.image_size, wanted.patch_shape[:2]),
        ("bias-correction", config.bias_correction, wanted.bias_correction),
    ):
        if value is not None and value != of_card:
            raise UsageError(
                f"--{name} contradicts the model card of '{card.name}'.",
                seen=f"--{name} {_show(value)}",
                expected=f"{_show(of_card)}, as in the model card",
                do=f"omit --{name} with --segmentation-model",
            )
    if wanted.has_brain_mask != (config.brain_masks is not None):
        raise UsageError(
            f"the model '{card.name}' was trained {'with' if wanted.has_brain_mask else 'without'} brain masks.",
            seen="no --brain-masks" if wanted.has_brain_mask else "--brain-masks",
            expected="a brain mask for each case" if wanted.has_brain_mask else "no --brain-masks",
            do=f"{'give the masks with' if wanted.has_brain_mask else 'omit'} --brain-masks",
        )
    # The contract's literals hold the orientation; these are the values that a card may still get wrong.
    names, modality, unit = ", ".join(channels), modality_of(channels), unit_of(channels)
    for what, seen, expected, fits in (
        ("channels", wanted.channels, f"{len(channels)}: {names}, as in the cohort", wanted.channels == len(channels)),
        ("channel_names", ", ".join(wanted.channel_names), f"{names}, as in the cohort", wanted.channel_names == channels),
        ("modality", wanted.modality, f"{modality}, as in the cohort", wanted.modality == modality),
        ("unit", wanted.unit, f"{unit} for {modality}", wanted.unit == unit),
        ("spacing_mm", _show(wanted.spacing_mm), "three numbers from 0.2 to 10 mm", all(0.2 <= x <= 10 for x in wanted.spacing_mm)),
        ("window_hu", _show(wanted.window_hu or ()), "for CT in ascending order", _window_fits(wanted.window_hu, channels)),
    ):  # fmt: skip
        if not fits:
            raise UserInputError(
                f"the model '{card.name}' requires an input that preprocess cannot produce.",
                seen=f"input.{what} {seen} (model_card.json)",
                expected=expected,
                do="use a model whose card matches the modality and contrasts of the cohort; for series in DICOM, which does not "
                "name contrasts, name them in a file for check --channels",
            )


def _window_fits(window_hu: tuple[float, float] | None, channels: tuple[str, ...]) -> bool:
    if modality_of(channels) != "CT":
        return window_hu is None
    return window_hu is not None and window_hu[0] < window_hu[1]


def _check_fractions(fractions: Fractions) -> None:
    train, validation, test = fractions
    if not (
        all(map(math.isfinite, fractions))
        and train > 0
        and validation > 0
        and test >= 0
        and abs(sum(fractions) - 1) < 1e-6
    ):
        raise _unusable("fractions", fractions, "three fractions with sum 1; training and validation above 0")


def _unusable(name: str, seen: object, expected: str) -> UsageError:
    return UsageError(f"invalid value of --{name}.", seen=_show(seen), expected=expected)


def _show(value: object) -> str:
    return " ".join(f"{x:g}" for x in value) if isinstance(value, tuple) else str(value)
