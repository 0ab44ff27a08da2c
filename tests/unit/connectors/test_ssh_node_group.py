"""Node groups on hosts reached by ssh: real sshd, one server for each host, in real runs of the engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from streamflow.core.deployment import Target
from streamflow.core.scheduling import Hardware

from medweave.cli.main_command import main as clean
from medweave_connectors.engine.scheduling.shortfall import find_shortfall
from medweave_connectors.sites.ssh.host_group import rendezvous_at
from medweave_connectors.sites.ssh.shared_folders import SharedFolders
from support.engine import Run, run, start, wait_until, write_workflow
from support.engine_file import OURS, engine_file
from support.pod_runs import give_input
from support.processes import processes_with
from support.reuse_runs import ON
from support.sshd import USER, Sshd, make_key, sshd
from support.training_set import TINY, training_set

GANG = {"hints": {"urn:medweave:cwl#Gang": {}}}
GOOD = "echo {} > run_report.json; echo made > result.txt"
FIRST_ONLY = '[ "$MEDWEAVE_NODE_RANK" = 0 ] || exit 0; '


@dataclass(frozen=True)
class Hosts:
    """Two hosts whose workdir is `site`.

    Attributes:
        shared: both see one folder there; else the second host has a disk of its own.
        token: marks the processes of the test.
    """

    folder: Path
    servers: tuple[Sshd, Sshd]
    shared: bool
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def nodes(self) -> list[str]:
        return [f"127.0.0.1:{server.port}" for server in self.servers]

    @property
    def site(self) -> Path:
        return self.folder / "site"

    def write(self, tools: Mapping[str, Any], *, targets: Mapping[str, Any] | None = None, **config: Any) -> None:
        """Write a workflow whose steps are bound to both hosts, or to those that `targets` say."""
        usual = {"nodes": self.nodes, "username": USER, "sshKey": "key", "knownHosts": "known_hosts"}
        hosts = {"type": "medweave.ssh", "workdir": str(self.site), "config": usual | {"connectTimeout": 5} | config}
        transfer = {"dataManager": {"type": "medweave.transfer", "config": {}}}
        targets = targets or {"/": {"deployment": "hosts", "locations": 2}}
        write_workflow(self.folder, tools, file=engine_file({"hosts": hosts}, targets, managers=OURS | transfer))


@contextlib.contextmanager
def two_hosts(folder: Path, *, shared: bool) -> Iterator[Hosts]:
    key = make_key(folder / "key")
    (folder / "site").mkdir()
    own_disk = None if shared else folder / "site"
    with sshd(folder / "one", [key]) as one, sshd(folder / "two", [key], own_disk=own_disk) as two:
        (folder / "known_hosts").write_text(one.known_host + two.known_host)
        yield Hosts(folder, (one, two), shared)


@pytest.fixture(params=["one folder", "a disk each"])
def hosts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hosts]:
    with two_hosts(tmp_path, shared=request.param == "one folder") as both:
        yield both


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Hosts]:
    with two_hosts(tmp_path, shared=False) as both:
        yield both


@pytest.fixture
def sharing(tmp_path: Path) -> Iterator[Hosts]:
    with two_hosts(tmp_path, shared=True) as both:
        yield both


TOKEN = "MEDWEAVE_TEST"
WAITS = (
    "echo $SSH_CONNECTION > {folder}/at-$MEDWEAVE_NODE_RANK; (trap '' TERM INT HUP; while :; do sleep 0.2; done) & wait"
)


def begin(hosts: Hosts) -> Run:
    """Start a run whose nodes wait."""
    script = WAITS.format(folder=hosts.folder)
    hosts.write({"train": (f"export {TOKEN}={hosts.token}; {script}", GANG)})
    going = start(hosts.folder)
    wait_until(lambda: all((hosts.folder / f"at-{rank}").exists() for rank in (0, 1)), 30)
    return going


def host_of(hosts: Hosts, *, rank: int) -> str:
    """Return the host of a waiting node."""
    words = (hosts.folder / f"at-{rank}").read_text().split()
    return f"{words[2]}:{words[3]}"


def cut(server: Sshd) -> None:
    """End all connections of a server, as a network failure does; commands continue."""
    for connection in psutil.Process(server.process.pid).children():
        connection.kill()


def no_process_is_left(hosts: Hosts) -> bool:
    wait_until(lambda: not processes_with(hosts.token, TOKEN), 15)
    return not processes_with(hosts.token, TOKEN)


def failure(ended: Run) -> dict[str, Any]:
    (job,) = [event["data"] for event in ended.of_type("job.ended") if event["data"]["state"] == "failed"]
    return dict(job)


def chain(folder: Path) -> None:
    """Give the folder that step `first` writes to step `train`, as the first argument of its script."""
    document = json.loads((folder / "tiny.cwl").read_text(encoding="utf-8"))
    steps = document["steps"]
    steps["first"]["run"]["outputs"]["result"] = {"type": "Directory", "outputBinding": {"glob": "made"}}
    document["outputs"]["first_result"]["type"] = "Directory"
    steps["train"]["in"]["data"] = "first/result"
    steps["train"]["run"]["inputs"]["data"] = {"type": "Directory", "inputBinding": {"position": 1}}
    (folder / "tiny.cwl").write_text(json.dumps(document), encoding="utf-8")


@pytest.mark.slow
def test_the_command_runs_once_per_host(hosts: Hosts) -> None:
    tmp = hosts.folder
    script = (
        'echo "$MEDWEAVE_NODE_RANK of $MEDWEAVE_NUM_NODES at $MEDWEAVE_RENDEZVOUS by ${SSH_CONNECTION##* } in $TMPDIR" '
        f">> {tmp}/nodes; touch $TMPDIR/x; echo printed; find . $1 -type f > {tmp}/files-$MEDWEAVE_NODE_RANK; "
        f"{FIRST_ONLY}{GOOD}"
    )
    hosts.write({"train": (script, GANG | {"stdout": "log/printed.txt"})})
    (tmp / "data").mkdir()
    (tmp / "data" / "a").write_bytes(bytes(300_000))
    give_input(tmp, "train", {"class": "Directory", "path": str(tmp / "data")})
    ended = run(tmp)
    assert ended.exit_code == 0, ended.stderr
    assert (tmp / "results" / "result.txt").read_text() == "made\n"
    pattern = r"([01]) of 2 at (127\.0\.0\.1:\d+) by (\d+) in \S+/node-([01])"
    lines = sorted((tmp / "nodes").read_text().splitlines())
    one, two = (match.groups() for line in lines if (match := re.fullmatch(pattern, line)))
    assert (one[0], two[0]) == (one[3], two[3]) == ("0", "1")
    assert one[1] == two[1], "one rendezvous"
    assert {one[2], two[2]} == {str(server.port) for server in hosts.servers}
    first, second = ({Path(line).name for line in (tmp / f"files-{rank}").read_text().splitlines()} for rank in (0, 1))
    assert first == {"a", "printed.txt"}
    assert "a" in second
    assert hosts.shared or second == {"a"}, "only node 0 writes the tool's streams"
    (scheduled,) = ended.of_type("job.scheduled")
    assert sorted(scheduled["location"].split(",")) == sorted(hosts.nodes)


@pytest.mark.slow
def test_the_output_of_one_host_reaches_all(hosts: Hosts) -> None:
    first = "mkdir made; seq 9 > made/a; " + GOOD
    train = f'[ "$(find $1/ -type f)" = $1/a ] && [ "$(wc -l < $1/a)" = 9 ] || exit 65; {FIRST_ONLY}{GOOD}'
    one = {"deployment": "hosts"}
    hosts.write({"first": first, "train": (train, GANG)}, targets={"/first": one, "/train": one | {"locations": 2}})
    chain(hosts.folder)
    for expected_hits in (0, 2):
        ended = run(hosts.folder, environment=ON)
        assert ended.exit_code == 0, ended.stderr
        assert (hosts.folder / "results" / "result.txt").read_text() == "made\n"
        if hosts.shared:  # on disks of their own, the outputs are in the store of the host that wrote them
            assert ended.stderr.count("cache hit: outputs of run ") == expected_hits


@pytest.mark.slow
def test_a_parameter_server_and_its_worker_train_encrypted_on_two_hosts(apart: Hosts) -> None:
    tmp = apart.folder
    training_set(tmp / "data", ("train", "train", "validation"))
    words = ["train", "--output", "model", "--training-log", "log", "--run-report", "run_report.json", *TINY]
    words += ["--strategy", "parameter-server", "--ranks", "2", "--threads-per-rank", "1", "--transport", "grpc"]
    script = (
        f"export PYTHONPATH={shlex.quote(os.pathsep.join(sys.path))} OMP_NUM_THREADS=1; "
        f"{shlex.join([sys.executable, '-m', 'medweave_steps', *words])} --training-set $1 || exit; "
        f"{FIRST_ONLY}cp run_report.json result.txt; test -e model/model_card.json"
    )
    apart.write({"train": (script, GANG)})
    give_input(tmp, "train", {"class": "Directory", "path": str(tmp / "data")})
    ended = start(tmp).wait(180)
    assert ended.exit_code == 0, ended.stderr
    report = json.loads((tmp / "results" / "result.txt").read_text())
    assert report["config"]["strategy"] == "parameter-server", report
    assert [facts["rank"] for facts in report["ranks"]] == [0, 1]
    assert "epoch 3/3" in "".join(str(event["data"]) for event in ended.of_type("job.progress"))


@pytest.mark.slow
def test_a_retry_continues_from_checkpoints_that_all_hosts_have(hosts: Hosts) -> None:
    saves = {"urn:medweave:cwl#Checkpoint": {"folder": "saved"}}
    tried = f"{hosts.folder}/tried-$MEDWEAVE_NODE_RANK"
    script = (
        f"[ ! -e half-$MEDWEAVE_NODE_RANK ] || exit 65; touch half-$MEDWEAVE_NODE_RANK; if [ ! -e {tried} ]; then touch {tried}; "
        f"{FIRST_ONLY}mkdir -p saved; echo 7 > saved/at; exit 75; fi; "
        f'{FIRST_ONLY}cat "$MEDWEAVE_RESUME_FROM/at" > result.txt || echo none > result.txt'
    )
    tool = {"hints": GANG["hints"] | saves}
    hosts.write({"train": (script, tool)}, reactions={"StepFailed": {"wait": 0}})
    ended = run(hosts.folder)
    assert ended.exit_code == 0, ended.stderr
    assert [event["data"]["state"] for event in ended.of_type("job.ended")] == ["failed", "completed"]
    assert (hosts.folder / "results" / "result.txt").read_text() == ("7\n" if hosts.shared else "none\n")


@pytest.mark.slow
def test_a_killed_node_ends_the_others_with_its_error(sharing: Hosts) -> None:
    script = (
        'if [ "$MEDWEAVE_NODE_RANK" = 1 ]; then sleep 0.5; echo "medweave-step train: case 7 is broken." >&2; '
        "kill -9 $$; fi; (trap '' TERM INT HUP; while :; do sleep 0.2; done) & wait"
    )
    sharing.write({"train": (f"export {TOKEN}={sharing.token}; {script}", GANG)})
    before = time.monotonic()
    ended = run(sharing.folder)
    assert time.monotonic() - before < 60
    assert ended.exit_code == 1
    (place,) = re.findall(
        r"node 1 of 2 \((\S+)\) failed first\.\nmedweave-step train: case 7 is broken\.", ended.stderr
    )
    assert place in sharing.nodes
    assert f"its files are in hosts/{place}:{sharing.site}/" in ended.stderr
    assert failure(ended)["exit_code"] == 137
    assert no_process_is_left(sharing)


@pytest.mark.slow
def test_a_lost_connection_ends_the_group_and_names_the_host(sharing: Hosts) -> None:
    going = begin(sharing)
    lost = host_of(sharing, rank=1)
    cut(sharing.servers[sharing.nodes.index(lost)])
    ended = going.wait()
    assert ended.exit_code == 1
    assert f"node 1 of 2 ({lost}) failed first. the connection to {lost} was lost" in ended.stderr
    assert no_process_is_left(sharing)


@pytest.mark.slow
def test_ctrl_c_ends_all_nodes(sharing: Hosts) -> None:
    going = begin(sharing)
    going.signal(signal.SIGINT)
    ended = going.wait()
    assert ended.of_type("job.ended")[0]["data"]["state"] == "cancelled"
    assert no_process_is_left(sharing)


@pytest.mark.slow
def test_clean_removes_the_folders_of_a_failed_run_on_each_host(
    apart: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    apart.write({"train": ("exit 1", GANG)})
    ended = run(apart.folder)
    name = ended.record.name
    disks = (apart.site, apart.folder / "two" / "disk")
    assert [sorted(path.name for path in disk.glob("tiny-*")) for disk in disks] == [[name], [name]]
    assert clean(["clean", str(ended.record)]) == 0
    printed = capsys.readouterr().out
    for disk, node in zip(disks, apart.nodes, strict=True):
        assert f"hosts {node}: {apart.site}/{name} removed" in printed
        assert list(disk.glob("tiny-*")) == []


@pytest.mark.slow
def test_more_nodes_than_hosts_are_refused(sharing: Hosts) -> None:
    sharing.write({"train": (GOOD, GANG)}, targets={"/": {"deployment": "hosts", "locations": 3}})
    ended = run(sharing.folder)
    assert ended.exit_code == 1
    assert "workflows.tiny.bindings[0].target.locations: deployment 'hosts' has too few hosts." in ended.stderr
    assert f"expected: at most 2: its `nodes` are {', '.join(sharing.nodes)}" in ended.stderr


@pytest.mark.slow
def test_several_hosts_for_a_step_that_is_not_a_node_group_are_refused(sharing: Hosts) -> None:
    sharing.write({"train": f"touch {sharing.folder}/started; {GOOD}"})
    ended = run(sharing.folder)
    assert ended.exit_code == 1
    assert "deployments.hosts: a step that is not a node group is bound to several nodes." in ended.stderr
    assert not (sharing.folder / "started").exists()


def refusal_of(hosts: Hosts, **config: Any) -> str:
    """Return the error of a run that ends before its first job; the job would take longer."""
    hosts.write({"train": (f"sleep 30; {GOOD}", GANG)}, **config)
    before = time.monotonic()
    ended = run(hosts.folder)
    assert time.monotonic() - before < 20
    assert ended.exit_code == 1
    assert "Traceback" not in ended.stderr
    return ended.stderr


@pytest.mark.slow
def test_a_host_that_refuses_is_named_at_the_start(sharing: Hosts) -> None:
    one, _ = sharing.nodes
    assert "127.0.0.1:1 cannot be reached by ssh: " in refusal_of(sharing, nodes=[one, "127.0.0.1:1"])


@pytest.mark.slow
def test_a_host_whose_key_does_not_match_is_named_at_the_start(sharing: Hosts) -> None:
    one, two = sharing.servers
    (sharing.folder / "known_hosts").write_text(one.known_host + f"[127.0.0.1]:{two.port} {one.host_key}\n")
    text = refusal_of(sharing)
    assert f"deployments.hosts.config.knownHosts: 127.0.0.1:{two.port} cannot be reached by ssh." in text


def test_hosts_are_grouped_by_the_folder_that_they_see(tmp_path: Path) -> None:
    disks, lines = {"a": "one", "b": "two", "c": "one", "d": "one"}, list[str]()
    for disk in ("one", "two"):
        (tmp_path / disk / "run").mkdir(parents=True)

    async def run_at(host: str, line: str) -> tuple[str, int]:
        lines.append(line)
        words = ["sh", "-c", line.replace("/site", f"{tmp_path}/{disks[host]}")]
        ended = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True)
        return ended.stdout, ended.returncode

    async def go() -> None:
        folders = SharedFolders(run_at)
        assert await folders.one_host_each(["a", "b", "c", "d"], "/site/run/job/new folder/input") == ["a", "b"]
        num_lines = len(lines)
        assert await folders.one_host_each(["a", "b", "c", "d"], "/site/run/job 2/input") == ["a", "b"], "known"
        assert len(lines) == num_lines
        assert await folders.one_host_each(["c", "a"], "/site/run/x") == ["c"]
        assert await folders.one_host_each(["b"], "/site/run/x") == ["b"]

    asyncio.run(go())
    assert [path.name for path in tmp_path.rglob("*") if path.name not in ("one", "two", "run")] == [], (
        "no mark is left"
    )


class TwoHosts:
    """A deployment manager with one deployment, which is its own connector."""

    def get_connector(self, name: str) -> TwoHosts:
        return self

    async def get_available_locations(self, service: str | None) -> dict[str, Any]:
        sizes = {"large": Hardware(cores=8, memory=4096), "small": Hardware(cores=1, memory=4096)}
        return {name: SimpleNamespace(name=name, hardware=hardware) for name, hardware in sizes.items()}

    def most_locations(self, service: str | None) -> int:
        return 2


def test_a_host_that_is_too_small_for_the_group_is_named_at_once() -> None:
    target = Target(deployment=SimpleNamespace(name="hosts"), locations=2, workdir="/w")  # type: ignore[arg-type]
    manager: Any = TwoHosts()
    lack = asyncio.run(find_shortfall(manager, [(target, 2)], Hardware(cores=4, memory=256)))
    assert lack is not None
    assert lack.final
    assert lack.small == ("small of hosts has 1 cores and 4096 MiB",)


def test_the_rendezvous_is_the_address_that_ssh_reaches() -> None:
    assert rendezvous_at("10.0.0.9 41000 10.0.0.7 22\n", "gpu1").rpartition(":")[0] == "10.0.0.7"
    assert rendezvous_at("fd00::9 41000 fd00::7 22\n", "gpu1").rpartition(":")[0] == "fd00::7"
    for local in ("127.0.0.1 41000 127.0.0.1 22", "::1 41000 ::1 22", "fe80::9%e 4 fe80::7%eth0 22", "", "no account"):
        assert rendezvous_at(local, "gpu1").rpartition(":")[0] == "gpu1", "an address that only this host reaches"
    ports = {int(rendezvous_at("", "gpu1").rpartition(":")[2]) for _ in range(50)}
    assert len(ports) > 40
    assert all(20000 <= port < 32768 for port in ports)
