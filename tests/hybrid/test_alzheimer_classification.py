"""Pipeline stages on two nodes of a real Slurm and in two real pods, classification in pods: results of the laptop, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support import images
from support.cwl_files import WORKFLOWS
from support.head_cohort import write_heads
from support.hybrid_runs import TRAINING, committed_site, results_named, run_workflow
from support.testbed import Sites

TRAIN = WORKFLOWS / "alzheimer-classification" / "train.cwl"
JOB = {
    "identified": False,  # without a key, each run would give the cases other names
    "brain_masks": "derivatives/brain", "groups": ["AD", "NC"], "spacing_mm": [2, 2, 2], "shape": [32, 32, 32],
    "fractions": [0.5, 0.25, 0.25], "training_width": 0.125, "training_steps": 4, "training_batch_size": 4,
    "training_threads": 1, "training_strategy": "hybrid", "training_ranks": 2, "training_stages": 2, "training_micro_batches": 2,
    "cases_per_batch": 2,
    "gate_candidates": "float32:openvino",  # how fast a runtime is at the moment must not choose it
}  # fmt: skip
SAME = ("model.safetensors", "float32.bin", "classifications.csv", "metrics.json", "explanation_map.nii.gz")


@pytest.mark.long
def test_stages_on_slurm_nodes_and_in_pods_train_what_the_laptop_trains_and_pods_classify_equally(
    tmp_path: Path, testbed: Sites
) -> None:
    images.build("segment")
    images.build("train")
    cohort = write_heads(tmp_path / "cohort", 16)
    job = {"cohort": {"class": "Directory", "path": str(cohort)}, **JOB}
    site = committed_site()
    laptop = site | {"roles": {role: {"deployment": "laptop"} for role in site["roles"]}}
    by_laptop = run_workflow(tmp_path / "laptop", testbed, TRAIN, site=laptop, job=job)
    expected = results_named(by_laptop, *SAME)
    assert {Path(path).name for path in expected} == set(SAME)

    by_slurm = run_workflow(tmp_path / "slurm", testbed, TRAIN, site=site, job=job)
    assert results_named(by_slurm, *SAME) == expected
    card = json.loads((by_slurm.folder / "results" / "accepted_model" / "model_card.json").read_text())
    assert (card["training"]["strategy"], card["training"]["stages"], card["training"]["replicas"]) == ("hybrid", 2, 1)
    jobs = [event for event in by_slurm.of_type("job.ended") if event["step"] in ("/train", "/explain")]
    assert {job["step"]: job["data"]["site"]["nodes"] for job in jobs}["/train"] == "n[1-2]"
    assert {job["step"] for job in jobs} == {"/train", "/explain"}

    in_pods = site | {"roles": site["roles"] | {"train": {"deployment": TRAINING}}}
    by_pods = run_workflow(tmp_path / "pods", testbed, TRAIN, site=in_pods, job=job)
    assert results_named(by_pods, *SAME) == expected
    (trained,) = (event["data"]["site"] for event in by_pods.of_type("job.ended") if event["step"] == "/train")
    assert len(trained["pods"]) == 2
