"""`medweave-step bundle`: a MONAI Bundle with weights, or an ONNX file, as a model folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from medweave_core.contracts.model import InputContract, ModelCard, Postprocessing
from medweave_core.contracts.volume import Triple, Triple_mm, modality_of, unit_of
from medweave_core.errors import UsageError, UserInputError
from medweave_steps import __version__
from medweave_steps.bundle.contract import BundleContract, read_contract_of
from medweave_steps.io.hashing import sha256_of_file
from medweave_steps.io.model.folder import BUNDLE_WEIGHTS_FILE, card_sha256, write_card
from medweave_steps.io.model.initial_weights import state_dict_of
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.options import check_option, option
from medweave_steps.runtime.verb import StepContext, Verb
from medweave_steps.runtime.write import atomic_directory


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleConfig:
    """Options of `bundle`."""

    bundle: Path | None = option("folder of the MONAI Bundle, with configs/ and models/model.pt", default=None)
    from_onnx: Path | None = option("ONNX file to import instead of a MONAI Bundle", default=None)
    contract: Path | None = option(
        "YAML or JSON file with the contract of the ONNX file (schema: `medweave schema model-contract`); by default the metadata "
        "of the file, as export writes them",
        default=None,
    )
    output: Path = option("model folder to write (same layout as from train)")
    spacing_mm: Triple_mm | None = option(
        "voxel size along I, J, K that the network was trained on, mm (default: the Bundle's Spacingd)",
        default=None, metavar="I J K",
    )  # fmt: skip
    window_hu: tuple[float, float] | None = option(
        "clipping range, HU (default: the Bundle's ScaleIntensityRanged)", default=None, metavar="LOW HIGH"
    )
    patch_shape: Triple | None = option(
        "size of a network input along I, J, K, in voxels (default: the Bundle's roi_size, or spatial_shape of its metadata)",
        default=None, metavar="I J K",
    )  # fmt: skip
    channel_names: tuple[str, ...] = option(
        "names of the input channels, as check --channels names them; red green blue or gray for images (default: those of the "
        "Bundle; CT for one channel)",
        default=(), metavar="NAME",
    )  # fmt: skip
    labels: Path | None = option(
        "labels of the foreground channels with their DICOM codes: a preset (lung-nodule), or a JSON or YAML file (default: the "
        "names in the Bundle, with the codes of a Bundle written by medweave)",
        default=None, metavar="PRESET_OR_FILE",
    )  # fmt: skip
    regions: tuple[str, ...] = option(
        "labels that each of several sigmoid channels unites, in the order of the channels, such as 'tumor core:1,3'",
        default=(), metavar="NAME:VALUES",
    )  # fmt: skip
    crop: Literal["lungs", "none"] = option(
        "field of view of the network input: the box around the lungs, or the whole volume", default="none"
    )
    threshold: float | None = option(
        "probability threshold: voxels at or above it belong to a lesion (default: the Bundle's AsDiscreted, or 0.5)",
        default=None,
    )
    min_volume_mm3: float = option("minimum lesion volume, mm³: smaller components are removed", default=0.0)

    def __post_init__(self) -> None:
        self._check_source()
        if self.spacing_mm is not None and not all(x > 0 for x in self.spacing_mm):
            raise UsageError("--spacing-mm must be above 0.", seen=str(self.spacing_mm))
        if self.window_hu is not None and not self.window_hu[0] < self.window_hu[1]:
            raise UsageError("--window-hu must be LOW HIGH with LOW below HIGH.", seen=str(self.window_hu))
        if self.patch_shape is not None and not all(n > 0 for n in self.patch_shape):
            raise UsageError("--patch-shape must be above 0.", seen=str(self.patch_shape))
        if self.threshold is not None and not 0 < self.threshold < 1:
            raise UsageError("--threshold must lie between 0 and 1.", seen=str(self.threshold))
        if not self.min_volume_mm3 >= 0:
            raise UsageError("--min-volume-mm3 must not be negative.", seen=str(self.min_volume_mm3))

    def _check_source(self) -> None:
        if (self.bundle is None) == (self.from_onnx is None):
            raise UsageError(
                "set either --bundle or --from-onnx.",
                seen="neither" if self.bundle is None else "both",
                expected="a MONAI Bundle or an ONNX file",
            )
        if self.from_onnx is None:
            check_option(
                self.contract is None, "contract", self.contract, "no value: a contract is that of --from-onnx"
            )
            return
        own = ("bundle", "from_onnx", "contract", "output")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            is_unset = field.name in own or value == field.default
            check_option(is_unset, field.name, value, "no value: with --from-onnx, it belongs into the contract")


def run(config: BundleConfig, context: StepContext) -> Mapping[str, Any]:
    """Write a model folder of a Bundle or an ONNX file."""
    if config.from_onnx:
        from medweave_steps.bundle.onnx_import import import_onnx

        require("openvino", extra="export")
        return import_onnx(config.from_onnx, config.contract, config.output, context)
    assert config.bundle is not None
    return _import_bundle(config, config.bundle, context)


def _import_bundle(config: BundleConfig, bundle: Path, context: StepContext) -> Mapping[str, Any]:
    """Read the Bundle's documents as data, try its network, and write a model folder."""
    from medweave_steps.bundle.documents import open_bundle, read_architecture
    from medweave_steps.bundle.outputs import card_outputs
    from medweave_steps.bundle.probe import probe
    from medweave_steps.io.model.bundle_files import write_bundle_configs
    from medweave_steps.io.model.network import FLAT_INPUT, build_network, check_weights, save_weights

    require("torch", extra="export").set_num_threads(context.num_threads)
    documents = open_bundle(bundle)
    architecture = read_architecture(documents)
    contract = read_contract_of(
        documents, spacing_mm=config.spacing_mm, window_hu=config.window_hu, patch_shape=config.patch_shape,
        channel_names=config.channel_names,
    )  # fmt: skip
    for notice in contract.notices:
        context.notice(notice)
    complete = _complete(contract)
    patch_shape = complete[2]
    name = str(documents.metadata.get("name") or "imported MONAI Bundle")
    network = build_network(architecture)
    weights = _read_weights(bundle / BUNDLE_WEIGHTS_FILE)
    check_weights(weights, network, model=name)
    network.load_state_dict(weights)
    channels = len(contract.channel_names)
    output = probe(network.eval(), patch_shape, channels=channels, activation=contract.activation)
    multiple = output.multiple
    _check_patch(patch_shape, multiple)
    fields = card_outputs(output, contract, documents.metadata, labels=config.labels, regions=config.regions)
    kind = fields.pop("kind")
    flat = {"input": FLAT_INPUT} if output.spatial_dims == 2 else {}
    card = ModelCard(
        name=name,
        task=str(documents.metadata.get("task") or _TASKS["classes" if output.kind == "classes" else kind]),
        architecture={**architecture, **({"output": kind} if kind else {}), **flat},
        **fields,
        input=_input(complete, contract, multiple, config.crop),
        postprocessing=_postprocessing(contract, config),
        notes=_notes(documents.metadata, kind, bundle),
        **_UNKNOWN_TRAINING,
    )
    with atomic_directory(config.output) as folder:
        save_weights(folder, network)
        write_bundle_configs(folder, card)
        written = write_card(folder, card)
    context.notice(f"'{name}' was trained outside medweave: its training data and metrics are unknown.")
    return {
        "model": name,
        "card_sha256": card_sha256(written),
        "output": kind or contract.activation,
        "patch_multiple": multiple,
    }


