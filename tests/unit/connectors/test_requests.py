"""What a tool asks for in medweave's own hints, and how it reaches the connector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from medweave_connectors.jobs import job_requests, node_group
from medweave_connectors.jobs.job_requests import StepHints, full_name, read_hints
from medweave_core.errors import UsageError
from support.engine import run, write_workflow

GANG, GPUS = "urn:medweave:cwl#Gang", "urn:medweave:cwl#GPURequest"
CHECKPOINT, PARTIAL = "urn:medweave:cwl#Checkpoint", "urn:medweave:cwl#Partial"
CUDA = "http://commonwl.org/cwltool#CUDARequirement"


def test_hints_are_known_by_their_full_name() -> None:
    assert full_name("medweave:Gang", {"medweave": "urn:medweave:cwl#"}) == GANG
    assert full_name("mw:Gang", {"mw": "urn:medweave:cwl#"}) == GANG
    assert full_name("other:Gang", {"mw": "urn:medweave:cwl#"}) == "other:Gang"
    assert full_name(GANG, {}) == GANG


@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        ({}, StepHints()),
        ({GANG: {"class": "x"}}, StepHints(gang=True)),
        ({GPUS: {"gpusMin": 2}}, StepHints(gpus_min=2, gpus_max=2)),
        ({GPUS: {"gpusMin": 0, "gpusMax": 4}}, StepHints(gpus_max=4)),
        ({GPUS: {"gpusMin": 0, "gpusTotal": "$(inputs.ranks)"}}, StepHints(gpus_max=1, gpus_input="ranks")),
        ({GPUS: {"gpusMin": 2, "gpusTotal": "$(inputs.ranks)"}}, StepHints(gpus_min=2, gpus_max=2, gpus_input="ranks")),
        ({"http://elsewhere#Thing": {"any": 1}}, StepHints()),
        ({PARTIAL: {}}, StepHints(partial=True)),
        ({CHECKPOINT: {"folder": "saved.1"}}, StepHints(checkpoint_folder="saved.1")),
        ({CUDA: {"cudaVersionMin": "12.1", "cudaComputeCapability": "8.0"}}, StepHints(gpus_min=1, gpus_max=1)),
        ({CUDA: {"cudaDeviceCountMin": 2, "cudaDeviceCountMax": 4}}, StepHints(gpus_min=2, gpus_max=4)),
        ({CUDA: {"cudaDeviceCountMin": 2}, GPUS: {"gpusMin": 0, "gpusMax": 1}}, StepHints(gpus_max=1)),
    ],
)
def test_hints_are_read(hints: dict[str, Any], expected: StepHints) -> None:
    assert read_hints(hints, where="/train") == expected


@pytest.mark.parametrize(
    "hints",
    [
        {"urn:medweave:cwl#Gangs": {}},
        {GANG: {"nodes": 2}},
        {GPUS: {"gpus": 2}},
        {PARTIAL: {"always": True}},
        {CHECKPOINT: {}},
        {CHECKPOINT: {"folder": ""}},
        {CHECKPOINT: {"folder": ".."}},
        {CHECKPOINT: {"folder": "a/b"}},
        {CHECKPOINT: {"folder": "$(inputs.n)"}},
        {CHECKPOINT: {"folder": "saved", "lead": 60}},
        {GPUS: {"gpusMin": 2, "gpusMax": 1}},
        {GPUS: {"gpusMin": -1}},
        {GPUS: {"gpusMin": "$(inputs.n)"}},
        {GPUS: {"gpusTotal": 4}},
        {GPUS: {"gpusTotal": "$(inputs.n + 1)"}},
        {GPUS: {"gpusTotal": "$(inputs.n)", "gpusMax": 4}},
        {CUDA: {"cudaDeviceCountMin": "$(inputs.n)"}},
    ],
)
def test_a_wrong_hint_of_medweave_names_the_step(hints: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="/train"):
        read_hints(hints, where="/train")


@pytest.mark.parametrize(
    ("inputs", "num_nodes", "share"),
    [
        ({"ranks": 8}, 2, 4),
        ({"ranks": 3}, 2, 2),
        ({"ranks": 8}, 1, 8),
        ({"ranks": None}, 2, 1),
        ({}, 1, 1),
        ({"ranks": 0}, 1, 0),
    ],
)
def test_the_gpus_of_a_job_are_divided_among_its_nodes(inputs: dict[str, Any], num_nodes: int, share: int) -> None:
    hints = StepHints(gang=True, gpus_max=1, gpus_input="ranks")
    assert hints.of_job(inputs, num_nodes=num_nodes).gpus_max == share
    assert StepHints(gpus_max=3).of_job(inputs, num_nodes=num_nodes) == StepHints(gpus_max=3)
    assert StepHints(gpus_min=5, gpus_max=5, gpus_input="ranks").of_job(inputs, num_nodes=2).gpus_max == 5


def test_unknown_jobs_have_no_request() -> None:
    assert job_requests.request_of("/nothing/0") is None
    assert job_requests.hints_of("/nothing/0.1") == StepHints()


SHOW = """
from medweave_connectors.jobs import job_requests
from medweave_connectors.sites.local.connector import MedweaveLocalConnector
stock = MedweaveLocalConnector.run
async def run(self, *arguments, **keywords):
    if keywords.get("job_name"):
        with open("{folder}/requests.txt", "a") as file:
            print(keywords["job_name"], job_requests.request_of(keywords["job_name"]), file=file)
    return await stock(self, *arguments, **keywords)
