"""Faults C1 to C8 of the engine's core: each is shown on stock StreamFlow, and is not there with medweave."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.engine import FILE, run, start, write_workflow
from support.engine_faults import end, going_meanwhile, pid_in, run_stock, shown, start_stock, stock_file
from support.processes import alive

GOOD = "echo done > result.txt"
HANG_S = 2.5  # a step that waits is refused, or placed, in the moment in which another one begins: after that, a wait has no end
SLOW = "echo $$ > {folder}/pid; sleep 60"
# A connector whose creation fails, under a type name that both engines have; the engine's own jobs use this type too.
BROKEN = """
from streamflow.deployment.connector import connector_classes
from streamflow.deployment.connector.local import LocalConnector
class Broken(LocalConnector):
    def __init__(self, deployment_name, *arguments, **keywords):
        super().__init__(deployment_name, *arguments, **keywords)
        if deployment_name == "here":
            raise ValueError("no such key file")
connector_classes["local"] = Broken
"""


def test_c1_an_error_in_a_constructor_reaches_every_step(stock: Path, ours: Path, stock_only: bool) -> None:
    tools = {"first": GOOD, "second": GOOD}
    write_workflow(stock, tools, file=stock_file(stock))
    going = start_stock(stock, preload=BROKEN)
    with going_meanwhile(going, HANG_S, after=lambda: "no such key file" in going.stderr) as hangs:
        if not stock_only:
            c1_with_medweave(ours, tools)
    shown("no such key file" in going.stderr and hangs.result(), going.stderr)


def c1_with_medweave(ours: Path, tools: dict[str, str]) -> None:
    # With retries too: the run does not end at the first failure then.
    retries = "failureManager: {type: rollback, config: {max_retries: 2, retry_delay: 0}}\n"
    for name, more in (("plain", ""), ("retries", retries)):
        folder = ours / name
        folder.mkdir()
        write_workflow(folder, tools, file=FILE.replace("type: medweave.local", "type: local, workdir: /tmp") + more)
        (folder / "broken.py").write_text(BROKEN)
        ended = start(folder, preload=folder / "broken.py").wait(30)
        assert ended.exit_code == 1
        assert "no such key file" in ended.stderr


@contextmanager
def waits(stock: Path, tool: object, *, target: str = "{deployment: here}", preload: str = "") -> Iterator[None]:
    """Assert that a step of the stock engine waits in silence while another one, elsewhere, has long ended.

    The block runs at the same time.
    """
    tools = {"waits": tool, "mark": f"touch {stock}/mark; " + GOOD}
    file = stock_file(stock).replace(
        "{step: /, target: {deployment: here}}",
        f"{{step: /waits, target: {target}}}, {{step: /mark, target: {{deployment: there}}}}",
    )
    there = f'there: {{type: local, workdir: "{stock}/there", config: {{}}}}, here'
    write_workflow(stock, tools, file=file.replace("deployments: {here", "deployments: {" + there))
    going = start_stock(stock, preload=preload)
    with going_meanwhile(going, HANG_S, after=lambda: (stock / "mark").exists()) as hangs:
        yield
    shown((stock / "mark").exists() and hangs.result() and not going.stderr.strip(), going.stderr)


# A deployment whose places come late: never, or after some seconds.
LATE = """
import time
from streamflow.deployment.connector import connector_classes
from streamflow.deployment.connector.local import LocalConnector
class Late(LocalConnector):
    first = None
    async def get_available_locations(self, service=None):
        if self.deployment_name == "here":
            Late.first = Late.first or time.monotonic()
            if time.monotonic() < Late.first + {seconds}:
                return {{}}
        return await super().get_available_locations(service)
