"""Lesions that int8 and float32 detect: the same weights and cases, by the verbs, evaluated from the delivered DICOM SEG.

    python tests/bench/int8.py [--model DIR] [--batches N]

The cases are the held-out ones of quality.py. Without --model it takes the one that `make demo` accepted, or trains a small one;
its float32 graph is one side. The other is the int8 graph that the gate accepted; if there is none, quantize makes one, so
that a candidate that was refused has its figures too. Nothing is timed and nothing decided here: gate does both, on the
validation split.

Writes build/bench/int8-accuracy.json: Dice of both against the ground truth, and in its notes, per case, the Dice between both
masks, reference lesions that only one of them hits, and false positives. The share of differing voxels says nothing here.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import harness
import quality
import segment

DATA = harness.ROOT / "build" / "bench" / "int8"
MASK = "lesion_mask.dcm"


def step(verb: str, *words: str | Path) -> None:
    """Run one verb; its report goes to the folder of this benchmark."""
    report = ("--run-report", DATA / f"{verb}_report.json")
    subprocess.run([quality.STEP, verb, *map(str, (*words, *report))], cwd=DATA, check=True)


def both_precisions(model: Path) -> tuple[dict[str, Path], str]:
    """Return a model folder for each precision, and the precision that the model's card pins."""
    from medweave_steps.io.model.folder import copy_files, read_card, write_card

    card = read_card(model)
    folders = {"float32": DATA / "float32", "int8": model}
    if card.precision == "int8":
        copy_files(model, card, folders["float32"])
        write_card(folders["float32"], dataclasses.replace(card, precision="float32"))
    else:
        folders = {"float32": model, "int8": DATA / "int8"}
        training = ("--training-set", quality.DATA / "prepared" / "training_set")
        step("quantize", "--exported-model", model, *training, "--output", folders["int8"])
    return folders, card.precision


def judged(precision: str, model: Path, batches: Sequence[Path]) -> dict[str, Any]:
    """Segment the batches and evaluate the delivered files; return the content of metrics.json."""
    delivered = []
    for batch in batches:
        delivered.append(DATA / f"segmentations-{precision}" / batch.name)
        step("segment", "--segmentation-model", model, "--case-batch", batch, "--output", delivered[-1])
    cohort = ("--cohort", quality.DATA / "cohort", "--cohort-index", quality.DATA / "cohort_index.json")
    prepared = ("--segmentations", *delivered, "--case-batches", *batches)
    step("evaluate", *cohort, *prepared, "--output", DATA / f"evaluation-{precision}")
    metrics: dict[str, Any] = json.loads((DATA / f"evaluation-{precision}" / "metrics.json").read_text())
    return metrics


def lesions_hit(precision: str) -> dict[tuple[str, str], bool]:
    """Return whether each reference lesion (case id and number) was found."""
    with (DATA / f"evaluation-{precision}" / "lesions.csv").open(encoding="utf-8", newline="") as stream:
        return {(row["case_id"], row["lesion"]): row["hit"] == "1" for row in csv.DictReader(stream)}


def dice_between(case_id: str) -> float | None:
    """Return the Dice of the int8 mask against the float32 mask; None if both are empty."""
    import numpy as np
    import pydicom

    masks = []
    for precision in ("float32", "int8"):
        (path,) = (DATA / f"segmentations-{precision}").glob(f"*/{case_id}/{MASK}")
        masks.append(pydicom.dcmread(path).pixel_array > 0)
    voxels = int(masks[0].sum() + masks[1].sum())
    return None if voxels == 0 else round(2 * int(np.logical_and(*masks).sum()) / voxels, 6)


def case_rows(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return, per case, the results of float32 and int8."""
    cases = {name: {case["case_id"]: case for case in result["per_case"]} for name, result in metrics.items()}
    hits = {name: lesions_hit(name) for name in metrics}
    rows = {}
    for case_id, exact in cases["float32"].items():
        rough = cases["int8"][case_id]
        own = [key for key in hits["float32"] if key[0] == case_id]
        rows[case_id] = {
            "dice": exact["dice"],
            "dice_int8": rough["dice"],
            "dice_between": dice_between(case_id),
            "lesions": exact["lesions"],
            "lesions_gained": sum(hits["int8"][key] and not hits["float32"][key] for key in own),
            "lesions_lost": sum(hits["float32"][key] and not hits["int8"][key] for key in own),
            "false_positives": exact["false_positives"],
            "false_positives_int8": rough["false_positives"],
        }
    return rows


def write(metrics: Mapping[str, Mapping[str, Any]], rows: Mapping[str, Mapping[str, Any]], pinned: str) -> None:
    """Write the result file, and print a line per case."""
    for case_id, row in rows.items():
        harness.say("int8-accuracy", f"{case_id}: " + ", ".join(f"{name} {value}" for name, value in row.items()))
    pairs = [(row["dice_int8"], row["dice"]) for row in rows.values() if None not in (row["dice_int8"], row["dice"])]
    ratios = [rough / exact for rough, exact in pairs if exact > 0]
    if not ratios:
        sys.exit("tests/bench/int8.py: float32 finds nothing in these cases; give a model that does by --model")
    totals = {
        name: sum(row[name] for row in rows.values())
        for name in ("lesions", "lesions_gained", "lesions_lost", "false_positives", "false_positives_int8")
    }
    figures = ("dice_mean", "lesion_sensitivity_10mm", "lesion_sensitivity_6mm", "false_positives_per_scan")
    both = {name: {figure: result[figure] for figure in figures} for name, result in metrics.items()}
    harness.write_result(
        harness.Result(
            name="int8-accuracy",
            ours=statistics.mean(rough for rough, _ in pairs),
            reference=statistics.mean(exact for _, exact in pairs),
            unit="Dice",
            ratio=statistics.median(ratios),
            quartiles=harness.quartiles(ratios),
            pairs=len(pairs),
            bar=None,
            meets_bar=None,
            reference_tool="the same model in float32",
            higher_is_better=True,
            measurements=tuple(pairs),
            machine=harness.machine(),
            measured_at=harness.now(),
            notes={"totals": totals, "figures": both, "card_pins": pinned, "data": "synthetic", "per_case": rows},
        )
    )
    harness.say("int8-accuracy", ", ".join(f"{name} {value}" for name, value in totals.items()))


def main() -> int:
    """Run both sides; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="exported or accepted model folder")
    parser.add_argument("--batches", type=int, metavar="N", help="only the first batches of held-out cases")
    arguments = parser.parse_args()
    quality.prepare()
    segment.DATA.mkdir(parents=True, exist_ok=True)  # a small model is trained there if needed
    model = (arguments.model or segment.find_model()).resolve()
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir(parents=True)
    batches = sorted((quality.DATA / "prepared" / "inference_batches").iterdir())[: arguments.batches]
    folders, pinned = both_precisions(model)
    metrics = {name: judged(name, folder, batches) for name, folder in folders.items()}
    write(metrics, case_rows(metrics), pinned)
    return 0


if __name__ == "__main__":
    sys.exit(main())
