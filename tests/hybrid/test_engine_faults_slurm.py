"""Faults Q1 to Q12 of the queue managers on a real Slurm, over real ssh: on stock StreamFlow, and not with medweave.

Where a fault needs a moment that a healthy cluster does not show at will (a controller that is away, a link that breaks), the line
for the login node is changed before it arrives, the same for both sides; real Slurm answers.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from streamflow.core.deployment import ExecutionLocation

from support.both_slurms import ALIVE, BothSlurms
from support.connector_runs import JOB, begin_record, run_job, schedule, side_by_side
from support.engine import Run, start
from support.engine_faults import outcome, shown, still_going
from support.slurm_runs import begin, resources, sacct, site_of
from support.testbed import Sites, wait_for

GOOD = "echo done > result.txt"
NO_JOB = "67000000"  # an id that the controller has not assigned
CUDA = {"cudaVersionMin": "11.0", "cudaComputeCapability": "7.0", "cudaDeviceCountMax": 1}
# It exits on SIGTERM, like a training that writes a checkpoint first: Slurm's ExitCode is 0:0 or 0:15.
STOPPED = "trap 'exit 0' TERM; echo half > stopped.txt; mkdir -p {0}; touch {0}/$SLURM_JOB_ID; sleep 300 & wait"
TALKS = "echo talk; echo done > talks.txt"


@pytest.fixture(scope="module")
def slurm(testbed: Sites) -> Iterator[BothSlurms]:
    both = BothSlurms.of(testbed)
    yield both
    both.clean()


@pytest.fixture(autouse=True)
def medweave(slurm: BothSlurms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set up what medweave's connectors need in a run's process: its record, the job's request, the user's home."""
    monkeypatch.setenv("HOME", str(slurm.home))
    schedule(begin_record(tmp_path, monkeypatch), monkeypatch, JOB)


# ---- Q1, Q6 and Q11: whole runs in parallel with the other tests, because Slurm checks time limits twice a minute


@dataclass(frozen=True)
class Begun:
    """The stock run of both steps, and medweave's run of each."""

    stock: Run
    stopped: Run
    talks: Run


