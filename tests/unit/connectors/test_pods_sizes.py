"""A step that asks for more than any pod has is refused when it is placed; one that says nothing fits everywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from medweave_connectors.engine.scheduling.deployments import MedweaveFutureConnector
from medweave_connectors.jobs.job_requests import LocationSize
from medweave_connectors.sites.kubernetes.connector import MedweaveKubernetesConnector
from medweave_connectors.sites.pods.objects.pod import parse_pod, size_of
from support.api_server import ApiServer, pod_document
from support.engine import Run, run
from support.small_cluster import write

GOOD = "echo {} > run_report.json; echo $POD_NAME > result.txt"


def pod(name: str = "w-0", **resources: Any) -> dict[str, Any]:
    document = pod_document(name)
    document["spec"]["containers"][0]["resources"] = resources
    return document


@pytest.mark.parametrize(
    ("resources", "size"),
    [
        ({}, LocationSize(gpus=0)),
        ({"requests": {"cpu": "1", "memory": "1Gi"}}, LocationSize(gpus=0)),  # a request is no limit
        ({"limits": {"cpu": "1500m", "memory": "2Gi"}}, LocationSize(cores=1.5, memory_mib=2048, gpus=0)),
        ({"limits": {"nvidia.com/gpu": "2", "ephemeral-storage": "1Gi"}}, LocationSize(gpus=2)),
        ({"claims": [{"name": "gpu"}]}, LocationSize()),
    ],
)
def test_a_container_is_as_large_as_its_limits(resources: dict[str, Any], size: LocationSize) -> None:
    container = parse_pod(pod(**resources)).container("worker")
    assert container is not None
    assert size_of(container) == size


def test_what_fits() -> None:
    size = LocationSize(cores=0.5, memory_mib=128, gpus=1)
    assert size.fits(cores=1, memory_mib=256, gpus=1), "what the engine asks for where the tool says nothing"
    assert not size.fits(cores=2, memory_mib=128, gpus=0)
    assert not size.fits(cores=1, memory_mib=257, gpus=0)
    assert not size.fits(cores=1, memory_mib=1, gpus=2)
    assert str(size) == "0.5 cores, 128 MiB of memory, 1 GPUs"
    assert str(LocationSize()) == "no limits"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer() as fake:
        small = {"cpu": "100m", "memory": "64Mi"}
        fake.add(pod("w-0", limits=small), pod("w-1", limits={"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": 1}))
        fake.write_kubeconfig(tmp_path / "kubeconfig")
        yield fake


def go(folder: Path, **keys: Any) -> Run:
    write(folder, {"first": (GOOD, keys)})
    return run(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "amounts"),
    [
        ({"requirements": {"ResourceRequirement": {"ramMin": 1025}}}, "1 cores and 1025 MiB of memory, "),
        ({"requirements": {"ResourceRequirement": {"coresMin": 3}}}, "3 cores and 256 MiB of memory, "),
        ({"hints": {"urn:medweave:cwl#GPURequest": {"gpusMin": 2}}}, "1 cores and 256 MiB of memory and 2 GPUs, "),
    ],
)
def test_a_step_that_asks_for_more_than_any_pod_has_is_refused(
    tmp_path: Path, server: ApiServer, keys: dict[str, Any], amounts: str
) -> None:
    ended = go(tmp_path, **keys)
    assert ended.exit_code == 1
    assert f"/first/0 requests {amounts}and no location of its binding has that much." in ended.stderr
    assert "w-0:worker of pods has 0.1 cores, 64 MiB of memory, 0 GPUs" in ended.stderr
    assert "w-1:worker of pods has 2 cores, 1024 MiB of memory, 1 GPUs" in ended.stderr
    assert not server.commands, "nothing was started"


@pytest.mark.slow
def test_a_step_that_says_nothing_runs_in_a_small_pod(tmp_path: Path, server: ApiServer) -> None:
    del server.pods["w-1"]
    ended = go(tmp_path)
    assert ended.exit_code == 0, ended.stderr


@pytest.mark.slow
def test_a_deployment_that_comes_up_at_its_first_use_tells_the_same(tmp_path: Path, server: ApiServer) -> None:
    # The transfers ask it which pods share a volume, too: two copies into one volume destroy each other.
    config = {"kubeconfig": str(tmp_path / "kubeconfig"), "selector": "app=w"}
    late = MedweaveFutureConnector("pods", "/", MedweaveKubernetesConnector, True, **config)
    assert not hasattr(late, "sizes")
    assert not hasattr(late, "distinct")

    async def come_up() -> tuple[dict[str, LocationSize], int]:
        places = [location.location for location in (await late.get_available_locations("worker")).values()]
        try:
            return await late.sizes("worker"), len(await late.distinct(places, "/"))
        finally:
            await late.undeploy(True)

    sizes, count = asyncio.run(come_up())
    assert sorted(size.gpus or 0 for size in sizes.values()) == [0, 1]
    assert count == 2
    assert not hasattr(late, "mirrors"), "that of a COMPSs release"
