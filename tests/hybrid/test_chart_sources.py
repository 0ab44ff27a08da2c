"""`medweave.helm` with charts of a repository, of a registry, and of wrong addresses; helm and the cluster are real."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.both_clusters import chart_repository
from support.chart_registry import ChartRegistry, chart_registry
from support.cwl_files import ROOT
from support.helm_release import Tenant
from support.pod_runs import BASE_IMAGE, go, write

GOOD = "echo {} > run_report.json; hostname > result.txt"


@pytest.fixture
def repository(tmp_path: Path, tenant: Tenant) -> Iterator[str]:
    """Yield the URL of a chart repository with version 0.9.1 of helm/compss-cluster."""
    chart = ROOT / "helm" / "compss-cluster"
    with chart_repository(tenant, chart, tmp_path / "repository", "--version", "0.9.1") as url:
        yield url


def prepare(folder: Path, **config: Any) -> None:
    name, _, tag = BASE_IMAGE.rpartition(":")
    small = {
        "requests": {"cpu": "20m", "memory": "64Mi", "ephemeral-storage": "64Mi"},
        "limits": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "2Gi"},
    }
    values = {
        "engine": "ddp",
        "image": {"repository": name, "tag": tag, "pullPolicy": "Never"},
        "python": "/usr/bin/python3",
        "requiredModules": ["json"],
        "worker": {"replicas": 1, "resources": small},
        "terminationGracePeriodSeconds": 10,
    }
    write(folder, {"first": GOOD}, kind="medweave.helm", config={"timeout": 120, "values": values, **config})


def test_a_chart_of_a_repository_is_installed(tmp_path: Path, tenant: Tenant, repository: str) -> None:
    prepare(tmp_path, chart="compss-cluster", repo=repository, chartVersion="0.9.1")
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 0, ended.stderr


def test_a_version_that_the_repository_lacks_is_an_error(tmp_path: Path, tenant: Tenant, repository: str) -> None:
    prepare(tmp_path, chart="compss-cluster", repo=repository, chartVersion="0.9.2")
    ended = go(tmp_path, tenant)
    assert "deployments.pods.config.chartVersion: the release cannot be installed." in ended.stderr
    assert "has no version 0.9.2 of compss-cluster" in ended.stderr


@pytest.fixture
def registry(tmp_path: Path, tenant: Tenant) -> Iterator[ChartRegistry]:
    with chart_registry(tenant, ROOT / "helm" / "compss-cluster", tmp_path / "registry", "0.9.1") as running:
        yield running


def test_a_chart_of_an_oci_registry_is_installed(tmp_path: Path, tenant: Tenant, registry: ChartRegistry) -> None:
    prepare(tmp_path, chart=registry.url, chartVersion="0.9.1")
    known = {"SSL_CERT_FILE": str(registry.authority), "HELM_REGISTRY_CONFIG": str(registry.login)}
    ended = go(tmp_path, tenant, **known)
    assert ended.exit_code == 0, ended.stderr


def test_a_registry_that_requires_a_login_is_an_error(tmp_path: Path, tenant: Tenant, registry: ChartRegistry) -> None:
    prepare(tmp_path, chart=registry.url, chartVersion="0.9.1")
    known = {"SSL_CERT_FILE": str(registry.authority), "HELM_REGISTRY_CONFIG": str(registry.without_login)}
    ended = go(tmp_path, tenant, **known)
    assert "deployments.pods.config.chart: the release cannot be installed." in ended.stderr
    assert "requires a login: `helm registry login localhost:" in ended.stderr


def test_a_registry_of_an_unknown_authority_is_an_error(
    tmp_path: Path, tenant: Tenant, registry: ChartRegistry
) -> None:
    prepare(tmp_path, chart=registry.url, chartVersion="0.9.1")
    ended = go(tmp_path, tenant, HELM_REGISTRY_CONFIG=str(registry.login))
    assert "deployments.pods.config.chart: the release cannot be installed." in ended.stderr
    assert "to the file that the variable SSL_CERT_FILE names" in ended.stderr


@pytest.mark.parametrize(
    ("key", "config"),
    [
        ("chart", {"chart": "oci://127.0.0.1:1/x/seg", "chartVersion": "1.0.0"}),
        ("repo", {"chart": "seg", "repo": "http://127.0.0.1:1"}),
    ],
)
def test_an_unreachable_source_is_an_error(tmp_path: Path, tenant: Tenant, key: str, config: dict[str, str]) -> None:
    prepare(tmp_path, **config)
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 1
    assert f"deployments.pods.config.{key}: the release cannot be installed." in ended.stderr
    assert "check whether this machine reaches 127.0.0.1:1" in ended.stderr
