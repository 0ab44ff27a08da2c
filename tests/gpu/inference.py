"""Inference on one GPU: `python tests/gpu/inference.py FOLDER`, six minutes at most.

For machines with an NVIDIA GPU; pytest does not collect it. It exports a U-Net with random weights and checks on the GPU:

- torch, and ONNX Runtime where its CUDA build is installed, have the logits of OpenVINO on the CPU, in float32;
- `segment --device cuda` writes the masks of the CPU;
- `--device cuda` with OpenVINO is refused;
- `gate` measures the runtimes that use the GPU, and its decision is recomputed from its file.

Prints one line for each check and writes FOLDER/gpu_inference.json. Exit code 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from medweave_core.contracts import codec
from medweave_core.contracts.gate import GateDecision
from medweave_core.contracts.model import InputContract, Postprocessing
from medweave_steps.gate.judge import recompute
from medweave_steps.inference.engine import open_engine
from medweave_steps.inference.runtimes.devices import can_use_cuda, installed_runtimes
from medweave_steps.io.model.folder import read_card
from support.model_folders import TINY_UNET, trained_model
from support.prepared_builder import Scan, prepare, with_balls
from support.training_set import training_set

UNET = {**TINY_UNET, "arguments": {**TINY_UNET["arguments"], "channels": [16, 32, 64], "strides": [2, 2]}}
CONTRACT = InputContract(
    spacing_mm=(2.0, 2.0, 2.0), window_hu=(-1000.0, 400.0), patch_shape=(96, 96, 96), patch_multiple=4
)
CLOSE = 2e-3
"""Largest difference of logits: sums of up to 1,728 products, in another order."""


class Checks:
    """The checks so far, in FOLDER/gpu_inference.json."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results: dict[str, Any] = {}

    def add(self, name: str, holds: bool, **figures: Any) -> None:
        """Add and print a check."""
        self.results[name] = {"holds": bool(holds), **figures}
        print(f"{'ok  ' if holds else 'FAIL'} {name}: {json.dumps(figures)}", flush=True)
        (self.folder / "gpu_inference.json").write_text(json.dumps(self.results, indent=2) + "\n", encoding="utf-8")


def step(*words: object) -> tuple[int, str]:
    """Run a verb; return its exit code and its stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "medweave_steps", *map(str, words)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


def logits_of(model: Path, runtime: Any, device: Any, batch: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the logits of one batch, and the median seconds of five calls."""
    engine = open_engine(model, read_card(model), runtime=runtime, device=device, num_threads=4)
    logits, seconds = engine.infer(batch), []
    for _ in range(5):
        started = time.perf_counter()
        engine.infer(batch)
        seconds.append(time.perf_counter() - started)
    engine.close()
    return logits, float(np.median(seconds))


def check_logits(checks: Checks, model: Path) -> list[str]:
    """Compare the runtimes on the GPU with OpenVINO; return those that can use it."""
    batch = np.random.default_rng(0).random((1, 1, 96, 96, 96), np.float32)
    expected, cpu_s = logits_of(model, "openvino", "cpu", batch)
    usable = [name for name in installed_runtimes() if can_use_cuda(name)]
    checks.add("torch can use the GPU", "torch" in usable, usable=usable)
    for name in usable:
        seen, gpu_s = logits_of(model, name, "cuda", batch)
        difference = float(np.abs(seen - expected).max())
        checks.add(f"{name} has OpenVINO's logits", difference < CLOSE, difference=difference, cpu_s=cpu_s, gpu_s=gpu_s)
    return usable


def check_segment(checks: Checks, folder: Path, usable: list[str]) -> None:
    """Segment the same cases on the CPU and on the GPU."""
    import nibabel

    words = ("segment", "--segmentation-model", folder / "exported", "--case-batch", folder / "prepared", "--output")
    report = ("--run-report", folder / "segment.json")
    code, error = step(*words, folder / "cpu", *report, "--device", "cpu")
    checks.add("segment on the CPU", code == 0, error=error[-500:] if code else "")
    code, error = step(*words, folder / "never", *report, "--device", "cuda")
    checks.add("OpenVINO refuses cuda", code == 2 and "runtime openvino" in error, code=code)
    for name in usable:
        code, error = step(*words, folder / name, *report, "--backend", name, "--device", "cuda")
        pairs = [
            (path, folder / name / path.relative_to(folder / "cpu")) for path in (folder / "cpu").rglob("*.nii.gz")
        ]
        differing = [
            int((np.asarray(nibabel.load(a).dataobj) != np.asarray(nibabel.load(b).dataobj)).sum())
            for a, b in pairs
            if b.is_file()
        ]
        # Voxels whose probability is within rounding of the threshold may change.
        holds = code == 0 and len(differing) == len(pairs) > 0 and max(differing) < 50
        checks.add(
            f"segment with {name} on the GPU", holds, differing_voxels=differing, error=error[-500:] if code else ""
        )


def check_gate(checks: Checks, folder: Path, usable: list[str]) -> None:
    """Let gate measure every runtime, and recompute its decision."""
    training_set(folder / "training_set", ("train", *("validation",) * 3))
    words = ("gate", "--exported-model", folder / "exported", "--training-set", folder / "training_set")
    path = folder / "gate_decision.json"
    outputs = ("--output", folder / "accepted", "--decision", path, "--run-report", folder / "gate.json")
    code, error = step(*words, *outputs)
    if code:
        checks.add("gate", False, error=error[-500:])
        return
    decision = codec.from_json(GateDecision, json.loads(path.read_text(encoding="utf-8")), where=path.name)
    measured = {candidate.runtime: candidate.device for candidate in decision.candidates}
    checks.add("gate measures on the GPU", all(measured.get(name) == "cuda" for name in usable), measured=measured)
    checks.add("the decision is recomputed", recompute(decision) == decision, reason=decision.reason)


def scan_of_balls(number: int) -> Scan:
    """Return a NIfTI scan of 1.5 mm voxels with two balls."""
    affine = np.diag([1.5, 1.5, 1.5, 1.0])
    hu = with_balls((160, 140, 120), affine, [((60, 60, 50 + number), 12.0), ((100, 80, 70), 8.0)])
    return Scan(case_id=f"scan_{number}", hu=hu, affine_ras=affine, source_format="nifti")


def main() -> int:
    """Run all checks; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder to write; created")
    folder = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True)
    checks = Checks(folder)
    trained_model(folder / "trained", architecture=UNET, input=CONTRACT, postprocessing=Postprocessing(overlap=0.25))
    export = ("export", "--trained-model", folder / "trained", "--output", folder / "exported")
    code, error = step(*export, "--run-report", folder / "export.json")
    checks.add("export", code == 0, error=error[-500:] if code else "")
    usable = check_logits(checks, folder / "exported")
    scans = [scan_of_balls(number) for number in range(2)]
    prepare(folder / "prepared", scans, crop="lungs")
    check_segment(checks, folder, usable)
    check_gate(checks, folder, usable)
    return 0 if all(check["holds"] for check in checks.results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