@pytest.fixture(scope="module", autouse=True)
def begun(slurm: BothSlurms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    folder = tmp_path_factory.mktemp("whole")
    stock, stopped, talks = (folder / name for name in ("stock", "stopped", "talks"))
    outputs = {"outputs": {"result": {"type": "File[]", "outputBinding": {"glob": "*"}}}}
    ids = f"{slurm.folder}/ids"
    tools = {
        "stopped": (STOPPED.format(ids), resources(ToolTimeLimit={"timelimit": 60}) | outputs),
        "talks": (TALKS, resources(cores=2, memory_mib=700) | outputs | {"hints": {"cwltool:CUDARequirement": CUDA}}),
    }
    for folder in (stock, stopped, talks):
        folder.mkdir()
    slurm.write_stock(stock, "whole", tools)
    slurm.write_ours(stopped, "stopped", {"stopped": tools["stopped"]})
    slurm.write_ours(talks, "talks", {"talks": tools["talks"]}, gpusPerNode=1)
    for folder in (stock, stopped, talks):
        give_all_files(folder)
    runs = slurm.begin_stock(stock), begin(stopped, slurm.testbed), begin(talks, slurm.testbed)
    wait_for(lambda: hurry(slurm.testbed, ids, 2) or None, "the two jobs that run too long")
    yield Begun(*runs)
    for run in runs:
        run.process.terminate()
        run.process.join(20)


def give_all_files(folder: Path) -> None:
    """Change the workflow's outputs to lists, and declare the namespace of its hint."""
    document = json.loads((folder / "tiny.cwl").read_text())
    document["$namespaces"] = {"cwltool": "http://commonwl.org/cwltool#"}
    for output in document["outputs"].values():
        output["type"] = "File[]"
    (folder / "tiny.cwl").write_text(json.dumps(document))


def files(ended: Run) -> dict[str, str]:
    return {path.name: path.read_text() for path in (ended.folder / "results").glob("*")}


def hurry(testbed: Sites, ids: str, number: int) -> bool:
    """Set the end time of jobs to now, once all run; if the cluster forbids it, their limit of one minute applies."""
    job_ids = testbed.hpc("ls", ids).stdout.split()
    if len(job_ids) == number:
        for job_id in job_ids:
            testbed.inside("hpc", "scontrol", "update", f"jobid={job_id}", "EndTime=now+1")
    return len(job_ids) == number


def test_q2_a_queue_that_does_not_answer_ends_no_job_on_slurm(slurm: BothSlurms) -> None:
    slurm.testbed.hpc(
        "sh", "-c", f"mkdir -p {slurm.folder}; sed 's/^SlurmctldPort=.*/SlurmctldPort=9\\nMessageTimeout=2/' "
        f"/etc/slurm/slurm.conf > {slurm.folder}/away.conf",
    )  # fmt: skip
    script = "echo half > result.txt; sleep 8; echo whole > result.txt"

    def unreachable_at_first(times: int) -> Any:
        """Send the first queries of the queue to an address without a controller."""
        remaining = iter(range(times))

        def bend(line: str) -> str:
            lost = "squeue -" in line and next(remaining, None) is not None
            return f"( export SLURM_CONF={slurm.folder}/away.conf; {line} )" if lost else line

        return bend

    async def stock(connector: Any, place: ExecutionLocation) -> Any:
        result = await run_job(site, connector, place, script)
        return result, await asyncio.to_thread(slurm.jobs, "q2-stock")

    async def ours(connector: Any, place: ExecutionLocation) -> Any:
        return await run_job(good, connector, place, script)

    site, good = (
        slurm.stock("q2-stock", bend=unreachable_at_first(1)),
        slurm.ours("q2-ours", bend=unreachable_at_first(3)),
    )
    (result, jobs), done = side_by_side((site, stock), (good, ours))
    shown(result[1] == 0 and set(jobs.values()) <= {"RUNNING", "PENDING"}, (result, jobs))
    assert done == ("", 0)
    assert slurm.read(f"{good.work}/result.txt") == "whole\n"


def test_q3_the_end_of_a_run_cancels_its_jobs_on_slurm(slurm: BothSlurms, tmp_path: Path) -> None:
    stock, ours = tmp_path / "stock", tmp_path / "ours"
    for folder in (stock, ours):
        folder.mkdir()
    slurm.write_stock(stock, "q3-stock", {"first": "sleep 300"})
    slurm.write_ours(ours, "q3-ours", {"first": "sleep 300"})
    going, ended = slurm.begin_stock(stock), begin(ours, slurm.testbed)
    orphan = wait_for(lambda: slurm.running("q3-stock"), "the stock run's job")
    wait_for(lambda: slurm.running("q3-ours"), "medweave's job")
    for run in (going, ended):
        run.signal(signal.SIGINT)
    assert ended.wait(30).exit_code == -signal.SIGINT
    still_going(going, 10)
    state = slurm.jobs("q3-stock")[orphan]
    slurm.cancel([orphan])
    shown(state == "RUNNING", state)
    assert set(slurm.jobs("q3-ours").values()) <= {"CANCELLED", "COMPLETING"}


def test_q4_a_shell_that_is_lost_submits_no_job_twice_on_slurm(slurm: BothSlurms) -> None:
    def killed(name: str) -> Any:
        """Kill the shell of sbatch once, before it returns the answer, as login nodes do with heavy processes."""
        end = "for p in $PPID $$; do grep -q '^sh$' /proc/$p/comm && kill -KILL $p; done"
        once = f"if mkdir {slurm.folder}/{name}/killed 2> /dev/null; then {end}; fi"
        return lambda line: f"{line}; {once}" if "sbatch -" in line else line

    async def stock(connector: Any, place: ExecutionLocation) -> Any:
        return await run_job(site, connector, place, GOOD)

    async def ours(connector: Any, place: ExecutionLocation) -> Any:
        return await run_job(good, connector, place, GOOD)

    site, good = slurm.stock("q4-stock", bend=killed("q4-stock")), slurm.ours("q4-ours", bend=killed("q4-ours"))
    result, done = side_by_side((site, stock), (good, ours))
    jobs = slurm.jobs("q4-stock")
    shown(result[1] == 0 and len(jobs) == 2, (result, jobs))
    assert done == ("", 0)
    assert len(slurm.jobs("q4-ours")) == 1


def test_q5_a_job_unknown_to_slurm_is_judged_by_its_exit_file_on_slurm(slurm: BothSlurms) -> None:
    """MinJobAge is five minutes here: the query is changed to an unknown job id, for the same answer."""

    def forgotten(line: str) -> str:
        line = re.sub(r"(scontrol show (?:-o job|job --oneliner)) \d+", rf"\1 {NO_JOB}", line)
        return re.sub(r"\bsacct (?=.*--jobs)", "false ", line)  # and there is no accounting

    async def stock(connector: Any, place: ExecutionLocation) -> Any:
        return await outcome(run_job(site, connector, place, GOOD))

    async def ours(connector: Any, place: ExecutionLocation) -> Any:
        return await run_job(good, connector, place, GOOD)

    site, good = slurm.stock("q5-stock", bend=forgotten), slurm.ours("q5-ours", bend=forgotten)
    error, done = side_by_side((site, stock), (good, ours))
    shown("Error while retrieving return code" in str(error) and "Invalid job id" in str(error), error)
    assert slurm.read(f"{site.work}/result.txt") == "done\n", "a good job"
    assert done == ("", 0)


def test_q7_a_wrong_key_of_a_service_is_found_by_validation_on_slurm(slurm: BothSlurms, tmp_path: Path) -> None:
    valid, stock, ours = (tmp_path / name for name in ("valid", "stock", "ours"))
    for folder in (valid, stock, ours):
        folder.mkdir()
    for folder in (valid, stock):
        slurm.write_stock(folder, "q7", {"first": GOOD}, distribution="block")
    slurm.write_ours(ours, "q7", {"first": GOOD}, partitoin="normal")
    checked, going, ended = (
        slurm.begin_stock(valid, "--validate"),
        slurm.begin_stock(stock),
        start(ours, "--validate", environment=slurm.facts),
    )
    still_going(going, 0, after=lambda: "TypeError" in going.stderr)
    shown(checked.wait().exit_code == 0 and "TypeError" in going.stderr, going.stderr)
    assert ended.wait().exit_code == 1
    assert "partitoin" in ended.stderr
    assert slurm.jobs("q7") == {}


def test_q8_options_of_sbatch_are_slurms_own_on_slurm(slurm: BothSlurms) -> None:
    commands: list[str] = []

    def heard(line: str) -> str:
        commands.append(line)
        return line

    async def stock(connector: Any, place: ExecutionLocation) -> Any:
        errors = []
        for service in ({"mincpus": 1}, {"useMinNodes": True}):
            connector.services["usual"] = connector._service_class(partition="normal", **service)
            errors.append(str(await outcome(run_job(site, connector, place, GOOD))))
        return errors

    async def ours(connector: Any, place: ExecutionLocation) -> Any:
        return await run_job(good, connector, place, GOOD)

    site = slurm.stock("q8-stock", bend=heard)
    good = slurm.ours("q8-ours", service={"options": ["--mincpus=1", "--use-min-nodes"]})
    (fewest, nodes), done = side_by_side((site, stock), (good, ours))
    shown(
        "unrecognized option '--minpucs'" in fewest and "unrecognized option '--use-min_nodes'" in nodes, fewest + nodes
    )
    shown(all(re.search(r'--wait-all-nodes +"0"', line) for line in commands if "sbatch -" in line), commands)
    assert done == ("", 0), "Slurm accepts such options"


def test_q9_a_job_of_a_named_cluster_is_known_by_its_id_on_slurm(slurm: BothSlurms) -> None:
    words = ("sacctmgr", "--noheader", "--parsable2", "show", "cluster", "format=cluster")
    cluster = slurm.testbed.hpc(*words).stdout.strip()

    async def stock(connector: Any, place: ExecutionLocation) -> Any:
        error = await outcome(run_job(site, connector, place, "sleep 30"))
        return str(error), await asyncio.to_thread(slurm.jobs, "q9-stock")

    async def ours(connector: Any, place: ExecutionLocation) -> Any:
        return await run_job(good, connector, place, GOOD)

    site, good = slurm.stock("q9-stock", clusters=cluster), slurm.ours("q9-ours", cluster=cluster)
    (error, jobs), done = side_by_side((site, stock), (good, ours))
    slurm.cancel(jobs)
    shown("Error while retrieving return code" in error and set(jobs.values()) <= {"RUNNING", "PENDING"}, (error, jobs))
    assert done == ("", 0)


def test_q12_much_output_of_a_job_stays_at_the_site_on_slurm(slurm: BothSlurms) -> None:
    script = "seq 300000; seq 300000 >&2; exit 7"

    async def stock(connector: Any, place: ExecutionLocation) -> Any:
        return await run_job(site, connector, place, script)

    async def ours(connector: Any, place: ExecutionLocation) -> Any:
        return await run_job(good, connector, place, script)

    site, good = slurm.stock("q12-stock"), slurm.ours("q12-ours")
    (text, code), (why, our_code) = side_by_side((site, stock), (good, ours))
    shown(code == 7 and len(text) > 3_000_000, (code, len(text)))
    assert our_code == 7
    assert why.splitlines()[-1] == "300000"
    assert len(why) < 2**16


def test_q6_slurm_log_files_are_not_outputs_on_slurm(begun: Begun) -> None:
    done = begun.talks.wait(120)
    assert done.exit_code == 0, done.stderr
    assert files(done) == {"talks.txt": "done\n"}
    begun.stock.wait(180)
    shown([text for name, text in files(begun.stock).items() if name.startswith("slurm-")].count("talk\n") == 1)


def test_q11_resource_requests_of_the_tool_reach_the_queue_on_slurm(slurm: BothSlurms, begun: Begun) -> None:
    def granted(job_id: str) -> tuple[str, str, bool]:
        cores, memory, grant = sacct(slurm.testbed, job_id, "ReqCPUS,ReqMem,AllocTRES")
        return cores, memory, "gres/gpu=1" in grant

    begun.stock.wait(180)
    (name,) = [name for name, text in files(begun.stock).items() if text == "talk\n"]
    allocation = granted(name.removeprefix("slurm-").removesuffix(".out"))
    shown(allocation == ("1", "2000M", False), allocation)  # the cluster's own defaults
    assert granted(site_of(begun.talks.wait(120), "/talks/0")["slurm_job_id"]) == ("2", "700M", True)


def test_q1_a_job_that_slurm_stopped_is_no_success_on_slurm(slurm: BothSlurms, begun: Begun) -> None:
    ended = begun.stopped.wait(180)
    assert ended.exit_code == 1
    assert "sacct State=TIMEOUT" in ended.stderr
    assert not files(ended)
    begun.stock.wait(180)
    shown(begun.stock.exit_code == 0 and files(begun.stock).get("stopped.txt") == "half\n", begun.stock.stderr)
    states = sorted(state for state in slurm.jobs("whole").values() if state not in ALIVE)
    assert states == ["COMPLETED", "TIMEOUT"], "Slurm's own word"
