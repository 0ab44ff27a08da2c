"""`medweave doctor`: checks of machines (a real OpenSSH server), clocks, rights and objects, and the table."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from medweave import __version__
from medweave.cli.main_command import main
from medweave.doctor import namespace
from medweave.doctor.checks import _run_check
from medweave.doctor.connection import SshLogin
from medweave.doctor.hop_result import Check, Health, HopResult, quantity, skew
from medweave.doctor.machine import MachineChecks
from medweave.doctor.probe_host import SshProbeHost
from medweave.doctor.rights import FILES, of_kinds
from medweave.doctor.routes import between, by_bucket
from medweave.doctor.storage import claims_of, classes_of
from medweave.doctor.table import as_json, table
from medweave.doctor.trial_pods import pod_of, policy_of, with_claim
from medweave_connectors.sites.ssh.connect import Target
from support.bucket import ACCOUNT, Gateway, gateway
from support.sshd import make_key, sshd

needs_sshd = pytest.mark.skipif(shutil.which("sshd", path="/usr/sbin:/usr/bin") is None, reason="no OpenSSH server")


@pytest.fixture(scope="module")
def login(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshLogin]:
    folder = tmp_path_factory.mktemp("doctor")
    key = make_key(folder / "key")
    with sshd(folder / "server", [key]) as server:
        (folder / "known_hosts").write_text(server.known_host)
        target = Target(
            where="deployments.hpc.config", host="127.0.0.1", port=server.port, user="root", key=str(key),
            known_hosts=str(folder / "known_hosts"),
        )  # fmt: skip
        yield SshLogin(target=target)


def changed(login: SshLogin, **values: Any) -> SshLogin:
    return dataclasses.replace(login, target=dataclasses.replace(login.target, **values))


def check_machine(
    login: SshLogin, workdir: str | None = None, keys: dict[str, str] | None = None
) -> dict[str, HopResult]:
    with contextlib.ExitStack() as exits:
        hops: list[HopResult] = []
        for check in MachineChecks("hpc", login, exits, "run: medweave provision --site site.yml").checks(
            workdir, keys or {}
        ):
            hops += check.try_it()
            if check.leads_on and hops[-1].health != Health.OK:
                break
        return {hop.name: hop for hop in hops}


@needs_sshd
class TestRoutes:
    """Two servers of OpenSSH on this machine, which see the same files."""

    @pytest.fixture
    def places(self, login: SshLogin, tmp_path: Path) -> Iterator[tuple[SshProbeHost, SshProbeHost]]:
        key = make_key(tmp_path / "key")
        with sshd(tmp_path / "server", [key]) as server:
            (tmp_path / "known_hosts").write_text(server.known_host)
            other = changed(login, port=server.port, key=str(key), known_hosts=str(tmp_path / "known_hosts"))
            workdir = str(tmp_path / "work")
            yield (
                SshProbeHost(name="hpc", login=login, workdir=workdir),
                SshProbeHost(name="store", login=other, workdir=workdir),
            )

    @pytest.mark.slow
    def test_a_direct_route_is_measured(self, places: tuple[SshProbeHost, SshProbeHost]) -> None:
        (hop,) = between(*places, {"sameFileSystem": False, "directPorts": [47200, 47209]})
        assert (hop.place, hop.name, hop.health) == ("hpc - store", "route", Health.OK), hop.seen
        speeds = re.search(
            r"^direct: (\d+) MB/s forward, (\d+) MB/s back.*store listens on a port from 47200 to 47209$", hop.seen
        )
        assert speeds is not None, hop.seen
        assert min(map(int, speeds.groups())) > 0

    def test_two_that_see_the_same_files_need_no_copy(
        self, places: tuple[SshProbeHost, SshProbeHost], tmp_path: Path
    ) -> None:
        (hop,) = between(*places, {})
        assert hop.health == Health.OK
        assert hop.seen.startswith("same-file-system: both sites see ")
        assert not [path.name for path in tmp_path.iterdir() if "doctor" in path.name]

    @pytest.mark.slow
    def test_without_a_direct_route_there_is_advice(self, places: tuple[SshProbeHost, SshProbeHost]) -> None:
        with socket.socket() as taken:  # the only permitted port is in use
            taken.bind(("", 0))
            taken.listen()
            port = taken.getsockname()[1]
            (hop,) = between(*places, {"sameFileSystem": False, "directPorts": [port, port]})
        assert hop.health == Health.WARNING
        assert hop.seen.startswith("no direct route: ")
        assert hop.seen.endswith("runs copy through this machine")
        assert f"on a port from {port} to {port}" in hop.do

    def test_a_route_that_is_switched_off_is_not_tried(self, places: tuple[SshProbeHost, SshProbeHost]) -> None:
        off = {"sameFileSystem": False, "direct": False, "bucket": {"bucket": "depot"}}
        (hop,) = between(*places, off)
        assert (hop.health, hop.do) == (Health.OK, "")
        assert "runs use the bucket 'depot'" in hop.seen

    def test_one_that_is_not_reached(self, places: tuple[SshProbeHost, SshProbeHost]) -> None:
        gone = dataclasses.replace(places[1], login=changed(places[1].login, port=1))
        (hop,) = between(places[0], gone, {})
        assert hop.health == Health.UNKNOWN
        assert "not tested" in hop.seen


@needs_sshd
class TestBucket:
    """A real S3 server, from a machine that is reached by a real server of OpenSSH."""

    @pytest.fixture
    def server(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
        for name, value in ACCOUNT.items():
            monkeypatch.setenv(name, value)
        (tmp_path / "s3").mkdir()
        with gateway(tmp_path / "s3") as server:
            yield server

    @pytest.mark.slow
    def test_bytes_are_stored_fetched_and_removed(self, login: SshLogin, server: Gateway, tmp_path: Path) -> None:
        (hop,) = by_bucket(SshProbeHost(name="hpc", login=login, workdir=None), server.settings(), tmp_path)
        assert (hop.place, hop.name, hop.health) == ("hpc", "bucket", Health.OK), hop.seen
        assert re.search(r"between: [1-9]\d* MB/s", hop.seen), hop.seen
        assert server.objects() == []

    def test_an_account_that_the_bucket_refuses(
        self, login: SshLogin, server: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
        (hop,) = by_bucket(SshProbeHost(name="hpc", login=login, workdir=None), server.settings(), tmp_path)
        assert hop.health == Health.WARNING
        assert "403" in hop.seen
        assert "runs copy through this machine" in hop.do
        assert "another" not in f"{hop}"

    def test_no_account_is_wrong(
        self, login: SshLogin, server: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        (hop,) = by_bucket(SshProbeHost(name="hpc", login=login, workdir=None), server.settings(), tmp_path)
        assert hop.health == Health.FAULT
        assert "transfers.bucket.credentials" in hop.seen


@needs_sshd
class TestMachine:
    @pytest.mark.slow
    def test_all_is_well(self, login: SshLogin, tmp_path: Path) -> None:
        hops = check_machine(login, str(tmp_path / "not" / "yet"))
        assert {hop.health for hop in hops.values()} == {Health.OK}
        assert list(hops) == ["ssh", "sessions", "clock", "programs", "workdir", "bandwidth"]
        assert "will be created" in hops["workdir"].seen
        assert not (tmp_path / "not").exists()
        assert "MB/s to the site" in hops["bandwidth"].seen

    @pytest.mark.slow
    def test_nothing_is_left_in_the_workdir(self, login: SshLogin, tmp_path: Path) -> None:
        assert check_machine(login, str(tmp_path))["workdir"].health == Health.OK
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.slow
    @pytest.mark.parametrize("where", ["/proc", "file/below"])
    def test_a_workdir_that_cannot_be_written_to(self, login: SshLogin, tmp_path: Path, where: str) -> None:
        (tmp_path / "file").touch()
        hop = check_machine(login, str(tmp_path / where))["workdir"]  # /proc refuses root, too
        assert hop.health == Health.FAULT
        assert "deployments.hpc.workdir" in hop.do

    def test_an_unknown_host_key_ends_it(self, login: SshLogin, tmp_path: Path) -> None:
        (tmp_path / "known").touch()
        hops = check_machine(changed(login, known_hosts=str(tmp_path / "known")))
        assert list(hops) == ["ssh"]
        assert hops["ssh"].health == Health.FAULT
        assert "does not list for 127.0.0.1" in hops["ssh"].seen
        assert "ssh-keyscan -p" in hops["ssh"].do

    def test_another_host_key_ends_it(self, login: SshLogin, tmp_path: Path) -> None:
        other = make_key(tmp_path / "other").with_suffix(".pub").read_text().split()[:2]
        (tmp_path / "known").write_text(f"[127.0.0.1]:{login.target.port} {' '.join(other)}\n")
        hop = check_machine(changed(login, known_hosts=str(tmp_path / "known")))["ssh"]
        assert hop.health == Health.FAULT
        assert "a host key of 127.0.0.1" in hop.seen

    def test_a_key_that_is_refused(self, login: SshLogin, tmp_path: Path) -> None:
        hop = check_machine(changed(login, key=str(make_key(tmp_path / "other"))))["ssh"]
        assert hop.health == Health.FAULT
        assert "for user root" in hop.seen
        assert "sshKey" in hop.do

    def test_a_closed_port(self, login: SshLogin) -> None:
        hop = check_machine(changed(login, port=1))["ssh"]
        assert hop.health == Health.FAULT
        assert "cannot be reached by ssh" in hop.seen
        assert "nodes" in hop.do

    def test_a_name_without_an_address(self, login: SshLogin) -> None:
        hop = check_machine(changed(login, host="medweave.invalid"))["ssh"]
        assert hop.health == Health.FAULT
        assert "no address" in hop.seen

    @pytest.fixture
    def behind(self, login: SshLogin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshLogin]:
        """A machine behind a jump host, to which the user's ControlMaster is open and no other login leads."""
        (tmp_path / ".ssh").mkdir(mode=0o700)
        (tmp_path / ".ssh" / "config").write_text(
            f"Host door\n  HostName 127.0.0.1\n  Port {login.target.port}\n  User root\n  ControlPath {tmp_path}/master\n"
            f"  UserKnownHostsFile {login.target.known_hosts}\n  IdentityFile none\n"
            "Host inner\n  HostName 127.0.0.1\n  ProxyJump door\n"
        )
        monkeypatch.setenv("HOME", str(tmp_path))
        options = ["-F", str(tmp_path / ".ssh" / "config"), "-i", login.target.key, "-o", "BatchMode=yes"]
        subprocess.run(["ssh", *options, "-M", "-f", "-N", "door"], check=True, timeout=20, stderr=subprocess.DEVNULL)
        yield changed(login, host="inner")
        subprocess.run(["ssh", *options, "-O", "exit", "door"], check=True, timeout=20, stderr=subprocess.DEVNULL)

    @pytest.mark.slow
    def test_a_jump_host_that_only_an_open_master_reaches(self, behind: SshLogin) -> None:
        hop = check_machine(behind)["ssh"]
        assert hop.health == Health.OK, hop.seen

    @pytest.mark.slow
    def test_a_machine_is_reached_through_its_open_master(self, behind: SshLogin) -> None:
        hops = check_machine(changed(behind, host="door", port=None, key="", known_hosts=""))
        assert {hop.health for hop in hops.values()} == {Health.OK}, hops

    @pytest.mark.slow
    def test_a_worker_that_is_not_there(self, login: SshLogin, tmp_path: Path) -> None:
        hop = check_machine(login, None, {"virtualEnvironment": str(tmp_path / "none")})["worker"]
        assert hop.health == Health.FAULT
        assert "medweave provision" in hop.do

    @pytest.mark.slow
    @pytest.mark.parametrize(("version", "health"), [(__version__, Health.OK), ("0.0.1", Health.WARNING)])
    def test_the_version_of_a_worker(self, login: SshLogin, tmp_path: Path, version: str, health: Health) -> None:
        python = tmp_path / "bin" / "python"
        python.parent.mkdir()
        python.write_text(f"#!/bin/sh\necho {version} 3.11.2\n")
        python.chmod(0o755)
        hop = check_machine(login, None, {"virtualEnvironment": str(tmp_path)})["worker"]
        assert hop.health == health
        assert version in hop.seen


