"""Engine runs with steps at remote sites that are cache hits of earlier runs."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.engine import Run, run, start, valid_events, wait_until, write_workflow
from support.engine_file import LOCAL, OURS, engine_file, ssh_site
from support.fake_cluster import NEVER_AGAIN, fake_cluster
from support.reuse_runs import ON, counts, explained, write_steps

SLURM = {"type": "medweave.slurm", "wraps": "login", "config": {"reactions": NEVER_AGAIN}}


def write(folder: Path, *, site: str, port: int, carries: dict[str, Any] | None = None, **keys: Any) -> None:
    """Write a workflow: step `copy` copies a folder, step `mark` adds a word to its result; each counts its runs."""
    copy = 'mkdir result; for each in "$1"/*; do cat "$each" > "result/${each##*/}"; done; echo {} > run_report.json'
    mark = 'cp -rL "$1" result && echo "$2" > result/word'
    write_steps(folder, kind="Directory", result="result", copy=copy, mark=mark, **keys)
    classes = ["derived", "model"]
    rules = {} if carries is None else {"carries": carries, "mayHold": {"login": classes}, "driver": classes}
    managers = OURS | {"dataManager": {"type": "medweave.transfer", "config": {"dataRules": rules} if rules else {}}}
    deployments = {"login": ssh_site(port, f"{folder}/site")} | ({"hpc": SLURM} if site == "hpc" else {})
    text = engine_file(deployments, {"/": {"deployment": site}}, managers=managers)
    (folder / "streamflow.yml").write_text(text)
    (folder / "data").mkdir()
    (folder / "data" / "one").write_text("one\n")
    (folder / "data" / "two").write_text("two\n")
    (folder / "data" / "two").chmod(0o755)
    give(folder, "red")


def give(folder: Path, word: str) -> None:
    (folder / "job.yml").write_text(json.dumps({"data": {"class": "Directory", "path": "data"}, "word": word}))


def again(folder: Path, **environment: str) -> Run:
    ended = run(folder, environment=ON | environment)
    assert ended.exit_code == 0, ended.stderr
    return ended


def delivered(folder: Path) -> dict[str, str]:
    (result,) = (folder / "results").glob("result*")
    files = {path.name: path.read_text() for path in result.iterdir()}
    for path in result.iterdir():
        assert path.stat().st_mode & 0o200, "a delivered file is its owner's to write to"
    shutil.rmtree(folder / "results")
    return files


def last_events(folder: Path) -> list[dict[str, Any]]:
    logs = sorted((folder / "runs").glob("*/events.jsonl"), key=lambda log: log.stat().st_mtime)
    return valid_events(logs[-1])


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    with fake_cluster(tmp_path) as cluster:
        yield cluster.server.port


@pytest.mark.slow
@pytest.mark.parametrize("site", ["login", "hpc"])
def test_only_changed_steps_run_again(site: str, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, site=site, port=port)
    again(tmp_path)
    result = {"one": "one\n", "two": "two\n", "word": "red\n"}
    assert (counts(tmp_path), delivered(tmp_path)) == ((1, 1), result)
    assert explained(tmp_path, "mark", capsys) == "ran: no earlier run in this folder has this job"

    ended = again(tmp_path)
    assert (counts(tmp_path), delivered(tmp_path)) == ((1, 1), result)
    assert ended.stderr.count("cache hit: outputs of run ") == 2
    (report,) = [event for event in last_events(tmp_path) if event["type"] == "job.report"]
    assert report["data"]["files"] == ["run_report.json"]

    give(tmp_path, "blue")
    again(tmp_path)
    assert (counts(tmp_path), delivered(tmp_path)) == ((1, 2), result | {"word": "blue\n"})
    assert explained(tmp_path, "mark", capsys).endswith(": input word")
    assert "cache hit" in explained(tmp_path, "copy", capsys)
    assert "blue" not in "".join(log.read_text() for log in (tmp_path / "runs").glob("*/events.jsonl"))

    (tmp_path / "data" / "one").write_text("other\n")
    again(tmp_path)
    assert (counts(tmp_path), delivered(tmp_path)) == ((2, 3), result | {"word": "blue\n", "one": "other\n"})


def stored_files(folder: Path, kind: str = "unclassified") -> list[Path]:
    """Return the files of the site's store."""
    return [path for path in (folder / "site" / ".medweave-store" / kind).rglob("*") if path.is_file()]


@pytest.mark.slow
def test_a_step_runs_again_when_its_cached_outputs_are_gone_or_changed(
    port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, site="login", port=port)
    again(tmp_path)
    result = delivered(tmp_path)
    (word,) = [path for path in stored_files(tmp_path) if path.read_text() == "red\n"]
    word.chmod(0o600)
    word.write_text("RED\n")
    again(tmp_path)
    assert (counts(tmp_path), delivered(tmp_path)) == ((1, 2), result)
    assert "are no longer at login" in explained(tmp_path, "mark", capsys)
    for path in stored_files(tmp_path):
        path.unlink()
    again(tmp_path)
    assert (counts(tmp_path), delivered(tmp_path)) == ((2, 3), result)
    again(tmp_path)
    assert (counts(tmp_path), delivered(tmp_path)) == ((2, 3), result), "the new outputs are stored again"


