"""`medweave-step export`: a trained model as ONNX and OpenVINO IR."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_core.contracts.model import ModelCard, ModelContract
from medweave_core.errors import UsageError
from medweave_steps.io.model.folder import (
    AS_TRAINED,
    ONNX_FILE,
    card_sha256,
    check_float32,
    copy_files,
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
class ExportConfig:
    """Options of `export`."""

    trained_model: Path = option("model folder of train or bundle, with models/model.safetensors")
    output: Path = option("model folder to write: the input model with ONNX and OpenVINO IR (float32)")
    parity_windows: int = option(
        "number of windows on which the outputs of torch, OpenVINO and ONNX Runtime are compared", default=3
    )
    parity_seed: int = option("random seed of these windows", default=0)
    logit_tolerance: float = option(
        "maximum difference of two logits, as a fraction of the largest logit (at least 1)", default=1e-3
    )
    decision_tolerance: float = option(
        "maximum fraction of voxels whose predicted label or regions differ; of a classification, of windows whose classes differ",
        default=1e-4,
    )

    allow_code: bool = option(
        "run the code of a network that is not part of medweave (scripts/ of the model folder), with your rights",
        default=False,
    )

    def __post_init__(self) -> None:
        if self.parity_windows < 1:
            raise UsageError("--parity-windows must be at least 1.", seen=str(self.parity_windows))
        for name in ("logit_tolerance", "decision_tolerance"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"--{name.replace('_', '-')} must not be negative.", seen=str(getattr(self, name)))


def run(config: ExportConfig, context: StepContext) -> Mapping[str, Any]:
    """Write both formats of the weights into the model folder; refuse them if their results differ from torch's."""
    from medweave_steps.export.graphs import reference_logits, write_onnx
    from medweave_steps.io.model.network import load_network, network_code
    from medweave_steps.io.model.onnx_file import add_contract
    from medweave_steps.io.model.openvino_ir import write_openvino
    from medweave_steps.io.model.parity import parity_windows

    card = read_card(config.trained_model)
    check_float32(card, "be exported", expected=AS_TRAINED, do="set --trained-model to that folder")
    require("openvino", extra="export")
    require("torch", extra="export").set_num_threads(context.num_threads)
    progress = context.progress(unit="stage", total=4)
    code = network_code(config.trained_model, card, allow_code=config.allow_code)
    network = load_network(config.trained_model, card, code=code)
    shape, channels = card.input.patch_shape, card.input.channels
    windows = list(parity_windows(shape, num_windows=config.parity_windows, seed=config.parity_seed, channels=channels))
    task = task_named(card.task_name)
    output_shape = task.output_shape(card, (1, channels, *shape))
    expected = reference_logits(network, windows, output_shape=output_shape)
    progress.step(f"weights of '{card.name}' match the model card")
    made = (ONNX_FILE, openvino_file("float32"), openvino_weights_file("float32"))
    with atomic_directory(config.output) as folder:
        copy_files(config.trained_model, card, folder, leave_out=made)
        write_onnx(network, shape, folder / ONNX_FILE, channels=channels)
        add_contract(folder / ONNX_FILE, ModelContract.of_card(card), output_shape=output_shape)
        progress.step("ONNX written and checked")
        write_openvino(folder / ONNX_FILE, shape, folder / openvino_file("float32"), channels=channels)
        progress.step("OpenVINO IR written, float32")
        parity = _parity(list(zip(expected, windows, strict=True)), card, folder, config, context)
        progress.step(_differences(parity, task.decided))
        exported = write_card(folder, dataclasses.replace(card, parent_sha256=card_sha256(card)))
        sizes = {Path(name).name: (folder / name).stat().st_size for name in made}
    return {"model": card.name, "card_sha256": card_sha256(exported), "parity": parity, "bytes": sizes}


def _parity(
    logits_and_windows: Sequence[tuple[Any, Any]],
    card: ModelCard,
    folder: Path,
    config: ExportConfig,
    context: StepContext,
) -> list[dict[str, Any]]:
    from medweave_steps.io.model import parity

    runners = {
        "OpenVINO": parity.openvino_runner(folder / openvino_file("float32"), context.num_threads),
        "ONNX Runtime": parity.onnxruntime_runner(folder / ONNX_FILE, context.num_threads),
    }
    task, results = task_named(card.task_name), []
    for backend, runner in runners.items():
        if runner is None:
            context.notice(
                f"parity with {backend} was not checked: it is not installed on this machine (extra segment-ort)."
            )
            continue
        pairs = ((logits, runner(window)) for logits, window in logits_and_windows)
        result = parity.compare(backend, pairs, decide=functools.partial(task.decisions, card=card))
        parity.judge(
            result,
            logit_tolerance=config.logit_tolerance,
            decision_tolerance=config.decision_tolerance,
            decided=task.decided,
        )
        results.append(dataclasses.asdict(result))
    return results


def _differences(results: Sequence[Mapping[str, Any]], decided: str) -> str:
    return "parity with torch: " + "; ".join(
        f"{result['backend']} logits within {result['max_logit_difference']:.1e}, "
        f"{result['decision_share']:.1e} of the {decided} with a different prediction"
        for result in results
    )


DESCRIPTION = """\
Exports a trained model to ONNX (models/model.onnx, dynamic batch axis) and OpenVINO IR (models/float32.xml and .bin,
uncompressed float32, batch size 1), and adds both to a copy of the model folder. The metadata of the ONNX file hold the contract
(input, output, labels or classes, postprocessing), so that `bundle --from-onnx` can import the file alone.
Network input: float32 [batch, channels, I, J, K]; CT in HU clipped to the window of the model card and scaled to 0..1, or MR as
preprocess writes it. Network output: one logit per voxel; for several labels the background's and one of each label (softmax), for
regions one of each region (sigmoid). A classification gives one logit per class.
Errors: weights that do not match the architecture in the model card; exported logits that differ from torch's by more than
the tolerances."""
EXAMPLE = "medweave-step export --trained-model trained_model --output exported_model"

VERB = Verb(name="export", description=DESCRIPTION, example=EXAMPLE, config=ExportConfig, run=run)
