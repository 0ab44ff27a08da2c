"""A model is a folder: weights, exchange formats, and a card with its input contract."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.codec import to_json
from medweave_core.contracts.labels import (
    LUNG_NODULE,
    Label,
    Region,
    as_regions,
    ascending,
    declared_or_lesion,
    distinct_names,
    older_labels,
)
from medweave_core.contracts.volume import (
    CT_CHANNELS,
    BiasCorrection,
    Crop,
    DataClass,
    Modality,
    Triple,
    Triple_mm,
    Unit,
)
from medweave_core.errors import UserInputError

RESEARCH_USE_ONLY = "Research use only. Not a medical device; not for diagnosis or treatment."

Precision = Literal["float32", "int8"]
Runtime = Literal["openvino", "onnxruntime", "torch"]
RUNTIME_TITLES: Mapping[Runtime, str] = {"openvino": "OpenVINO", "onnxruntime": "ONNX Runtime", "torch": "torch"}


@dataclass(frozen=True, slots=True, kw_only=True)
class InputContract:
    """Input contract: the requirements for a volume.

    Attributes:
        modality: DICOM modality of the source.
        unit: unit of the stored volume, before scaling: HU, for MR standard deviations (SD) from each channel's mean, for PET SUV,
            for images 1 (values from 0 to 1).
        spacing_mm: voxel size along I, J, K.
        window_hu: clipping range; scaled linearly to `scaled_range` by the program that runs the network. None for MR and PET,
            which are fed as they are stored.
        scaled_range: range of the network's input, for CT.
        orientation: direction of the axes I, J, K.
        crop: field of view the model was trained on.
        channels, channel_names: contrasts of the input, in this order.
        patch_shape: I, J, K shape of a network input; each side a multiple of `patch_multiple`.
        has_brain_mask: True for volumes whose voxels outside of a brain mask are 0.
        bias_correction: n4 for MR contrasts that were corrected for their bias field by N4.
    """

    spacing_mm: Triple_mm
    window_hu: tuple[float, float] | None
    patch_shape: Triple
    patch_multiple: int
    crop: Crop = "lungs"
    modality: Modality = "CT"
    unit: Unit = "HU"
    scaled_range: tuple[float, float] = (0.0, 1.0)
    orientation: Literal["RAS"] = "RAS"
    channels: int = 1
    channel_names: tuple[str, ...] = CT_CHANNELS
    has_brain_mask: bool = False
    bias_correction: BiasCorrection = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputContract:
    """Output contract: the channels of the network's output, in order.

    - `sigmoid` without regions: one channel, the logit of the only label.
    - `sigmoid` with regions: one logit for each region; the regions may overlap.
    - `softmax`: the background, then one channel for each label of the card, ascending by value.

    A classification has one logit for each class of the card instead: exclusive classes with `softmax`, any number of them with
    `sigmoid`.

    Attributes:
        activation: function from logits to probabilities.
        regions: unions of labels, one for each channel; empty where the channels are labels.
    """

    activation: Literal["sigmoid", "softmax"] = "sigmoid"
    regions: tuple[Region, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentFilter:
    """Threshold and filters of one output of a model that has several.

    Attributes:
        threshold: probability from which a voxel belongs to a region; not used with softmax, where the most probable label counts.
        min_peak, min_volume_mm3: as in `Postprocessing`.
    """

    threshold: float = 0.5
    min_peak: float = 0.0
    min_volume_mm3: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Postprocessing:
    """From the network's output to a mask; chosen on the validation split, never on the test split.

    Attributes:
        threshold: probability from which a voxel belongs to a lesion.
        min_peak: components whose highest probability is lower are dropped, so that the outline of a lesion (`threshold`) and
            the detection of a lesion are separate settings; 0 keeps all.
        min_volume_mm3: smaller components are dropped, mm³.
        overlap: share of a patch that neighboring windows share.
        by_output: threshold and filters of each label, region or class of a model with several; empty for one, which has the values
            above.
        temperature: logits are divided by this before the activation; 1 for segmentation.
    """

    threshold: float = 0.5
    min_peak: float = 0.0
    min_volume_mm3: float = 0.0
    overlap: float = 0.25
    by_output: tuple[ComponentFilter, ...] = ()
    temperature: float = 1.0

    def __post_init__(self) -> None:
        """Raise UserInputError for a temperature that logits cannot be divided by."""
        if not 0 < self.temperature < math.inf:
            raise UserInputError(
                "the temperature of the model card cannot be used.",
                seen=f"temperature {self.temperature:g}",
                expected="a number above 0",
                do="use the model card as `train` wrote it",
            )

    @property
    def filters(self) -> tuple[ComponentFilter, ...]:
        """Return threshold and filters of every output."""
        only = ComponentFilter(threshold=self.threshold, min_peak=self.min_peak, min_volume_mm3=self.min_volume_mm3)
        return self.by_output or (only,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """`model_card.json`: the model's architecture, input contract, origin and metrics.

    Attributes:
        task_name: name of the task; `task` describes it in words.
        architecture: class name and constructor arguments of the network.
        labels: foreground labels, as the cohort that the model was trained on declares them; empty for a classification.
        classes: classes of a classification, in the order of the output channels.
        precision: numeric precision of `segment`; float32 unless `gate` accepted another.
        runtime: library that `segment` and `classify` run the network with; OpenVINO unless `gate` accepted another.
        files: path in the model folder to SHA-256.
        parent_sha256: digest of the card this one was derived from, None for a freshly trained model.
        data_sha256: digest of the training cohort.
        metrics: name to value on the validation split, with the split named in the key's prefix (`validation_dice`).
        training: strategy, seed, steps, seconds and the like.
        energy_wh: measured energy of the training, Wh, by the counters that `training.energy` names and no others; None without
            a measurement.
    """

    name: str
    task: str
    architecture: Mapping[str, Any]
    labels: tuple[Label, ...]
    input: InputContract
    postprocessing: Postprocessing
    precision: Precision
    files: Mapping[str, str]
    parent_sha256: str | None
    data_sha256: str
    synthetic_data: bool
    code_version: str
    metrics: Mapping[str, float | None]
    training: Mapping[str, Any]
    energy_wh: float | None = None
    intended_use: str = RESEARCH_USE_ONLY
    card_version: Literal[1] = 1
    data_class: DataClass = "model"
    notes: Mapping[str, Any] = field(default_factory=dict)
    task_name: str = "segmentation"
    output: OutputContract = OutputContract()
    classes: tuple[ImageClass, ...] = ()
    runtime: Runtime = "openvino"

    @property
    def outputs(self) -> tuple[Region, ...]:
        """Return what the model predicts, in the order of its channels without the background: its regions, or its labels."""
        return self.output.regions or as_regions(self.foreground_labels)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Return the distinct names of what the model predicts: its classes, or its regions or labels."""
        return tuple(one.name for one in self.classes) or distinct_names(self.outputs)

    @property
    def foreground_labels(self) -> tuple[Label, ...]:
        """Return the foreground labels, ascending by value; one label named `lesion` if none is declared."""
        return ascending(declared_or_lesion(self.labels))

    @staticmethod
    def from_older(data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Read a card whose labels are an object of value to name; that of a lung nodule model gets the preset's codes."""
        upgraded = dict(older_labels(data))
        if upgraded.get("labels") != data.get("labels") and is_lung_nodule(data):
            upgraded["labels"] = [to_json(LUNG_NODULE) | label for label in upgraded["labels"]]
        return upgraded


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelContract:
    """What a network expects and predicts: the part of a model card that an ONNX file carries in its metadata.

    `export` writes it into models/model.onnx; `bundle --contract` reads it from a YAML or JSON file. A card lists the digest of the
    ONNX file, so the file cannot hold the card; it holds neither paths nor facts about the training data.

    Attributes:
        name: name of the model.
        input: requirements for a volume.
        task_name: name of the task; `task` describes it in words.
        output: channels of the network's output.
        labels: foreground labels, ascending by value; empty for a classification.
        classes: classes of a classification, in the order of the output channels.
        postprocessing: from the network's output to a mask or to probabilities of classes.
        synthetic_data: whether the network was trained on synthetic data.
    """

    name: str
    input: InputContract
    task_name: str = "segmentation"
    task: str = ""
    output: OutputContract = OutputContract()
    labels: tuple[Label, ...] = ()
    classes: tuple[ImageClass, ...] = ()
    postprocessing: Postprocessing = Postprocessing()
    synthetic_data: bool = False

    @staticmethod
    def of_card(card: ModelCard) -> ModelContract:
        """Return the contract of a model card."""
        return ModelContract(**{one.name: getattr(card, one.name) for one in fields(ModelContract)})


def is_lung_nodule(card: Mapping[str, Any]) -> bool:
    """Return True for a card without codes whose own words say that the model segments lung nodules in CT.

    Older versions wrote such cards, and wrote the codes of a lung nodule with every model. `train` wrote "Segmentation of nodule in
    chest CT"; `bundle` took the task from the Bundle.
    """
    names = [str(name).strip().lower() for value, name in card["labels"].items() if str(value) != "0"]
    words = set(re.findall("[a-z]+", str(card.get("task", "")).lower()))
    modality = card["input"].get("modality", "CT") if isinstance(card.get("input"), Mapping) else None
    is_of_lung = "lung" in words or {"chest", "ct"} <= words
    return modality == "CT" and is_of_lung and names in (["nodule"], ["lung nodule"])
