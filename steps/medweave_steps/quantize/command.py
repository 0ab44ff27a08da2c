"""`medweave-step quantize`: an int8 candidate of an exported model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_core.errors import UsageError
from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.io.model.folder import (
    card_sha256,
    check_cohort_fits,
    check_float32,
    listed_file,
    read_card,
    write_card,
)
from medweave_steps.quantize.methods import METHODS, OPTIONS, MethodName, MethodOptions, NncfOptions, ThreeStepOptions
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.options import option, variant_options
from medweave_steps.runtime.verb import StepContext, Verb
from medweave_steps.runtime.write import atomic_directory
from medweave_steps.tasks import task_named


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeConfig:
    """Options of `quantize`."""

    exported_model: Path = option("model folder of export, with OpenVINO IR and ONNX in float32")
    training_set: Path = option("preprocessed cases; calibration windows come from the training split only")
    output: Path = option(
        "model folder to write: models/int8.xml and .bin, or models/int8.onnx, and a card with precision int8"
    )
    method: MethodName = option(
        "nncf: OpenVINO IR by NNCF; three-step: ONNX by the three steps of the DeepHealth paper; ort-static: ONNX by ONNX Runtime",
        default="nncf",
    )
    method_options: MethodOptions = variant_options(OPTIONS, default=NncfOptions())
    windows: int = option(
        "number of calibration windows, each of the patch shape in the model card; the default of three-step is 200",
        default=16,
    )
    seed: int = option("random seed of the window positions", default=0)

    @staticmethod
    def defaults_for(values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the number of windows that the method takes by default."""
        method = METHODS.get(str(values.get("method", "nncf")))
        return {"windows": method.windows} if method else {}

    def __post_init__(self) -> None:
        if self.windows < 1:
            raise UsageError("--windows must be at least 1.", seen=str(self.windows))
        if self.seed < 0:
            raise UsageError("--seed must not be negative.", seen=str(self.seed))


def run(config: QuantizeConfig, context: StepContext) -> Mapping[str, Any]:
    """Draw the windows, quantize by the chosen method, and write a candidate that names its parent."""
    method = METHODS[config.method]
    for library in method.libraries:
        require(library, extra="quantize")
    card = read_card(config.exported_model)
    check_float32(card, "be quantized", do="set --exported-model to the output folder of export")
    for name in method.sources:
        listed_file(config.exported_model, card, name, made_by="export")
    prepared = open_prepared(config.training_set)
    check_cohort_fits(card, prepared.cohort)
    task = task_named(card.task_name)
    task.check_truth(prepared.cohort, card)
    windows = task.calibration_windows(prepared.cases("train"), card, num_windows=config.windows, seed=config.seed)
    num_windows = len(windows.inputs_BCIJK)
    context.notice(f"calibrating on {num_windows} windows of {windows.num_cases} training cases, {windows.text}.")
    calibration = {
        # Cards of NNCF candidates name no method: when they were defined, it was the only one.
        **({} if config.method == "nncf" else {"method": config.method}),
        "windows": num_windows,
        **windows.figures,
        **dataclasses.asdict(config.method_options),
        "seed": config.seed,
        "sha256": windows.sha256,
    }
    progress = context.progress(unit="window", total=num_windows)
    with atomic_directory(config.output) as folder:
        figures = _quantize(config, windows.inputs_BCIJK, folder, context.num_threads, progress.step)
        candidate = dataclasses.replace(
            card,
            precision="int8",
            parent_sha256=card_sha256(card),
            metrics={},  # the parent's figures are not this model's; gate measures them
            notes={**card.notes, "calibration": calibration},
        )
        candidate = write_card(folder, candidate)
        sizes = {
            "float32": _total_bytes(config.exported_model, method.sources),
            "int8": _total_bytes(folder, candidate.files),
        }
    return {
        "model": card.name,
        "card_sha256": card_sha256(candidate),
        "parent_sha256": candidate.parent_sha256,
        "calibration": calibration,
        **figures,
        "bytes": sizes,
    }


def _quantize(
    config: QuantizeConfig, windows: Sequence[Any], folder: Path, num_threads: int, on_window: Callable[[], None]
) -> Mapping[str, Any]:
    """Write the int8 network into a folder; return the method's figures for the run report."""
    method = METHODS[config.method]
    source, output, options = config.exported_model / method.sources[0], folder / method.output, config.method_options
    if isinstance(options, NncfOptions):
        from medweave_steps.quantize.compress import QuantizeSettings, quantize

        settings = QuantizeSettings(**dataclasses.asdict(options))
        number = quantize(source, windows, output, settings=settings, num_threads=num_threads, on_window=on_window)
        return {"num_quantizers": number}
    if isinstance(options, ThreeStepOptions):
        from medweave_steps.quantize.three_step.run import quantize_three_step

        rule = options.threshold
        result = quantize_three_step(source, windows, output, rule=rule, num_threads=num_threads, on_window=on_window)
        return result.to_report()
    from medweave_steps.quantize.ort_static import quantize_ort_static

    return {
        "quantized_layers": quantize_ort_static(source, windows, output, num_threads=num_threads, on_window=on_window)
    }


def _total_bytes(folder: Path, names: Iterable[str]) -> int:
    return sum((folder / name).stat().st_size for name in names)


DESCRIPTION = """\
Quantizes an exported model to int8 after training, by one of three methods: nncf (default) writes OpenVINO IR for CPUs;
three-step and ort-static write an ONNX graph (models/int8.onnx) that ONNX Runtime and OpenVINO run.
three-step is the DeepHealth paper's: weights scaled to -1..1; activations clipped at a threshold; int8 weights, int16 biases, 8-bit
activations and one 8-bit rescale factor per layer. Its result is compared with a computation in integers only.
Activation ranges are calibrated on windows of the training cases: half around lesions of each label in turn, half anywhere
(in the lungs, for a model whose input is cropped to them). A classification takes whole images, of each class in turn.
The result is only a candidate: run gate on the machine type that runs segment or classify, to accept or refuse it."""
EXAMPLE = "medweave-step quantize --exported-model exported_model --training-set prepared/training_set --output int8_candidate"

VERB = Verb(name="quantize", description=DESCRIPTION, example=EXAMPLE, config=QuantizeConfig, run=run)
