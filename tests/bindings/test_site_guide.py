"""The guide's site file, commands and error message are true."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from medweave.cli.main_command import main
from support.cwl_files import ROOT, load

GUIDES = ROOT / "docs" / "how-to"
GUIDE = GUIDES / "describe-your-site.md"
ROLES = "roles:\n  train: {{deployment: {}}}\n"


def blocks(language: str, guide: Path = GUIDE) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", guide.read_text(), flags=re.DOTALL)


def block(language: str, beginning: str) -> str:
    """Return the only block with this beginning."""
    (block,) = [candidate for candidate in blocks(language) if candidate.startswith(beginning)]
    return block


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the files of the guide's reader."""
    shutil.copytree(ROOT / "workflows", tmp_path / "workflows")
    site = block("yaml", "title:")
    sites = tmp_path / "deployments" / "sites"
    sites.mkdir(parents=True)
    (sites / "my-site.yml").write_text(site)
    (sites / "with-inputs.yml").write_text(f"{site}{block('yaml', 'inputs:')}")
    (sites / "with-rules.yml").write_text(f"{site}{block('yaml', 'mayHold:')}")
    (tmp_path / "my-job.yml").write_text("cohort: {class: Directory, path: site-a}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bind_command() -> list[str]:
    (line,) = [line for code in blocks("bash") for line in code.splitlines() if line.startswith("medweave bind")]
    return shlex.split(line)[1:]


def test_the_command_of_the_guide_binds_its_site_file(folder: Path) -> None:
    assert main(bind_command()) == 0
    (workflow,) = load(folder / "streamflow.my-site.yml")["workflows"].values()
    targets = {binding["step"]: binding["target"] for binding in workflow["bindings"]}
    assert targets["/train"] == {"deployment": "cluster", "service": "gpu", "locations": 2}


def test_cohort_of_the_guide_is_at_the_cluster(folder: Path) -> None:
    assert main([word.replace("my-site", "with-inputs") for word in bind_command()]) == 0
    (workflow,) = load(folder / "streamflow.with-inputs.yml")["workflows"].values()
    assert workflow["bindings"][-1]["port"] == "/cohort"


def test_option_of_the_guide_changes_one_binding(folder: Path) -> None:
    option = re.search(r"`--role (\S+)`", GUIDE.read_text())
    assert option is not None
    assert main([*bind_command(), "--role", option[1]]) == 0
    assert (
        "{step: /train, target: {deployment: cluster, service: cpu}}" in (folder / "streamflow.my-site.yml").read_text()
    )


def test_error_of_the_guide_is_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = folder / "deployments" / "sites" / "my-site.yml"
    site.write_text(site.read_text().replace("service: gpu, locations: 2", "service: gpus, locations: 2"))
    assert main(bind_command()) == 65
    assert capsys.readouterr().err == block("text", "medweave bind: deployments/sites/my-site.yml")


def test_the_data_rules_of_the_guide_hold(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [word.replace("my-site", "with-rules") for word in bind_command()]
    assert main(command) == 0
    assert "mayHold" in (folder / "streamflow.with-rules.yml").read_text()
    sites = folder / "deployments" / "sites"
    shutil.copy(sites / "with-rules.yml", sites / "my-site.yml")
    assert main([*bind_command(), "--role", "evaluate=cluster/cpu"]) == 2
    assert capsys.readouterr().err == block("text", "medweave bind: --role")


def test_deployments_of_the_other_guides_are_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pods, job, store, *_ = blocks("yaml", GUIDES / "run-in-kubernetes.md")
    sites = {
        "slurm": blocks("yaml", GUIDES / "run-on-slurm.md")[0],
        "ssh": blocks("yaml", GUIDES / "reach-a-site-by-ssh.md")[0] + ROLES.format("login"),
        "pods": pods + ROLES.format("cloud"),
        "job": f"deployments:\n  cloud:\n{job}{ROLES.format('cloud')}",
    }
    folder = tmp_path / "deployments" / "sites"
    folder.mkdir(parents=True)
    for name in ("store.yaml", "pods.yaml"):
        (folder / name).write_text(store)
    for name, text in sites.items():
        (folder / f"{name}.yml").write_text(f"title: {name}\n{text}")
    assert main(["validate", *(str(folder / f"{name}.yml") for name in sites)]) == 0, capsys.readouterr().out
