"""The suite that every connector inherits, for those whose site is this machine, or a stand-in on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from medweave_connectors.sites.kubernetes.connector import MedweaveKubernetesConnector
from medweave_connectors.sites.local.connector import MedweaveLocalConnector
from medweave_connectors.sites.slurm.connector import MedweaveSlurmConnector
from medweave_connectors.sites.ssh.connector import MedweaveSSHConnector
from support.api_server import ApiServer, pod_document
from support.connections import cut
from support.connector_contract import ENDED_BY_CLUSTER, NO_QUEUE, ConnectorContract
from support.connector_runs import Site, text_of
from support.fake_cluster import NEVER_AGAIN, fake_cluster
from support.job_server import job_cluster

NOTHING_TO_CUT = "this machine is reached without a connection"


class TestLocal(
    ConnectorContract,
    lacks={
        "test_a_command_whose_connection_is_cut_is_not_sent_again": NOTHING_TO_CUT,
        "test_job_with_a_lost_connection_is_ended_and_not_completed": NOTHING_TO_CUT,
        "test_a_job_in_a_queue_outlives_the_connection": NOTHING_TO_CUT,
    },
):
    @pytest.fixture
    def site(self, tmp_path: Path) -> Site:
        return Site(
            connectors=lambda: [MedweaveLocalConnector("there", "/")],
            folder=str(tmp_path / "site"),
            read=text_of,
            odd_name="my 'work' \"x\" $HOME `id`\nb",
            kept_at="{folder}",
        )


class TestPodsOfAStandIn(ConnectorContract, lacks=NO_QUEUE):
    """The real ones are in tests/hybrid; here commands run on this machine."""

    @pytest.fixture
    def site(self, tmp_path: Path) -> Iterator[Site]:
        with ApiServer() as server:
            server.add(pod_document("w-0"))
            server.write_kubeconfig(tmp_path / "kubeconfig")
            config = {"kubeconfig": str(tmp_path / "kubeconfig"), "selector": "app=w"}
            yield Site(
                connectors=lambda: [MedweaveKubernetesConnector("there", "/", **config)],
                folder=str(tmp_path / "site"),
                read=text_of,
                cut=lambda: cut("127.0.0.1", server.port),
                odd_name="my 'work' \"x\" $HOME `id`\nb",
                kept_at="{deployment}:{place}:{folder}",
                time_limit="the time limit of 1 s was reached",
                broken_from="`sh` ended with 255: no known reason",
                lost="broke before the command had ended",
            )


class TestJobsOfAStandIn(
    ConnectorContract,
    lacks=ENDED_BY_CLUSTER
    | {"test_a_process_that_left_its_session_ends_with_a_job_past_its_time_limit": "it has no containers"},
):
    """`mode: job`: the permanent pod has the files, and each job has a separate pod."""

    @pytest.fixture
    def site(self, tmp_path: Path) -> Iterator[Site]:
        with job_cluster(tmp_path) as server:
            config = {"kubeconfig": str(tmp_path / "kubeconfig"), "selector": "app=w", "mode": "job"}
            yield Site(
                connectors=lambda: [MedweaveKubernetesConnector("there", "/", **config)],
                folder=str(tmp_path / "site"),
                read=text_of,
                cut=lambda: cut("127.0.0.1", server.port),
                odd_name="my 'work' \"x\" $HOME `id`\nb",
                kept_at="{deployment}:{place}:{folder}",
                time_limit="the time limit of 1 s was reached",
                broken_from="`sh` ended with 255: no known reason",
            )


class TestSlurmOfAStandIn(
    ConnectorContract,
    lacks={
        "test_job_with_a_lost_connection_is_ended_and_not_completed": "the queue keeps it, whoever looks",
        "test_a_job_past_its_time_limit_is_ended_with_all_its_processes": "its clock is one for all jobs: see test_slurm_reactions",
        "test_a_process_that_left_its_session_ends_with_a_job_past_its_time_limit": "the same",
    },
):
    @pytest.fixture
    def site(self, tmp_path: Path) -> Iterator[Site]:
        with fake_cluster(tmp_path) as cluster:
            server = cluster.server
            login = {
                "nodes": [f"127.0.0.1:{server.port}"],
                "username": "me",
                "sshKey": str(server.key),
                "knownHosts": str(server.known_hosts),
            }

            def connectors() -> list[Any]:
                over = MedweaveSSHConnector("login", "/", **login)
                return [over, MedweaveSlurmConnector("hpc", "/", over, None, reactions=NEVER_AGAIN)]

            yield Site(
                connectors=connectors,
                folder=str(tmp_path / "site"),
                read=text_of,
                cut=server.cut,
                before_words=r"(?s:.*\n)",
                broken_from=r"transfer from .* broke off: no known reason \(exit status 255\)",
                broken_to=r"transfer to .* broke off: .*No space",
            )
