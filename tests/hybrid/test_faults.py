"""What a wrong word in the site file does to a run over all three sites: it is named within 10 s, and everything is undone."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.engine import Run
from support.hybrid_runs import INFERENCE, TRAINING, Shape, assert_undone, shape
from support.testbed import Sites

REPORTED_S = 10.0  # from the start of the run to the error
UNDONE_S = 20.0  # from the end of the run
BUSY = {"check": "sleep 1000"}  # the first step is still running when the wrong word is reached


@pytest.fixture
def strange_key(tmp_path: Path) -> str:
    import asyncssh

    asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(tmp_path / "strange"))
    return str(tmp_path / "strange")


def ended(made: Shape, first_line: str) -> Run:
    """Start a run; it must report its error in time and leave nothing; return it."""
    going = made.begin()
    going.wait_for_line(f"medweave: run {made.run_id}", 60)  # the engine's own import is slow on a machine that works
    started = time.monotonic()
    going.wait_for_line(first_line, 60)
    reported_s = time.monotonic() - started
    going.wait(60)
    ended_s = time.monotonic() - started
    print(f"reported after {reported_s:.1f} s, ended after {ended_s:.1f} s\n{going.stderr}")
    assert going.stderr.count("ERROR") == 1, going.stderr
    assert reported_s < REPORTED_S, going.stderr
    assert going.exit_code == 1
    assert "Traceback" not in going.stderr
    assert going.of_type("run.ended")[0]["data"]["state"] == "failed"
    print(f"nothing left {assert_undone(made, within_s=UNDONE_S):.1f} s later")
    return going


@pytest.fixture
def silent() -> Iterator[str]:
    """Yield the address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"https://127.0.0.1:{listening.getsockname()[1]}"


def wrong_kubeconfig(tmp_path: Path, testbed: Sites, kind: str, silent: str) -> str:
    """Write a kubeconfig with one error; return its path."""
    good = testbed.layout.laptop_home / ".kube" / "tenant-a.kubeconfig"
    document = yaml.safe_load(good.read_text(encoding="utf-8"))
    file = tmp_path / f"{kind}.kubeconfig"
    if kind == "absent":
        return str(file)
    if kind == "token":
        document["users"][0]["user"] = {"token": "unknown"}
    elif kind == "closed":
        document["clusters"][0]["cluster"]["server"] = "https://198.18.0.2:1"
    elif kind == "silent":
        document["clusters"][0]["cluster"]["server"] = silent
    elif kind == "authority":
        cluster = document["clusters"][0]["cluster"]
        cluster.pop("certificate-authority-data")
    file.write_text("what: [" if kind == "broken" else json.dumps(document), encoding="utf-8")
    return str(file)


@pytest.mark.parametrize("kind", ["absent", "broken", "token", "closed", "silent", "authority"])
def test_a_wrong_kubeconfig(tmp_path: Path, testbed: Sites, kind: str, silent: str) -> None:
    file = wrong_kubeconfig(tmp_path, testbed, kind, silent)
    made = shape(tmp_path, testbed, change={f"deployments.{INFERENCE}.config.kubeconfig": file}, scripts=BUSY)
    run = ended(made, f"deployments.{INFERENCE}.config.kubeconfig: ")
    assert file in run.stderr


@pytest.mark.parametrize("namespace", ["tenant-b", "nowhere"])
@pytest.mark.parametrize("deployment", [INFERENCE, TRAINING], ids=["inference", "training"])
def test_a_namespace_without_rights(tmp_path: Path, testbed: Sites, deployment: str, namespace: str) -> None:
    made = shape(tmp_path, testbed, change={f"deployments.{deployment}.config.namespace": namespace}, scripts=BUSY)
    run = ended(made, f"deployments.{deployment}.config.namespace: ")
    assert f'cannot list resource "pods" in API group "" in the namespace "{namespace}"' in run.stderr


@pytest.mark.parametrize(
    ("image", "pending_s", "field", "reason"),
    [
        (
            {"repository": "localhost/nowhere", "tag": "9", "pullPolicy": "Never"},
            60,
            "values.image",
            "ErrImageNeverPull",
        ),
        # A registry that does not answer may come back: that is waited for.
        (
            {"repository": "localhost:1/nowhere", "tag": "9", "pullPolicy": "Always"},
            3,
            "pendingTimeout",
            "ErrImagePull|ImagePullBackOff",
        ),
    ],
)
@pytest.mark.parametrize("deployment", [INFERENCE, TRAINING], ids=["inference", "training"])
def test_a_missing_image(
    tmp_path: Path, testbed: Sites, deployment: str, image: dict[str, Any], pending_s: int, field: str, reason: str
) -> None:
    config = f"deployments.{deployment}.config"
    change = {f"{config}.values.image": image, f"{config}.pendingTimeout": pending_s}
    made = shape(tmp_path, testbed, change=change, scripts=BUSY)
    run = ended(made, f"{config}.{field}: ")
    assert any(word in run.stderr for word in reason.split("|"))


@pytest.mark.parametrize(
    ("deployment", "key"),
    [(INFERENCE, "values.replicas"), (TRAINING, "values.worker.replicas")],
    ids=["inference", "training"],
)
def test_a_chart_value_of_the_wrong_type(tmp_path: Path, testbed: Sites, deployment: str, key: str) -> None:
    made = shape(tmp_path, testbed, change={f"deployments.{deployment}.config.{key}": "two"}, scripts=BUSY)
    run = ended(made, f"deployments.{deployment}.config.{key}: ")
    assert "got string, want integer" in run.stderr


def test_an_ssh_key_that_is_refused(tmp_path: Path, testbed: Sites, strange_key: str) -> None:
    made = shape(tmp_path, testbed, change={"deployments.login.config.sshKey": strange_key}, scripts=BUSY)
    run = ended(made, "deployments.login.config.sshKey: ")
    assert "refused the key" in run.stderr


def test_an_unknown_partition(tmp_path: Path, testbed: Sites) -> None:
    field = "deployments.slurm.config.services.normal.partition"
    made = shape(tmp_path, testbed, change={field: "gpu"}, scripts=BUSY)
    run = ended(made, f"{field}: ")
    assert "seen:     gpu" in run.stderr
