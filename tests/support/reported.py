"""What `report` reads besides the evaluation: curves, run reports, and a gate's decision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from medweave_core.contracts import codec
from medweave_core.contracts.gate import (
    GateCandidate,
    GateCase,
    GateComparison,
    GateDecision,
    GateDifference,
    GateFigures,
    GateSpeed,
    GateTolerances,
)
from medweave_core.contracts.report import RunReport
from medweave_steps.cli import main
from support.evaluated import CaseSpec, MadeRun, write_run


def run_report(verb: str, results: dict[str, Any] | None = None, **changes: Any) -> RunReport:
    values: dict[str, Any] = {
        "verb": verb,
        "medweave_version": "0.1.0",
        "started_at": "2026-08-01T10:00:00.000+00:00",
        "seconds": 1.5,
        "peak_memory_mib": 100.0,
        "peak_memory_children_mib": 0.0,
        "num_threads": 2,
        "host_cpu": "A processor",
        "config": {},
        "versions": {"python": "3.11.7", "numpy": "2.0.0"},
        "results": results or {},
        "cases": (),
        "notices": (),
    }
    return RunReport(**values | changes)


def gate_decision(*, accepted: bool = False) -> GateDecision:
    def figures(dice: float) -> GateFigures:
        case = GateCase(case_id="case-v", patient_key="p", dice=dice, lesions=4, lesions_hit=3, false_positives=1)
        return GateFigures(dice_mean=dice, lesion_sensitivity=0.75, false_positives_per_scan=1.0, cases=(case,))

    def comparison(dice: float) -> GateComparison:
        nothing = GateDifference(value=0.0, lower=None, upper=None)
        return GateComparison(
            figures=figures(dice), dice=GateDifference(value=dice - 0.8, lower=-0.031, upper=0.004),
            lesion_sensitivity=nothing, false_positives_per_scan=nothing,
        )  # fmt: skip

    def speed(ratio: float, size: float) -> GateSpeed:
        return GateSpeed(
            seconds_per_volume=2.0 / ratio, speedup=ratio, speedup_quartiles=(ratio * 0.9, ratio * 1.1), pairs=7,
            model_bytes=int(size * 2**20), size_ratio=size / 4,
        )  # fmt: skip

    candidate = GateCandidate(
        precision="int8", card_sha256="1" * 64, is_accepted=accepted, speed=speed(1.8, 1.0), validation=comparison(0.79),
        reasons=("faster: 1.80 times",) if accepted else ("refused: Dice may fall by 0.031", "faster: 1.80 times"),
        test=comparison(0.78),
    )  # fmt: skip
    return GateDecision(
        model="tiny", exported_sha256="0" * 64, precision="int8" if accepted else "float32",
        reason="int8 accepted: faster." if accepted else "float32 kept. int8 refused: Dice may fall by 0.031.",
        synthetic=True, host_cpu="A processor", num_threads=2, bootstrap_seed=0, versions={},
        tolerances=GateTolerances(
            dice=0.01, sensitivity=0.02, false_positives_per_scan=0.1, min_speedup=1.1, max_slowdown=1.1
        ),
        float32_speed=speed(1.0, 4.0), float32_validation=figures(0.8), float32_test=figures(0.81), candidates=(candidate,),
    )  # fmt: skip


def write_reports(folder: Path) -> list[Path]:
    """Write run reports of the steps before `report`, with the content of real ones."""
    results_by_verb = {
        "check": {},
        "preprocess": {
            "spacing_mm": [2.0, 2.0, 2.0],
            "window_hu": [-1000.0, 400.0],
            "crop": "lungs",
            "patients_per_split": {"train": 8, "validation": 2, "test": 3},
        },
        "train": {
            "postprocessing": {"threshold": 0.6, "min_peak": 0.9, "min_volume_mm3": 20.0},
            "metrics": {"validation_dice": 0.812, "validation_sensitivity": None},
            "training": {
                "strategy": "single",
                "seed": 5,
                "steps_done": 400,
                "best_step": 350,
                "best_seconds": 33.0,
                "seconds": 61.0,
                "step_seconds": 40.0,
                "data_wait_seconds": 1.0,
                "patches_per_second": 100.0,
                "synchronised_bytes": 3 * 2**20,
                "energy": {"each_wh": [0.5, 1.0], "counters": {"RAPL of a processor package": 1}, "missing": []},
                "num_threads": 2,
            },
        },
        "gate": codec.to_json(gate_decision()),
        "segment": {
            "model_name": "tiny-nodule",
            "model_sha256": "a" * 64,
            "precision": "float32",
            "backend": "openvino",
        },
    }
    paths = []
    for verb, results in results_by_verb.items():
        paths.append(folder / verb / "run_report.json")
        paths[-1].parent.mkdir(parents=True)
        paths[-1].write_text(codec.dumps(run_report(verb, results)))
    return paths


def write_curves(folder: Path) -> None:
    folder.mkdir(parents=True)
    points: list[dict[str, float]] = [{"step": s, "loss": 1 / s, "learning_rate": 0.001} for s in range(10, 100, 10)]
    points += [{"step": s, "dice": s / 100, "sensitivity": 0.5, "false_positives_per_scan": 1.0} for s in (30, 60, 90)]
    (folder / "curves.json").write_text(json.dumps(points))


def write_samples(folder: Path, *, num_ranks: int, has_gpu: bool = True) -> None:
    """Write hardware samples of two minutes and a half; the second rank started 10 s after the first one."""
    for rank in range(num_ranks):
        header = {
            "rank": rank, "interval_s": 1.0, "started_at": f"2026-08-01T10:00:{10 * rank:02}.000+00:00",
            "energy": {
                "processor": {"kind": "modelled", "source": "12 W for each busy core"},
                **({"gpu": {"kind": "measured", "source": "NVML of a GPU"}} if has_gpu else {}),
            },
        }  # fmt: skip
        lines: list[dict[str, object]] = [header]
        for t_s in range(151):
            gpu = {"gpu_power_w": 300 + t_s % 7, "gpu_utilization": 0.8, "gpu_memory_used_mib": 2048} if has_gpu else {}
            lines.append(
                {"t_s": t_s, "process_cpu_s": 1.5 * t_s, "processor_power_w": 18, "process_memory_mib": 512, **gpu}
            )
        lines += [{"t_s": 50 * place, "step": place, "loss": 1 / place} for place in (1, 2, 3)] if rank == 0 else []
        path = folder / f"hardware-rank-{rank}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def balls(shape: tuple[int, int, int], *centres: tuple[int, int, int], radius: float = 4) -> np.ndarray:
    index = np.indices(shape)
    return np.any(
        [sum((x - c) ** 2 for x, c in zip(index, centre, strict=True)) <= radius**2 for centre in centres], axis=0
    )


def three_cases(source_format: str = "nifti") -> list[CaseSpec]:
    """Return three cases: one detected, one detected in part with a false positive, one with two empty masks."""
    shape = (24, 36, 40) if source_format == "dicom" else (40, 36, 24)
    one, other = ((8, 12, 12), (14, 24, 30)) if source_format == "dicom" else ((12, 12, 8), (30, 24, 14))
    nothing, lesions = np.zeros(shape, bool), balls(shape, one) | balls(shape, other, radius=3)
    masks = [
        (lesions, lesions),
        (lesions, balls(shape, one, radius=3) | balls(shape, (4, 4, 4), radius=1.5)),
        (nothing, nothing),
    ]
    return [
        CaseSpec(case_id=f"case-0000000{i}", reference=truth, predicted=found, source_format=source_format)
        for i, (truth, found) in enumerate(masks)
    ]


def evaluated(root: Path, specs: list[CaseSpec] | None = None, **changes: Any) -> tuple[MadeRun, list[str]]:
    """Write a run up to `evaluate`; return it and the options of `report` except --output."""
    made = write_run(root, specs or three_cases(), **changes)
    assert main(["evaluate", *made.options(root / "evaluation")]) == 0
    write_curves(root / "training_log")
    reports = [*write_reports(root / "reports"), root / "evaluation-run_report.json"]
    return made, [
        "--evaluation", str(root / "evaluation"), "--segmentations", *map(str, made.segmentations),
        "--case-batches", *map(str, made.batches), "--training-log", str(root / "training_log"),
        "--run-reports", *map(str, reports), "--run-report", str(root / "report-run_report.json"),
    ]  # fmt: skip
