"""Image classification on a real Slurm and in real pods: the model and the probabilities of the laptop, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from medweave_steps.cli import main
from support import images
from support.cwl_files import WORKFLOWS
from support.engine import Run
from support.hybrid_runs import committed_site, results_named, run_workflow
from support.testbed import Sites

TRAIN = WORKFLOWS / "image-classification" / "train.cwl"
JOB = {
    "identified": False,  # without a key, each run would give the cases other names
    "image_size": [32, 32], "training_width": 0.25, "training_steps": 4, "training_batch_size": 4, "training_threads": 1,
    "training_strategy": "ddp", "training_ranks": 2, "cases_per_batch": 4,
    "gate_candidates": "int8:openvino",  # how fast int8 is at the moment must not choose the model
}  # fmt: skip


def results(ended: Run) -> dict[str, bytes]:
    """Return the files that do not depend on the place: weights of both precisions, probabilities, metrics."""
    return results_named(ended, "model.safetensors", "float32.bin", "int8.bin", "classifications.csv", "metrics.json")


def reported(ended: Run) -> set[str]:
    """Return the cases with a structured report, whose UIDs contain the digest of the model card with its training time."""
    return {path.parent.name for path in (ended.folder / "results").rglob("classification_sr.dcm")}


def site_facts(ended: Run, step: str) -> list[dict[str, Any]]:
    jobs = [event for event in ended.of_type("job.ended") if event["step"] == step]
    return [job["data"].get("site") or {} for job in jobs]


@pytest.mark.long
def test_slurm_trains_and_pods_classify_what_the_laptop_does(tmp_path: Path, testbed: Sites) -> None:
    images.build("segment")
    words = ["--cases", "24", "--held-out-cases", "8", "--image-size", "32", "--output", str(tmp_path / "cohort")]
    assert main(["phantom", "xray", *words, "--run-report", str(tmp_path / "phantom.json")]) == 0
    site = committed_site()
    here = site | {"roles": {role: {"deployment": "laptop"} for role in site["roles"]}}
    job = {"cohort": {"class": "Directory", "path": str(tmp_path / "cohort")}, **JOB}
    by_laptop = run_workflow(tmp_path / "laptop", testbed, TRAIN, site=here, job=job)
    by_testbed = run_workflow(tmp_path / "testbed", testbed, TRAIN, site=site, job=job)
    assert results(by_testbed) == results(by_laptop)
    assert reported(by_testbed) == reported(by_laptop) != set()
    (trained,) = site_facts(by_testbed, "/train")
    assert trained["nodes"] == "n[1-2]"
    classified = site_facts(by_testbed, "/classify")
    assert len(classified) > 1, "one job for each batch"
    assert all(facts["pods"] for facts in classified)
