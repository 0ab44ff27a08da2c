"""Signals and tables on a real Slurm and in real pods, also with a parameter server: the results of the laptop, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support import images
from support.cwl_files import WORKFLOWS
from support.hybrid_runs import TRAINING, committed_site, results_named, run_workflow
from support.recordings import ecg_cohort
from support.tables import MLP, phantom
from support.testbed import Sites

TRAIN = WORKFLOWS / "provider-fraud" / "train.cwl"
ECG = {
    "identified": False,  # without a key, each run would give the recordings other names
    "fractions": [0.5, 0.25, 0.25], "training_width": 0.0625, "training_steps": 2, "training_epoch_steps": 2,
    "training_batch_size": 2, "training_threads": 1, "gate_candidates": "float32:openvino",
}  # fmt: skip
CARE = {
    "training_units": 16, "training_hidden_layers": 2, "training_epochs": 1, "training_batch_size": 100, "training_threads": 1,
    "training_strategy": "ddp", "training_ranks": 2,
}  # fmt: skip
JOB = {
    "target_list": "exclusions.csv", "training_epochs": 2, "training_batch_size": 120, "training_threads": 1,
    "training_strategy": "parameter-server", "training_ranks": 4, "training_coordination": "sync",
}  # fmt: skip
SAME = ("model.safetensors", "float32.bin", "classifications.csv", "metrics.json")


@pytest.mark.long
def test_a_parameter_server_on_slurm_nodes_and_in_pods_trains_what_the_laptop_trains(
    tmp_path: Path, testbed: Sites
) -> None:
    images.build("segment")
    images.build("train")
    cohort = phantom(tmp_path, "claims", "--rows", "2000", "--listed-rows", "280")
    (tmp_path / "mlp.yml").write_text(MLP)
    layers = {
        "class": "File", "path": str(tmp_path / "mlp.yml"), "format": "http://edamontology.org/format_3750",
    }  # fmt: skip
    job = {"cohort": {"class": "Directory", "path": str(cohort)}, "training_layers": layers, **JOB}
    site = committed_site()
    laptop = site | {"roles": {role: {"deployment": "laptop"} for role in site["roles"]}}
    by_laptop = run_workflow(tmp_path / "laptop", testbed, TRAIN, site=laptop, job=job)
    expected = results_named(by_laptop, *SAME)
    assert {Path(path).name for path in expected} == set(SAME)

    over_grpc = job | {"training_transport": "grpc"}
    by_slurm = run_workflow(tmp_path / "slurm", testbed, TRAIN, site=site, job=over_grpc)
    assert results_named(by_slurm, *SAME) == expected
    card = json.loads((by_slurm.folder / "results" / "exported_model" / "model_card.json").read_text())
    assert (card["training"]["strategy"], card["training"]["ranks"]) == ("parameter-server", 4)
    (trained,) = (event["data"]["site"] for event in by_slurm.of_type("job.ended") if event["step"] == "/train")
    assert trained["nodes"] == "n[1-2]"

    in_pods = site | {"roles": site["roles"] | {"train": {"deployment": TRAINING}}}
    by_pods = run_workflow(tmp_path / "pods", testbed, TRAIN, site=in_pods, job=over_grpc)
    assert results_named(by_pods, *SAME) == expected
    (trained,) = (event["data"]["site"] for event in by_pods.of_type("job.ended") if event["step"] == "/train")
    assert len(trained["pods"]) == 2


@pytest.mark.long
def test_recordings_and_codes_of_inpatients_give_the_results_of_the_laptop(tmp_path: Path, testbed: Sites) -> None:
    images.build("segment")
    labels = {f"A{number:05d}": rhythm for number, rhythm in enumerate("NNNNAAAAOOOO", start=1)}
    jobs = {
        "atrial-fibrillation": {"cohort": ecg_cohort(tmp_path / "recordings", labels), **ECG},
        "care-purpose": {"cohort": phantom(tmp_path, "inpatients", "--rows", "400"), **CARE},
    }
    site = committed_site()
    sites = {"laptop": site | {"roles": {role: {"deployment": "laptop"} for role in site["roles"]}}, "testbed": site}
    for name, job in jobs.items():
        own = job | {"cohort": {"class": "Directory", "path": str(job["cohort"])}}
        train = WORKFLOWS / name / "train.cwl"
        results = {
            place: results_named(run_workflow(tmp_path / f"{name}-{place}", testbed, train, site=at, job=own), *SAME)
            for place, at in sites.items()
        }
        assert {Path(path).name for path in results["laptop"]} == set(SAME)
        assert results["testbed"] == results["laptop"]
