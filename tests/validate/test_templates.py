"""CI templates and the pre-commit hook for other repositories: their lines work as written."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.cwl_files import ROOT

CI = ROOT / "deployments" / "ci"
BIN = Path(sys.executable).parent
GOOD = """\
cwlVersion: v1.2
class: CommandLineTool
baseCommand: [echo]
inputs:
  text: {type: string, inputBinding: {}}
outputs: []
"""
WRONG = GOOD.replace("string", "strin")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Create another repository with one tool; return its folder."""
    git("init", "--quiet", folder=tmp_path)
    (tmp_path / "echo.cwl").write_text(GOOD)
    return tmp_path


def git(*words: str, folder: Path) -> None:
    own = ["-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *own, "-C", str(folder), *words], check=True, capture_output=True)


def sh(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "-ec", line], cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_lines_of_the_gitlab_template(checkout: Path) -> None:
    (job,) = (entry for entry in loaded(CI / "validate.gitlab.yml").values() if "script" in entry)
    script = "\n".join(job["script"])  # GitLab ends at the first line that fails, as `sh -e` does
    assert sh(script, checkout).returncode == 0
    (checkout / "echo.cwl").write_text(WRONG)
    ended = sh(script, checkout)
    assert (ended.returncode, "echo.cwl:5:10: error: 'strin' is not a CWL type." in ended.stdout) == (65, True)
    (artifact,) = job["artifacts"]["paths"]
    (result,) = json.loads((checkout / artifact).read_text())["runs"][0]["results"]
    assert result["ruleId"] == "cwl-type"
    assert job["artifacts"]["when"] == "always", "it is wanted most where the job fails"


def test_the_lines_of_the_github_template(checkout: Path) -> None:
    steps = loaded(CI / "validate.github.yml")["jobs"]["validate"]["steps"]
    lines = [entry["run"] for entry in steps if entry.get("run", "").startswith("medweave ")]
    assert [sh(line, checkout).returncode for line in lines] == [0, 0]
    (checkout / "echo.cwl").write_text(WRONG)
    scanned, annotated = (sh(line, checkout) for line in lines)
    assert scanned.returncode == 0, "the file of findings is sent in any case"
    assert json.loads((checkout / "validate.sarif").read_text())["runs"][0]["results"]
    assert annotated.returncode == 65
    assert annotated.stdout.startswith("::error file=echo.cwl,line=5,col=10,title=cwl-type::")


def test_github_workflow_annotates_findings_at_their_lines(checkout: Path) -> None:
    steps = loaded(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["test"]["steps"]
    (line,) = (entry["run"] for entry in steps if "medweave validate" in entry.get("run", ""))
    (checkout / ".venv").mkdir()
    (checkout / ".gitignore").write_text(".venv\n")
    (checkout / ".venv" / "bin").symlink_to(BIN)
    assert sh(line, checkout).returncode == 0
    (checkout / "echo.cwl").write_text(WRONG)
    ended = sh(line, checkout)
    assert (ended.returncode, ended.stdout.startswith("::error file=echo.cwl,line=5,")) == (65, True)


def test_the_hook_of_pre_commit_calls_the_command(checkout: Path) -> None:
    (hook,) = loaded(ROOT / ".pre-commit-hooks.yaml")
    assert (hook["id"], hook["language"]) == ("medweave-validate", "python")
    files = [] if hook.get("pass_filenames") is False else ["echo.cwl"]  # as pre-commit calls an entry
    line = shlex.join([*shlex.split(hook["entry"]), *hook.get("args", []), *files])
    assert sh(line, checkout).returncode == 0
    (checkout / "echo.cwl").write_text(WRONG)
    ended = sh(line, checkout)
    assert (ended.returncode, "echo.cwl:5:10: error: 'strin' is not a CWL type." in ended.stdout) == (65, True)


def test_hook_installs_this_package_with_its_requirements() -> None:
    (hook,) = loaded(ROOT / ".pre-commit-hooks.yaml")
    (installed,) = hook["additional_dependencies"]
    extra = installed.removeprefix(".[").removesuffix("]")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extra in project["optional-dependencies"]
    assert shlex.split(hook["entry"])[0] in project["scripts"]
