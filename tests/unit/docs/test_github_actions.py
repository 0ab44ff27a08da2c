"""The workflow for GitHub's runners: actionlint has no findings, and all files that it names exist."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from support.cwl_files import ROOT

OFFERED = ROOT / "deployments" / "ci" / "validate.github.yml"
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"
TOOLS = ROOT / "build" / "test-tools"


def actionlint() -> Path:
    """The checker, built once (half a minute); its version is part of the folder's name."""
    folder = TOOLS / ACTIONLINT.rpartition("/")[2]
    if not (folder / "actionlint").exists():
        go = shutil.which("go", path=f"{os.environ['PATH']}{os.pathsep}/usr/local/go/bin")
        if go is None:
            pytest.skip("there is no Go to build actionlint with")
        folder.mkdir(parents=True, exist_ok=True)
        line = [go, "install", ACTIONLINT]
        built = subprocess.run(
            line, env=os.environ | {"GOBIN": str(folder)}, text=True, capture_output=True, check=False
        )
        assert built.returncode == 0, built.stderr[-2000:]
    return folder / "actionlint"


def commands() -> str:
    """Return all shell lines of the workflow."""
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"].values()
    return "\n".join(step["run"] for job in jobs for step in job["steps"] if "run" in step)


def test_actionlint_finds_nothing() -> None:
    ended = subprocess.run([actionlint(), "-no-color", WORKFLOW, OFFERED], text=True, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stdout


def test_actionlint_would_find_something(tmp_path: Path) -> None:
    broken = tmp_path / "ci.yml"
    broken.write_text(WORKFLOW.read_text().replace("needs: test", "needs: tests"))
    ended = subprocess.run([actionlint(), "-no-color", broken], text=True, capture_output=True, check=False)
    assert "tests" in ended.stdout


def test_actions_and_tools_are_pinned() -> None:
    text = WORKFLOW.read_text() + OFFERED.read_text()
    assert all(re.fullmatch(r"[\w./-]+@v\d+\.\d+\.\d+", used) for used in re.findall(r"uses: (\S+)", text))
    assert re.findall(r"go install \S+@latest", text) == []
    assert all("@sha256:" in image for image in re.findall(r"--image (\S+)", text))


def test_what_it_runs_is_in_the_repository() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"\bmake ([a-z-]+)", commands())
    assert {"env", "test", "demo", "testbed", "hybrid"} <= set(targets)
    assert [target for target in targets if f"\n{target}:" not in makefile] == []
    paths = re.findall(r"(?:tests|deployments|\.github)/[\w./-]+", commands())
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_it_makes_the_images_and_the_claim_that_the_testbeds_site_names() -> None:
    site = (ROOT / "deployments" / "sites" / "testbed.yml").read_text()
    images = set(re.findall(r"repository: (\S+?),", site)) - {"localhost/medweave-compss"}  # for COMPSS_HOME only
    assert {f"{image}:1" for image in images} <= set(re.findall(r"--tag (\S+)", commands()))
    claims = set(re.findall(r"claimName: ([\w-]+)", site)) - {"medweave-compss"}
    assert all(claim in commands() for claim in claims)
