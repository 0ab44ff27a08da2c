"""Data classes at the moment of a transfer: by the real engine over real ssh, whatever the bindings say."""

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
    """A cohort on this machine, and steps at a site; nothing but the data manager has rules."""
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


def at_the_site(folder: Path) -> list[str]:
    """All names at the site, and what is in its files."""
    found = (folder / "site").rglob("*")
    return [f"{each} {each.read_text() if each.is_file() else ''}" for each in found if each.name != ".medweave-run"]


def ended(folder: Path) -> Run:
    return run(folder, environment={"SITE": str(folder / "site")})


def refused(folder: Path, server: SSHServer) -> str:
    """What is told; nothing of the cohort has come to the site."""
    end = ended(folder)
    assert end.exit_code == 1
    assert not [each for each in at_the_site(folder) if PATIENT in each.removeprefix(str(folder)) or "scan" in each]
    assert end.of_type("transfer.ended") == []
    told = [line for line in end.stderr.splitlines() if "was not sent" in line]
    assert told, end.stderr
    return end.stderr[end.stderr.index(told[0]) :]


@pytest.mark.slow
def test_what_a_site_may_not_hold_is_not_sent_whatever_the_binding_says(server: SSHServer, tmp_path: Path) -> None:
    write(tmp_path, server, rules(["derived", "model"]))
    told = refused(tmp_path, server)
    assert "/made: its input cohort was not sent: it must not lie at 'there'.\n" in told
    assert "seen:     identified data; 'there' may hold derived, model (dataManager.config.dataRules)\n" in told
    assert "expected: a place that may hold identified: here\n" in told
    assert "do:       bind /made to here, or correct `mayHold` of the site file" in told
    assert PATIENT not in told.partition("do:")[0]


@pytest.mark.slow
def test_a_site_that_may_hold_it_gets_it(server: SSHServer, tmp_path: Path) -> None:
    write(tmp_path, server, rules(ALL))
    end = ended(tmp_path)
    assert end.exit_code == 0, end.stderr
    assert (tmp_path / "results" / "result.txt").read_text().strip() == "4"


@pytest.mark.slow
@pytest.mark.parametrize("given", [None, {"carries": {}, "mayHold": {}, "driver": []}], ids=["no rules", "empty rules"])
def test_without_rules_nothing_is_asked_and_with_empty_ones_nothing_is_allowed(
    server: SSHServer, tmp_path: Path, given: dict[str, Any] | None
) -> None:
    write(tmp_path, server, given)
    if given is None:
        assert ended(tmp_path).exit_code == 0
    else:
        assert "'there' may hold nothing" in refused(tmp_path, server)


@pytest.mark.slow
def test_a_file_keeps_the_class_that_it_came_with(server: SSHServer, tmp_path: Path) -> None:
    # The port of the step says something else of it than the workflow's own input.
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
def test_what_nobody_has_said_anything_about_is_not_sent(server: SSHServer, tmp_path: Path) -> None:
    write(tmp_path, server, rules(ALL, carries={"/": {"result": "derived"}, "/made": {"result": "derived"}}))
    told = refused(tmp_path, server)
    assert "/made: its input cohort was not sent: nothing says which data it carries.\n" in told
    assert "do:       give it a class in `holds` of the workflow's roles.yml" in told


@pytest.mark.slow
def test_a_file_that_is_only_in_a_token_is_not_written_there(server: SSHServer, tmp_path: Path) -> None:
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
def test_a_result_that_this_machine_may_not_hold_stays_where_it_is(server: SSHServer, tmp_path: Path) -> None:
    write(tmp_path, server, rules(ALL, driver=["aggregate"]))
    end = ended(tmp_path)
    assert end.exit_code == 1
    assert "the output result was not sent: it must not lie at this machine, which drives the run.\n" in end.stderr
    assert "seen:     derived data; this machine, which drives the run, may hold aggregate" in end.stderr
    assert not list((tmp_path / "results").rglob("result*"))
    assert [each["deployment"] for each in end.of_type("transfer.ended")] == ["there"]
