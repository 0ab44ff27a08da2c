"""`medweave export --crate`: what ran, with what, accepted by roc-validator, and nothing of the data."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from medweave.cli.main_command import main
from medweave.crate.hosts import Hosts, Image, read_image
from support import engine
from support.engine_file import LOCAL, OURS
from support.validators import crate_issues

TEXT = "Quillfeather called"
WORKFLOW = {
    "cwlVersion": "v1.2",
    "class": "Workflow",
    "label": "Count scans",
    "requirements": {"ScatterFeatureRequirement": {}, "SubworkflowFeatureRequirement": {}},
    "inputs": {
        "scans": "Directory", "note": "string", "mode": {"type": {"type": "enum", "symbols": ["fast", "slow"]}},
        "sizes": "int[]", "more": {"type": "boolean", "default": False},
    },
    "outputs": {
        "table": {"type": "File", "outputSource": "count/table"},
        "copies": {"type": "Directory", "outputSource": "count/copies"},
        "parts": {"type": "File[]", "outputSource": "each/part"},
        "model": {"type": "Directory", "outputSource": "learn/model"},
    },
    "steps": {
        "count": {
            "run": "count.cwl",
            "in": {"scans": "scans", "note": "note", "mode": "mode"},
            "out": ["table", "copies"],
        },
        "each": {"run": "each.cwl", "scatter": "size", "in": {"size": "sizes", "table": "count/table"}, "out": ["part"]},
        "learn": {"run": "learn.cwl", "in": {"table": "count/table"}, "out": ["model"]},
        "never": {
            "run": "each.cwl", "when": "$(inputs.more)", "out": [],
            "in": {"more": "more", "size": {"default": 1}, "table": "count/table"},
        },
    },
}  # fmt: skip
COUNT = {
    "cwlVersion": "v1.2",
    "class": "CommandLineTool",
    "label": "Count",
    "baseCommand": ["sh", "-c", 'ls "$0"/ | wc -l > table.txt; mkdir copies; cp "$0"/* copies/'],
    "inputs": {
        "scans": {"type": "Directory", "inputBinding": {"position": 1}},
        "note": {"type": "string", "inputBinding": {"position": 2}},
        "mode": {"type": {"type": "enum", "symbols": ["fast", "slow"]}},
    },
    "outputs": {
        "table": {"type": "File", "outputBinding": {"glob": "table.txt"}},
        "copies": {"type": "Directory", "outputBinding": {"glob": "copies"}},
    },
}
EACH = {
    "cwlVersion": "v1.2",
    "class": "CommandLineTool",
    "baseCommand": ["sh", "-c", 'test "$0" -lt 9 && echo "part $0" > part.txt'],
    "inputs": {"size": {"type": "int", "inputBinding": {"position": 1}}, "table": {"type": "File"}},
    "outputs": {"part": {"type": "File", "outputBinding": {"glob": "part.txt"}}},
}
LEARN = {
    "cwlVersion": "v1.2",
    "class": "CommandLineTool",
    "baseCommand": ["sh", "-c", "mkdir model; echo '{}' > model/model_card.json; echo weights > model/weights.bin"],
    "inputs": {"table": {"type": "File"}},
    "outputs": {"model": {"type": "Directory", "outputBinding": {"glob": "model"}}},
}
ROLES = {
    "main.cwl": {"/count": "check", "/each": "segment", "/never": "segment", "/learn": "train"},
    "holds": {
        "inputs": {"scans": "identified"},
        "outputs": {
            "check": {"table": "aggregate", "copies": "as-read"},
            "segment": {"part": "model"},
            "train": {"model": "model"},
        },
    },
}


def write(folder: Path, *, sizes: list[int]) -> None:
    (folder / "Quillfeather scans").mkdir()
    (folder / "Quillfeather scans" / "Quillfeather.dcm").write_text("x" * 5000)
    flow = folder / "flow"
    flow.mkdir()
    for name, document in (
        ("main.cwl", WORKFLOW),
        ("count.cwl", COUNT),
        ("each.cwl", EACH),
        ("learn.cwl", LEARN),
        ("roles.yml", ROLES),
    ):
        (flow / name).write_text(yaml.safe_dump(document, sort_keys=False))
    job = {"scans": {"class": "Directory", "path": "Quillfeather scans"}, "note": TEXT, "mode": "slow", "sizes": sizes}
    (folder / "job.json").write_text(json.dumps(job))
    workflow = {
        "type": "cwl", "config": {"file": "flow/main.cwl", "settings": "job.json"},
        "bindings": [{"step": "/", "target": {"deployment": "ward"}}],
    }  # fmt: skip
    file = {"version": "v1.0", "workflows": {"tiny": workflow}, "deployments": {"ward": LOCAL}, **OURS}
    (folder / "streamflow.yml").write_text(yaml.safe_dump(file))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> engine.Run:
    folder = tmp_path_factory.mktemp("done")
    write(folder, sizes=[1, 2])
    ended = engine.run(folder, environment={"MEDWEAVE_REUSE": "1"})
    assert ended.exit_code == 0, ended.stderr
    return ended


def graph_of(folder: Path) -> dict[str, Any]:
    document = json.loads((folder / "ro-crate-metadata.json").read_text())
    return {entity["@id"]: entity for entity in document["@graph"]}


def named(graph: dict[str, Any], reference: Any) -> list[Any]:
    references = reference if isinstance(reference, list) else [reference]
    return [graph[entity["@id"]] for entity in references]


def exported(run: engine.Run, crate: Path, *words: str) -> dict[str, Any]:
    assert main(["export", str(run.record), "--crate", str(crate), *words]) == 0
    return graph_of(crate)


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> engine.Run:
    folder = tmp_path_factory.mktemp("failed")
    write(folder, sizes=[1, 10])
    ended = engine.run(folder, environment={"MEDWEAVE_REUSE": "1"})
    assert ended.exit_code == 1
    return ended


def test_every_crate_is_accepted(done: engine.Run, failed: engine.Run, at_a_site: Path, tmp_path: Path) -> None:
    crates = {
        "crate.zip": (done.record,),
        "with-outputs": (done.record, "--include-outputs", str(done.folder / "results")),
        "of-pods": (at_a_site,),
        "with-hosts": (at_a_site, "--with-hosts"),
        "failed": (failed.record,),
    }
    for name, (record, *words) in crates.items():
        assert main(["export", str(record), "--crate", str(tmp_path / name), *words]) == 0
    assert crate_issues(*(tmp_path / name for name in crates)) == []


def test_the_validator_refuses_a_crate_that_lacks_a_step(done: engine.Run, tmp_path: Path) -> None:
    graph = exported(done, tmp_path / "crate")
    for entity in graph.values():
        if entity["@type"] == "ControlAction":
            del entity["instrument"]
    (tmp_path / "crate" / "ro-crate-metadata.json").write_text(
        json.dumps({"@context": ["https://w3id.org/ro/crate/1.1/context"], "@graph": list(graph.values())})
    )
    assert any("HowToStep" in issue["says"] for issue in crate_issues(tmp_path / "crate"))


def test_crate_records_steps_sites_and_versions(done: engine.Run, tmp_path: Path) -> None:
    graph = exported(done, tmp_path / "crate")
    (workflow,) = named(graph, graph["./"]["mainEntity"])
    assert workflow["name"] == "Count scans"
    assert {entity["name"] for entity in named(graph, workflow["step"])} == {"count", "each", "learn", "never"}
    assert {entity["@id"] for entity in named(graph, workflow["hasPart"])} == {
        f"workflow/{tool}.cwl" for tool in ("count", "each", "learn")
    }
    jobs = {entity["name"]: entity for entity in graph.values() if entity["@id"].startswith("#job/")}
    assert set(jobs) == {"count on ward", "each.0 on ward", "each.1 on ward", "learn on ward"}
    assert {entity["actionStatus"] for entity in jobs.values()} == {"http://schema.org/CompletedActionStatus"}
    inputs = {entity["name"]: entity for entity in named(graph, jobs["count on ward"]["object"])}
    assert inputs["mode"]["value"] == "slow"
    assert inputs["note"]["value"] == f"a text of {len(TEXT)} characters (not included)"
    assert inputs["scans"]["conditionsOfAccess"] == "data class: identified"
    assert named(graph, jobs["each.1 on ward"]["object"])[0]["value"] == "2"
    (table, copies) = named(graph, jobs["count on ward"]["result"])
    assert table["sha256"] == hashlib.sha256((done.folder / "results" / "table.txt").read_bytes()).hexdigest()
    assert (table["conditionsOfAccess"], copies["conditionsOfAccess"]) == (
        "data class: aggregate",
        "data class: identified",
    )
    results = {entity["sha256"] for entity in named(graph, graph["#run"]["result"])}
    assert {table["sha256"], copies["sha256"]} < results
    assert len(results) == 5
    assert named(graph, jobs["count on ward"]["location"])[0]["name"] == "ward"


def test_digest_of_a_folder_is_reproducible(done: engine.Run, tmp_path: Path) -> None:
    graph = exported(done, tmp_path / "crate")
    (scans,) = (entity for entity in graph.values() if entity.get("name") == "scans" and "sha256" in entity)
    command = scans["description"].split("`")[1]
    folder = done.folder / "Quillfeather scans"
    output = subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, check=True).stdout
    assert hashlib.sha256(output).hexdigest() == scans["sha256"]


def test_crate_has_no_name_text_path_or_host(done: engine.Run, tmp_path: Path) -> None:
    exported(done, tmp_path / "crate", "--include-outputs", str(done.folder / "results"))
    files = [path for path in (tmp_path / "crate").rglob("*") if path.is_file()]
    assert files
    for path in files:
        content = path.read_bytes()
        for word in ("Quillfeather", str(done.folder), "__LOCAL__"):
            assert word.encode() not in content, path


NODE, REGISTRY = "node-17.hpc.example.org", "registry.hospital.example:5000"


@pytest.fixture
def at_a_site(done: engine.Run, tmp_path: Path) -> Path:
    """Return a copy of the run's folder in which one job ran in a pod at a site."""
    shutil.copytree(done.folder, tmp_path / "there", symlinks=True)
    log = tmp_path / "there" / done.record.relative_to(done.folder) / "events.jsonl"
    events = [json.loads(line) for line in log.read_text().splitlines()]
    for event in events:
        if event["job"] == "/count/0":
            event["location"] = NODE
            if event["type"] == "job.ended":
                image = f"{REGISTRY}/lab/segment:1.2@sha256:{'a' * 64}"
                event["data"]["site"] = {"node": NODE, "pods": [{"pod": "w-0", "image": image}]}
    log.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    return log.parent


