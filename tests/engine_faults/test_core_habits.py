"""Faults C3, C4, C9 to C15, C17 and C24 of the engine's core: each is shown on stock StreamFlow, and is not there with medweave."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import psutil
import pytest
import yaml

from support.engine import FILE, run, wait_until, write_workflow
from support.engine_faults import STOCK_PRELOAD, run_stock, shown, start_stock, still_going, stock_file
from support.ssh_server import SSHServer, ssh_server

FAKES = Path(__file__).parents[1] / "fakes" / "slurm"
GOOD = "echo done > result.txt"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SSHServer]:
    with ssh_server(tmp_path / "server") as started:
        yield started


def using(connector: Any, act: Callable[[Any, Any], Awaitable[Any]]) -> Any:
    """Run an act with a deployed connector; return its result."""
    return using_all([connector], act)[0]


def using_all(connectors: Sequence[Any], act: Callable[[Any, Any], Awaitable[Any]]) -> list[Any]:
    """Run an act with several deployed connectors at the same time; return the results."""

    async def go(connector: Any) -> Any:
        try:
            await connector.deploy(False)
            (found,) = (await connector.get_available_locations()).values()
            return await act(connector, found)
        finally:
            await connector.undeploy(False)

    async def all_answers() -> list[Any]:
        return await asyncio.gather(*map(go, connectors))

    return asyncio.run(asyncio.wait_for(all_answers(), 60))


def stock_ssh(server: SSHServer) -> Any:
    from streamflow.deployment.connector.ssh import SSHConnector

    nodes = [f"127.0.0.1:{server.port}"]
    return SSHConnector("login", "/", nodes=nodes, username="me", sshKey=str(server.key), checkHostKey=False, retries=1)


def our_ssh(server: SSHServer) -> Any:
    from medweave_connectors.sites.ssh.connector import MedweaveSSHConnector

    nodes, known = [f"127.0.0.1:{server.port}"], str(server.known_hosts)
    return MedweaveSSHConnector("login", "/", nodes=nodes, username="me", sshKey=str(server.key), knownHosts=known)


def test_c3_memory_of_a_login_node_is_reported_in_mib(server: SSHServer, stock_only: bool) -> None:
    async def memory_mib(_connector: Any, available: Any) -> float:
        return float(available.hardware.memory)

    true_mib = psutil.virtual_memory().total / 2**20
    reported = using(stock_ssh(server), memory_mib)
    shown(reported == pytest.approx(1024 * true_mib, rel=0.01), reported)
    if stock_only:
        return
    assert using(our_ssh(server), memory_mib) == pytest.approx(true_mib, rel=0.01)


def test_c4_files_of_a_deployment_that_is_not_lazy(stock: Path, ours: Path, stock_only: bool) -> None:
    (stock / "job.j2").write_text("{{ streamflow_command }}")
    usual = "{type: slurm, lazy: false, workdir: %s, config: {services: {usual: {file: job.j2}}}}"
    file = stock_file(stock).replace("here: {type: local", f"hpc: {usual % (stock / 'work')}, here: {{type: local")
    file = file.replace("target: {deployment: here}", "target: {deployment: hpc, service: usual}")
    write_workflow(stock, {"first": GOOD}, file=file)
    ended = run_stock(stock)
    shown(ended.exit_code == 1 and "NotADirectoryError" in ended.stderr, ended.stderr)
    if stock_only:
        return
    (ours / "slurm").mkdir()
    (ours / "head.sh").write_text("export FROM_HEAD=yes\n")
    service = "{services: {usual: {prologue: head.sh}}}"
    hpc = f"{{type: medweave.slurm, lazy: false, wraps: here, config: {service}}}"
    file = FILE.replace("here: {type: medweave.local", f"hpc: {hpc}, here: {{type: medweave.local, workdir: site")
    file = file.replace("target: {deployment: here}", "target: {deployment: hpc, service: usual}")
    write_workflow(ours, {"first": 'echo "$FROM_HEAD" > result.txt'}, file=file)
    ended = run(ours, environment={"PATH": f"{FAKES}:/usr/bin:/bin", "FAKE_SLURM": str(ours / "slurm")})
    assert ended.exit_code == 0, ended.stderr
    assert (ours / "results" / "result.txt").read_text() == "yes\n"


def test_c9_a_hanging_command_blocks_no_other(server: SSHServer, stock_only: bool) -> None:
    async def seconds_of_a_short_one(connector: Any, available: Any) -> float:
        place = available.location
        hanging = asyncio.create_task(connector.run(place, ["sleep", "4"], capture_output=True))
        await asyncio.sleep(0.3)
        before = time.monotonic()
        await connector.run(place, ["echo", "hello"], capture_output=True)
        seconds = time.monotonic() - before
        await hanging
        return seconds

    connectors = [stock_ssh(server)] if stock_only else [stock_ssh(server), our_ssh(server)]
    seconds, *ours = using_all(connectors, seconds_of_a_short_one)
    shown(seconds > 3, seconds)
    assert all(value < 3 for value in ours)


def test_c10_output_for_dev_null_is_discarded(tmp_path: Path, stock_only: bool) -> None:
    from streamflow.deployment.connector.local import LocalConnector

    async def unwanted(connector: Any, available: Any) -> Any:
        nowhere = asyncio.subprocess.DEVNULL
        return await connector.run(available.location, ["echo", "hello"], stdout=nowhere, capture_output=True)

    output = using(LocalConnector("here", str(tmp_path)), unwanted)
    shown(output == ("hello/dev/null", 0), output)
    if stock_only:
        return
    from medweave_connectors.sites.local.connector import MedweaveLocalConnector

    assert using(MedweaveLocalConnector("here", str(tmp_path)), unwanted) == ("", 0)


@pytest.mark.parametrize(
    ("block", "tries", "word"),
    [
        ("failureManager: {type: rollback, config: {}}", 20, "failureManager.config.max_retries"),
        (
            "failureManager: {type: rollback, enabled: false, config: {max_retries: 3}}",
            3,
            "failureManager.enabled: StreamFlow ignores `enabled: false`",
        ),
    ],
)
def test_c11_retries_are_limited(stock: Path, ours: Path, stock_only: bool, block: str, tries: int, word: str) -> None:
    def tools(folder: Path) -> dict[str, str]:
        return {"bad": f"echo x >> {folder}/tried; exit 1"}

    def tried(folder: Path) -> int:
        return len((folder / "tried").read_text()) // 2 if (folder / "tried").exists() else 0

    write_workflow(stock, tools(stock), file=stock_file(stock) + block + "\n")
    going = start_stock(stock)
    wait_until(lambda: tried(stock) >= tries or going.process.exitcode is not None, 30)
    still_going(going, 0)
    shown(tried(stock) >= tries, going.stderr)
    if stock_only:
        return
    write_workflow(ours, tools(ours), file=FILE + block + "\n")
    ended = run(ours)
    assert ended.exit_code == 1
    assert word in ended.stderr
    assert tried(ours) == 0


def test_c12_no_copies_of_copies(stock: Path, ours: Path, stock_only: bool) -> None:
    block = "checkpointManager: {type: default, config: {checkpoint_dir: copies}}\n"
    # Copies of copies: over a site elsewhere there are thousands; on one machine, more than there are files.
    write_workflow(stock, {"first": GOOD, "slow": "sleep 2; " + GOOD}, file=stock_file(stock) + block)
    ended = run_stock(stock)
    copies = len(list((stock / "copies").iterdir())) if (stock / "copies").exists() else 0
    shown(copies > 2, f"{copies} copies: {ended.stderr}")
    if stock_only:
        return
    write_workflow(ours, {"first": GOOD}, file=FILE + block)
    ended = run(ours)
    assert ended.exit_code == 1
    assert "checkpointManager: checkpointManager copies its own copies" in ended.stderr


def test_c13_no_command_line_is_stored_after_a_success(stock: Path, ours: Path, stock_only: bool) -> None:
    word = "patient-4711"
    keys = {"arguments": [word]}
    write_workflow(stock, {"first": (GOOD, keys)}, file=stock_file(stock).replace(":memory:", "stock.db"))
    run_stock(stock)
    shown(word.encode() in (stock / "stock.db").read_bytes(), "the stock database holds no command line")
    if stock_only:
        return
    write_workflow(ours, {"first": (GOOD, keys)})
    ended = run(ours)
    assert ended.exit_code == 0, ended.stderr
    holds = [file for file in ended.record.rglob("*") if file.is_file() and word.encode() in file.read_bytes()]
    assert holds == []
    assert word not in ended.stderr


def command_after_run(folder: Path, command: str, *, ours: bool) -> subprocess.CompletedProcess[str]:
    """Run `streamflow prov` or `streamflow report` on the run `visit` of a folder's streamflow.yml."""
    words = [command, "visit", "--file", "streamflow.yml"]
    code = f"{'' if ours else STOCK_PRELOAD}\nimport sys, streamflow.main\nsys.exit(streamflow.main.main({words}))"
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)