_UNKNOWN_TRAINING: Mapping[str, Any] = {
    "precision": "float32",
    "files": {},
    "parent_sha256": None,
    "data_sha256": "unknown",
    "synthetic_data": False,
    "code_version": __version__,
    "metrics": {},
    "training": {"strategy": "imported"},
}


_TASKS = {
    "sigmoid": "lesion segmentation",
    "softmax": "lesion segmentation",
    "": "segmentation",
    "classes": "classification",
}
"""Words for the task where the Bundle has none, by the `output` of the architecture."""

Complete = tuple[Triple_mm, tuple[float, float] | None, Triple]


def _input(
    complete: Complete, contract: BundleContract, multiple: int, crop: Literal["lungs", "none"]
) -> InputContract:
    spacing_mm, window_hu, patch_shape = complete
    return InputContract(
        spacing_mm=spacing_mm,
        window_hu=window_hu,
        scaled_range=(contract.scaled_range[0], contract.scaled_range[1]),
        patch_shape=patch_shape,
        patch_multiple=multiple,
        crop=crop,
        modality=modality_of(contract.channel_names),
        unit=unit_of(contract.channel_names),
        channels=len(contract.channel_names),
        channel_names=contract.channel_names,
    )


def _postprocessing(contract: BundleContract, config: BundleConfig) -> Postprocessing:
    return Postprocessing(
        threshold=contract.threshold if config.threshold is None else config.threshold,
        min_volume_mm3=config.min_volume_mm3,
        overlap=contract.overlap,
    )