class TestTable:
    def test_a_skewed_clock_is_a_warning(self) -> None:
        assert skew("hpc", -0.4, 0.1).health == Health.OK
        hop = skew("hpc", 3600.0, 0.1)
        assert hop.health == Health.WARNING
        assert "3600.0 s ahead" in hop.seen

    def test_quantities(self) -> None:
        assert [quantity(number) for number in (12, 2**20, 3 * 2**40)] == ["12 B", "1 MiB", "3 TiB"]

    def test_a_table_and_json(self) -> None:
        hops = [
            HopResult(place="hpc", name="ssh", health=Health.OK, seen="there"),
            HopResult(place="hpc", name="clock", health=Health.FAULT, seen="late", do="set it"),
        ]
        text = table(hops)
        assert "✓ hpc  ssh    there" in text
        assert "→ set it" in text
        assert text.endswith("2 checks: 1 failed")
        assert [entry["health"] for entry in json.loads(as_json(hops))] == ["ok", "fault"]

    def test_a_check_without_an_answer_is_unknown(self) -> None:
        import threading

        never = threading.Event()

        def wait() -> Iterator[HopResult]:
            yield HopResult(place="hpc", name="first", health=Health.OK, seen="")
            never.wait(20)

        hops = _run_check("hpc", Check("quota", wait), 0.2)
        never.set()
        assert [(hop.name, hop.health) for hop in hops] == [("first", Health.OK), ("quota", Health.UNKNOWN)]

    def test_a_check_that_fails_is_unknown_and_no_traceback(self) -> None:
        def fail() -> Iterator[HopResult]:
            raise ValueError("odd\nmore")
            yield

        (hop,) = _run_check("hpc", Check("quota", fail), 5)
        assert (hop.health, hop.seen) == (Health.UNKNOWN, "ValueError: odd")


