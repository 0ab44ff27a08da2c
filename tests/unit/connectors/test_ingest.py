"""Inputs enter a run by links with pseudonyms: StreamFlow sees no name of a file or folder."""

from __future__ import annotations

import json
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from medweave_connectors.policy.input_values import with_links
from medweave_connectors.policy.pseudonym_home import Home
from medweave_connectors.policy.pseudonyms import pseudonym, stem_and_kind
from medweave_core.errors import UsageError
from support import engine
from support.engine_file import LOCAL, OURS, ssh_site
from support.ssh_server import SSHServer, ssh_server

KEY = bytes(range(32))
NAME = "Quillfeather"
SHOW = 'for path; do cat "$path" > /dev/null || find "$path/" > /dev/null; done; printf \'%s\\n\' "$@" > result.txt'


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Doe_J.nii.gz", ("Doe_J", ".nii.gz")),
        ("scan.DOE^JOHN", ("scan.DOE^JOHN", "")),
        ("Doe.J.DCM", ("Doe.J", ".DCM")),
        (".hidden", (".hidden", "")),
        (".nii", (".nii", "")),
        ("19480217", ("19480217", "")),
    ],
)
def test_only_suffixes_of_file_types_are_preserved(name: str, expected: tuple[str, str]) -> None:
    assert stem_and_kind(name) == expected


def test_a_pseudonym_follows_from_key_and_path() -> None:
    name = pseudonym(KEY, "cohort", f"/data/{NAME}")
    assert name == pseudonym(KEY, "cohort", f"/data/{NAME}")
    assert name.startswith("cohort-")
    assert len({name, pseudonym(KEY, "cohort", "/data/x"), pseudonym(KEY[::-1], "cohort", f"/data/{NAME}")}) == 3
    assert pseudonym(KEY, "../a b/", "/x").startswith("a-b-"), "a port cannot name another folder"


def test_only_paths_of_this_machine_are_replaced() -> None:
    value = {
        "class": "File", "location": f"file:///data/a%20{NAME}.nii", "basename": "own.nii", "format": "f", "nameroot": NAME,
        "secondaryFiles": [{"class": "File", "path": f"{NAME}.json"}],
    }  # fmt: skip
    seen: list[str] = []

    def link_of(path: str) -> str:
        seen.append(path)
        return f"/home/{len(seen)} x"

    new = with_links({"record": [value, 3, {"class": "File", "contents": "text"}]}, link_of, folder="/job")["record"]
    assert seen == [f"/job/{NAME}.json", f"/data/a {NAME}.nii"]
    assert new[0]["path"] == "/home/2 x"
    assert new[0]["location"] == "file:///home/2%20x"
    assert new[0]["secondaryFiles"] == [{"class": "File", "path": "/home/1 x", "location": "file:///home/1%20x"}]
    assert (new[0]["basename"], new[0]["format"]) == ("own.nii", "f")
    assert "nameroot" not in new[0]
    assert new[1:] == [3, {"class": "File", "contents": "text"}]


