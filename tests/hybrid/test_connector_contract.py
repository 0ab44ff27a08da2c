"""The suite that every connector inherits, on the real parts: a login node, Slurm over it, pods, and releases of both charts."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from medweave_connectors.sites.compss.connector import MedweaveCompssConnector
from medweave_connectors.sites.helm.connector import MedweaveHelmConnector
from medweave_connectors.sites.kubernetes.connector import MedweaveKubernetesConnector
from medweave_connectors.sites.slurm.connector import MedweaveSlurmConnector
from medweave_connectors.sites.ssh.connector import MedweaveSSHConnector
from support.connections import cut
from support.connector_contract import ENDED_BY_CLUSTER, NO_QUEUE, ConnectorContract
from support.connector_runs import Site, text_of
from support.cwl_files import ROOT
from support.fake_cluster import NEVER_AGAIN
from support.helm_release import Tenant, release
from support.hybrid_runs import SMALL, laptop
from support.pod_runs import BASE_IMAGE, WORKDIR, pods_of, pods_on_claim
from support.testbed import Sites, unique
from support.testbed_ends import login_of, standing

# Of a real cluster (proctrack/cgroup) nothing escapes. That jobs end, test_slurm, test_faults_end and the campaign look at.
ESCAPES = "a process that ignores TERM and has lost its parent escapes the testbed's Slurm (proctrack/linuxproc)"
REPOSITORY, _, TAG = BASE_IMAGE.rpartition(":")
VALUES: dict[str, Any] = {
    "image": {"repository": REPOSITORY, "tag": TAG, "pullPolicy": "Never"},
    "python": "/usr/bin/python3",
    "requiredModules": ["json"],
    "terminationGracePeriodSeconds": 5,
}


def cut_login(login: Mapping[str, Any]) -> None:
    host, _, port = login["nodes"][0].rpartition(":")
    cut(host, int(port))


@pytest.fixture
def scratch(testbed: Sites, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield a folder of the HPC user, for a driver in the laptop user's home."""
    monkeypatch.setenv("HOME", str(testbed.layout.laptop_home))
    folder = f"{laptop(testbed)['MEDWEAVE_TESTBED_SCRATCH']}/{unique('contract')}"
    yield folder
    testbed.hpc("rm", "-rf", folder)


class TestSSH(ConnectorContract, lacks=NO_QUEUE):
    """Steps on the login node itself."""

    @pytest.fixture
    def site(self, testbed: Sites, scratch: str) -> Site:
        login = login_of(testbed)
        return Site(
            connectors=lambda: [MedweaveSSHConnector("login", "/", **login)],
            folder=scratch,
            read=text_of,
            cut=lambda: cut_login(login),
            patience_s=120,
        )


class TestSlurmOverSSH(
    ConnectorContract,
    lacks={
        "test_job_with_a_lost_connection_is_ended_and_not_completed": "Slurm keeps it, whoever looks",
        "test_a_job_past_its_time_limit_is_ended_with_all_its_processes": ESCAPES,
        "test_a_process_that_left_its_session_ends_with_a_job_past_its_time_limit": ESCAPES,
        "test_the_end_of_the_run_ends_its_jobs": ESCAPES,
        "test_a_job_that_the_engine_cancels_is_ended": ESCAPES,
    },
):
    @pytest.fixture
    def site(self, testbed: Sites, scratch: str) -> Site:
        login = login_of(testbed)

        def connectors() -> list[Any]:
            over = MedweaveSSHConnector("login", "/", **login)
            services = {"usual": {"partition": "normal"}}
            return [over, MedweaveSlurmConnector("hpc", "/", over, None, services=services, reactions=NEVER_AGAIN)]

        return Site(
            connectors=connectors,
            folder=scratch,
            read=text_of,
            cut=lambda: cut_login(login),
            service="usual",
            before_words=r"(?s:.*\n)",
            shortest_limit_s=60,  # Slurm counts minutes, and looks every half a minute
            time_limit="hit its time limit of 1 min",
            broken_from=r"transfer from .* broke off: no known reason \(exit status 255\)",
            broken_to=r"transfer to .* broke off: .*No space",
            gone_s=60,
            patience_s=240,
        )


