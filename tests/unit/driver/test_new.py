"""`medweave new`: its files are valid and run under both engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from ruamel.yaml import YAML

from medweave.cli import main_command
from medweave.project.sites import role_names
from medweave_core.errors import UsageError
from support.driver_calls import call

PROGRAMS = Path(sys.executable).parent
WORKFLOW = Path("workflows/lung-volume/lung-volume.cwl")


@pytest.fixture(autouse=True)
def in_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def files() -> set[str]:
    return {path.as_posix() for path in Path().rglob("*") if path.is_file()}


def validated(capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    code = main_command.main(["validate"])
    assert (code, capsys.readouterr().out.splitlines()[-1].partition(": ")[2]) == (0, "0 errors, 0 warnings")


def measurements(folder: Path) -> list[int]:
    return sorted(json.loads(path.read_text(encoding="utf-8"))["bytes"] for path in folder.glob("*.json"))


@pytest.mark.slow
def test_a_new_workflow_is_valid_and_runs_under_both_engines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main_command.main(["new", "workflow", "lung-volume"]) == 0
    lines = capsys.readouterr().out.splitlines()
    validated(capsys)
    line = lines[-1].split()
    assert line[0] == "medweave"
    code, _, err = call(*line[1:], cwd=tmp_path)
    assert code == 0, err
    assert measurements(tmp_path / "results") == [18, 18]

    job = Path("workflows/lung-volume/jobs/demo-lung-volume.yml")
    words = [PROGRAMS / "cwltool", "--quiet", "--outdir", "reference", WORKFLOW, job]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert measurements(tmp_path / "reference") == [18, 18]
    assert os.access(WORKFLOW, os.X_OK), "it says by which program it is run"


@pytest.mark.parametrize("kind", ["laptop", "slurm", "kubernetes"])
def test_a_new_site_is_valid_and_has_a_place_for_each_role(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_command.main(["new", "workflow", "lung-volume"]) == 0
    assert main_command.main(["new", "site", "mine", "--kind", kind]) == 0
    validated(capsys)
    text = Path("deployments/sites/mine.yml").read_text(encoding="utf-8")
    assert all(f"\n  {role}: " in text for role in role_names())
    assert main_command.main(["bind", str(WORKFLOW), "--site", "mine", "-o", "streamflow.yml"]) == 0
    validated(capsys)


def test_a_new_step_is_valid_and_refuses_what_it_cannot_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_command.main(["new", "step", "volume"]) == 0
    assert "one of check, deidentify," in capsys.readouterr().out
    validated(capsys)
    (tmp_path / "empty").touch()
    words = [sys.executable, "workflows/tools/volume.py", "--scan", "empty", "--output", "volume.json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (65, "volume: invalid scan: the file is empty\n")
    assert not (tmp_path / "volume.json").exists()


def test_a_site_that_is_there_serves_a_new_workflow(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_command.main(["new", "site", "mine"]) == 0
    assert main_command.main(["new", "workflow", "lung-volume"]) == 0
    assert "--site SITE" in capsys.readouterr().out
    assert files() & {"deployments/sites/laptop.yml", "deployments/sites/mine.yml"} == {"deployments/sites/mine.yml"}
    validated(capsys)


def test_nothing_is_written_where_a_file_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    WORKFLOW.parent.mkdir(parents=True)
    (WORKFLOW.parent / "roles.yml").write_text("mine", encoding="utf-8")
    assert main_command.main(["new", "workflow", "lung-volume"]) == UsageError.exit_code
    assert "seen:     workflows/lung-volume/roles.yml" in capsys.readouterr().err
    assert files() == {"workflows/lung-volume/roles.yml"}


@pytest.mark.parametrize(
    "words",
    [("workflow", "Lung"), ("step", "../up"), ("site", "a--b"), ("step", "x.cwl"), ("step", "fine", "--kind", "slurm")],
)
def test_names_and_options_that_will_not_do(words: tuple[str, ...]) -> None:
    assert main_command.main(["new", *words]) == UsageError.exit_code
    assert files() == set()


def test_a_run_and_a_change_of_the_site_after_it_are_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    subprocess.run(["git", "init", "--quiet"], check=True)
    assert main_command.main(["new", "workflow", "lung-volume"]) == 0
    assert Path(".gitignore").read_text(encoding="utf-8") == "runs/\nresults/\n"
    bound = Path("runs/2026-01-01/streamflow.yml")  # as `medweave run` keeps it
    bound.parent.mkdir(parents=True)
    (bound.parent / "events.jsonl").touch()
    assert main_command.main(["bind", str(WORKFLOW), "--site", "laptop", "-o", str(bound)]) == 0
    site = Path("deployments/sites/laptop.yml")
    site.write_text(site.read_text(encoding="utf-8").replace("one machine", "my machine"), encoding="utf-8")
    validated(capsys)
    Path(".gitignore").unlink()
    validated(capsys)


def test_what_git_leaves_out_is_not_changed() -> None:
    Path(".gitignore").write_text("mine\n", encoding="utf-8")
    assert main_command.main(["new", "workflow", "lung-volume"]) == 0
    assert Path(".gitignore").read_text(encoding="utf-8") == "mine\n"


def test_editors_find_the_schema_of_each_file() -> None:
    assert main_command.main(["new", "workflow", "lung-volume"]) == 0
    assert main_command.main(["bind", str(WORKFLOW), "--site", "laptop", "-o", "streamflow.yml"]) == 0
    for name in ("deployments/sites/laptop.yml", "workflows/lung-volume/jobs/demo-lung-volume.yml", "streamflow.yml"):
        file = Path(name)
        first = file.read_text(encoding="utf-8").partition("\n")[0]
        schema = json.loads((file.parent / first.partition("$schema=")[2]).read_text(encoding="utf-8"))
        jsonschema.validate(YAML(typ="safe").load(file), schema)


def test_a_missing_input_of_the_default_job_file_is_refused_before_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_command.main(["new", "workflow", "lung-volume"]) == 0
    Path("workflows/lung-volume/jobs/example-2.txt").unlink()
    capsys.readouterr()
    assert main_command.main(["run", str(WORKFLOW), "--site", "laptop"]) == 65
    err = capsys.readouterr().err
    assert "jobs/demo-lung-volume.yml:5: scans[1].path: no such file or folder." in err
    assert "write 'example-1.txt' (closest match)" in err
    assert not list(Path("runs").glob("*/events.jsonl"))
