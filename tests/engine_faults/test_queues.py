"""Faults Q1 to Q11 of the queue managers, and C16, against stand-ins for Slurm: present in stock StreamFlow, absent with medweave.

They prove what each side does with an answer. That a real Slurm gives such answers is shown on the testbed (tests/hybrid).
"""

from __future__ import annotations

import asyncio
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from support.engine import FILE, Run, run, start, wait_until, write_workflow
from support.engine_faults import end, run_stock, shown, start_stock, still_going
from support.ssh_server import ssh_server
from support.stock_slurm import commands_run, slurm_file, stand_in

FAKES = Path(__file__).parents[1] / "fakes" / "slurm"
GOOD = "echo done > result.txt"
OURS = FILE.replace("target: {deployment: here}", "target: {deployment: hpc}").replace(
    "here: {type: medweave.local",
    "hpc: {type: medweave.slurm, wraps: here, config: {}}, here: {type: medweave.local, workdir: site",
)


def fakes(folder: Path, **knobs: str) -> dict[str, str]:
    """Return the environment for a run of ours over tests/fakes/slurm."""
    (folder / "slurm").mkdir()
    for name, text in knobs.items():
        (folder / "slurm" / name.replace("_", "-")).write_text(text)
    return {"PATH": f"{FAKES}:/usr/bin:/bin", "FAKE_SLURM": str(folder / "slurm")}


def result(ended: Run) -> str:
    file = ended.folder / "results" / "result.txt"
    return file.read_text().strip() if file.exists() else ""


def submitted(folder: Path) -> str:
    return (folder / "slurm" / "submitted").read_text()


def test_q1_a_job_that_slurm_stopped_is_no_success(stock: Path, ours: Path, stock_only: bool) -> None:
    half = "echo half > result.txt"
    write_workflow(stock, {"first": half}, file=slurm_file(stock))
    ended = run_stock(stock, environment=stand_in(stock, EXIT="0:15"))
    shown(ended.exit_code == 0 and result(ended) == "half", ended.stderr)
    if stock_only:
        return
    write_workflow(ours, {"first": half}, file=OURS)
    ended = run(ours, environment=fakes(ours, end_word="TIMEOUT"))
    assert ended.exit_code == 1
    assert "sacct State=TIMEOUT" in ended.stderr
    assert not result(ended)


def test_q2_a_queue_that_does_not_answer_ends_no_job(stock: Path, ours: Path, stock_only: bool) -> None:
    script = "echo half > result.txt; sleep {}; echo whole > result.txt"
    write_workflow(stock, {"first": script.format(60)}, file=slurm_file(stock))
    ended = run_stock(stock, environment=stand_in(stock, KEEPS_RUNNING="1", SQUEUE_FAILS="1"))
    end(int((stock / "pid").read_text()))
    shown(ended.exit_code == 0 and result(ended) == "half", ended.stderr)
    if stock_only:
        return
    write_workflow(ours, {"first": script.format(2)}, file=OURS)
    ended = run(ours, environment=fakes(ours, squeue_fails="3"))
    assert ended.exit_code == 0, ended.stderr
    assert result(ended) == "whole"


def test_q3_the_end_of_a_run_cancels_its_jobs(stock: Path, ours: Path, stock_only: bool) -> None:
    write_workflow(stock, {"first": "sleep 60"}, file=slurm_file(stock))
    going = start_stock(stock, environment=stand_in(stock, KEEPS_RUNNING="1"))
    wait_until(lambda: "squeue" in commands_run(stock), 30)
    going.signal(signal.SIGINT)
    still_going(going, 20)
    end(int((stock / "pid").read_text()))
    shown("squeue" in commands_run(stock) and "scancel" not in commands_run(stock), commands_run(stock))
    if stock_only:
        return
    write_workflow(ours, {"first": "sleep 60"}, file=OURS)
    going = start(ours, environment=fakes(ours))
    wait_until(lambda: (ours / "slurm" / "jobs" / "100").exists(), 30)
    going.signal(signal.SIGINT)
    assert going.wait().exit_code == -signal.SIGINT
    assert (ours / "slurm" / "jobs" / "100" / "word").read_text() == "CANCELLED"


