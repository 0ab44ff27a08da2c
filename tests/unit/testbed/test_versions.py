"""Programs and servers of another version than the testbed's are refused: charts require these versions."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from medweave_testbed import binaries, http, machine
from medweave_testbed.binaries import check_versions
from medweave_testbed.commands import Commands
from medweave_testbed.errors import TestbedError
from medweave_testbed.layout import KUBERNETES_VERSION, layout_of

GOOD = {
    "kubectl": f"Client Version: {KUBERNETES_VERSION}",
    "kube-apiserver": f"Kubernetes {KUBERNETES_VERSION}",
    "coredns": "CoreDNS-1.12.1",
    "helm": "v4.0.5+g1",
}


def programs(folder: Path, **outputs: str) -> Path:
    for name, text in {**GOOD, **{name.replace("_", "-"): text for name, text in outputs.items()}}.items():
        (folder / name).write_text(f"#!/bin/sh\necho '{text}'\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


def test_the_promised_versions_are_taken(tmp_path: Path) -> None:
    check_versions(Commands(), programs(tmp_path))


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("kubectl", "Client Version: v1.33.4"),
        ("kube_apiserver", "Kubernetes v0.0.0-master+$Format:%H$"),  # built without its stamp
        ("coredns", "CoreDNS-2.0.0"),
        ("helm", "v3.19.0"),
        ("kubectl", ""),
    ],
)
def test_another_version_is_refused(tmp_path: Path, name: str, output: str) -> None:
    with pytest.raises(TestbedError, match=f"{name.replace('_', '-')} is of another version"):
        check_versions(Commands(), programs(tmp_path, **{name: output}))


def test_programs_that_were_given_once_stay_the_right_ones(tmp_path: Path) -> None:
    supplied = tmp_path / "supplied"
    supplied.mkdir()
    for name in machine.PROGRAMS:
        programs(supplied, **{name.replace("-", "_"): GOOD.get(name, "")})
    layout = dataclasses.replace(layout_of({}), folder=tmp_path / "bed")
    environment = {"MEDWEAVE_TESTBED_BINARIES": str(supplied)}
    binaries.make(layout, Commands(), environment)
    assert binaries.trouble(layout, environment) is None
    assert binaries.trouble(layout, {}) is None, "status and down are called without the variable"
    (supplied / "helm").write_text("#!/bin/sh\n", encoding="utf-8")
    assert binaries.trouble(layout, environment) is not None


@pytest.fixture
def server() -> Iterator[str]:
    """An API server that says another version."""

    class Version(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"gitVersion": "v1.33.4"}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Version) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_port}/version"
        serving.shutdown()


def test_a_server_of_another_version_is_no_healthy_one(server: str) -> None:
    assert http.trouble(server, contains=f'"gitVersion": "{KUBERNETES_VERSION}"') is not None
    assert http.trouble(server, contains='"gitVersion": "v1.33.4"') is None