def test_c13_no_crate_holds_the_data(stock: Path, ours: Path, stock_only: bool) -> None:
    secret = b"patient-4711"

    def tools(folder: Path) -> dict[str, object]:
        (folder / "scan.txt").write_bytes(secret)
        scan = {"class": "File", "path": str(folder / "scan.txt")}
        return {
            "first": ("touch result.txt", {"inputs": {"scan": {"type": "File", "default": scan, "inputBinding": {}}}})
        }

    def crates(folder: Path) -> list[bytes]:
        archives = [ZipFile(path) for path in folder.glob("*.zip")]
        return [archive.read(name) for archive in archives for name in archive.namelist()]

    write_workflow(stock, tools(stock), file=stock_file(stock).replace(":memory:", f"{stock}/stock.db"))
    run_stock(stock, "--name", "visit")
    command = command_after_run(stock, "prov", ours=False)
    shown(secret in crates(stock), command.stderr + command.stdout)
    if stock_only:
        return
    write_workflow(ours, tools(ours), file=FILE)
    assert run(ours, "--name", "visit").exit_code == 0
    command = command_after_run(ours, "prov", ours=True)
    assert command.returncode == 1
    assert "do:       medweave report runs/<run-id>" in command.stderr
    assert crates(ours) == []


def test_c13_the_report_needs_no_further_package(stock: Path, ours: Path, stock_only: bool) -> None:
    write_workflow(stock, {"first": GOOD}, file=stock_file(stock).replace(":memory:", f"{stock}/stock.db"))
    command = command_after_run(stock, "report", ours=False)
    shown(command.returncode == 1 and "No module named" in command.stderr, command.stderr + command.stdout)
    if stock_only:
        return
    from medweave.cli.main_command import main

    write_workflow(ours, {"first": GOOD})
    assert main(["report", str(run(ours).record), "--output", str(ours / "report.html")]) == 0
    assert "first" in (ours / "report.html").read_text(encoding="utf-8")


