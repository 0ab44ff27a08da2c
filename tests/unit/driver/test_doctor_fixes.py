"""Each line of `medweave doctor` that is not ✓ says what to do: checked in the source, and by provoked failures."""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from aiohttp import web

from medweave import __version__
from medweave.cli.main_command import main
from medweave.doctor.checks import _provision, check_site, run_here
from medweave.doctor.hop_result import Health, HopResult
from medweave.doctor.machine import slurm_checks
from medweave.doctor.namespace import NamespaceChecks
from medweave.doctor.quota import hop_of, needed
from medweave.project.sites import read_site
from support.api_server import NAMESPACE, ApiServer
from support.cwl_files import ROOT
from support.engine import wait_until
from support.fake_cluster import FAKES

DOCTOR = ROOT / "driver" / "medweave" / "doctor"
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "w"},
    "spec": {"containers": [{"name": "w", "image": "a"}]},
}
CORE = f"/api/v1/namespaces/{NAMESPACE}"


# ---- the source


def lines_of(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls that make a line of the table with any health but ✓."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and re.fullmatch(r"(self\._|_)?hop|HopResult", ast.unparse(node.func)):
            keys = {keyword.arg for keyword in node.keywords}
            health = next((ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "health"), "")
            text = health or " ".join(ast.unparse(argument) for argument in node.args)
            if "Health.OK" not in text or keys & {"do"}:
                yield f"{path.name}:{node.lineno}", node


def fix_of(node: ast.Call) -> ast.expr | None:
    """Return the fix of a line: argument `do`, or the last of four (`_hop`) or three (`hop` of a bucket)."""
    by_name = next((keyword.value for keyword in node.keywords if keyword.arg == "do"), None)
    most = {"self._hop": 4, "hop": 3}.get(ast.unparse(node.func))
    return by_name if by_name is not None or len(node.args) != most else node.args[-1]


def test_each_line_that_is_not_ok_has_a_fix() -> None:
    calls = [call for path in sorted(DOCTOR.glob("*.py")) for call in lines_of(path)]
    assert len(calls) > 30, "the lines are found"
    for place, node in calls:
        fix = fix_of(node)
        assert fix is not None, f"{place}: {ast.unparse(node)}"
        text = ast.unparse(fix)
        assert (
            not re.search(r"""(or|else) ['"]{2}$|^['"]{2}$""", text) or "if problems" in text or "if warnings" in text
        ), f"{place}: it may be empty: {text}"


def test_no_command_contains_dots(tmp_path: Path) -> None:
    for path in sorted(DOCTOR.glob("*.py")):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            assert "…" not in ast.unparse(call), f"{path.name}:{call.lineno}"
    assert _provision(tmp_path / "a b.yml") == f"run: medweave provision --site '{tmp_path}/a b.yml'"


def test_each_unreachable_error_says_what_to_do() -> None:
    for path in sorted(DOCTOR.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Unreachable":
                assert len(node.args) == 2, ast.unparse(node)
                assert ast.unparse(node.args[1]) not in ("''", '""'), f"{path.name}:{node.lineno}"


def assert_fixes(hops: list[HopResult]) -> list[HopResult]:
    """Return the hops; fail if one that is not ✓ has no fix."""
    for hop in hops:
        assert hop.do or hop.health is Health.OK, hop
        assert "…" not in hop.do, hop
    return hops


# ---- Slurm, here


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make this machine a login node with the fake of Slurm; return the folder of the fake's settings."""
    (tmp_path / "slurm").mkdir()
    monkeypatch.setenv("PATH", f"{FAKES}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(tmp_path / "slurm"))
    return tmp_path / "slurm"


def site(folder: Path, services: Mapping[str, Any], *, wraps: Mapping[str, Any] | None = None) -> Path:
    """Write a site file whose Slurm is reached by the deployment that it wraps."""
    inner = wraps or {"type": "medweave.local", "workdir": str(folder / "work"), "config": {}}
    hpc = {"type": "medweave.slurm", "wraps": "login", "config": {"services": dict(services)}}
    role = {"deployment": "hpc", "service": next(iter(services))}
    document = {"title": "x", "deployments": {"login": inner, "hpc": hpc}, "roles": {"train": role}}
    (folder / "site.yml").write_text(yaml.safe_dump(document))
    return folder / "site.yml"


@pytest.mark.slow
def test_a_login_node_itself_passes(slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = site(tmp_path, {"usual": {"partition": "normal", "time": "01:00:00"}})
    code = main(["doctor", "--site", str(file)])
    table = capsys.readouterr().out
    assert code == 0, table
    assert re.search(r"✓ hpc +scheduler +Slurm responds; partitions: normal, gpu", table), table
    assert "partition normal, time 01:00:00 accepted by sbatch --test-only" in " ".join(table.split())
    assert not (slurm / "submitted").exists(), "nothing was submitted"


def scheduler(services: Mapping[str, Any], **config: Any) -> list[HopResult]:
    checks = slurm_checks(
        "hpc", {"services": services, **config}, functools.partial(run_here, limit_s=20), "install it"
    )
    return assert_fixes([hop for check in checks for hop in check.try_it()])


def test_an_unknown_partition_is_reported_with_the_known_ones(slurm: Path) -> None:
    hop = scheduler({"usual": {"partition": "nromal"}})[-1]
    assert (hop.name, hop.health) == ("service usual", Health.FAULT)
    assert "nromal" in hop.seen
    assert "expected: one of normal, gpu" in hop.do


def test_a_controller_that_is_down(slurm: Path) -> None:
    (slurm / "sinfo-says").write_text("Unable to contact slurm controller")
    (hop,) = scheduler({"usual": {}})
    assert (hop.name, hop.health) == ("scheduler", Health.FAULT)
    assert "Unable to contact slurm controller" in hop.seen
    assert "slurmctld" in hop.do


def test_no_slurm_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("sh", "timeout", "tr", "sed", "id"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(tmp_path))
    (hop,) = scheduler({"usual": {}})
    assert (hop.health, hop.seen) == (Health.FAULT, "not on the PATH: sbatch, squeue, scontrol, scancel, sinfo")
    assert "load the Slurm module" in hop.do


@pytest.mark.slow
def test_without_an_answer_of_slurm_no_process_is_left(slurm: Path, tmp_path: Path) -> None:
    (slurm / "sinfo-sleeps").write_text("1")
    with pytest.raises(TimeoutError):
        run_here(f"sinfo {tmp_path}", 1.0)

    def is_left() -> bool:
        commands = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # the process has just ended
                commands.append(path.read_bytes())
        return any(str(tmp_path).encode() in command for command in commands)

    wait_until(lambda: not is_left())  # a killed process exists until it is reaped
    assert not is_left()


@pytest.mark.parametrize(
    ("version", "health"), [(__version__, Health.OK), ("0.0.1", Health.WARNING), ("", Health.FAULT)]
)
def test_the_worker_of_a_local_service(slurm: Path, tmp_path: Path, version: str, health: Health) -> None:
    if version:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin/python").write_text(f"#!/bin/sh\necho {version} 3.11.2\n")
        (tmp_path / "bin/python").chmod(0o755)
    hop = scheduler({"usual": {"environment": {"virtualEnvironment": str(tmp_path)}}})[-1]
    assert (hop.name, hop.health) == ("worker", health)


def test_an_untestable_deployment_is_unknown_with_a_fix(tmp_path: Path) -> None:
    pods = {
        "type": "medweave.kubernetes",
        "workdir": "/work",
        "config": {"selector": "app=w", "kubeconfig": str(tmp_path / "none")},
    }
    file = site(tmp_path, {"usual": {}}, wraps=pods)
    document = yaml.safe_load(file.read_text())
    document["deployments"]["flux"] = {"type": "flux", "config": {}}
    file.write_text(yaml.safe_dump(document))
    hops = assert_fixes(check_site(read_site(file), ["hpc", "flux", "login"], 5, lambda hop: None))
    assert [(hop.place, hop.name, hop.health) for hop in hops] == [
        ("flux", "type", Health.UNKNOWN), ("hpc", "scheduler", Health.UNKNOWN), ("login", "cluster", Health.FAULT),
    ]  # fmt: skip


# ---- a cluster


class Reviewing(ApiServer):
    """An API server with a version and access reviews.

    Attributes:
        denied: pairs of verb and resource, with its subresource after a slash.
    """

    def __init__(self) -> None:
        super().__init__()
        self.denied: set[tuple[str, str]] = set()
        self.objects["/version/"] = {"major": "1", "minor": "34", "gitVersion": "v1.34.0"} | dict.fromkeys(
            ("buildDate", "compiler", "gitCommit", "gitTreeState", "goVersion", "platform"), "x"
        )
        self.objects[f"{CORE}/resourcequotas"] = {"items": []}

    def _add_routes(self, application: web.Application) -> None:
        application.router.add_post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", self._review)

    async def _review(self, request: web.Request) -> web.Response:
        body = await request.json()
        attributes = body["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (attributes["resource"], attributes.get("subresource"))))
        return web.json_response(body | {"status": {"allowed": (attributes["verb"], resource) not in self.denied}})


@pytest.fixture
def server() -> Iterator[Reviewing]:
    with Reviewing() as server:
        yield server


def check_namespace(
    server: Reviewing, folder: Path, *objects: Mapping[str, Any], **config: Any
) -> dict[str, HopResult]:
    """Return all hops but those of images, which need a cluster that starts pods."""
    server.write_kubeconfig(folder / "kubeconfig")
    (folder / "pods.yml").write_text(yaml.safe_dump_all(objects or [POD]))
    settings = {"kubeconfig": str(folder / "kubeconfig"), "files": [str(folder / "pods.yml")], **config}
    hops: list[HopResult] = []
    for check in NamespaceChecks("pods", "kubernetes", settings, 5, folder).checks():
        if check.name != "image":
            hops += check.try_it()
        if check.leads_on and hops[-1].health is not Health.OK:
            break
    return {hop.name: hop for hop in assert_fixes(hops)}


def test_all_rights_are_there(server: Reviewing, tmp_path: Path) -> None:
    hops = check_namespace(server, tmp_path)
    assert (hops["rights"].health, hops["cluster"].health) == (Health.OK, Health.OK)
    assert re.fullmatch(r"all [1-9]\d* permissions that a run needs", hops["rights"].seen)


def test_a_right_that_is_missing_is_named(server: Reviewing, tmp_path: Path) -> None:
    server.denied = {("create", "pods/exec"), ("list", "events")}
    hop = check_namespace(server, tmp_path)["rights"]
    assert (hop.health, hop.seen) == (Health.FAULT, "not permitted: create pods/exec")
    assert "ask the namespace's administrator for these" in hop.do


def test_a_right_without_which_a_run_does_less(server: Reviewing, tmp_path: Path) -> None:
    server.denied = {("list", "events")}
    hop = check_namespace(server, tmp_path)["rights"]
    assert hop.health is Health.WARNING
    assert hop.seen == "not permitted: list events: messages have less detail, and cluster scale-up is not detected"


@pytest.mark.parametrize(
    ("status", "do"),
    [(403, "choose a namespace in which this account may list pods"), (401, "renew the token"), (500, "readyz")],
)
def test_a_namespace_that_is_refused(server: Reviewing, tmp_path: Path, status: int, do: str) -> None:
    server.refuse[("GET", f"{CORE}/pods")] = status, "pods is forbidden"
    hops = check_namespace(server, tmp_path)
    assert list(hops) == ["cluster"], "no further check runs"
    assert hops["cluster"].health is Health.FAULT
    assert hops["cluster"].seen.startswith(f"namespace {NAMESPACE}: {status} ")
    assert do in hops["cluster"].do


def test_a_context_that_the_kubeconfig_does_not_have(server: Reviewing, tmp_path: Path) -> None:
    hop = check_namespace(server, tmp_path, kubeContext="radiolgy")["cluster"]
    assert hop.health is Health.FAULT
    assert "radiolgy" in hop.seen
    assert hop.do == "deployments.pods.config: correct kubeconfig or kubeContext"


def test_a_claim_that_may_not_be_read_or_is_not_there(server: Reviewing, tmp_path: Path) -> None:
    volume = {"name": "d", "persistentVolumeClaim": {"claimName": "scans"}}
    pod = POD | {"spec": POD["spec"] | {"volumes": [volume]}}  # type: ignore[operator]
    assert check_namespace(server, tmp_path, pod)["claim"].seen == "no such claim: scans"
    server.refuse[("GET", "persistentvolumeclaims")] = 403, "forbidden"
    hop = check_namespace(server, tmp_path, pod)["claim"]
    assert (hop.health, "persistentvolumeclaims" in hop.do) == (Health.UNKNOWN, True)


# ---- quotas


def quota(hard: Mapping[str, str], used: Mapping[str, str], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "team"}, "spec": spec, "status": {"hard": dict(hard), "used": dict(used)}}


def with_quota(server: Reviewing, folder: Path, *quotas: Mapping[str, Any], **pod: Any) -> HopResult:
    server.objects[f"{CORE}/resourcequotas"] = {"items": list(quotas)}
    return check_namespace(server, folder, POD | pod)["quota"]


@pytest.mark.parametrize(
    ("hard", "used", "health", "message"),
    [
        ({"pods": "10"}, {"pods": "10"}, Health.FAULT, "pods is used up"),
        ({"pods": "10"}, {"pods": "9"}, Health.WARNING, "pods is nearly used up"),
        ({"pods": "10"}, {"pods": "3"}, Health.OK, ""),
        ({"requests.cpu": "4"}, {"requests.cpu": "4000m"}, Health.FAULT, "requests.cpu is used up"),
        ({"limits.memory": "64Gi"}, {"limits.memory": "61440Mi"}, Health.WARNING, "limits.memory is nearly used up"),
        ({"count/pods": "2"}, {"count/pods": "3"}, Health.FAULT, "count/pods is used up"),
        ({"pods": "10"}, {}, Health.UNKNOWN, "pods is not counted yet"),
        # Objects that a run of pods does not create.
        ({"services.loadbalancers": "0"}, {"services.loadbalancers": "0"}, Health.OK, ""),
        ({"configmaps": "5"}, {"configmaps": "5"}, Health.WARNING, "configmaps is used up, if a run needs it"),
        ({"requests.nvidia.com/gpu": "2"}, {"requests.nvidia.com/gpu": "2"}, Health.WARNING, "if a run needs it"),
    ],
)
def test_a_quota_is_judged_by_each_of_its_resources(
    server: Reviewing, tmp_path: Path, hard: dict[str, str], used: dict[str, str], health: Health, message: str
) -> None:
    hop = with_quota(server, tmp_path, quota(hard | {"secrets": "100"}, used | {"secrets": "1"}))
    assert hop.health is health
    assert message in hop.do
    assert bool(message) == ("raise ResourceQuota team" in hop.do)
    assert "secrets 1 of 100" in hop.seen


def test_the_gpus_of_a_quota_count_where_a_pod_asks_for_some(server: Reviewing, tmp_path: Path) -> None:
    full = quota({"requests.nvidia.com/gpu": "2"}, {"requests.nvidia.com/gpu": "2"})
    limits = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    hop = with_quota(server, tmp_path, full, spec={"containers": [{"name": "w", "image": "a", **limits}]})
    assert hop.health is Health.FAULT


def test_a_quota_of_some_pods_only_is_no_fault(server: Reviewing, tmp_path: Path) -> None:
    hop = with_quota(server, tmp_path, quota({"pods": "1"}, {"pods": "1"}, scopes=["BestEffort"]))
    assert hop.health is Health.WARNING


def test_quotas_that_may_not_be_listed_are_unknown(server: Reviewing, tmp_path: Path) -> None:
    server.refuse[("GET", "resourcequotas")] = 403, "forbidden"
    hop = check_namespace(server, tmp_path)["quota"]
    assert (hop.health, hop.seen) == (Health.UNKNOWN, "listing ResourceQuotas is not permitted (403)")
    assert "the permission to list resourcequotas" in hop.do


def test_the_storage_of_a_class_counts_where_a_claim_names_it() -> None:
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": {"storageClassName": "gold"}}
    of = ".storageclass.storage.k8s.io/requests.storage"
    assert f"gold{of}" in needed([claim])
    assert f"gold{of}" not in needed([POD])
    used = SimpleNamespace(hard={f"iron{of}": "1Gi"}, used={f"iron{of}": "1Gi"})
    full = SimpleNamespace(metadata=SimpleNamespace(name="q"), spec=None, status=used)
    assert hop_of("pods", full, needed([claim])).health is Health.WARNING
