"""`medweave-step quantize`: an int8 candidate of an exported model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from medweave_core.errors import UsageError
from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.io.model.folder import (
    card_sha256,
    check_cohort_fits,
    check_float32,
    listed_file,
    model_bytes,
    openvino_file,
    openvino_weights_file,
    read_card,
    write_card,
)
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.options import option
from medweave_steps.runtime.verb import StepContext, Verb
from medweave_steps.runtime.write import atomic_directory
from medweave_steps.tasks import task_named


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeConfig:
    """Options of `quantize`."""

    exported_model: Path = option("model folder of export, with OpenVINO IR in float32")
    training_set: Path = option("preprocessed cases; calibration windows come from the training split only")
    output: Path = option("model folder to write: models/int8.xml and .bin, and a card with precision int8")
    windows: int = option("number of calibration windows, each of the patch shape in the model card", default=16)
    preset: Literal["mixed", "performance"] = option(
        "quantization of activations: mixed is asymmetric for activations that may be negative; performance is always symmetric",
        default="mixed",
    )
    # On a trained lung model, 14 cases and 73 lesions, both defaults together changed the false positives per scan by +0.07;
    # bias correction with all layers in int8, as NNCF would do it, by +0.93. The time per window was the same.
    float_input_layer: bool = option("keep the first convolution, whose input is HU, in float32", default=True)
    bias_correction: bool = option(
        "correct the bias of each layer to the mean float32 output on the calibration windows", default=False
    )
    seed: int = option("random seed of the window positions", default=0)

    def __post_init__(self) -> None:
        if self.windows < 1:
            raise UsageError("--windows must be at least 1.", seen=str(self.windows))
        if self.seed < 0:
            raise UsageError("--seed must not be negative.", seen=str(self.seed))


def run(config: QuantizeConfig, context: StepContext) -> Mapping[str, Any]:
    """Draw the windows, let NNCF find the ranges, and write a candidate that names its parent."""
    from medweave_steps.quantize.compress import QuantizeSettings, quantize

    require("openvino", extra="quantize")
    card = read_card(config.exported_model)
    check_float32(card, "be quantized", do="set --exported-model to the output folder of export")
    float32_xml = listed_file(config.exported_model, card, openvino_file("float32"), made_by="export")
    listed_file(config.exported_model, card, openvino_weights_file("float32"), made_by="export")
    prepared = open_prepared(config.training_set)
    check_cohort_fits(card, prepared.cohort)
    task = task_named(card.task_name)
    task.check_truth(prepared.cohort, card)
    windows = task.calibration_windows(prepared.cases("train"), card, num_windows=config.windows, seed=config.seed)
    num_windows = len(windows.inputs_BCIJK)
    context.notice(f"calibrating on {num_windows} windows of {windows.num_cases} training cases, {windows.text}.")
    settings = QuantizeSettings(
        preset=config.preset, float_input_layer=config.float_input_layer, bias_correction=config.bias_correction
    )
    calibration = {
        "windows": num_windows,
        **windows.figures,
        **dataclasses.asdict(settings),
        "seed": config.seed,
        "sha256": windows.sha256,
    }
    progress = context.progress(unit="window", total=num_windows)
    with atomic_directory(config.output) as folder:
        num_quantizers = quantize(
            float32_xml,
            windows.inputs_BCIJK,
            folder / openvino_file("int8"),
            settings=settings,
            num_threads=context.num_threads,
            on_window=progress.step,
        )
        candidate = dataclasses.replace(
            card,
            precision="int8",
            parent_sha256=card_sha256(card),
            metrics={},  # the parent's figures are not this model's; gate measures them
            notes={**card.notes, "calibration": calibration},
        )
        candidate = write_card(folder, candidate)
        size = model_bytes(folder, "int8")
    return {
        "model": card.name,
        "card_sha256": card_sha256(candidate),
        "parent_sha256": candidate.parent_sha256,
        "calibration": calibration,
        "num_quantizers": num_quantizers,
        "bytes": {"float32": model_bytes(config.exported_model, "float32"), "int8": size},
    }


DESCRIPTION = """\
Quantizes an exported model to int8 by post-training quantization (NNCF), for OpenVINO on CPUs.
Activation ranges are calibrated on windows of the training cases: half around lesions of each label in turn, half anywhere
(in the lungs, for a model whose input is cropped to them). A classification takes whole images, of each class in turn.
The result is only a candidate: run gate on the machine type that runs segment or classify, to accept or refuse it."""
EXAMPLE = "medweave-step quantize --exported-model exported_model --training-set prepared/training_set --output int8_candidate"

VERB = Verb(name="quantize", description=DESCRIPTION, example=EXAMPLE, config=QuantizeConfig, run=run)
