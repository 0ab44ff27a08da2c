"""Each line of `medweave doctor` that is not ✓ says what to do: by the program's text, and by the lines of what can go wrong."""

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
from medweave.doctor.checks import _provision, look_at
from medweave.doctor.cluster import Cluster
from medweave.doctor.hop import Health, Hop
from medweave.doctor.local_shell import ask
from medweave.doctor.machine import slurm_checks
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


# ---- the program's text


def lines_of(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Where a line of the table is made, of any health but ✓."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and re.fullmatch(r"(self\._|_)?hop|Hop", ast.unparse(node.func)):
            keys = {each.arg for each in node.keywords}
            health = next((ast.unparse(each.value) for each in node.keywords if each.arg == "health"), "")
            told = health or " ".join(ast.unparse(each) for each in node.args)
            if "Health.OK" not in told or keys & {"do"}:
                yield f"{path.name}:{node.lineno}", node


def fix_of(node: ast.Call) -> ast.expr | None:
    """What it says is to be done: `do`, or the last of four (`_hop`) or three (`hop` of a bucket)."""
    by_name = next((each.value for each in node.keywords if each.arg == "do"), None)
    most = {"self._hop": 4, "hop": 3}.get(ast.unparse(node.func))
    return by_name if by_name is not None or len(node.args) != most else node.args[-1]


def test_each_line_that_is_not_well_is_made_with_a_fix() -> None:
    made = [found for path in sorted(DOCTOR.glob("*.py")) for found in lines_of(path)]
    assert len(made) > 30, "the lines are found"
    for place, node in made:
        fix = fix_of(node)
        assert fix is not None, f"{place}: {ast.unparse(node)}"
        told = ast.unparse(fix)
        assert not re.search(r"""(or|else) ['"]{2}$|^['"]{2}$""", told) or "if told" in told or "if little" in told, (
            f"{place}: it may be empty: {told}"
        )


def test_no_command_is_told_with_dots_left_in(tmp_path: Path) -> None:
    for path in sorted(DOCTOR.glob("*.py")):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            assert "…" not in ast.unparse(call), f"{path.name}:{call.lineno}"
    assert _provision(tmp_path / "a b.yml") == f"run: medweave provision --site '{tmp_path}/a b.yml'"


def test_who_finds_a_way_closed_says_what_to_do() -> None:
    for path in sorted(DOCTOR.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Closed":
                assert len(node.args) == 2, ast.unparse(node)
                assert ast.unparse(node.args[1]) not in ("''", '""'), f"{path.name}:{node.lineno}"


def told(hops: list[Hop]) -> list[Hop]:
    """The same, if each that is not ✓ says what to do."""
    for hop in hops:
        assert hop.do or hop.health is Health.OK, hop
        assert "…" not in hop.do, hop
    return hops


# ---- Slurm, here


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A login node: this machine, with the stand-in for Slurm; its folder of knobs."""
    (tmp_path / "slurm").mkdir()
    monkeypatch.setenv("PATH", f"{FAKES}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(tmp_path / "slurm"))
    return tmp_path / "slurm"


def site(folder: Path, services: Mapping[str, Any], *, wraps: Mapping[str, Any] | None = None) -> Path:
    """A site file whose Slurm is reached by the deployment that it wraps."""
    here = wraps or {"type": "medweave.local", "workdir": str(folder / "work"), "config": {}}
    hpc = {"type": "medweave.slurm", "wraps": "login", "config": {"services": dict(services)}}
    role = {"deployment": "hpc", "service": next(iter(services))}
    document = {"title": "x", "deployments": {"login": here, "hpc": hpc}, "roles": {"train": role}}
    (folder / "site.yml").write_text(yaml.safe_dump(document))
    return folder / "site.yml"


@pytest.mark.slow
def test_a_login_node_itself_passes(slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = site(tmp_path, {"usual": {"partition": "normal", "time": "01:00:00"}})
    code = main(["doctor", "--site", str(file)])
    table = capsys.readouterr().out
    assert code == 0, table
    assert re.search(r"✓ hpc +scheduler +Slurm answers; partitions: normal, gpu", table), table
    assert "partition normal, time 01:00:00 accepted by sbatch --test-only" in " ".join(table.split())
    assert not (slurm / "submitted").exists(), "nothing was submitted"


def scheduler(services: Mapping[str, Any], **config: Any) -> list[Hop]:
    checks = slurm_checks("hpc", {"services": services, **config}, functools.partial(ask, limit_s=20), "install it")
    return told([hop for check in checks for hop in check.try_it()])


def test_a_partition_that_is_not_there_is_told_with_those_that_are(slurm: Path) -> None:
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
    assert "load Slurm's module" in hop.do


@pytest.mark.slow
def test_slurm_that_does_not_answer_is_unknown_and_nothing_is_left(slurm: Path, tmp_path: Path) -> None:
    (slurm / "sinfo-sleeps").write_text("1")
    with pytest.raises(TimeoutError):
        ask(f"sinfo {tmp_path}", 1.0)

    def is_left() -> bool:
        commands = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                commands.append(path.read_bytes())
        return any(str(tmp_path).encode() in each for each in commands)

    wait_until(lambda: not is_left())  # a process that was killed is there for a moment, until somebody has noticed
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


def test_what_cannot_be_tried_is_unknown_with_a_fix(tmp_path: Path) -> None:
    pods = {
        "type": "medweave.kubernetes",
        "workdir": "/work",
        "config": {"selector": "app=w", "kubeconfig": str(tmp_path / "none")},
    }
    file = site(tmp_path, {"usual": {}}, wraps=pods)
    document = yaml.safe_load(file.read_text())
    document["deployments"]["flux"] = {"type": "flux", "config": {}}
    file.write_text(yaml.safe_dump(document))
    hops = told(look_at(read_site(file), ["hpc", "flux", "login"], 5, lambda hop: None))
    assert [(hop.place, hop.name, hop.health) for hop in hops] == [
        ("flux", "type", Health.UNKNOWN), ("hpc", "scheduler", Health.UNKNOWN), ("login", "cluster", Health.FAULT),
    ]  # fmt: skip


# ---- a cluster


class Reviewing(ApiServer):
    """An API server with a version, which knows what its user may do.

    Attributes:
        denied: (verb, resource), with its subresource after a slash.
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
        asked = body["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
        return web.json_response(body | {"status": {"allowed": (asked["verb"], resource) not in self.denied}})


@pytest.fixture
def server() -> Iterator[Reviewing]:
    with Reviewing() as made:
        yield made


def looked(server: Reviewing, folder: Path, *objects: Mapping[str, Any], **config: Any) -> dict[str, Hop]:
    """All lines but those of images, for which a cluster has to start pods."""
    server.write_kubeconfig(folder / "kubeconfig")
    (folder / "pods.yml").write_text(yaml.safe_dump_all(objects or [POD]))
    given = {"kubeconfig": str(folder / "kubeconfig"), "files": [str(folder / "pods.yml")], **config}
    hops: list[Hop] = []
    for check in Cluster("pods", "kubernetes", given, 5, folder).checks():
        if check.name != "image":
            hops += check.try_it()
        if check.leads_on and hops[-1].health is not Health.OK:
            break
    return {hop.name: hop for hop in told(hops)}


def test_all_rights_are_there(server: Reviewing, tmp_path: Path) -> None:
    hops = looked(server, tmp_path)
    assert (hops["rights"].health, hops["cluster"].health) == (Health.OK, Health.OK)
    assert re.fullmatch(r"all [1-9]\d* that a run needs", hops["rights"].seen)


def test_a_right_that_is_missing_is_named(server: Reviewing, tmp_path: Path) -> None:
    server.denied = {("create", "pods/exec"), ("list", "events")}
    hop = looked(server, tmp_path)["rights"]
    assert (hop.health, hop.seen) == (Health.FAULT, "may not: create pods/exec")
    assert "ask the namespace's administrator for these" in hop.do


def test_a_right_without_which_a_run_does_less(server: Reviewing, tmp_path: Path) -> None:
    server.denied = {("list", "events")}
    hop = looked(server, tmp_path)["rights"]
    assert hop.health is Health.WARNING
    assert hop.seen == "may not list events: reasons have fewer words, and no scale-up is seen"


@pytest.mark.parametrize(
    ("status", "do"),
    [(403, "name a namespace in which this account may list pods"), (401, "renew the token"), (500, "readyz")],
)
def test_a_namespace_that_is_refused(server: Reviewing, tmp_path: Path, status: int, do: str) -> None:
    server.refuse[("GET", f"{CORE}/pods")] = status, "pods is forbidden"
    hops = looked(server, tmp_path)
    assert list(hops) == ["cluster"], "nothing behind it is tried"
    assert hops["cluster"].health is Health.FAULT
    assert hops["cluster"].seen.startswith(f"namespace {NAMESPACE}: {status} ")
    assert do in hops["cluster"].do


def test_a_context_that_the_kubeconfig_does_not_have(server: Reviewing, tmp_path: Path) -> None:
    hop = looked(server, tmp_path, kubeContext="radiolgy")["cluster"]
    assert hop.health is Health.FAULT
    assert "radiolgy" in hop.seen
    assert hop.do == "deployments.pods.config: correct kubeconfig or kubeContext"


def test_a_claim_that_may_not_be_read_or_is_not_there(server: Reviewing, tmp_path: Path) -> None:
    volume = {"name": "d", "persistentVolumeClaim": {"claimName": "scans"}}
    pod = POD | {"spec": POD["spec"] | {"volumes": [volume]}}  # type: ignore[operator]
    assert looked(server, tmp_path, pod)["claim"].seen == "there is no claim scans"
    server.refuse[("GET", "persistentvolumeclaims")] = 403, "forbidden"
    hop = looked(server, tmp_path, pod)["claim"]
    assert (hop.health, "persistentvolumeclaims" in hop.do) == (Health.UNKNOWN, True)


# ---- quotas


def quota(hard: Mapping[str, str], used: Mapping[str, str], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "team"}, "spec": spec, "status": {"hard": dict(hard), "used": dict(used)}}


def with_quota(server: Reviewing, folder: Path, *quotas: Mapping[str, Any], **pod: Any) -> Hop:
    server.objects[f"{CORE}/resourcequotas"] = {"items": list(quotas)}
    return looked(server, folder, POD | pod)["quota"]


@pytest.mark.parametrize(
    ("hard", "used", "health", "said"),
    [
        ({"pods": "10"}, {"pods": "10"}, Health.FAULT, "pods is used up"),
        ({"pods": "10"}, {"pods": "9"}, Health.WARNING, "pods is nearly used up"),
        ({"pods": "10"}, {"pods": "3"}, Health.OK, ""),
        ({"requests.cpu": "4"}, {"requests.cpu": "4000m"}, Health.FAULT, "requests.cpu is used up"),
        ({"limits.memory": "64Gi"}, {"limits.memory": "61440Mi"}, Health.WARNING, "limits.memory is nearly used up"),
        ({"count/pods": "2"}, {"count/pods": "3"}, Health.FAULT, "count/pods is used up"),
        ({"pods": "10"}, {}, Health.UNKNOWN, "pods is not counted yet"),
        # What a run of pods does not make.
        ({"services.loadbalancers": "0"}, {"services.loadbalancers": "0"}, Health.OK, ""),
        ({"configmaps": "5"}, {"configmaps": "5"}, Health.WARNING, "configmaps is used up, should a run need it"),
        ({"requests.nvidia.com/gpu": "2"}, {"requests.nvidia.com/gpu": "2"}, Health.WARNING, "should a run need it"),
    ],
)
def test_a_quota_is_judged_by_each_of_its_resources(
    server: Reviewing, tmp_path: Path, hard: dict[str, str], used: dict[str, str], health: Health, said: str
) -> None:
    hop = with_quota(server, tmp_path, quota(hard | {"secrets": "100"}, used | {"secrets": "1"}))
    assert hop.health is health
    assert said in hop.do
    assert bool(said) == ("raise ResourceQuota team" in hop.do)
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
    hop = looked(server, tmp_path)["quota"]
    assert (hop.health, hop.seen) == (Health.UNKNOWN, "quotas may not be listed (403)")
    assert "the right to list resourcequotas" in hop.do


def test_the_storage_of_a_class_counts_where_a_claim_names_it() -> None:
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": {"storageClassName": "gold"}}
    of = ".storageclass.storage.k8s.io/requests.storage"
    assert f"gold{of}" in needed([claim])
    assert f"gold{of}" not in needed([POD])
    used = SimpleNamespace(hard={f"iron{of}": "1Gi"}, used={f"iron{of}": "1Gi"})
    full = SimpleNamespace(metadata=SimpleNamespace(name="q"), spec=None, status=used)
    assert hop_of("pods", full, needed([claim])).health is Health.WARNING
