"""A parameter server over gRPC on nodes of a real Slurm and in real pods: results of the laptop, which uses gloo, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support import images
from support.cwl_files import WORKFLOWS
from support.hybrid_runs import TRAINING, committed_site, results_named, run_workflow
from support.tables import MLP, phantom
from support.testbed import Sites

TRAIN = WORKFLOWS / "provider-fraud" / "train.cwl"
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
