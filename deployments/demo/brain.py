"""`make demo-brain`: synthetic brain MR from DICOM, three labels, the whole pipeline, a table and one HTML report.

    make demo-brain [CASES=N] [STEPS=N]

Everything lies below build/demo-brain/; an earlier demo's folder is replaced. The figures go to build/demo-brain/summary.json.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from demo import ROOT, line, parse_options, print_end, run_demo, write_phantom

DEMO = ROOT / "build" / "demo-brain"
COHORT, RESULTS, REPORT = DEMO / "cohort", DEMO / "output", DEMO / "report.html"
BOUND = ROOT / "deployments" / "bindings" / "streamflow.laptop-brain.yml"
JOB = ROOT / "workflows" / "brain-tumour-segmentation" / "jobs" / "demo-labels-train.yml"

CASES, HELD_OUT_CASES, FEWEST_CASES = 24, 8, 6
SEED, HELD_OUT_SEED = 31, 52711


def make_cohort(environment: Mapping[str, str], cases: int) -> None:
    """Write DICOM series of synthetic brains, in four contrasts, with their labels as DICOM SEG."""
    held_out = max(2, round(cases * HELD_OUT_CASES / (CASES + HELD_OUT_CASES)))
    words = ["brain", "--grid", "demo", "--format", "dicom", "--cases", str(cases - held_out), "--seed", str(SEED)]
    words += ["--held-out-cases", str(held_out), "--held-out-seed", str(HELD_OUT_SEED)]
    what = f"{cases - held_out} + {held_out} synthetic brains"
    write_phantom(COHORT, words, what=what, environment=environment)


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
        print(line(f"Dice, {label['name']}", label["dice_mean"], label["dice_ci"]))
    first = summary["dicom_seg"][0] if summary["dicom_seg"] else "none"
    print(f"\n  {len(summary['dicom_seg'])} DICOM SEG files with the segments {', '.join(summary['segments'])},")
    print(f"  for example {first}")
    print_end(DEMO, summary)


def main() -> int:
    """Run the demo; return the exit code."""
    options = parse_options(__doc__, cases=CASES + HELD_OUT_CASES, fewest=FEWEST_CASES, example=12, tested="a quarter")
    print_table(*run_demo(DEMO, BOUND, JOB, options, make_cohort=make_cohort, summary_of=summary_of))
    return 0


if __name__ == "__main__":
    sys.exit(main())