def test_c14_a_file_is_one_run(stock: Path, ours: Path, stock_only: bool) -> None:
    def two(file: str) -> str:
        document = yaml.safe_load(file)
        document["workflows"]["other"] = document["workflows"]["tiny"]
        return str(yaml.safe_dump(document, sort_keys=False))

    write_workflow(stock, {"first": GOOD}, file=two(stock_file(stock)).replace(":memory:", "stock.db"))
    ended = run_stock(stock)
    printed = (stock / "stdout.txt").read_text()
    # One after the other; after the first has ended, the second gets the settings of the first.
    shown(
        ended.exit_code == 1 and printed.count('"first_result"') == 1 and "is not defined" in ended.stderr, ended.stderr
    )
    if stock_only:
        return
    write_workflow(ours, {"first": GOOD}, file=two(FILE))
    ended = run(ours)
    assert ended.exit_code == 1
    assert "workflows: a StreamFlow file must have one workflow." in ended.stderr
    assert "seen:     tiny, other" in ended.stderr
    assert not (ours / "results" / "result.txt").exists()


def test_c14_the_first_cause_is_what_the_user_reads(stock: Path, ours: Path, stock_only: bool) -> None:
    tools = {"bad": "echo 'no such case' >&2; exit 65", "slow": "sleep 2; " + GOOD}
    write_workflow(stock, tools, file=stock_file(stock))
    ended = run_stock(stock)
    shown("no such case" not in "\n".join(ended.stderr.splitlines()[-20:]), ended.stderr)
    if stock_only:
        return
    write_workflow(ours, tools)
    ended = run(ours)
    assert len(ended.stderr.splitlines()) < 20, ended.stderr
    after = ended.stderr.partition("first cause: bad on here")[2]
    assert "no such case" in after


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        (
            "{step: /frist, target: {deployment: here}}",
            [
                "streamflow.yml:2: workflows.tiny.bindings[1].step: there is no step '/frist'.",
                "expected: a step of tiny.cwl: /first, /second",
                "do:       write '/first' (closest match)",
            ],
        ),
        (
            "{port: /frist/result, target: {deployment: here, workdir: /tmp}}",
            [
                "streamflow.yml:2: workflows.tiny.bindings[1].port: there is no port '/frist/result'.",
                "expected: a port of tiny.cwl: /first/result, /second/result",
            ],
        ),
    ],
)
def test_c15_a_binding_of_an_unknown_step_or_port_is_refused(
    stock: Path, ours: Path, stock_only: bool, binding: str, words: list[str]
) -> None:
    usual = "{step: /, target: {deployment: here}}"

    def written(folder: Path, file: str) -> None:
        tools = dict.fromkeys(("first", "second"), f"touch {folder}/ran; {GOOD}")
        write_workflow(folder, tools, file=file.replace(usual, f"{usual}, {binding}"))

    written(stock, stock_file(stock))
    codes = [run_stock(stock, *arguments).exit_code for arguments in (["--validate"], [])]
    shown(codes == [0, 0] and (stock / "ran").exists(), codes)
    if stock_only:
        return
    written(ours, FILE)
    for arguments in (["--validate"], []):
        (ours / "stderr.txt").unlink(missing_ok=True)
        ended = run(ours, *arguments)
        assert ended.exit_code == 1
        for word in words:
            assert word in ended.stderr
        assert "does not match" not in ended.stderr  # the engine's warning would say it twice
    assert not (ours / "ran").exists()


