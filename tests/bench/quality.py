"""How well the demo's recipe finds nodules: three training seeds, the same held-out patients, the median.

The cohort is the demo's (deployments/demo/demo.py names its seeds). Settings, threshold and size filter come from the validation
split of the development cohort; the held-out patients are generated from a seed that was not used for any setting.

    python tests/bench/quality.py [--seeds 0 1 2]

Writes build/bench/quality-<figure>.json, and build/bench/quality/per_seed.json with everything per seed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import harness

DATA = harness.ROOT / "build" / "bench" / "quality"
STEP = Path(sys.executable).with_name("medweave-step")
# Figure of metrics.json, its bar, and whether more is better.
FIGURES = {
    "dice_mean": (0.80, True),
    "lesion_sensitivity_10mm": (0.90, True),
    "lesion_sensitivity_6mm": (None, True),
    "lesion_sensitivity_6_to_8mm": (None, True),
    "false_positives_per_scan": (1.0, False),
}


def step(verb: str, *words: str | Path) -> None:
    """Run one verb in the data folder; exit if it fails."""
    report = ("--run-report", f"{verb}_report.json")
    subprocess.run([STEP, verb, *map(str, words), *report], cwd=DATA, check=True, stderr=subprocess.DEVNULL)


def demo_constants() -> Mapping[str, Any]:
    """Return the case counts and seeds of the demo, from the demo itself."""
    spec = importlib.util.spec_from_file_location("demo", harness.ROOT / "deployments" / "demo" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    names = ("DEVELOPMENT_CASES", "DEVELOPMENT_SEED", "DEVELOPMENT_NODULES", "HELD_OUT_CASES", "HELD_OUT_SEED")
    return {name: getattr(module, name) for name in names}


def is_made(demo: Mapping[str, Any]) -> bool:
    """Return whether the cohort is there, and was drawn with the demo's numbers: seeds whose results were seen are retired."""
    report = DATA / "phantom_report.json"
    if not report.is_file() or not (DATA / "prepared").is_dir():
        return False
    drawn = json.loads(report.read_text())["config"]
    names = {name.removeprefix("DEVELOPMENT_").lower(): value for name, value in demo.items()}
    return all(drawn[name] == (list(value) if isinstance(value, tuple) else value) for name, value in names.items())


def prepare() -> None:
    """Write the cohort and its prepared volumes, once."""
    demo = demo_constants()
    if is_made(demo):
        return
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir(parents=True)
    counts = ("--cases", demo["DEVELOPMENT_CASES"], "--held-out-cases", demo["HELD_OUT_CASES"])
    seeds = ("--seed", demo["DEVELOPMENT_SEED"], "--held-out-seed", demo["HELD_OUT_SEED"])
    nodules = ("--nodules", *demo["DEVELOPMENT_NODULES"])
    step("phantom", "lung", "--output", "cohort", "--grid", "demo", *map(str, (*counts, *seeds, *nodules)))
    step("check", "--cohort", "cohort", "--output", "cohort_index.json")
    step("preprocess", "--cohort", "cohort", "--cohort-index", "cohort_index.json", "--output", "prepared")


def one_seed(seed: int) -> dict[str, Any]:
    """Train with one seed and evaluate the test patients; return the metrics and the training's seconds."""
    for folder in ("trained", "log", "exported", "int8", "accepted", "segmentations", "evaluation"):
        shutil.rmtree(DATA / folder, ignore_errors=True)
    (DATA / "gate_decision.json").unlink(missing_ok=True)
    started = time.monotonic()
    training = ("--training-set", "prepared/training_set")
    step("train", *training, "--output", "trained", "--training-log", "log", "--seed", str(seed))
    seconds = time.monotonic() - started
    step("export", "--trained-model", "trained", "--output", "exported")
    step("quantize", "--exported-model", "exported", *training, "--output", "int8")
    step("gate", "--exported-model", "exported", "--candidates", "int8", *training, "--output", "accepted")
    batches = sorted((DATA / "prepared" / "inference_batches").iterdir())
    delivered = []
    for batch in batches:
        delivered.append(DATA / "segmentations" / batch.name)
        step("segment", "--segmentation-model", "accepted", "--case-batch", batch, "--output", delivered[-1])
    where = ("--cohort", "cohort", "--cohort-index", "cohort_index.json", "--output", "evaluation")
    step("evaluate", *where, "--segmentations", *delivered, "--case-batches", *batches)
    metrics: dict[str, Any] = json.loads((DATA / "evaluation" / "metrics.json").read_text())
    precision = json.loads((DATA / "accepted" / "model_card.json").read_text())["precision"]
    return metrics | {"seed": seed, "training_seconds": round(seconds, 1), "precision": precision}


def write(results: Sequence[Mapping[str, Any]]) -> None:
    """Write one file per figure, and one with everything."""
    for name, (bar, more) in FIGURES.items():
        values = [result[name] for result in results]
        notes = {"per_seed": values, "held_out_seed": demo_constants()["HELD_OUT_SEED"], "data": "synthetic"}
        baseline = results[0]["baseline"].get(name)
        file = f"quality-{name.replace('_', '-')}"
        harness.single_figure(
            file,
            statistics.median(values),
            unit="",
            bar=bar,
            higher_is_better=more,
            notes=notes | {"baseline": baseline},
        )
    (DATA / "per_seed.json").write_text(json.dumps(list(results), indent=2) + "\n", encoding="utf-8")


def main() -> int:
    """Run the seeds; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="S", help="training seeds")
    seeds = parser.parse_args().seeds
    prepare()
    results = []
    for seed in seeds:
        results.append(one_seed(seed))
        shown = ", ".join(f"{name} {results[-1][name]:.3f}" for name in FIGURES)
        harness.say("quality", f"seed {seed} ({results[-1]['training_seconds']:.0f} s of training): {shown}")
    write(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
