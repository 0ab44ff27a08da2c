"""`make demo-brain`: synthetic brain MR from DICOM, three labels, the whole pipeline, a table and one HTML report.

    make demo-brain [CASES=N] [STEPS=N]

Everything lies below build/demo-brain/; an earlier demo's folder is replaced. The figures go to build/demo-brain/summary.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from demo import ROOT, begin, command, number, run, run_workflow, write_summary
from ruamel.yaml import YAML

DEMO = ROOT / "build" / "demo-brain"
COHORT, RESULTS, REPORT = DEMO / "cohort", DEMO / "output", DEMO / "report.html"
BOUND = ROOT / "deployments" / "bindings" / "streamflow.laptop-brain.yml"
JOB = ROOT / "workflows" / "brain-tumour-segmentation" / "jobs" / "demo-labels-train.yml"

CASES, HELD_OUT_CASES, FEWEST_CASES = 24, 8, 6
SEED, HELD_OUT_SEED = 31, 52711


def make_cohort(environment: Mapping[str, str], cases: int) -> None:
    """Write DICOM series of synthetic brains, in four contrasts, with their labels as DICOM SEG."""
    held_out = max(2, round(cases * HELD_OUT_CASES / (CASES + HELD_OUT_CASES)))
    print(
        f"make demo-brain: writing {cases - held_out} + {held_out} synthetic brains to build/demo-brain/cohort",
        flush=True,
    )
    words = [
        command("medweave-step"),
        "phantom",
        "brain",
        "--output",
        str(COHORT),
        "--grid",
        "demo",
        "--format",
        "dicom",
    ]
    words += ["--cases", str(cases - held_out), "--seed", str(SEED)]
    words += ["--held-out-cases", str(held_out), "--held-out-seed", str(HELD_OUT_SEED)]
    run([*words, "--run-report", str(DEMO / "phantom_report.json")], environment=environment)


def bound_file(steps: int | None) -> Path:
    """Write the laptop's bound file and the job file of the demo into its folder; return the first."""
    job = YAML(typ="safe").load(JOB)
    for value in job.values():
        if isinstance(value, dict) and "path" in value:
            value["path"] = str((JOB.parent / value["path"]).resolve())
    job |= {"cohort": {"class": "Directory", "path": str(COHORT)}}
    if steps:
        job |= {"training_steps": steps}
    (DEMO / "job.yml").write_text(json.dumps(job, indent=2) + "\n", encoding="utf-8")
    document = YAML(typ="safe").load(BOUND)
    for workflow in document["workflows"].values():
        workflow["config"] = {
            "file": str((BOUND.parent / workflow["config"]["file"]).resolve()), "settings": str(DEMO / "job.yml"),
        }  # fmt: skip
    path = DEMO / "streamflow.yml"
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return path


def summary_of(metrics: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return what machines read of a demo; the keys are part of the project's contract."""
    masks = sorted(RESULTS.rglob("lesion_mask.dcm"))
    return {
        "dice_by_label": {label["name"]: label["dice_mean"] for label in metrics["by_label"]},
        "patients": metrics["patients"],
        "synthetic_data": metrics["synthetic"],
        "held_out_seed": HELD_OUT_SEED,
        "report": str(REPORT.relative_to(ROOT)),
        "dicom_seg": [str(path.relative_to(ROOT)) for path in masks],
        "segments": segment_names(masks[0]) if masks else [],
        "seconds": round(seconds, 1),
    }


def segment_names(path: Path) -> list[str]:
    """Return the labels of the segments of a DICOM SEG, in order."""
    from pydicom import dcmread

    return [str(item.SegmentLabel) for item in dcmread(path, stop_before_pixels=True).SegmentSequence]


def print_table(metrics: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
    """Print the end of a demo, as a person reads it."""
    print(f"\nSynthetic data: {summary['patients']} held-out patients")
    for label in metrics["by_label"]:
        interval = label["dice_ci"]
        shown = f"   95 % CI {interval[0]:.2f} to {interval[1]:.2f}" if interval else ""
        dice = "   n/a" if label["dice_mean"] is None else f"{label['dice_mean']:6.2f}"
        print(f"  Dice, {label['name']:<38} {dice}{shown}")
    first = summary["dicom_seg"][0] if summary["dicom_seg"] else "none"
    print(f"\n  {len(summary['dicom_seg'])} DICOM SEG files with the segments {', '.join(summary['segments'])},")
    print(f"  for example {first}")
    print(f"  report   {summary['report']}   (open it in a browser; it needs no network)")
    print("  figures  build/demo-brain/summary.json")
    print(f"  {summary['seconds']:.0f} s in all. Research use only, not a medical device.")


def main() -> int:
    """Run the demo; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cases",
        type=partial(number, least=FEWEST_CASES, example=12),
        default=CASES + HELD_OUT_CASES,
        help="patients, a quarter of them for the test (default: %(default)s)",
    )
    parser.add_argument(
        "--steps",
        type=partial(number, least=1, example=100),
        help="training steps instead of the job's; fewer find less",
    )
    options = parser.parse_args()
    started = time.monotonic()
    environment = begin(DEMO)
    make_cohort(environment, options.cases)
    file = str(bound_file(options.steps).relative_to(ROOT))
    metrics = run_workflow(DEMO, file, environment)
    summary = summary_of(metrics, time.monotonic() - started)
    write_summary(DEMO, summary)
    print_table(metrics, summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