connector_classes["local"] = Late
"""


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        pytest.param({"coresMin": 4096}, "4096 cores and 128 MiB of memory", id="cores"),
        pytest.param(
            {"coresMin": 1, "tmpdirMin": 10**9}, "1000001024 MiB of disk (tmpdirMin and outdirMin)", id="disk"
        ),
    ],
)
def test_c2_a_request_that_no_location_can_meet_is_refused(
    stock: Path, ours: Path, stock_only: bool, resources: dict[str, int], message: str
) -> None:
    huge = {"requirements": {"ResourceRequirement": {"ramMin": 128} | resources}}
    with waits(stock, (GOOD, huge)):
        if stock_only:
            return
        write_workflow(ours, {"huge": (GOOD, huge)})
        ended = run(ours)
        assert ended.exit_code == 1
        assert f"/huge/0 requests {message}" in ended.stderr


def test_c2_more_locations_than_there_are_is_refused(stock: Path, ours: Path, stock_only: bool) -> None:
    target = "{deployment: here, locations: 2}"
    with waits(stock, GOOD, target=target):
        if stock_only:
            return
        write_workflow(ours, {"wide": GOOD}, file=FILE.replace("{deployment: here}", target))
        ended = run(ours)
        assert ended.exit_code == 1
        assert "seen:     locations: 2, and here has 1" in ended.stderr


def test_c2_a_location_that_never_appears_ends_the_wait(stock: Path, ours: Path, stock_only: bool) -> None:
    never = LATE.format(seconds=10**6)
    with waits(stock, GOOD, preload=never):
        if stock_only:
            return
        write_workflow(ours, {"waits": GOOD}, file=FILE.replace("type: medweave.local", "type: local, workdir: /tmp"))
        (ours / "late.py").write_text(
            never
            + "import medweave_connectors.engine.scheduling.scheduler as s\ns.CHECK_S, s.LOCATION_DEADLINE_S = 0.2, 1.0\n"
        )
        ended = start(ours, preload=ours / "late.py").wait(30)
        assert ended.exit_code == 1
        assert "medweave: /waits/0 waits: here has 0 of 1 locations" in ended.stderr
        assert "/waits/0 waited 1 s for a location that did not become available." in ended.stderr


def test_k1_a_late_location_is_used(stock: Path, ours: Path, stock_only: bool) -> None:
    # As a pod that is ready some seconds after its release.
    late = LATE.format(seconds=0.5)
    with waits(stock, GOOD, preload=late):
        if stock_only:
            return
        file = FILE.replace("type: medweave.local", f"type: local, workdir: {ours}/work")
        # Without the engine's own second check: ours reports it.
        file = file.replace(
            "type: medweave.scheduler, config: {}", "type: medweave.scheduler, config: {retry_delay: 0}"
        )
        write_workflow(ours, {"waits": GOOD}, file=file)
        (ours / "late.py").write_text(
            late + "import medweave_connectors.engine.scheduling.scheduler as s\ns.LOOK_S = 0.5\n"
        )
        ended = start(ours, preload=ours / "late.py").wait(30)
        assert ended.exit_code == 0, ended.stderr


def test_c5_a_killed_driver_leaves_its_rows(stock: Path, ours: Path, stock_only: bool) -> None:
    def rows(file: Path) -> int:
        with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as database:
            found: int = database.execute("SELECT count(*) FROM workflow").fetchone()[0]
        return found

    write_workflow(stock, {"slow": SLOW.format(folder=stock)}, file=stock_file(stock).replace(":memory:", "stock.db"))
    going = start_stock(stock)
    orphan = pid_in(stock / "pid")
    going.signal(signal.SIGKILL)
    going.wait()
    end(orphan)
    shown(rows(stock / "stock.db") == 0, "the stock database has rows")
    if stock_only:
        return
    write_workflow(ours, {"slow": SLOW.format(folder=ours)})
    going = start(ours)
    orphan = pid_in(ours / "pid")
    file = going.record / "work" / "engine.db"
    assert rows(file) == 1, "another process sees them during the run"
    assert file.stat().st_mode & 0o077 == 0
    going.signal(signal.SIGKILL)
    going.wait()
    end(orphan)
    assert rows(file) == 1


def test_c5_two_runs_at_once_do_not_lock_each_other_out(stock: Path, ours: Path, stock_only: bool) -> None:
    file = stock_file(stock).replace("':memory:'", "stock.db, timeout: 1")
    write_workflow(stock, {"slow": SLOW.format(folder=stock)}, file=file)
    first = start_stock(stock)
    orphan = pid_in(stock / "pid")
    second = run_stock(stock)
    first.signal(signal.SIGKILL)
    end(orphan)
    shown(second.exit_code == 1 and "database is locked" in second.stderr, second.stderr)
    if stock_only:
        return
    write_workflow(ours, {"first": "sleep 1; " + GOOD})
    both = [start(ours, environment={"MEDWEAVE_RUN_ID": name}) for name in ("a", "b")]
    assert [run.wait().exit_code for run in both] == [0, 0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_c6_a_signal_ends_the_jobs(stock: Path, ours: Path, stock_only: bool, number: signal.Signals) -> None:
    write_workflow(stock, {"slow": SLOW.format(folder=stock)}, file=stock_file(stock))
    going = start_stock(stock)
    orphan = pid_in(stock / "pid")
    going.signal(number)
    going.wait()
    left = alive(orphan)
    end(orphan)
    shown(left, "the stock engine ended its job")
    if stock_only:
        return
    write_workflow(ours, {"slow": SLOW.format(folder=ours)})
    going = start(ours)
    job = pid_in(ours / "pid")
    going.signal(number)
    assert going.wait().exit_code == -number
    assert not alive(job)


def test_c7_no_value_of_the_environment_is_run(stock: Path, ours: Path, stock_only: bool) -> None:
    def tools(folder: Path) -> dict[str, object]:
        value = f"a $HOME `touch {folder}/harm`\nb"
        keys = {"requirements": {"EnvVarRequirement": {"envDef": {"VALUE": value}}}}
        return {"shows": ('printf %s "$VALUE" > result.txt', keys)}

    write_workflow(stock, tools(stock), file=stock_file(stock))
    ended = run_stock(stock)
    shown((stock / "harm").exists(), ended.stderr)
    if stock_only:
        return
    write_workflow(ours, tools(ours))
    ended = run(ours)
    assert ended.exit_code == 0, ended.stderr
    assert not (ours / "harm").exists()
    assert (ours / "results" / "result.txt").read_text() == f"a $HOME `touch {ours}/harm`\nb"


def test_c7_a_workdir_with_blanks_quotes_and_a_line_end(stock: Path, ours: Path, stock_only: bool) -> None:
    write_workflow(stock, {"first": GOOD}, file=stock_file(stock, stock / "my work"))
    ended = run_stock(stock)
    shown(ended.exit_code != 0, "the stock engine works in a folder with a blank")
    if stock_only:
        return
    workdir = str(ours / "my 'work'\\n$HOME")
    write_workflow(ours, {"first": GOOD}, file=FILE.replace("local,", f'local, workdir: "{workdir}",', 1))
    ended = run(ours)
    assert ended.exit_code == 0, ended.stderr
    assert (ours / "my 'work'\n$HOME").is_dir()
    assert (ours / "results" / "result.txt").read_text() == "done\n"


def test_c8_a_time_limit_ends_all_processes_and_is_reported(stock: Path, ours: Path, stock_only: bool) -> None:
    def tools(folder: Path) -> dict[str, object]:
        script = f"sh -c 'echo $$ > {folder}/pid; sleep 60' & wait"
        return {"slow": (script, {"requirements": {"ToolTimeLimit": {"timelimit": 1}}})}

    write_workflow(stock, tools(stock), file=stock_file(stock))
    ended = run_stock(stock)
    orphan = pid_in(stock / "pid")
    left = alive(orphan)
    end(orphan)
    shown(ended.exit_code == 1 and left and "time limit" not in ended.stderr, ended.stderr)
    if stock_only:
        return
    write_workflow(ours, tools(ours))
    ended = run(ours)
    assert ended.exit_code == 1
    assert not alive(pid_in(ours / "pid"))
    assert "the time limit of 1 s (ToolTimeLimit of the tool) was reached" in ended.stderr