def _check_patch(patch_shape: Triple, multiple: int) -> None:
    if any(side % multiple for side in patch_shape):
        raise UserInputError(
            "the patch shape does not fit the network.",
            seen=f"patch shape {patch_shape}",
            expected=f"sizes that are multiples of {multiple}",
            do="choose another --patch-shape",
        )


def _notes(metadata: Mapping[str, Any], kind: str, bundle: Path) -> dict[str, Any]:
    notes: dict[str, Any] = {
        "source": "MONAI Bundle",
        "source_version": str(metadata.get("version") or "unknown"),
        "source_weights_sha256": sha256_of_file(bundle / BUNDLE_WEIGHTS_FILE),
        "training_data": "unknown to medweave, as are the metrics",
    }
    if kind == "softmax":
        notes["output"] = (
            "the network ends in two channels (background, lesion); the exported graph gives their difference, "
            "whose sigmoid equals the softmax probability of the lesion"
        )
    return notes


def _complete(contract: BundleContract) -> Complete:
    needed = ("spacing_mm", *(("window_hu",) if contract.is_ct else ()), "patch_shape")
    missing = [name for name in needed if getattr(contract, name) is None]
    if missing:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise UserInputError(
            "the Bundle does not define the input of its network.",
            seen=f"no {', no '.join(missing)} in its configs",
            expected="Spacingd with pixdim in mm, ScaleIntensityRanged from HU, and roi_size, as plain numbers",
            do=f"set {options} to the values of the training",
        )
    assert contract.spacing_mm is not None
    assert contract.patch_shape is not None
    low, high = contract.window_hu or (0.0, 1.0)
    sides = contract.patch_shape
    to_low, to_high = contract.scaled_range
    whole = all(side == int(side) and side > 0 for side in sides)
    if not (all(x > 0 for x in contract.spacing_mm) and low < high and to_low < to_high and whole):
        raise UserInputError(
            "the Bundle has an invalid input definition.",
            seen=f"spacing {contract.spacing_mm} mm, window {(low, high)} HU scaled to {(to_low, to_high)}, patch shape {sides}",
            expected="spacing above 0 mm, ranges in ascending order, a patch shape of integers",
            do="set --spacing-mm, --window-hu and --patch-shape to the values of the training",
        )
    a, b, c = contract.spacing_mm
    i, j, k = (int(side) for side in sides)
    return (a, b, c), (low, high) if contract.is_ct else None, (i, j, k)


def _read_weights(path: Path) -> Mapping[str, Any]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = b""
    try:
        return state_dict_of(content)
    except Exception as error:  # torch and pickle raise many kinds
        seen = " ".join(str(error).split())[:160] if content else "no such file, or an empty file"
        raise UserInputError(
            "the weights of the Bundle cannot be read.",
            seen=f"{BUNDLE_WEIGHTS_FILE}: {seen}",
            expected="a state_dict written by torch.save, plain or below the key `model` (TorchScript cannot be imported)",
            do="download the Bundle again; the file may be a git-lfs pointer",
        ) from error


DESCRIPTION = """\
Imports a local MONAI Bundle with weights (--bundle), or an ONNX file (--from-onnx), as a model folder for segment or classify.
A MONAI Bundle becomes the input of export. configs/inference.json (or .yaml), configs/metadata.json and models/model.pt are read
as data; no code of the Bundle is executed. The network segments (one label, several labels with softmax, or regions with sigmoid)
or classifies (one logit per class), in CT, in MR of several channels, or in 2-D images. configs/metadata.json names the label or
class of each channel. Errors: a network that is not one of monai.networks.nets; channels without names; preprocessing that a model
card cannot describe (spacing in mm, HU window, z-scores of each channel, images from 0 to 1, orientation RAS).
An ONNX file becomes the input of quantize, gate, segment and classify. Its network has one input, float32
[batch, channels, I, J, K], and returns logits. The contract (input, output, labels or classes, postprocessing) comes from
--contract or from the metadata of the file. OpenVINO and ONNX Runtime are compared on random input. Errors: unsupported operators,
dynamic axes other than the batch, several inputs or outputs, a contract that does not fit the file."""
EXAMPLE = "medweave-step bundle --bundle spleen_ct_segmentation --output trained_model"

VERB = Verb(name="bundle", description=DESCRIPTION, example=EXAMPLE, config=BundleConfig, run=run)
