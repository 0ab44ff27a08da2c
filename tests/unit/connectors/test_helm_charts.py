"""Where the chart of a release comes from: a run that does not get it says which key of the site file is wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from support.api_server import ApiServer
from support.engine import Run, run, write_workflow
from support.engine_file import engine_file

HELM = """#!/bin/sh
case "$1" in
version) printf v4.0.5 ;;
install) echo "$@" > "$(dirname "$0")/arguments"; cat "$(dirname "$0")/stderr" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer() as fake:
        fake.write_kubeconfig(tmp_path / "kubeconfig")
        yield fake


def go(folder: Path, message: str, config: str) -> Run:
    """A run in which `helm install` says this and fails."""
    (folder / "bin").mkdir()
    (folder / "bin" / "helm").write_text(HELM)
    (folder / "bin" / "helm").chmod(0o755)
    (folder / "bin" / "stderr").write_text(f"Error: {message}\n")
    settings = yaml.safe_load(f"{{kubeconfig: kubeconfig, {config}}}")
    cluster = {"type": "medweave.helm", "workdir": f"{folder}/in-pods", "config": settings}
    write_workflow(folder, {"first": "true"}, file=engine_file({"cluster": cluster}, {"/": {"deployment": "cluster"}}))
    return run(folder, environment={"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"})


@pytest.mark.slow
def test_a_registry_that_is_not_reached(tmp_path: Path, server: ApiServer) -> None:
    # It was reported as an error of the kubeconfig, because helm's message contains "connection".
    url = "https://r.test/v2/seg/manifests/1.0.0"
    message = f'failed to perform "FetchReference" on source: Get "{url}": connect: connection refused'
    ended = go(tmp_path, message, "chart: 'oci://r.test/seg', chartVersion: 1.0.0")
    assert ended.exit_code == 1
    assert "deployments.cluster.config.chart: the release cannot be installed." in ended.stderr
    assert "connection refused" in ended.stderr
    assert "or check whether this machine reaches r.test" in ended.stderr
    arguments = (tmp_path / "bin" / "arguments").read_text().split()
    assert arguments[2] == "oci://r.test/seg"
    assert arguments[arguments.index("--version") + 1] == "1.0.0"
    assert "--repo" not in arguments


def test_a_repository_that_is_not_reached(tmp_path: Path, server: ApiServer) -> None:
    message = 'looks like "https://me:pw1@c.test" is not a valid chart repository or cannot be reached: dial tcp: lookup c.test'
    ended = go(tmp_path, message, "chart: seg, repo: 'https://me:pw1@c.test'")
    assert "deployments.cluster.config.repo: the release cannot be installed." in ended.stderr
    assert "https://***@c.test" in ended.stderr
    assert "pw1" not in ended.stderr
    arguments = (tmp_path / "bin" / "arguments").read_text().split()
    assert arguments[2] == "seg"
    assert "--repo" in arguments


def test_a_name_without_its_repository_is_a_path_that_is_not_there(tmp_path: Path, server: ApiServer) -> None:
    ended = go(tmp_path, "", "chart: bitnami/seg")
    assert "deployments.cluster.config.chart: the release cannot be installed." in ended.stderr
    assert f"there is no {tmp_path}/bitnami/seg" in ended.stderr
    assert "write `chart: chart` and its `repo`" in ended.stderr
    assert not (tmp_path / "bin" / "arguments").exists()