def test_q4_a_shell_that_is_lost_runs_no_command_twice(tmp_path: Path, stock_only: bool) -> None:
    # The command represents sbatch, which Slurm accepts before the link is lost: run twice, it submits two jobs.
    from streamflow.deployment.connector.ssh import SSHConnector

    with ssh_server(tmp_path / "server") as server:
        usual: dict[str, Any] = {
            "nodes": [f"127.0.0.1:{server.port}"], "username": "me", "sshKey": str(server.key),
        }  # fmt: skip

        async def times(connector: Any, begun: Path) -> int:
            # The first time, and only where that is a shell, it kills the shell that runs it.
            script = (
                f"echo x >> {begun}; [ $(wc -l < {begun}) = 1 ] && grep -q ^sh /proc/$PPID/comm && kill -9 $PPID; :"
            )
            await connector.deploy(False)
            (found,) = (await connector.get_available_locations()).values()
            words = ["sh", "-c", shlex.quote(script), ";", "true"]
            await asyncio.wait(
                {asyncio.ensure_future(connector.run(found.location, words, capture_output=True))}, timeout=8
            )
            await connector.undeploy(False)
            return begun.read_text().count("x")

        count = asyncio.run(times(SSHConnector("login", "/", checkHostKey=False, **usual), tmp_path / "stock"))
        shown(count == 2, f"run {count} times")
        if stock_only:
            return
        from medweave_connectors.sites.ssh.connector import MedweaveSSHConnector

        known = str(server.known_hosts)
        assert asyncio.run(times(MedweaveSSHConnector("login", "/", knownHosts=known, **usual), tmp_path / "ours")) == 1


def test_q5_a_job_unknown_to_slurm_is_judged_by_its_exit_file(stock: Path, ours: Path, stock_only: bool) -> None:
    write_workflow(stock, {"first": GOOD}, file=slurm_file(stock))
    ended = run_stock(stock, environment=stand_in(stock, FORGETS="1"))
    shown(ended.exit_code == 1 and "Error while retrieving return code" in ended.stderr, ended.stderr)
    if stock_only:
        return
    write_workflow(ours, {"first": GOOD}, file=OURS)
    ended = run(ours, environment=fakes(ours, no_accounting="1", forget="1"))
    assert ended.exit_code == 0, ended.stderr
    assert result(ended) == "done"


def test_q6_slurm_log_files_are_not_outputs(stock: Path, ours: Path, stock_only: bool) -> None:
    keys = {"outputs": {"result": {"type": "File[]", "outputBinding": {"glob": "*"}}}}
    tools = {"first": ("echo talk; " + GOOD, keys)}
    for folder, file in ((stock, slurm_file(stock)), (ours, OURS)):
        write_workflow(folder, tools, file=file)
        workflow = folder / "tiny.cwl"
        workflow.write_text(
            workflow.read_text().replace('"type": "File", "outputSource"', '"type": "File[]", "outputSource"')
        )
    ended = run_stock(stock, environment=stand_in(stock))
    names = sorted(path.name for path in (stock / "results").glob("*"))
    shown(names == ["result.txt", "slurm-100.out"], ended.stderr + str(names))
    if stock_only:
        return
    ended = run(ours, environment=fakes(ours))
    assert ended.exit_code == 0, ended.stderr
    assert [path.name for path in (ours / "results").iterdir()] == ["result.txt"]


def test_q7_a_wrong_key_of_a_service_is_found_by_validation(stock: Path, ours: Path, stock_only: bool) -> None:
    write_workflow(stock, {"first": GOOD}, file=slurm_file(stock, "{distribution: block}"))
    valid = run_stock(stock, "--validate").exit_code == 0
    going = start_stock(stock, environment=stand_in(stock))
    still_going(going, 0, after=lambda: "TypeError" in going.stderr)
    shown(valid and "TypeError" in going.stderr, going.stderr)
    if stock_only:
        return
    file = OURS.replace("wraps: here, config: {}", "wraps: here, config: {services: {usual: {partitoin: x}}}")
    write_workflow(ours, {"first": GOOD}, file=file)
    ended = run(ours, "--validate")
    assert ended.exit_code == 1
    assert "partitoin" in ended.stderr


