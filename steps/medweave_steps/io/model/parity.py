"""Parity: the measured difference of logits between torch, OpenVINO and ONNX Runtime for the same weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import Triple
from medweave_core.errors import InternalError
from medweave_steps.runtime.imports import is_installed, require

FloatArray = npt.NDArray[np.float32]
Runner = Callable[[FloatArray], FloatArray]
Decide = Callable[[FloatArray], npt.NDArray[np.integer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """The difference of one backend from the reference, over all windows.

    Attributes:
        backend: the compared library; the reference is torch for an export, OpenVINO for an imported ONNX file.
        max_logit_difference: largest absolute difference of two logits.
        max_logit: largest absolute logit of the reference, to judge the difference by.
        decision_share: share of voxels with another decision; of a classification, of windows.
        num_voxels: voxels of all windows; of a classification, the decisions in all windows.
    """

    backend: str
    max_logit_difference: float
    max_logit: float
    decision_share: float
    num_voxels: int


def parity_windows(shape: Triple, *, num_windows: int, seed: int, channels: int = 1) -> Iterator[FloatArray]:
    """Yield inputs that reach all of the network: noise, a smooth field, and soft-tissue balls in air, in turn.

    Yields:
        float32 [1, channels, I, J, K] in [0, 1]; a further channel is the one before it, turned over along I.
    """
    random = np.random.default_rng(seed)
    for number in range(num_windows):
        noise_IJK = random.random(shape, dtype=np.float32)
        if number % 3 == 1:
            noise_IJK = _smooth(noise_IJK)
        elif number % 3 == 2:
            noise_IJK = np.clip(0.12 + 0.08 * noise_IJK + _balls(shape, random), 0, 1).astype(np.float32)
        turned = [noise_IJK[:: 1 if number % 2 == 0 else -1] for number in range(channels)]
        yield np.stack(turned)[None]


def _smooth(noise_IJK: FloatArray) -> FloatArray:
    values_IJK = noise_IJK
    for axis in range(3):
        for _ in range(4):
            rolled = np.roll(values_IJK, 1, axis) + np.roll(values_IJK, -1, axis)
            values_IJK = ((values_IJK * 2 + rolled) / 4).astype(np.float32)
    low, high = float(values_IJK.min()), float(values_IJK.max())
    scaled: FloatArray = ((values_IJK - low) / max(high - low, 1e-6)).astype(np.float32)
    return scaled


def _balls(shape: Triple, random: np.random.Generator) -> FloatArray:
    grid = np.meshgrid(*(np.arange(n, dtype=np.float32) for n in shape), indexing="ij", sparse=True)
    inside = np.zeros(shape, dtype=np.float32)
    for _ in range(12):
        center = random.uniform(0, shape)
        radius = random.uniform(1.0, 8.0)
        distance = sum((axis - c) ** 2 for axis, c in zip(grid, center, strict=True))
        inside[np.asarray(distance) <= radius**2] = random.uniform(0.3, 0.8)
    return inside


def openvino_runner(path: Path, num_threads: int) -> Runner:
    """Return a function that runs an IR with its precision pinned: newer processors compute in bfloat16 by default."""
    openvino = require("openvino", extra="export")
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": num_threads, "NUM_STREAMS": 1}
    request = openvino.Core().compile_model(str(path), "CPU", settings).create_infer_request()

    def run(image_BCIJK: FloatArray) -> FloatArray:
        request.infer([image_BCIJK])
        return np.array(request.get_output_tensor().data)

    return run


def onnxruntime_runner(path: Path, num_threads: int) -> Runner | None:
    """Return a function that runs ONNX in ONNX Runtime, or None where that is not installed (it is an extra)."""
    if not is_installed("onnxruntime"):
        return None
    onnxruntime = require("onnxruntime", extra="segment-ort")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(image_BCIJK: FloatArray) -> FloatArray:
        logits: FloatArray = session.run(None, {session.get_inputs()[0].name: image_BCIJK})[0]
        return logits

    return run


def compare(backend: str, pairs: Iterator[tuple[FloatArray, FloatArray]], *, decide: Decide) -> Parity:
    """Compare logits of the reference with those of a backend, window by window.

    Args:
        pairs: (the reference's logits, the backend's), of equal shape.
        decide: returns an integer for each voxel of logits; equal integers are equal decisions.
    """
    largest, scale, differing, voxels = 0.0, 0.0, 0, 0
    for expected, seen in pairs:
        if not (np.isfinite(expected).all() and np.isfinite(seen).all()):
            largest = math.inf
            continue
        largest = max(largest, float(np.abs(expected - seen).max()))
        scale = max(scale, float(np.abs(expected).max()))
        decisions = decide(expected)
        differing += int(np.count_nonzero(decisions != decide(seen)))
        voxels += decisions.size
    return Parity(
        backend=backend,
        max_logit_difference=largest,
        max_logit=scale,
        decision_share=differing / max(voxels, 1),
        num_voxels=voxels,
    )


def judge(parity: Parity, *, logit_tolerance: float, decision_tolerance: float, decided: str = "voxels") -> None:
    """Refuse an export whose results differ from torch's.

    Args:
        logit_tolerance: largest logit difference, relative to the largest logit (at least 1).
        decision_tolerance: largest share of voxels whose decision differs.
        decided: what a decision is about, for the message.
    Raises:
        InternalError: the parity is worse.
    """
    excess = excess_of(parity, logit_tolerance=logit_tolerance, decision_tolerance=decision_tolerance, decided=decided)
    if excess is not None:
        raise InternalError(
            f"the exported model does not reproduce the outputs of torch, in {parity.backend}.",
            seen=excess[0],
            expected=excess[1],
            do="train and export with the library versions of constraints.txt; if the error persists, report it",
        )


def excess_of(
    parity: Parity, *, logit_tolerance: float, decision_tolerance: float, decided: str = "voxels"
) -> tuple[str, str] | None:
    """Return the difference seen and the difference allowed as texts, None for a difference within the tolerances.

    Args:
        logit_tolerance, decision_tolerance, decided: as in `judge`.
    """
    bound = logit_tolerance * max(1.0, parity.max_logit)
    if parity.max_logit_difference <= bound and parity.decision_share <= decision_tolerance:
        return None
    seen = "logits that are NaN or infinite"
    if math.isfinite(parity.max_logit_difference):
        seen = (
            f"logits differ by up to {parity.max_logit_difference:.2e} (largest logit {parity.max_logit:.1f}), "
            f"predictions differ in {parity.decision_share:.2e} of {parity.num_voxels} {decided}"
        )
    return seen, f"at most {bound:.2e} and {decision_tolerance:.2e}"