@pytest.mark.parametrize("with_hosts", [False, True])
def test_hosts_and_registries_are_included_on_request(at_a_site: Path, tmp_path: Path, with_hosts: bool) -> None:
    words = ["export", str(at_a_site), "--crate", str(tmp_path / "crate"), *(["--with-hosts"] if with_hosts else [])]
    assert main(words) == 0
    graph = graph_of(tmp_path / "crate")
    (image,) = (entity for entity in graph.values() if entity["@type"] == "ContainerImage")
    assert (image["name"], image.get("registry")) == ("lab/segment", REGISTRY if with_hosts else None)
    text = (tmp_path / "crate" / "ro-crate-metadata.json").read_text()
    assert (NODE in text, REGISTRY in text) == (with_hosts, with_hosts)
    (job,) = (entity for entity in graph.values() if entity.get("name") == "count on ward" and "object" in entity)
    assert named(graph, job["location"])[0].get("address") == (NODE if with_hosts else None)


def test_only_aggregates_and_models_are_included(
    done: engine.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = done.folder / "results"
    graph = exported(done, tmp_path / "crate", "--include-outputs", str(results), "--json")
    document = json.loads(capsys.readouterr().out)
    assert "outputs/table/table.txt" in document["included"]
    assert (tmp_path / "crate" / "outputs" / "table" / "table.txt").read_text() == (results / "table.txt").read_text()
    assert {"output": "copies", "why": "data class: identified"} in document["left_out"]
    assert not list((tmp_path / "crate").rglob("*.dcm"))
    assert "outputs/table/table.txt" in graph
    (card,) = named(graph, graph["outputs/model/model/"]["subjectOf"])
    assert (card["@id"], card["name"]) == ("outputs/model/model/model_card.json", "model card")
    assert (tmp_path / "crate" / "outputs" / "model" / "model" / "weights.bin").read_text() == "weights\n"


def test_files_changed_after_the_run_are_not_included(
    done: engine.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "table.txt").write_text("another table")
    exported(done, tmp_path / "crate", "--include-outputs", str(tmp_path / "results"), "--json")
    document = json.loads(capsys.readouterr().out)
    assert document["included"] == []
    assert {"output": "table", "why": "not in the results folder, or changed since the run"} in document["left_out"]


def test_a_failed_run_has_a_crate_too(failed: engine.Run, tmp_path: Path) -> None:
    graph = exported(failed, tmp_path / "crate")
    assert graph["#run"]["actionStatus"] == "http://schema.org/FailedActionStatus"
    assert graph["#run"]["error"] == "failed; failed: each.1"
    assert graph["#job/each.1-1"]["error"] == "failed"
    assert "result" not in graph["#job/each.1-1"]


def test_another_workflow_than_that_of_the_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, sizes=[1])
    ended = engine.run(tmp_path, environment={"MEDWEAVE_REUSE": "1"})
    (tmp_path / "flow" / "each.cwl").write_text(yaml.safe_dump(EACH | {"label": "another"}))
    assert main(["export", str(ended.record), "--crate", str(tmp_path / "crate")]) == 65
    assert "each.cwl: this document has changed since run" in capsys.readouterr().err
    assert not (tmp_path / "crate").exists()