@pytest.mark.slow
def test_a_run_resumes_after_its_driver_was_killed(port: int, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    write(tmp_path, site="login", port=port)
    text = (tmp_path / "tiny.cwl").read_text().replace("mark.count;", f"mark.count; [ -e {gate} ] || sleep 20;")
    (tmp_path / "tiny.cwl").write_text(text)
    killed = start(tmp_path, environment=ON)
    wait_until(lambda: counts(tmp_path) == (1, 1), 30)
    killed.signal(signal.SIGKILL)
    killed.wait()
    gate.touch()
    again(tmp_path)
    assert counts(tmp_path) == (1, 2)
    assert set(delivered(tmp_path)) == {"one", "two", "word"}


@pytest.mark.slow
def test_outputs_stay_in_the_folder_of_their_class(port: int, tmp_path: Path) -> None:
    ports = {"data": "derived", "result": "derived"}
    carries = {"/": ports, "/copy": ports, "/mark": {"data": "derived", "result": "model"}}
    write(tmp_path, site="login", port=port, carries=carries)
    again(tmp_path)
    assert sorted({path.read_text() for path in stored_files(tmp_path, "model")}) == ["one\n", "red\n", "two\n"]
    assert "red\n" not in {path.read_text() for path in stored_files(tmp_path, "derived")}
    again(tmp_path)
    assert counts(tmp_path) == (1, 1)


STAGED = {
    "a folder": (
        {"entryname": "made", "entry": "$({class: 'Directory', listing: []})", "writable": True},
        "echo new > made/new",
        "made/new",
    ),
    "a file": ({"entryname": "made", "entry": "old", "writable": True}, "echo new >> made", "made"),
}


@pytest.mark.slow
@pytest.mark.parametrize("staged", STAGED)
@pytest.mark.parametrize("site", ["here", "login"])
def test_a_step_that_writes_into_staged_files_runs_each_time(port: int, tmp_path: Path, site: str, staged: str) -> None:
    # The outputs include a staged file; the second run stages the original again.
    listing, script, result = STAGED[staged]
    needs = {"InlineJavascriptRequirement": {}, "InitialWorkDirRequirement": {"listing": [listing]}}
    outputs = {"result": {"type": "File", "outputBinding": {"glob": result}}}
    deployments = {"login": ssh_site(port, f"{tmp_path}/site"), "here": LOCAL}
    write_workflow(
        tmp_path,
        {"first": (f"echo run >> {tmp_path}/count; {script}", {"requirements": needs, "outputs": outputs})},
        file=engine_file(deployments, {"/": {"deployment": site}}),
    )
    results = []
    for _ in range(2):
        again(tmp_path)
        results.append((tmp_path / "results" / Path(result).name).read_text())
        shutil.rmtree(tmp_path / "results")
    assert results == [results[0]] * 2
    assert "new\n" in results[0]
    assert len((tmp_path / "count").read_text().split()) == 2


@pytest.mark.slow
def test_it_can_be_switched_off(port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, site="login", port=port, hints={"WorkReuse": {"enableReuse": False}})
    again(tmp_path)
    again(tmp_path)
    assert counts(tmp_path) == (1, 2)
    assert explained(tmp_path, "mark", capsys) == "ran: its tool sets WorkReuse: {enableReuse: false}"
    again(tmp_path, MEDWEAVE_REUSE="0")
    assert counts(tmp_path) == (2, 3)
    assert "it is disabled" in explained(tmp_path, "copy", capsys)
    file = tmp_path / "streamflow.yml"
    file.write_text(file.read_text().replace("medweave.transfer, config: {", "medweave.transfer, config: {storeGiB: 0"))
    again(tmp_path)
    assert counts(tmp_path) == (3, 4)


@pytest.mark.slow
def test_earlier_results_are_not_delivered_into_themselves(port: int, tmp_path: Path) -> None:
    write(tmp_path, site="login", port=port)
    again(tmp_path)
    # A driver was killed as it delivered, while earlier results were moved aside.
    aside = tmp_path / "results" / ".medweave-0123456789ab.part" / ".medweave-old"
    (aside / "earlier").mkdir(parents=True)
    (aside / "earlier" / "result.txt").write_text("weeks of work")
    before = sorted((tmp_path / "results" / "result").rglob("*"))
    again(tmp_path)
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["earlier", "result"]
    assert (tmp_path / "results" / "earlier" / "result.txt").read_text() == "weeks of work"
    assert sorted((tmp_path / "results" / "result").rglob("*")) == before
    assert delivered(tmp_path) == {"one": "one\n", "two": "two\n", "word": "red\n"}