class TestObjects:
    def test_plurals_and_groups(self) -> None:
        kinds = [("v1", "ConfigMap"), ("networking.k8s.io/v1", "NetworkPolicy"), ("networking.k8s.io/v1", "Ingress")]
        rights = of_kinds([*kinds, ("v1", "ConfigMap")], FILES)
        assert [right.name for right in rights] == [
            "configmaps",
            "ingresses.networking.k8s.io",
            "networkpolicies.networking.k8s.io",
        ]

    def test_objects_of_helm_test_are_left_out(self) -> None:
        text = "kind: Pod\nmetadata: {name: a, annotations: {helm.sh/hook: test}}\n---\nkind: Secret\nmetadata: {name: b}\n"
        assert [item["kind"] for item in namespace._documents(text)] == ["Secret"]

    def test_claims_of_any_workload(self) -> None:
        spec = {"containers": [], "volumes": [{"persistentVolumeClaim": {"claimName": "scans"}}, {"emptyDir": {}}]}
        objects = [{"kind": "Pod", "spec": spec}, {"kind": "Deployment", "spec": {"template": {"spec": spec}}}]
        assert list(claims_of(objects)) == ["scans", "scans"]

    def test_storage_classes_of_claims_that_a_run_makes(self) -> None:
        specs = [{"storageClassName": "fast"}, {}, {"storageClassName": "", "volumeName": "one that is there"}]
        claims = [{"kind": "PersistentVolumeClaim", "spec": spec} for spec in specs]
        stateful_set = {
            "kind": "StatefulSet",
            "spec": {"volumeClaimTemplates": [{"spec": {"storageClassName": "slow"}}]},
        }
        assert list(classes_of([*claims, stateful_set])) == ["fast", None, "slow"]

    def test_a_trial_pod_keeps_the_rules_and_runs_nothing(self) -> None:
        security = {"runAsNonRoot": True}
        container = {"image": "a:1", "command": ["train"], "securityContext": security, "env": [{"name": "TOKEN"}]}
        pod = pod_of("name", container, {"nodeSelector": {"gpu": "yes"}, "volumes": [{}]})
        assert pod["spec"]["containers"] == [
            {"name": "image", "command": ["sleep", "280"], "image": "a:1", "securityContext": security}
        ]
        assert pod["spec"]["nodeSelector"] == {"gpu": "yes"}
        assert "volumes" not in pod["spec"]

    def test_a_trial_pod_has_the_labels_for_policies_and_no_service_selects_it(self) -> None:
        labels = {"app.kubernetes.io/name": "segmentation-worker", "app.kubernetes.io/managed-by": "Helm"}
        pod = pod_of("name", {"image": "a:1"}, {}, labels=labels)
        assert pod["metadata"]["labels"] == {
            "app.kubernetes.io/name": "segmentation-worker",
            "app.kubernetes.io/managed-by": "medweave-doctor",
        }
        assert pod["spec"]["readinessGates"], "it is never ready"
        rule = {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": "x"},
            "spec": {"a": 1},
        }
        policy = policy_of(rule, "name", "uid")
        assert (policy["metadata"]["name"], policy["spec"]) == ("name-x", {"a": 1})
        assert policy["metadata"]["ownerReferences"][0]["uid"] == "uid", "it is deleted with the pod"

    @pytest.mark.parametrize(
        ("workdir", "bound", "seen"),
        [
            ("/work/deep", {"scans"}, ["data"]),
            ("/work", set(), None),
            ("/scratch", {"scans"}, None),
            ("/workdir", {"scans"}, None),
        ],
    )
    def test_a_trial_pod_sees_the_claim_of_its_workdir(
        self, workdir: str, bound: set[str], seen: list[str] | None
    ) -> None:
        container = {
            "image": "a:1",
            "volumeMounts": [{"name": "data", "mountPath": "/work"}, {"name": "tmp", "mountPath": "/scratch"}],
        }
        claim = {"name": "data", "persistentVolumeClaim": {"claimName": "scans"}}
        spec = {"volumes": [claim, {"name": "tmp", "emptyDir": {}}]}
        pod = with_claim(pod_of("name", container, spec), container, spec, workdir, bound)
        volumes = pod["spec"].get("volumes")
        assert (volumes and [volume["name"] for volume in volumes]) == seen


class TestCommand:
    def test_the_laptop_alone(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["doctor", "--site", "laptop"]) == 0
        assert "free" in capsys.readouterr().out

    def test_an_unknown_deployment_suggests_the_closest_match(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["doctor", "--site", "testbed", "--deployment", "slrum"]) == 2
        assert "slurm" in capsys.readouterr().err

    def test_no_time_at_all(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["doctor", "--site", "laptop", "--timeout", "0"]) == 2
        assert "more than 0 s" in capsys.readouterr().err
