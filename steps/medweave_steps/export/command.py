"""`medweave-step export`: a trained model as ONNX and OpenVINO IR."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_core.contracts.model import ModelCard
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig:
    """Options of `export`."""

    trained_model: Path = option("model folder with models/model.safetensors, as train and bundle write it")
    output: Path = option("model folder to write: the same, with ONNX and OpenVINO IR (float32)")
    parity_windows: int = option("windows on which torch, OpenVINO and ONNX Runtime are compared", default=3)
    parity_seed: int = option("seed of these windows", default=0)
    logit_tolerance: float = option(
        "largest difference of two logits, as a share of the largest logit (at least 1)", default=1e-3
    )
    decision_tolerance: float = option("largest share of voxels whose thresholded decision differs", default=1e-4)

    def __post_init__(self) -> None:
        if self.parity_windows < 1:
            raise UsageError("--parity-windows must be at least 1.", seen=str(self.parity_windows))
        for name in ("logit_tolerance", "decision_tolerance"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"--{name.replace('_', '-')} must not be negative.", seen=str(getattr(self, name)))


def run(config: ExportConfig, context: StepContext) -> Mapping[str, Any]:
    """Write both formats of the weights into the model folder; refuse them if their results differ from torch's."""
    from medweave_steps.export.graphs import reference_logits, write_onnx, write_openvino
    from medweave_steps.export.parity import parity_windows
    from medweave_steps.io.model.network import load_network

    card = read_card(config.trained_model)
    check_float32(card, "be exported", expected=AS_TRAINED, do="give that folder as --trained-model")
    require("openvino", extra="export")
    require("torch", extra="export").set_num_threads(context.num_threads)
    progress = context.progress(unit="stage", total=4)
    network = load_network(config.trained_model, card)
    shape, channels = card.input.patch_shape, card.input.channels
    windows = list(parity_windows(shape, num_windows=config.parity_windows, seed=config.parity_seed, channels=channels))
    expected = reference_logits(network, windows)
    progress.step(f"weights of '{card.name}' fit the card")
    made = (ONNX_FILE, openvino_file("float32"), openvino_weights_file("float32"))
    with atomic_directory(config.output) as folder:
        copy_files(config.trained_model, card, folder, leave_out=made)
        write_onnx(network, shape, folder / ONNX_FILE, channels=channels)
        progress.step("ONNX written")
        write_openvino(folder / ONNX_FILE, shape, folder / openvino_file("float32"), channels=channels)
        progress.step("OpenVINO IR written, float32")
        parity = _parity(list(zip(expected, windows, strict=True)), card, folder, config, context)
        progress.step(_differences(parity))
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
    from medweave_steps.export import parity

    runners = {
        "OpenVINO": parity.openvino_runner(folder / openvino_file("float32"), context.num_threads),
        "ONNX Runtime": parity.onnxruntime_runner(folder / ONNX_FILE, context.num_threads),
    }
    results = []
    for backend, runner in runners.items():
        if runner is None:
            context.notice(f"parity with {backend} was not checked: it is not installed here (extra segment-ort).")
            continue
        pairs = ((logits, runner(window)) for logits, window in logits_and_windows)
        result = parity.compare(backend, pairs, threshold=card.postprocessing.threshold)
        parity.judge(result, logit_tolerance=config.logit_tolerance, decision_tolerance=config.decision_tolerance)
        results.append(dataclasses.asdict(result))
    return results


def _differences(results: Sequence[Mapping[str, Any]]) -> str:
    return "parity with torch: " + "; ".join(
        f"{result['backend']} logits within {result['max_logit_difference']:.1e}, "
        f"{result['decision_share']:.1e} of the voxels decided otherwise"
        for result in results
    )


VERB = Verb(
    name="export",
    description=(
        "Writes a trained model as ONNX (models/model.onnx, free batch axis) and OpenVINO IR\n"
        "(models/float32.xml and .bin, uncompressed float32, one window at a time) beside its weights.\n"
        "Input: float32 [batch, channels, I, J, K], HU clipped to the card's window and scaled to 0..1, or MR as preprocess\n"
        "writes it; output: one logit per voxel.\n"
        "Refuses weights that do not fit the card's architecture, and an export whose logits leave those of torch."
    ),
    config=ExportConfig,
    run=run,
)