def site_in(tenant: Tenant, kind: Any, pod: str, **config: Any) -> Site:
    """Return a site of pods that exist already; commands run in `pod`."""
    config |= {"kubeconfig": str(tenant.kubeconfig), "namespace": tenant.namespace}

    def read(path: str) -> str:
        ended = tenant.within(pod, f"cat {shlex.quote(path)}")
        return ended.stdout if ended.returncode == 0 else ""

    return Site(
        connectors=lambda: [kind("pods", "/", **config)],
        folder=f"{WORKDIR}/{unique('contract')}",
        read=read,
        cut=lambda: cut(*tenant.server),
        external=True,
        odd_name="my 'work' \"x\" $HOME `id`\nb",
        kept_at="{deployment}:{place}:{folder}",
        time_limit="the time limit of 1 s was reached",
        broken_from="`sh` ended with 255: no known reason",
        lost="broke before the command had ended",
        gone_s=20,
        patience_s=120,
    )


class TestPods(ConnectorContract, lacks=NO_QUEUE):
    @pytest.fixture(scope="class")
    def pod(self, tenant: Tenant) -> Iterator[str]:
        with standing(tenant, pods_of(unique("contract"), kind="StatefulSet", replicas=1)) as name:
            yield name

    @pytest.fixture
    def site(self, tenant: Tenant, pod: str) -> Site:
        return site_in(tenant, MedweaveKubernetesConnector, pod, selector=f"app={pod.removesuffix('-0')}")


class TestJobs(ConnectorContract, lacks=ENDED_BY_CLUSTER):
    """`mode: job`: a long-running pod has the files, and each job has its own pod."""

    @pytest.fixture(scope="class")
    def pod(self, tenant: Tenant) -> Iterator[str]:
        with standing(tenant, pods_on_claim(unique("contract"), kind="StatefulSet", replicas=1)) as name:
            yield name

    @pytest.fixture
    def site(self, tenant: Tenant, pod: str) -> Iterator[Site]:
        site = site_in(tenant, MedweaveKubernetesConnector, pod, selector=f"app={pod.removesuffix('-0')}", mode="job")
        limit = {
            "shortest_limit_s": 5,
            "time_limit": "the time limit of 5 s was reached",
        }  # of the pod, its start included
        yield replace(site, gone_s=40, patience_s=240, **limit)
        tenant.within(pod, f"rm -rf {shlex.quote(site.folder)}")


class TestRelease(ConnectorContract, lacks=NO_QUEUE):
    @pytest.fixture(scope="class")
    def installed(self, tenant: Tenant) -> Iterator[str]:
        name = unique("contract")
        with release(tenant, name, ROOT / "helm" / "segmentation-worker", VALUES | {"replicas": 1, "resources": SMALL}):
            yield name

    @pytest.fixture
    def site(self, tenant: Tenant, installed: str) -> Site:
        return site_in(tenant, MedweaveHelmConnector, min(tenant.pods(installed)), releaseName=installed)


class TestCompss(ConnectorContract, lacks=NO_QUEUE):
    """Steps that are not distributed, on the first of two workers; the engine's own commands go to both."""

    @pytest.fixture(scope="class")
    def installed(self, tenant: Tenant) -> Iterator[str]:
        name, values = unique("contract"), VALUES | {"engine": "ddp", "worker": {"replicas": 2, "resources": SMALL}}
        with release(tenant, name, ROOT / "helm" / "compss-cluster", values):
            yield name

    @pytest.fixture
    def site(self, tenant: Tenant, installed: str) -> Site:
        first = min(tenant.pods(installed))
        return site_in(tenant, MedweaveCompssConnector, first, engine="ddp", releaseName=installed)
