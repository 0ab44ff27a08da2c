"""`medweave-step explain`: Grad-CAM maps of classified cases on the source grid, mass per region, and the sanity check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_core.contracts import codec
from medweave_core.contracts.explanations import RECORD_FILE, ExplainedCase, ExplainedLayer, Explanations, SanityCheck
from medweave_core.contracts.model import ModelCard
from medweave_core.contracts.volume import VolumeInfo, are_images
from medweave_core.documents.closest_match import closest
from medweave_core.errors import UsageError
from medweave_steps.explain.case import Explainer
from medweave_steps.explain.layers import choose_layer, feature_layers, grid_text, is_coarse
from medweave_steps.explain.network import EXTRA, check_has_weights
from medweave_steps.explain.regions import find_label_maps, names_beside, read_names
from medweave_steps.explain.sanity import judge
from medweave_steps.inference.runtimes.devices import Device, UsedDevice, choose_device
from medweave_steps.io.cohort.prepared import PreparedFolder, open_prepared
from medweave_steps.io.model.folder import card_sha256, read_card
from medweave_steps.networks.user_code import NetworkCode
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.options import check_option, option
from medweave_steps.runtime.verb import StepContext, Verb
from medweave_steps.runtime.write import atomic_directory, write_text
from medweave_steps.tasks.classification.fit import NO_PICTURES, check_fits, refuse_modalities


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainConfig:
    """Options of `explain`."""

    model: Path = option(
        "model folder with models/model.safetensors, of the task classification: of train, export, prune, or of gate with a "
        "float32 model",
        metavar="DIR",
    )
    case_batch: Path = option("batch folder of preprocess, such as prepared/inference_batches/batch-000", metavar="DIR")
    output: Path = option(
        "folder to write: explanations.json and, per case, <case_id>/explanation_map.nii.gz (2-D images: explanation_map.png) and "
        "explanation_overlay.png",
        metavar="DIR",
    )
    target_class: str | None = option(
        "name of the class to explain (default: the predicted class of each case; of several, or none, the most probable one)",
        default=None,
        metavar="CLASS",
    )
    layer: str | None = option(
        "name of the module whose features are weighted (default: the last convolution with at least one feature for 8 voxels of "
        "the input along each axis, or the block that it belongs to)",
        default=None,
        metavar="MODULE",
    )
    regions: tuple[Path, ...] = option(
        "folders of label maps on the source or the prepared grid, for the mass per region of volumes: <case_id>.nii.gz, or BIDS "
        "derivatives (<case_id>_dseg.nii.gz)",
        default=(),
        metavar="DIR",
    )
    region_names: Path | None = option(
        "table (TSV or CSV) with the columns index and name: names of the labels in --regions (default: dseg.tsv in --regions)",
        default=None,
        metavar="FILE",
    )
    sanity_cases: int = option(
        "number of cases, the first ones, whose maps are compared with those of the network with random weights; 0 for none",
        default=8,
    )
    sanity_seed: int = option("random seed of these weights", default=0)
    device: Device = option("auto is an NVIDIA GPU that torch can use, else the CPU", default="auto")
    allow_code: bool = option(
        "run the code of a network that is not part of medweave (scripts/ of the model folder), with your rights",
        default=False,
    )

    def __post_init__(self) -> None:
        check_option(self.sanity_cases >= 0, "sanity_cases", self.sanity_cases, "0 or more")
        has_regions = self.region_names is None or bool(self.regions)
        check_option(has_regions, "region_names", "a table", "a folder of label maps with --regions")
        for folder in self.regions:
            check_option(folder.is_dir(), "regions", "no such folder", "a folder of label maps")


def run(config: ExplainConfig, context: StepContext) -> Mapping[str, Any]:
    """Explain every case of a batch; return the counts, the mean mass per region and the verdict of the sanity check."""
    from medweave_steps.io.model.network import network_code

    card = read_card(config.model)
    prepared = open_prepared(config.case_batch)
    refuse_modalities(prepared.cohort, NO_PICTURES, what="explained")
    infos = {case.case.case_id: case.info() for case in prepared.cases()}
    check_fits(card, prepared.cohort, list(infos.values()))
    check_has_weights(card)
    _check_options(config, card, prepared)
    device = choose_device("torch", config.device)
    code = network_code(config.model, card, allow_code=config.allow_code)
    layer, explainer = _open(config, context, card, prepared, list(infos), code=code, device=device)
    with atomic_directory(config.output) as folder:
        records = _explain_all(explainer, folder, prepared, infos, config, context)
        check = _sanity_check(records, config)
        record = Explanations(
            model_name=card.name,
            model_sha256=card_sha256(card),
            layer=layer,
            synthetic_data=prepared.cohort.synthetic,
            synthetic_model=card.synthetic_data,
            classes=card.classes,
            cases=tuple(records),
            sanity_check=check,
        )
        write_text(folder / RECORD_FILE, codec.dumps(record))
    if check is not None:
        context.notice(check.sentence)
    return {**_results(record), "device": device}


def _check_options(config: ExplainConfig, card: ModelCard, prepared: PreparedFolder) -> None:
    names = card.output_names
    if config.target_class is not None and config.target_class not in names:
        raise UsageError(
            f"the model '{card.name}' has no class '{config.target_class}'.",
            seen=f"--target-class {config.target_class}",
            expected=f"one of {', '.join(names)}",
            do=closest(config.target_class, names) or "use the name of a class of the model card",
        )
    is_image = are_images(prepared.cohort.channels)
    check_option(not (is_image and config.regions), "regions", "label maps", "no label maps for a batch of 2-D images")


def _open(
    config: ExplainConfig,
    context: StepContext,
    card: ModelCard,
    prepared: PreparedFolder,
    case_ids: Sequence[str],
    *,
    code: NetworkCode | None,
    device: UsedDevice,
) -> tuple[ExplainedLayer, Explainer]:
    """Return the chosen layer and the program that explains the cases, with all networks loaded."""
    from medweave_steps.explain.gradcam import MapMaker
    from medweave_steps.explain.network import randomized_network, trained_network

    torch = require("torch", extra=EXTRA)
    torch.set_num_threads(context.num_threads)
    # TensorFloat-32 rounds inputs to 10 bits.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    network = trained_network(config.model, card, code=code, device=device)
    layer = choose_layer(feature_layers(network, card), card, config.layer)
    _announce(layer, case_ids, context)
    randomized = None
    if config.sanity_cases and case_ids:
        other = randomized_network(card, code=code, device=device, seed=config.sanity_seed)
        randomized = MapMaker(other, card, layer)
    label_maps = find_label_maps(config.regions, case_ids) if config.regions else {}
    if config.regions and len(label_maps) < len(case_ids):
        context.notice(f"{len(case_ids) - len(label_maps)} of {len(case_ids)} cases have no label map in --regions")
    names = config.region_names or names_beside(config.regions)
    explainer = Explainer(
        card=card,
        cohort=prepared.cohort,
        trained=MapMaker(network, card, layer),
        randomized=randomized,
        target=config.target_class,
        label_maps=label_maps,
        region_names=read_names(names) if names else {},
    )
    return layer, explainer


def _announce(layer: ExplainedLayer, case_ids: Sequence[str], context: StepContext) -> None:
    if not case_ids:
        context.notice("the batch contains no case, so the output is empty")
    grid = f"{grid_text(layer.grid)} features for {grid_text(layer.input_shape)} voxels"
    context.notice(f"layer {layer.name} ({layer.kind}): {grid}")
    if is_coarse(layer):
        context.notice("the features are coarser than 1/8 of the input's resolution, and so are the maps")


def _explain_all(
    explainer: Explainer,
    folder: Path,
    prepared: PreparedFolder,
    infos: Mapping[str, VolumeInfo],
    config: ExplainConfig,
    context: StepContext,
) -> list[ExplainedCase]:
    progress = context.progress(unit="case", total=len(infos), is_quick=True)
    records = []
    for place, case in enumerate(prepared.cases()):
        info = infos[case.case.case_id]
        is_checked = place < config.sanity_cases
        record = explainer.explain(folder, case, info, ordinal=place + 1, is_checked=is_checked)
        if record.is_empty:
            context.notice(f"{record.case_id}: empty map: no feature of the layer speaks for {record.explained_class}.")
        records.append(record)
        progress.step(f"{record.case_id}: {record.explained_class} {100 * record.probability:.0f} %")
        context.add_case(
            record.case_id,
            explained_class=record.explained_class,
            probability=record.probability,
            is_empty=record.is_empty,
            regions=codec.to_json(record.regions),
            brain_mass_share=record.brain_mass_share,
            brain_volume_share=record.brain_volume_share,
            sanity_correlation=record.sanity_correlation,
            files=dict(record.files),
        )
    return records


def _sanity_check(records: Sequence[ExplainedCase], config: ExplainConfig) -> SanityCheck | None:
    checked = records[: config.sanity_cases]
    return judge([record.sanity_correlation for record in checked], seed=config.sanity_seed) if checked else None


def _results(record: Explanations) -> Mapping[str, Any]:
    ratios: dict[str, list[float]] = {}
    for case in record.cases:
        for region in case.regions:
            if region.ratio is not None:
                ratios.setdefault(region.name, []).append(region.ratio)
    return {
        "num_cases": len(record.cases),
        "num_empty_maps": sum(case.is_empty for case in record.cases),
        "model_name": record.model_name,
        "model_sha256": record.model_sha256,
        "method": record.method,
        "layer": codec.to_json(record.layer),
        "mean_mass_ratio_by_region": {name: round(sum(own) / len(own), 4) for name, own in ratios.items()},
        "sanity_check": codec.to_json(record.sanity_check),
        "synthetic_data": record.synthetic_data,
        "synthetic_model": record.synthetic_model,
        "intended_use": record.intended_use,
    }


DESCRIPTION = """\
Explains the classes of preprocessed images or volumes with Grad-CAM (Selvaraju et al. 2017; monai.visualize.GradCAM): which parts
of the image raise the score of the class. Per case, it writes the map on the grid of the source, with values from 0 to 1 (NIfTI,
float32, interpolated linearly; of a 2-D image PNG with 16 bits, 65535 is 1), and a picture of the map over the prepared image.
explanations.json has the model, the layer with its grid, the class and its calibrated probability. DICOM sources get NIfTI or PNG,
no DICOM object.
The maps are not finer than the layer's grid. The default is the last convolution with at least one feature for 8 voxels of the
input along each axis: the last convolution of a residual network is too coarse (3 x 4 x 3 features for 96 x 112 x 96 voxels). If
that convolution belongs to a residual or dense block, the features are the output of the block.
With --regions, the record has the share of the map's mass inside each label, the label's share of the voxels, and their ratio.
Of volumes with a brain mask (preprocess --brain-masks), it has the same two shares of the brain.
Sanity check (Adebayo et al. 2018): maps of the same network with random weights must differ. It passes if the median absolute rank
correlation (Spearman) of the checked cases is below 0.5.
A map without any value above 0 is reported as empty. Inference is by PyTorch in float32.
Errors: a model without torch weights (int8, or imported from ONNX), or of another task; a layer or class that the model does not
have; a model whose card does not match the cases; a label map on another grid; values that are NaN or infinite."""
EXAMPLE = """\
medweave-step explain --model exported_model --case-batch prepared/inference_batches/batch-000 --output explanations"""

VERB = Verb(name="explain", description=DESCRIPTION, example=EXAMPLE, config=ExplainConfig, run=run)
