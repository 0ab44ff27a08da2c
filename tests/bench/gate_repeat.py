"""Whether `gate` decides alike when it is run again on the same machine: ten runs with the same models and cases.

    python tests/bench/gate_repeat.py [--model DIR] [--runs N]

Without --model it takes the one that `make demo` accepted, or trains a small one; its float32 model and an int8 model of it are
compared in every installed runtime, on the validation cases of a small synthetic cohort. Each decision is also recomputed from its
file. Nothing else needs to be idle: a decision that depends on other work of the machine is the fault that this finds.

Writes build/bench/gate_repeat.json: `runs`, `same_decision` (every run accepted the same model in the same runtime), and the usual
keys; the ratio is the speed of the fastest candidate (float32 seconds over its own) in each run. Exit code 1 if decisions differ.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import harness
import segment

DATA = harness.ROOT / "build" / "bench" / "gate_repeat"
FILE = harness.RESULTS / "gate_repeat.json"
CASES, SEED = 12, 5


def step(verb: str, *words: str | Path) -> None:
    """Run one verb in the folder of this benchmark; exit with its error if it fails."""
    command = [sys.executable, "-m", "medweave_steps", verb, *map(str, words), "--run-report", f"{verb}_report.json"]
    done = subprocess.run(command, cwd=DATA, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{verb} ended with exit code {done.returncode}:\n{done.stderr[-3000:]}")


def prepare(model: Path) -> None:
    """Write cohort, training set, the exported float32 model and an int8 candidate of it."""
    from medweave_steps.io.model.folder import copy_files, read_card, write_card

    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir(parents=True)
    card = read_card(model)
    copy_files(model, card, DATA / "exported", leave_out=[name for name in card.files if "int8" in name])
    write_card(DATA / "exported", dataclasses.replace(card, precision="float32", runtime="openvino"))
    step("phantom", "lung", "--output", "cohort", "--cases", str(CASES), "--grid", "demo", "--seed", str(SEED))
    step("check", "--cohort", "cohort", "--output", "index.json")
    step("preprocess", "--cohort", "cohort", "--cohort-index", "index.json", "--output", "prepared")
    training = ("--training-set", "prepared/training_set")
    step("quantize", "--exported-model", "exported", *training, "--output", "int8")


def decide(number: int) -> Any:
    """Run gate once; return its decision, which is also recomputed from its file."""
    from medweave_core.contracts import codec
    from medweave_core.contracts.gate import GateDecision
    from medweave_steps.gate.judge import recompute

    output, path = DATA / f"accepted-{number}", DATA / f"decision-{number}.json"
    models = ("--exported-model", "exported", "--candidates", "int8", "--training-set", "prepared/training_set")
    step("gate", *models, "--output", output, "--decision", path)
    shutil.rmtree(output)
    decision = codec.from_json(GateDecision, json.loads(path.read_text(encoding="utf-8")), where=path.name)
    if recompute(decision) != decision:
        sys.exit(f"{path}: the decision is another one when it is recomputed")
    return decision


def fastest(decision: Any) -> tuple[float, float]:
    """Return the median seconds of the fastest candidate and of float32."""
    speeds = [candidate.speed for candidate in decision.candidates if candidate.speed]
    best = max(speeds, key=lambda speed: speed.speedup)
    return best.seconds_per_volume, decision.float32_speed.seconds_per_volume


def main() -> int:
    """Run gate again and again; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="exported or accepted model folder")
    parser.add_argument("--runs", type=int, default=10, metavar="N")
    arguments = parser.parse_args()
    segment.DATA.mkdir(parents=True, exist_ok=True)  # a small model is trained there if needed
    prepare((arguments.model or segment.find_model()).resolve())
    decisions = []
    for number in range(arguments.runs):
        decisions.append(decide(number))
        harness.say("gate_repeat", f"run {number + 1}/{arguments.runs}: {decisions[-1].reason}")
    choices = [f"{one.chosen}:{one.runtime}" for one in decisions]
    speeds = [
        {f"{one.name}:{one.runtime}": (one.speed.pairs, one.speed.interval) for one in decision.candidates if one.speed}
        for decision in decisions
    ]
    pairs = [fastest(decision) for decision in decisions]
    ratios = [float32 / own for own, float32 in pairs]
    most = max(collections.Counter(choices).values())
    harness.write_result(
        harness.Result(
            name="gate_repeat",
            ours=most / len(choices),
            reference=None,
            unit="share of the most frequent decision",
            ratio=sorted(ratios)[len(ratios) // 2],
            quartiles=harness.quartiles(ratios),
            pairs=len(pairs),
            bar=1.0,
            meets_bar=most == len(choices),
            reference_tool=None,
            higher_is_better=True,
            measurements=tuple(pairs),
            machine=harness.machine(),
            measured_at=harness.now(),
            notes={"choices": choices, "pairs_and_intervals": speeds, "cases": CASES, "data": "synthetic"},
        )
    )
    result = json.loads(FILE.read_text(encoding="utf-8"))
    result |= {"runs": len(choices), "same_decision": most == len(choices)}
    FILE.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0 if result["same_decision"] else 1


if __name__ == "__main__":
    sys.exit(main())