def test_c15_a_service_that_a_deployment_does_not_have_is_refused(stock: Path, ours: Path, stock_only: bool) -> None:
    def file(usual: str, kind: str, more: str) -> str:
        hpc = f"hpc: {{type: {kind}, {more}, config: {{services: {{gpu4: {{}}, cpu: {{}}}}}}}}, here: {{type"
        placed = usual.replace("target: {deployment: here}", "target: {deployment: hpc, service: gpu}")
        return placed.replace("here: {type", hpc)

    write_workflow(stock, {"first": GOOD}, file=file(stock_file(stock), "slurm", f"workdir: {stock}/work"))
    ended = run_stock(stock, "--validate")
    shown(ended.exit_code == 0, ended.stderr)
    if stock_only:
        return
    write_workflow(ours, {"first": GOOD}, file=file(FILE, "medweave.slurm", "wraps: here"))
    ended = run(ours, "--validate")
    assert ended.exit_code == 1
    assert "workflows.tiny.bindings[0].target.service: there is no service 'gpu'." in ended.stderr
    assert "expected: a service of deployment 'hpc': gpu4, cpu" in ended.stderr


# Two places with four slots each. Every job writes down where it runs, and ends when all four have.
TWO_PLACES = """
from streamflow.core.scheduling import AvailableLocation
from streamflow.deployment.connector import connector_classes
from streamflow.deployment.connector.local import LocalConnector
class TwoPlaces(LocalConnector):
    async def get_available_locations(self, service=None):
        if self.deployment_name != "here":
            return await super().get_available_locations(service)
        keys = {{"deployment": "here", "hostname": "localhost", "local": True, "service": service, "slots": 4}}
        return {{name: AvailableLocation(name=name, **keys) for name in ("one", "two")}}
    async def run(self, location, **keywords):
        if keywords.get("job_name"):
            with open("{folder}/places", "a") as file:
                file.write(location.name + "\\n")
        return await super().run(location=location, **keywords)
connector_classes["local"] = TwoPlaces
"""


def test_c17_jobs_spread_over_the_places_of_a_deployment(stock: Path, ours: Path, stock_only: bool) -> None:
    def tools(folder: Path) -> dict[str, object]:
        script = f"while [ $(wc -l < {folder}/places) -lt 4 ]; do sleep 0.1; done; {GOOD}"
        return dict.fromkeys("abcd", script)

    def places(folder: Path) -> list[str]:
        return sorted((folder / "places").read_text().split())

    write_workflow(stock, tools(stock), file=stock_file(stock))
    ended = run_stock(stock, preload=TWO_PLACES.format(folder=stock))
    shown(ended.exit_code == 0 and places(stock) == ["one"] * 4, ended.stderr)
    if stock_only:
        return
    write_workflow(ours, tools(ours), file=FILE.replace("type: medweave.local", f"type: local, workdir: {ours}/work"))
    (ours / "places.py").write_text(TWO_PLACES.format(folder=ours))
    ended = run(ours, preload=ours / "places.py")
    assert ended.exit_code == 0, ended.stderr
    assert places(ours) == ["one", "one", "two", "two"]


def comparisons(kind: Callable[..., Any], num_items: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how often two tags are compared while three inputs of a scatter are combined: two lists and a single value."""
    from streamflow.core.workflow import Token
    from streamflow.workflow import step

    compared, stock = list[str](), step._is_parent_tag
    monkeypatch.setattr(step, "_is_parent_tag", lambda tag, parent: compared.append(tag) or stock(tag, parent))
    combinator = kind("/copy-combinator", None)
    arrivals = [("model", "0"), *((port, f"0.{number}") for port in ("image", "mask") for number in range(num_items))]

    async def combine() -> int:
        for port in ("image", "mask", "model"):
            combinator.add_item(port)
        found = 0
        for port, tag in arrivals:
            async for _ in combinator.combine(port, Token(port, tag=tag)):
                found += 1
        return found

    assert asyncio.run(combine()) == num_items
    monkeypatch.undo()
    return len(compared)


def test_c24_an_item_of_a_scatter_is_not_compared_with_all_others(
    stock_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamflow.workflow.combinator import DotProductCombinator

    stock = comparisons(DotProductCombinator, 200, monkeypatch)
    shown(stock > 200 * 200, stock)
    if stock_only:
        return
    from medweave_connectors.engine.steps.scatter import MedweaveDotProductCombinator

    assert comparisons(MedweaveDotProductCombinator, 200, monkeypatch) < 10 * 200