def test_q8_options_of_sbatch_are_slurms_own(stock: Path, ours: Path, stock_only: bool) -> None:
    keys = "{mincpus: 1, useMinNodes: true}"
    write_workflow(stock, {"first": GOOD}, file=slurm_file(stock, keys))
    ended = run_stock(stock, environment=stand_in(stock))
    words = commands_run(stock)
    shown(all(word in words for word in ("--minpucs", "--use-min_nodes", "--wait-all-nodes 0")), words + ended.stderr)
    if stock_only:
        return
    write_workflow(ours, {"first": GOOD}, file=OURS)
    assert run(ours, environment=fakes(ours)).exit_code == 0
    options = {word.partition("=")[0] for word in submitted(ours).split() if word.startswith("--")}
    assert options <= {
        "--parsable", "--no-requeue", "--job-name", "--comment", "--chdir", "--output", "--error", "--nodes", "--ntasks",
        "--ntasks-per-node", "--cpus-per-task", "--mem", "--export", "--time", "--open-mode", "--input",
    }  # fmt: skip


def test_q10_a_queue_without_services(tmp_path: Path, ours: Path, stock_only: bool) -> None:
    # medweave has no connector for PBS; for its queue, a binding need not name a service if there is none.
    from streamflow.core.deployment import ExecutionLocation
    from streamflow.deployment.connector.local import LocalConnector
    from streamflow.deployment.connector.queue_manager import PBSConnector

    local = LocalConnector("here", str(tmp_path))
    pbs = PBSConnector("hpc", str(tmp_path), local, None)
    place = ExecutionLocation(name="n", deployment="hpc")
    with pytest.raises((AttributeError, TypeError)) as raised:
        asyncio.run(pbs._run_batch_command("true", {}, "/a/0", place))
    shown("NoneType" in str(raised.value) or "resources" in str(raised.value), raised.value)
    if stock_only:
        return
    write_workflow(ours, {"first": GOOD}, file=OURS)
    assert run(ours, environment=fakes(ours)).exit_code == 0


def test_q11_resource_requests_of_the_tool_reach_the_queue(stock: Path, ours: Path, stock_only: bool) -> None:
    keys = {"requirements": {"ResourceRequirement": {"coresMin": 2, "ramMin": 700}}}
    write_workflow(stock, {"first": (GOOD, keys)}, file=slurm_file(stock))
    ended = run_stock(stock, environment=stand_in(stock))
    line = next((line for line in commands_run(stock).splitlines() if line.startswith("sbatch")), "")
    shown(bool(line) and "cpus" not in line and "mem" not in line, line + ended.stderr)
    if stock_only:
        return
    write_workflow(ours, {"first": (GOOD, keys)}, file=OURS)
    assert run(ours, environment=fakes(ours)).exit_code == 0
    assert "--cpus-per-task=2" in submitted(ours)
    assert "--mem=700M" in submitted(ours)


def test_c16_the_job_of_a_killed_driver_is_not_submitted_again(stock: Path, ours: Path, stock_only: bool) -> None:
    def tools(folder: Path) -> dict[str, str]:
        return {"first": f"echo x >> {folder}/begun; while [ ! -e {folder}/go ]; do sleep 0.1; done; {GOOD}"}

    def begun(folder: Path) -> int:
        return len((folder / "begun").read_text().split()) if (folder / "begun").exists() else 0

    def killed(going: Run) -> None:
        wait_until(lambda: begun(going.folder) == 1, 30)
        going.signal(signal.SIGKILL)
        going.wait()

    write_workflow(stock, tools(stock), file=slurm_file(stock))
    environment = stand_in(stock, KEEPS_RUNNING="1")
    killed(start_stock(stock, environment=environment))
    again = start_stock(stock, environment=environment)
    still_going(again, 0, after=lambda: begun(stock) == 2)
    (stock / "go").touch()
    shown(begun(stock) == 2 == commands_run(stock).count("sbatch"), commands_run(stock) + again.stderr)
    if stock_only:
        return
    write_workflow(ours, tools(ours), file=OURS)
    environment = fakes(ours)
    killed(start(ours, environment=environment))
    again = start(ours, environment=environment)
    again.wait_for_line("re-attached to Slurm job 100 of an earlier driver")
    (ours / "go").touch()
    ended = again.wait()
    assert ended.exit_code == 0, ended.stderr
    assert result(ended) == "done"
    assert begun(ours) == 1 == len(submitted(ours).splitlines())
