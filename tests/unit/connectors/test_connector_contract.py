"""The suite that every connector inherits, for those whose site is this machine, or a stand-in on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from medweave_connectors.kubernetes.connector import MedweaveKubernetesConnector
from medweave_connectors.local.connector import MedweaveLocalConnector
from support.api_server import ApiServer, pod_document
from support.connections import cut
from support.connector_contract import NO_QUEUE, ConnectorContract
from support.connector_runs import Site, text_of

NOTHING_TO_CUT = "this machine is reached without a connection"


class TestLocal(
    ConnectorContract,
    lacks={
        "test_a_stream_that_breaks_off_is_an_error": "files are copied here without a stream",
        "test_a_command_whose_connection_is_cut_is_not_sent_again": NOTHING_TO_CUT,
        "test_a_job_whose_connection_is_lost_is_ended_and_not_taken_for_done": NOTHING_TO_CUT,
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
                broken_from="`sh` ended with 255: cut",
                lost="broke before the command had ended",
            )
