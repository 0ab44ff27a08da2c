"""Data class rules of transfers, with the real engine over real ssh, independent of the bindings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.engine import Run, run, write_workflow
from support.engine_file import LOCAL, OURS, engine_file, ssh_site
from support.ssh_server import SSHServer, ssh_server

PATIENT = "Mustermann_Erika_1970"
ALL = ["identified", "de-identified", "derived", "model", "aggregate"]
CARRIES = {"/": {"cohort": "identified", "result": "derived"}, "/made": {"cohort": "identified", "result": "derived"}}
SCRIPT = 'cat "$1"/* | wc -c > result.txt'


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SSHServer]:
    with ssh_server(tmp_path / "server") as started:
        yield started


def tool(script: str, kind: str = "Directory") -> dict[str, Any]:
    return {
        "class": "CommandLineTool",
        "baseCommand": ["sh", "-c", script, "sh"],
        "inputs": {"cohort": {"type": kind, "inputBinding": {"position": 1}}},
        "outputs": {"result": {"type": "File", "outputBinding": {"glob": "result.txt"}}},
    }


def write(
    folder: Path,
    server: SSHServer,
    rules: dict[str, Any] | None,
    *,
    steps: dict[str, Any] | None = None,
    places: dict[str, str] | None = None,
    source: str = "made/result",
) -> None:
    """Write a cohort on this machine and steps at a site; only the data manager has rules."""
    managers = OURS | {"dataManager": {"type": "medweave.transfer", "config": {"dataRules": rules} if rules else {}}}
    targets = {step: {"deployment": name} for step, name in (places or {"/": "there"}).items()}
    deployments = {"there": ssh_site(server.port, "${SITE}"), "here": LOCAL}
    write_workflow(folder, {}, file=engine_file(deployments, targets, managers=managers))
    document = {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "requirements": {"InlineJavascriptRequirement": {}},
        "inputs": {"cohort": "Directory"},
        "outputs": {"result": {"type": "File", "outputSource": source}},
        "steps": steps or {"made": {"run": tool(SCRIPT), "in": {"cohort": "cohort"}, "out": ["result"]}},
    }
    (folder / "tiny.cwl").write_text(json.dumps(document), encoding="utf-8")
    (folder / PATIENT).mkdir()
    (folder / PATIENT / f"{PATIENT}.dcm").write_text("scan")
    (folder / "job.yml").write_text(json.dumps({"cohort": {"class": "Directory", "path": PATIENT}}))


def rules(there: list[str], **more: Any) -> dict[str, Any]:
    return {"carries": CARRIES, "mayHold": {"there": there, "here": ALL}, "driver": ALL} | more


def site_entries(folder: Path) -> list[str]:
    """Return all names and file contents at the site."""
    return [
        f"{entry} {entry.read_text() if entry.is_file() else ''}"
        for entry in (folder / "site").rglob("*")
        if entry.name != ".medweave-run"
    ]


def ended(folder: Path) -> Run:
    return run(folder, environment={"SITE": str(folder / "site")})


def refused(folder: Path, server: SSHServer) -> str:
    """Assert that a run fails without sending anything of the cohort. Return its error message."""
    end = ended(folder)
    assert end.exit_code == 1
    assert not [
        entry for entry in site_entries(folder) if PATIENT in entry.removeprefix(str(folder)) or "scan" in entry
    ]
    assert end.of_type("transfer.ended") == []
    lines = [line for line in end.stderr.splitlines() if "was not sent" in line]
    assert lines, end.stderr
    return end.stderr[end.stderr.index(lines[0]) :]


@pytest.mark.slow
def test_data_that_a_site_may_not_hold_is_not_sent_despite_the_binding(server: SSHServer, tmp_path: Path) -> None:
    write(tmp_path, server, rules(["derived", "model"]))
    message = refused(tmp_path, server)
    assert "/made: its input cohort was not sent: it must not be stored at 'there'.\n" in message
    assert "seen:     identified data; 'there' may hold derived, model (dataManager.config.dataRules)\n" in message
    assert "expected: a place that may hold identified: here\n" in message
    assert "do:       bind /made to here, or correct `mayHold` of the site file" in message
    assert PATIENT not in message.partition("do:")[0]


@pytest.mark.slow
def test_data_that_a_site_may_hold_is_sent(server: SSHServer, tmp_path: Path) -> None:
    write(tmp_path, server, rules(ALL))
    end = ended(tmp_path)
    assert end.exit_code == 0, end.stderr
    assert (tmp_path / "results" / "result.txt").read_text().strip() == "4"


@pytest.mark.slow
@pytest.mark.parametrize(
    "data_rules", [None, {"carries": {}, "mayHold": {}, "driver": []}], ids=["no rules", "empty rules"]
)
def test_no_rules_allow_all_transfers_and_empty_rules_allow_none(
    server: SSHServer, tmp_path: Path, data_rules: dict[str, Any] | None
) -> None:
    write(tmp_path, server, data_rules)
    if data_rules is None:
        assert ended(tmp_path).exit_code == 0
    else:
        assert "'there' may hold nothing" in refused(tmp_path, server)


@pytest.mark.slow
def test_a_file_keeps_the_class_of_the_workflow_input(server: SSHServer, tmp_path: Path) -> None:
    # The port of the step declares another class than the workflow's input.
    carries = CARRIES | {"/made": {"cohort": "aggregate", "result": "aggregate"}}
    write(tmp_path, server, rules(["derived", "aggregate"], carries=carries))
    assert "seen:     identified data" in refused(tmp_path, server)


@pytest.mark.slow
def test_a_file_keeps_the_class_of_the_step_that_wrote_it(server: SSHServer, tmp_path: Path) -> None:
    copy = tool(f'echo scan > {PATIENT}; ln "{PATIENT}" result.txt') | {
        "outputs": {"result": {"type": "File", "outputBinding": {"glob": PATIENT}}}
    }
    steps = {
        "first": {"run": copy, "in": {"cohort": "cohort"}, "out": ["result"]},
        "made": {"run": tool("wc -c < $1 > result.txt", "File"), "in": {"cohort": "first/result"}, "out": ["result"]},
    }
    carries = CARRIES | {"/first": {"cohort": "identified", "result": "identified"}, "/made": {"cohort": "derived"}}
    write(
        tmp_path,
        server,
        rules(["derived", "aggregate"], carries=carries),
        steps=steps,
        places={"/first": "here", "/made": "there"},
    )
    assert "/made: its input cohort was not sent" in refused(tmp_path, server)


@pytest.mark.slow
def test_data_without_a_declared_class_is_not_sent(server: SSHServer, tmp_path: Path) -> None:
    write(tmp_path, server, rules(ALL, carries={"/": {"result": "derived"}, "/made": {"result": "derived"}}))
    message = refused(tmp_path, server)
    assert "/made: its input cohort was not sent: its data class is not declared.\n" in message
    assert "do:       give it a class in `holds` of the workflow's roles.yml" in message


@pytest.mark.slow
def test_a_file_literal_is_not_written_to_a_site_that_may_not_hold_it(server: SSHServer, tmp_path: Path) -> None:
    literal = {"source": "cohort", "valueFrom": '$({class: "File", basename: self.basename, contents: "scan"})'}
    steps = {
        "made": {
            "run": tool("wc -c < $1 > result.txt", "File"),
            "in": {"cohort": literal},
            "requirements": {"StepInputExpressionRequirement": {}, "InlineJavascriptRequirement": {}},
            "out": ["result"],
        }
    }
    write(tmp_path, server, rules(["derived"]), steps=steps)
    assert "/made: its input cohort was not sent" in refused(tmp_path, server)


@pytest.mark.slow
def test_a_result_that_the_driver_may_not_hold_is_not_copied(server: SSHServer, tmp_path: Path) -> None:
    write(tmp_path, server, rules(ALL, driver=["aggregate"]))
    end = ended(tmp_path)
    assert end.exit_code == 1
    assert "the output result was not sent: it must not be stored at the driver's machine.\n" in end.stderr
    assert "seen:     derived data; the driver's machine may hold aggregate" in end.stderr
    assert not list((tmp_path / "results").rglob("result*"))
    assert [event["deployment"] for event in end.of_type("transfer.ended")] == ["there"]