MedweaveLocalConnector.run = run
"""


@pytest.mark.slow
def test_requests_reach_the_connector_by_job_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lab.py").write_text(SHOW.format(folder=tmp_path))
    keys = {
        "requirements": {"ResourceRequirement": {"coresMin": 1, "ramMin": 99}},
        "hints": {"mw:GPURequest": {"gpusMin": 0, "gpusMax": 3}},
    }
    write_workflow(tmp_path, {"first": ("touch result.txt", keys)})
    document = json.loads((tmp_path / "tiny.cwl").read_text())
    document["$namespaces"] = {"mw": "urn:medweave:cwl#"}
    document["steps"]["first"]["hints"] = {"mw:Gang": {}}  # what a step says holds for its tool
    (tmp_path / "tiny.cwl").write_text(json.dumps(document))
    ended = run(tmp_path, preload=tmp_path / "lab.py")
    assert ended.exit_code == 0, ended.stderr
    (line,) = (tmp_path / "requests.txt").read_text().splitlines()
    assert line == (
        "/first/0 JobRequest(cores=1, memory_mib=99, hints=StepHints(gang=True, gpus_min=0, gpus_max=3, gpus_input='', "
        "checkpoint_folder='', partial=False, reuse=True, success_codes=()), num_nodes=1, locations=('__LOCAL__',))"
    )


@pytest.mark.slow
def test_an_input_sets_the_number_of_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lab.py").write_text(SHOW.format(folder=tmp_path))
    hint = {"urn:medweave:cwl#GPURequest": {"gpusMin": 0, "gpusTotal": "$(inputs.ranks)"}}
    write_workflow(tmp_path, {"first": ("touch result.txt", {"hints": hint})})
    document = json.loads((tmp_path / "tiny.cwl").read_text())
    step = document["steps"]["first"]
    step["run"]["inputs"]["ranks"] = {"type": "int", "default": 6}
    (tmp_path / "tiny.cwl").write_text(json.dumps(document))
    ended = run(tmp_path, preload=tmp_path / "lab.py")
    assert ended.exit_code == 0, ended.stderr
    assert "gpus_min=0, gpus_max=6, gpus_input='ranks'" in (tmp_path / "requests.txt").read_text()


def test_cwltools_cuda_requirement_reaches_the_connector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault Q11 of the engine: it is dropped in silence."""
    (tmp_path / "lab.py").write_text(SHOW.format(folder=tmp_path))
    cuda = {"cudaVersionMin": "12.1", "cudaComputeCapability": "8.0", "cudaDeviceCountMax": 2}
    write_workflow(tmp_path, {"first": ("touch result.txt", {"hints": {"cwltool:CUDARequirement": cuda}})})
    document = json.loads((tmp_path / "tiny.cwl").read_text())
    document["$namespaces"] = {"cwltool": "http://commonwl.org/cwltool#"}
    (tmp_path / "tiny.cwl").write_text(json.dumps(document))
    ended = run(tmp_path, preload=tmp_path / "lab.py")
    assert ended.exit_code == 0, ended.stderr
    assert "gpus_min=1, gpus_max=2" in (tmp_path / "requests.txt").read_text()


def test_a_wrong_hint_is_found_by_validation(tmp_path: Path) -> None:
    write_workflow(tmp_path, {"first": ("true", {"hints": {"urn:medweave:cwl#Gangs": {}}})})
    ended = run(tmp_path, "--validate")
    assert ended.exit_code == 1
    assert "step /first has an unknown medweave hint" in ended.stderr


def test_a_job_without_a_request_is_reported_with_its_deployment() -> None:
    with pytest.raises(UsageError) as refused:
        job_requests.require_request("/unknown/0", where="deployments.hpc")
    assert "deployments.hpc: the resource request of /unknown/0 is not known." in str(refused.value)
    assert "medweave.scheduler" in refused.value.expected


def test_the_environment_of_a_node_group() -> None:
    assert node_group.node_environment(node_rank=1, num_nodes=2, rendezvous="n1:29400") == {
        "MEDWEAVE_NODE_RANK": "1",
        "MEDWEAVE_NUM_NODES": "2",
        "MEDWEAVE_RENDEZVOUS": "n1:29400",
    }
    for wrong in ({"node_rank": 2}, {"rendezvous": "n1"}, {"rendezvous": ":1"}):
        with pytest.raises(AssertionError):
            node_group.node_environment(**({"node_rank": 0, "num_nodes": 2, "rendezvous": "n1:1"} | wrong))  # type: ignore[arg-type]