def test_links_lead_home_and_stay_the_same(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    links = []
    for _ in range(2):
        home = Home(tmp_path / "runs")
        links.append(home.link_of(str(tmp_path / NAME), "cohort", what="cohort"))
        home.make()
    assert links[0] == links[1]
    assert links[0].readlink() == tmp_path / NAME
    assert stat.S_IMODE(home.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((home.folder / "key").stat().st_mode) == 0o600


def test_nothing_is_written_before_the_run(tmp_path: Path) -> None:
    Home(tmp_path / "runs").link_of(str(tmp_path), "cohort", what="cohort")
    assert list(tmp_path.iterdir()) == []


def test_files_with_the_same_stem_are_linked_under_its_pseudonym(tmp_path: Path) -> None:
    for name in (f"{NAME}.dat", f"{NAME}.hea", f"{NAME}.dat.md5", f"{NAME}2.hea", "other.hea", f"{NAME}.notes-of-Ada"):
        (tmp_path / name).touch()
    home = Home(tmp_path / "runs")
    link = home.link_of(str(tmp_path / f"{NAME}.dat"), "record", what="record")
    home.make()
    stem = link.name.removesuffix(".dat")
    assert {path.name for path in home.folder.iterdir()} == {"key", link.name, f"{stem}.hea", f"{stem}.dat.md5"}


def test_a_missing_input_is_reported_without_its_path(tmp_path: Path) -> None:
    home = Home(tmp_path / "runs")
    home.link_of(str(tmp_path / NAME), "cohort", what="the job file, input cohort")
    with pytest.raises(UsageError, match="the job file, input cohort: there is no such file or folder") as caught:
        home.make()
    assert NAME not in str(caught.value)


def workflow(folder: Path, inputs: dict[str, Any], job: dict[str, Any], *, bindings: list[Any] | None = None) -> None:
    """Write a workflow with a step that reads each input, and writes their paths into its result."""
    tool = {
        "class": "CommandLineTool", "baseCommand": ["sh", "-c", SHOW, "sh"],
        "inputs": {name: {**kind, "inputBinding": {"position": n}} for n, (name, kind) in enumerate(inputs.items())},
        "outputs": {"result": {"type": "File", "outputBinding": {"glob": "result.txt"}}},
    }  # fmt: skip
    document = {
        "cwlVersion": "v1.2", "class": "Workflow",
        "inputs": {name: {key: value for key, value in kind.items() if key != "loadListing"} for name, kind in inputs.items()},
        "outputs": {"result": {"type": "File", "outputSource": "show/result"}},
        "steps": {"show": {"run": tool, "in": {name: name for name in inputs}, "out": ["result"]}},
    }  # fmt: skip
    bound = {
        "type": "cwl", "config": {"file": "tiny.cwl", "settings": f"{NAME}.json"},
        "bindings": [{"step": "/", "target": {"deployment": "here"}}, *(bindings or [])],
    }  # fmt: skip
    file = {"version": "v1.0", "workflows": {"tiny": bound}, "deployments": {"here": LOCAL}, **OURS}
    (folder / "tiny.cwl").write_text(json.dumps(document))
    (folder / f"{NAME}.json").write_text(json.dumps(job))
    (folder / "streamflow.yml").write_text(yaml.safe_dump(file))


def run(folder: Path, *words: str) -> engine.Run:
    return engine.run(folder, *words, environment={"MEDWEAVE_KEEP_WORK": "1"})


def database(ended: engine.Run) -> str:
    with sqlite3.connect(ended.record / "work" / "engine.db") as opened:
        return "\n".join(opened.iterdump())


@pytest.mark.slow
def test_the_engine_sees_no_name(tmp_path: Path) -> None:
    (tmp_path / f"{NAME} scans" / f"{NAME}^Ada").mkdir(parents=True)
    (tmp_path / f"{NAME} scans" / f"{NAME}.dcm").write_text("x")
    (tmp_path / f"{NAME}.dat").write_text("x")
    (tmp_path / f"{NAME}.hea").write_text("x")
    inputs = {
        "cohort": {"type": "Directory"},
        "cases": {"type": {"type": "array", "items": "File"}},
        "record": {"type": "File", "secondaryFiles": ["^.hea"]},
    }
    job = {
        "cohort": {"class": "Directory", "path": f"{NAME} scans"},
        "cases": [{"class": "File", "location": (tmp_path / f"{NAME} scans" / f"{NAME}.dcm").as_uri()}],
        "record": {"class": "File", "path": f"{NAME}.dat"},
    }
    workflow(tmp_path, inputs, job)
    ended = run(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    paths = (tmp_path / "results" / "result.txt").read_text().splitlines()
    assert [Path(path).name.partition("-")[0] for path in paths] == ["cohort", "cases", "record"]
    assert [Path(path).suffix for path in paths] == ["", ".dcm", ".dat"]
    outputs = database(ended) + ended.stderr + (tmp_path / "stdout.txt").read_text() + json.dumps(ended.events)
    assert NAME not in outputs.replace(f"{NAME}.json", "")
    assert NAME not in database(ended)
    assert "cohort-" in database(ended)


@pytest.mark.slow
def test_the_links_of_jobs_lead_to_the_home_without_names(tmp_path: Path) -> None:
    (tmp_path / "real" / f"{NAME} scans").mkdir(parents=True)
    (tmp_path / "real" / f"{NAME} scans" / f"{NAME}.dcm").write_text("x")
    (tmp_path / "data").symlink_to("real")  # the user's own link, which StreamFlow follows
    job = {
        "cohort": {"class": "Directory", "path": f"data/{NAME} scans"},
        "cases": [{"class": "File", "path": f"data/{NAME} scans/{NAME}.dcm"}],
    }
    workflow(tmp_path, {"cohort": {"type": "Directory"}, "cases": {"type": "File[]"}}, job)
    ended = engine.run(tmp_path, environment={"MEDWEAVE_KEEP_WORK": "1"})
    assert ended.exit_code == 0, ended.stderr
    home = ended.record.parent / ".home"
    links = [path for path in (ended.record / "work").rglob("*") if path.is_symlink()]
    assert {path.name.partition("-")[0] for path in links} == {"cohort", "cases"}
    assert {path.readlink().parent for path in links} == {home}
    assert all(path.exists() for path in links)


@pytest.mark.slow
def test_a_listing_is_made_only_for_a_tool_that_requests_one(tmp_path: Path) -> None:
    (tmp_path / "cohort").mkdir()
    (tmp_path / "cohort" / "inside.txt").write_text("x")
    job = {name: {"class": "Directory", "path": "cohort"} for name in ("plain", "listed")}
    workflow(tmp_path, {"plain": {"type": "Directory"}}, {"plain": job["plain"]})
    ended = run(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    assert "inside.txt" not in database(ended)
    other = tmp_path / "other"
    other.mkdir()
    job["listed"]["path"] = "../cohort"
    workflow(other, {"listed": {"type": "Directory", "loadListing": "shallow_listing"}}, {"listed": job["listed"]})
    ended = run(other)
    assert ended.exit_code == 0, ended.stderr
    assert "inside.txt" in database(ended)


def test_data_that_a_binding_of_a_port_places_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "data" / NAME).mkdir(parents=True)
    where = {"port": "/cohort", "target": {"deployment": "here", "workdir": str(tmp_path / "data")}}
    job = {"cohort": {"class": "Directory", "path": NAME}}
    workflow(tmp_path, {"cohort": {"type": "Directory"}}, job, bindings=[where])
    ended = run(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    assert NAME not in database(ended)


def test_names_stay_if_the_file_disables_pseudonyms(tmp_path: Path) -> None:
    (tmp_path / "reference.fa").write_text("x")
    workflow(tmp_path, {"genome": {"type": "File"}}, {"genome": {"class": "File", "path": "reference.fa"}})
    file = (
        (tmp_path / "streamflow.yml")
        .read_text()
        .replace("scheduler:\n    config: {}", "scheduler:\n    config: {pseudonyms: false}")
    )
    (tmp_path / "streamflow.yml").write_text(file)
    ended = run(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    assert Path((tmp_path / "results" / "result.txt").read_text().strip()).name == "reference.fa"
    assert not (tmp_path / "runs" / ".home").exists()


def test_a_missing_input_ends_the_run_before_it_begins(tmp_path: Path) -> None:
    workflow(tmp_path, {"cohort": {"type": "Directory"}}, {"cohort": {"class": "Directory", "path": f"{NAME} scans"}})
    ended = run(tmp_path)
    assert ended.exit_code == 1
    assert "the job file, line 1, input cohort: there is no such file or folder on this machine." in ended.stderr
    assert f"{NAME} scans" not in ended.stderr
    assert not (tmp_path / "runs").exists()


def test_settings_of_deployments_are_not_in_the_database(tmp_path: Path) -> None:
    engine.write_workflow(tmp_path, {"one": "echo > result.txt"})
    text = (tmp_path / "streamflow.yml").read_text().replace("config: {}", "config: {transferBufferSize: 65536}", 1)
    (tmp_path / "streamflow.yml").write_text(text)
    ended = run(tmp_path)
    with sqlite3.connect(ended.record / "work" / "engine.db") as opened:
        assert {row[0] for row in opened.execute("SELECT config FROM deployment")} == {"{}"}
        assert [json.loads(row[0])["config"] for row in opened.execute("SELECT params FROM workflow")] == [{}]


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder that shares no folder but the root with the test's own."""
    base = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path("/var/tmp")
    with tempfile.TemporaryDirectory(dir=base) as name:
        yield Path(name)


def over_ssh(folder: Path, server: SSHServer, job: dict[str, Any], binding: dict[str, Any], rules: Any) -> engine.Run:
    """Run the workflow of one folder, with its step at a site over ssh."""
    workflow(folder, {"cohort": {"type": "Directory"}}, job)
    file = yaml.safe_load((folder / "streamflow.yml").read_text())
    file["workflows"]["tiny"]["bindings"] = [
        {"step": "/", "target": {"deployment": "there"}},
        *([binding] if binding else []),
    ]
    file["deployments"]["there"] = ssh_site(server.port, str(folder / "site"))
    file["dataManager"] = {"type": "medweave.transfer", "config": {"dataRules": rules} if rules else {}}
    (folder / "streamflow.yml").write_text(yaml.safe_dump(file))
    return run(folder)


@pytest.mark.slow
@pytest.mark.parametrize(("declared", "sent"), [("de-identified", True), ("identified", False)])
def test_data_of_another_disk_have_their_class(tmp_path: Path, elsewhere: Path, declared: str, sent: bool) -> None:
    (elsewhere / NAME).mkdir()
    (elsewhere / NAME / "a.txt").write_text("x")
    rules = {
        # Whatever is declared for the step's input: an input of the workflow keeps its class.
        "carries": {"/": {"cohort": declared, "result": "aggregate"}, "/show": {"cohort": "de-identified", "result": "aggregate"}},
        "mayHold": {"there": ["de-identified", "aggregate"], "here": [declared, "aggregate"]}, "driver": [declared, "aggregate"],
    }  # fmt: skip
    with ssh_server(tmp_path / "server") as server:
        job = {"cohort": {"class": "Directory", "path": str(elsewhere / NAME)}}
        ended = over_ssh(tmp_path, server, job, {}, rules)
    assert (ended.exit_code == 0) == sent, ended.stderr
    assert ("its input cohort was not sent" in ended.stderr) != sent
    assert NAME not in database(ended)
    assert not list((tmp_path / "site").rglob(f"*{NAME}*"))


@pytest.mark.slow
def test_data_at_a_site_are_read_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "data" / NAME).mkdir(parents=True)
    (tmp_path / "data" / NAME / "a.txt").write_text("x")
    binding = {"port": "/cohort", "target": {"deployment": "there", "workdir": str(tmp_path / "data")}}
    with ssh_server(tmp_path / "server") as server:
        ended = over_ssh(tmp_path, server, {"cohort": {"class": "Directory", "path": NAME}}, binding, None)
    assert ended.exit_code == 0, ended.stderr
    assert NAME not in database(ended)
    assert NAME not in json.dumps(ended.events)
    assert NAME not in (tmp_path / "results" / "result.txt").read_text()
    assert [event["data"]["bytes"] for event in ended.of_type("transfer.ended") if event["deployment"] == "there"] == []
    (link,) = (tmp_path / "site").glob("*/inputs/*")
    assert link.readlink() == tmp_path / "data" / NAME