def test_existing_crate_is_not_overwritten(
    done: engine.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "crate.zip").write_text("mine")
    assert main(["export", str(done.record), "--crate", str(tmp_path / "crate.zip")]) == 65
    assert (tmp_path / "crate.zip").read_text() == "mine"
    assert "exists already" in capsys.readouterr().err


def test_zip_and_folder_have_equal_content(done: engine.Run, tmp_path: Path) -> None:
    exported(done, tmp_path / "crate")
    assert main(["export", str(done.record), "--crate", str(tmp_path / "crate.zip")]) == 0
    with zipfile.ZipFile(tmp_path / "crate.zip") as packed:
        inside = {name for name in packed.namelist() if not name.endswith("/")}
    there = {
        path.relative_to(tmp_path / "crate").as_posix() for path in (tmp_path / "crate").rglob("*") if path.is_file()
    }
    assert inside == there
    assert {entity.name for entity in tmp_path.iterdir()} == {"crate", "crate.zip"}, "no other file is left"


def test_host_names_are_removed_from_texts() -> None:
    hosts = Hosts(("node-17.hpc.example.org", "node-17"))
    text = "Slurm job 3 on node-17 and node-17.hpc.example.org (10.0.0.7:22) with my-node-17-x"
    assert hosts.without(text) == "Slurm job 3 on [a host] and [a host] ([a host]) with my-node-17-x"


@pytest.mark.parametrize(
    ("text", "image"),
    [
        (f"host.example:5000/lab/segment:1.2@sha256:{'a' * 64}", Image("host.example:5000", "lab/segment", "1.2", "a" * 64)),
        ("docker-pullable://localhost/segment@sha256:" + "b" * 64, Image("localhost", "segment", "", "b" * 64)),
        ("library/python:3.11", Image("", "library/python", "3.11", "")),
        ("sha256:" + "c" * 64, Image("", "sha256:cccccccccccc", "", "c" * 64)),
        ("", None),
    ],
)  # fmt: skip
def test_image_is_named_without_its_registry(text: str, image: Image | None) -> None:
    assert read_image(text) == image
