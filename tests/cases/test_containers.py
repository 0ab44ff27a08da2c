"""A tool that asks for a container: refused in validate, plan, bind and run, with the reason and the remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from medweave.cli.main_command import main
from support.engine import FILE, run, write_workflow
from support.engine_file import LOCAL, engine_file

HINT = {"hints": {"DockerRequirement": {"dockerPull": "debian:12"}}}
NO_CONTAINER = [{"step": "/", "deployment": {"type": "none", "config": {}}}]
REFUSAL = "requests a container (DockerRequirement), but medweave sites start no containers for tools"


@pytest.mark.case("docker-hint", expected="refused before a job starts: DockerRequirement, and what to do")
@pytest.mark.parametrize("section", ["hints", "requirements"])
def test_run_refuses_a_container_that_no_site_starts(
    tmp_path: Path, seen: Callable[[object], None], section: str
) -> None:
    write_workflow(tmp_path, {"made": ("echo hi > result.txt", {section: HINT["hints"]})})
    result = run(tmp_path)
    seen(next(line for line in result.stderr.splitlines() if "DockerRequirement" in line))
    assert result.exit_code != 0
    assert f"step /made {REFUSAL}" in result.stderr
    assert "seen:     dockerPull: debian:12" in result.stderr
    assert not (tmp_path / "results" / "result.txt").exists()


def test_run_ignores_the_container_if_the_file_declares_installed_software(tmp_path: Path) -> None:
    file = FILE.replace("settings: job.yml", f"settings: job.yml, docker: {json.dumps(NO_CONTAINER)}")
    assert file != FILE
    write_workflow(tmp_path, {"made": ("echo hi > result.txt", HINT)}, file=file)
    result = run(tmp_path)
    assert result.exit_code == 0, result.stderr


def write_project(folder: Path, *, tool: str = "", step: str = "", workflow: str = "") -> None:
    files = {
        "workflows/w/w.cwl": f"""\
cwlVersion: v1.2
class: Workflow
{workflow}
inputs: {{word: string}}
outputs: {{printed: {{type: File, outputSource: say/printed}}}}
steps:
  say:
    run: say.cwl
    in: {{word: word}}
    out: [printed]
    {step}
""",
        "workflows/w/say.cwl": f"""\
cwlVersion: v1.2
class: CommandLineTool
{tool}
baseCommand: echo
inputs: {{word: {{type: string, inputBinding: {{}}}}}}
stdout: printed.txt
outputs: {{printed: stdout}}
""",
        "workflows/w/roles.yml": "w.cwl: {/say: preprocess}\n",
        "workflows/w/jobs/demo-w.yml": "word: hi\n",
        "deployments/sites/laptop.yml": """\
title: one machine
deployments: {laptop: {type: medweave.local, config: {}}}
roles: {preprocess: {deployment: laptop}}
""",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


REQUIREMENT = "{DockerRequirement: {dockerPull: 'debian:12.1'}}"


@pytest.mark.parametrize(
    "place",
    [
        {"tool": f"hints: {REQUIREMENT}"},
        {"step": f"requirements: {REQUIREMENT}"},
        {"workflow": f"hints: {REQUIREMENT}"},
    ],
)
def test_validate_plan_and_bind_refuse_a_container_at_any_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: dict[str, str]
) -> None:
    write_project(tmp_path, **place)
    monkeypatch.chdir(tmp_path)
    for command in (
        ["validate"],
        ["plan", "workflows/w/w.cwl", "--site", "laptop"],
        ["bind", "workflows/w/w.cwl", "--site", "laptop", "--output", "streamflow.yml"],
    ):
        assert main(command) == 65
        written = capsys.readouterr()
        assert REFUSAL in written.out + written.err, command


def test_plan_refuses_a_container_of_a_nested_workflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_project(tmp_path, tool=f"hints: {REQUIREMENT}")
    folder = tmp_path / "workflows" / "w"
    outer = (folder / "w.cwl").read_text().replace("run: say.cwl", "run: inner.cwl")
    assert "inner.cwl" in outer
    (folder / "inner.cwl").write_text((folder / "w.cwl").read_text())
    (folder / "w.cwl").write_text(outer)
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "workflows/w/w.cwl", "--site", "laptop"]) == 65
    written = capsys.readouterr()
    assert REFUSAL in written.out + written.err


@pytest.mark.parametrize(("docker", "code"), [(None, 65), (NO_CONTAINER, 0)])
def test_validate_reads_the_container_setting_of_a_streamflow_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], docker: object, code: int
) -> None:
    write_workflow(
        tmp_path, {"made": ("echo hi > result.txt", {"hints": {"DockerRequirement": {"dockerPull": "debian:12.1"}}})}
    )
    file = engine_file({"here": LOCAL})
    if docker:
        file = file.replace("settings: job.yml", f"settings: job.yml, docker: {json.dumps(docker)}")
    (tmp_path / "streamflow.yml").write_text(file)
    monkeypatch.chdir(tmp_path)
    assert main(["validate"]) == code, capsys.readouterr()
