"""`medweave.slurm` on a real cluster: real sbatch over real ssh, real accounting."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.slurm_runs import GANG, begin, go, jobs_of, resources, sacct, site_of, write, write_training
from support.testbed import Sites, wait_for
from support.training_set import training_set

FIGURES = '{"unit":"case","done":1,"total":2,"seconds_left":3.5,"detail":"x"}'
PROGRESS = f"echo 'medweave-progress {FIGURES}' >&2\n"
GOOD = "echo {} > run_report.json; mkdir report; echo x > report/x.svg; echo done > result.txt"


def failure(ended: Any) -> dict[str, Any]:
    (job,) = [event["data"] for event in ended.of_type("job.ended") if event["data"]["state"] == "failed"]
    return dict(job)


def test_job_runs_and_its_report_is_fetched(tmp_path: Path, testbed: Sites) -> None:
    value = "a\"b `touch harm` $HOME 'c'"  # fault C7 of the engine: the shell would run it
    keys = resources(EnvVarRequirement={"envDef": {"VALUE": value}}, ToolTimeLimit={"timelimit": 600})
    keys["outputs"] = {
        "result": {"type": "File", "outputBinding": {"glob": "result.txt"}},
        "all": {"type": "Directory", "outputBinding": {"glob": "."}},
    }
    write(tmp_path, {"first": (PROGRESS + "echo talk; " + GOOD + '; printf %s "$VALUE" > result.txt', keys)})
    ended = begin(tmp_path, testbed, MEDWEAVE_KEEP_WORK="1").wait(120)
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "results" / "result.txt").read_text() == value
    assert re.search(r"^  first +case 1/2: x, 4 s left$", ended.stderr, re.MULTILINE)
    assert (ended.record / "reports" / "first" / "report" / "x.svg").read_text() == "x\n"

    site = site_of(ended)
    assert (site["state"], site["nodes"] in ("n1", "n2")) == ("COMPLETED", True)
    assert site["queue_seconds"] >= 0
    fields = "State,ExitCode,NNodes,ReqCPUS,ReqMem,TimelimitRaw,Partition,JobName"
    expected = ["COMPLETED", "0:0", "1", "1", "256M", "10", "normal", "medweave.first"]
    # The database learns of the end of a short job before it learns of its start.
    wait_for(lambda: sacct(testbed, site["slurm_job_id"], fields) == expected or None, "the job in the accounting")
    # Fault Q6 of the engine: slurm-<id>.out is in the output folder. Ours is next to it.
    of_run = testbed.layout.hpc / "scratch" / "tests" / ended.record.name
    (folder,) = {path for path in testbed.hpc("ls", str(of_run)).stdout.split() if "slurm" in path}
    names = testbed.hpc("ls", str(of_run / folder.partition(".slurm-")[0])).stdout.split()
    assert sorted(names) == ["report", "result.txt", "run_report.json"]
    assert testbed.hpc("stat", "--format=%a", str(of_run)).stdout.strip() == "700"


def test_site_has_no_files_of_a_successful_run(tmp_path: Path, testbed: Sites) -> None:
    write(tmp_path, {"first": GOOD})
    ended = go(tmp_path, testbed)
    assert ended.exit_code == 0, ended.stderr
    assert testbed.hpc("ls", "-A", str(testbed.layout.hpc / "scratch/tests")).stdout == ""


def test_a_cluster_is_named(tmp_path: Path, testbed: Sites) -> None:
    name = testbed.hpc("sacctmgr", "--noheader", "--parsable2", "show", "cluster", "format=cluster").stdout.strip()
    write(tmp_path, {"first": GOOD})
    file = tmp_path / "streamflow.yml"
    document = yaml.safe_load(file.read_text())
    document["deployments"]["hpc"]["config"]["cluster"] = name
    file.write_text(yaml.safe_dump(document))
    ended = go(tmp_path, testbed)
    assert ended.exit_code == 0, ended.stderr
    site = site_of(ended)
    assert (site["state"], site["slurm_job_id"].isdecimal()) == ("COMPLETED", True)


@pytest.mark.long
def test_requeued_job_restarts(tmp_path: Path, testbed: Sites) -> None:
    script = "[ $SLURM_RESTART_COUNT ] || { echo half > result.txt; touch half; sleep 600; }; ls -A > seen; mv seen result.txt"
    write(tmp_path, {"first": script}, service={"requeue": True, "time": "00:10:00"})
    going = begin(tmp_path, testbed)
    going.wait_for_line("Slurm job ")
    (job_id, _) = wait_for(lambda: next(iter(jobs_of(testbed, going.record.name)), None), "the job")
    wait_for(lambda: sacct(testbed, job_id)[0] == "RUNNING" or None, "a running job")
    testbed.hpc("scontrol", "requeue", job_id)
    # Slurm lets two minutes pass before it starts such a job.
    ended = going.wait(300)
    assert ended.exit_code == 0, ended.stderr
    assert "Slurm requeued the job" in ended.stderr
    assert (tmp_path / "results" / "result.txt").read_text() == "seen\n"
    assert [state for _, state in jobs_of(testbed, ended.record.name)] == ["COMPLETED"]


def test_new_driver_re_attaches_the_job_of_a_killed_one(tmp_path: Path, testbed: Sites) -> None:
    write(tmp_path, {"first": "sleep 15; " + GOOD})
    first = begin(tmp_path, testbed)
    first.wait_for_line("Slurm job ")
    first.signal(signal.SIGKILL)
    first.wait()
    run_id = first.record.name
    (tmp_path / "stderr.txt").unlink()
    second = begin(tmp_path, testbed).wait(120)
    assert second.exit_code == 0, second.stderr
    (job,) = jobs_of(testbed, run_id)
    assert f"re-attached to Slurm job {job[0]} of an earlier driver" in second.stderr
    assert job[1] == "COMPLETED"
    (other,) = [path.name for path in (tmp_path / "runs").glob("tiny-*") if path.name != run_id]
    assert jobs_of(testbed, other) == []
    assert (tmp_path / "results" / "result.txt").is_file()


@pytest.fixture(autouse=True)
def clean(testbed: Sites) -> None:
    """Empty the folder of the tests before each test."""
    testbed.hpc("sh", "-c", f"rm -rf {testbed.layout.hpc}/scratch/tests")


def test_a_job_that_fails_says_why(tmp_path: Path, testbed: Sites) -> None:
    script = "echo 'PATIENT^NAME' >&2; echo 'medweave-step train: NaN.' >&2; echo half > result.txt; exit 70"
    write(tmp_path, {"first": (script, resources())})
    ended = go(tmp_path, testbed)
    assert ended.exit_code == 1
    job = failure(ended)
    assert job["exit_code"] == 70
    assert re.fullmatch(
        r"hpc/usual: Slurm job \d+ failed\.\n  seen:     sacct State=FAILED ExitCode=70:0 Reason=NonZeroExitCode, .*on n[12]\n"
        r"  expected: State=COMPLETED and ExitCode=0:0\nmedweave-step train: NaN\.",
        job["message"],
    )
    assert ended.stderr.count("medweave-step train: NaN.") == 1
    assert "its files are in hpc:" in ended.stderr
    assert "PATIENT" not in (ended.record / "events.jsonl").read_text()
    assert sacct(testbed, job["site"]["slurm_job_id"])[:2] == ["FAILED", "70:0"]


def test_a_job_past_its_time_limit_is_no_success(tmp_path: Path, testbed: Sites) -> None:
    # Fault Q1 of the engine: `0:0` or `0:15` of a TIMEOUT passes for a success, and the half-written file is taken.
    keys = resources(ToolTimeLimit={"timelimit": 30})
    write(tmp_path, {"first": ("echo half > result.txt; echo {} > run_report.json; sleep 600", keys)})
    ended = go(tmp_path, testbed, 240)
    assert ended.exit_code == 1
    job = failure(ended)
    assert "hit its time limit of 1 min" in job["message"]
    assert job["site"]["reason"] == "TimeLimit"
    assert "deployments.hpc.config.services.usual.time" in job["message"]
    assert sacct(testbed, job["site"]["slurm_job_id"])[0] == "TIMEOUT"
    assert not (tmp_path / "results" / "result.txt").exists()


def test_job_over_its_memory_is_reported_as_out_of_memory(tmp_path: Path, testbed: Sites) -> None:
    script = (
        "python3 -c 'import time; x = bytearray(600 << 20); time.sleep(60)'; code=$?; echo x > result.txt; exit $code"
    )
    write(tmp_path, {"first": (script, resources(memory_mib=100))})
    ended = go(tmp_path, testbed)
    assert ended.exit_code == 1
    assert "ran out of memory (100 MiB on each node)" in failure(ended)["message"], ended.stderr


def test_preempted_job_is_no_success(tmp_path: Path, testbed: Sites) -> None:
    write(tmp_path, {"first": (PROGRESS + "sleep 600", resources(cores=2))}, target={})
    going = begin(tmp_path, testbed)
    going.wait_for_line("case 1/2")
    urgent = testbed.submitted(
        "--partition=urgent", "--nodes=2", "--ntasks-per-node=2", "--mem=8000M", "--output=/dev/null", script="sleep 2"
    )
    ended = going.wait(120)
    testbed.hpc("scancel", urgent)
    assert ended.exit_code == 1
    assert "was preempted" in failure(ended)["message"], ended.stderr
    assert sacct(testbed, failure(ended)["site"]["slurm_job_id"])[0] == "PREEMPTED"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_cancels_the_job_within_20_s(tmp_path: Path, testbed: Sites, number: signal.Signals) -> None:
    # Fault Q3 of the engine: scancel is never sent.
    write(tmp_path, {"first": (PROGRESS + "sleep 600", resources())})
    going = begin(tmp_path, testbed)
    going.wait_for_line("case 1/2")
    before = time.monotonic()
    going.signal(number)
    ended = going.wait(60)
    assert time.monotonic() - before < 20
    assert ended.exit_code == -number
    assert "Traceback" not in ended.stderr
    assert ended.of_type("run.ended")[0]["data"]["state"] == "cancelled"
    ((job_id, state),) = jobs_of(testbed, ended.record.name)
    assert state in ("CANCELLED", "COMPLETING")
    wait_for(lambda: sacct(testbed, job_id)[0].startswith("CANCELLED") or None, "CANCELLED in the accounting")


def test_medweave_cancel_cancels_the_job_from_another_terminal(tmp_path: Path, testbed: Sites) -> None:
    write(tmp_path, {"first": (PROGRESS + "sleep 600", resources())})
    going = begin(tmp_path, testbed)
    going.wait_for_line("case 1/2")
    words = [Path(sys.executable).parent / "medweave", "cancel", "--runs", tmp_path / "runs"]
    cancelled = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert cancelled.returncode == 0, cancelled.stderr
    assert "first        stopped after" in cancelled.stderr
    ended = going.wait(20)
    assert ended.exit_code == -signal.SIGTERM
    ((_, state),) = jobs_of(testbed, ended.record.name)
    assert state in ("CANCELLED", "COMPLETING"), "when the command ends, not some time after"


def test_a_failed_sibling_cancels_the_job(tmp_path: Path, testbed: Sites) -> None:
    write(
        tmp_path,
        {"first": (PROGRESS + "sleep 600", resources()), "second": ("sleep 5; exit 65", resources())},
    )
    before = time.monotonic()
    ended = go(tmp_path, testbed)
    assert ended.exit_code == 1
    assert time.monotonic() - before < 60
    states = dict(jobs_of(testbed, ended.record.name)).values()
    assert sorted(state if state != "COMPLETING" else "CANCELLED" for state in states) == ["CANCELLED", "FAILED"]


def test_pending_job_reports_its_reason(tmp_path: Path, testbed: Sites) -> None:
    other = testbed.submitted(
        "--nodes=2", "--ntasks-per-node=2", "--mem=8000M", "--output=/dev/null", script="sleep 600"
    )
    write(tmp_path, {"first": (f"sleep 8; {GOOD}", resources())})
    going = begin(tmp_path, testbed)
    try:
        going.wait_for_line("waits in the queue: ")
    finally:
        testbed.hpc("scancel", other)
    going.wait_for_line("runs now, after ")
    ended = going.wait(120)
    assert ended.exit_code == 0, ended.stderr
    assert site_of(ended)["queue_seconds"] >= 5


def test_gpus_are_requested(tmp_path: Path, testbed: Sites) -> None:
    hints = {"hints": {"urn:medweave:cwl#GPURequest": {"gpusMin": 1, "gpusMax": 2}}}
    script = GOOD + '; echo "$1 cores, $SLURM_CPUS_PER_TASK of Slurm" > result.txt'
    keys = resources(cores=2) | hints | {"arguments": ["sh", "$(runtime.cores)"]}
    write(tmp_path, {"first": (script, keys)}, service={"gpusPerNode": 1})
    ended = go(tmp_path, testbed)
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "results" / "result.txt").read_text() == "2 cores, 2 of Slurm\n"
    assert "gres/gpu=1" in sacct(testbed, site_of(ended)["slurm_job_id"], "AllocTRES")[0]


MEET = """
import os, socket, sys
rank = os.environ["MEDWEAVE_NODE_RANK"]
host, port = os.environ["MEDWEAVE_RENDEZVOUS"].rsplit(":", 1)
words = " ".join((rank, os.environ["MEDWEAVE_NUM_NODES"], os.environ["SLURMD_NODENAME"], os.environ["TMPDIR"][-6:]))
if rank == "0":
    with socket.create_server(("", int(port))) as server:
        server.settimeout(60)
        connection, _ = server.accept()
        other = connection.recv(1000).decode()
    open("result.txt", "w").write(f"{words}\\n{other}\\n")
    open("run_report.json", "w").write("{}")
else:
    for _ in range(300):
        try:
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(words.encode())
            break
        except OSError:
            __import__("time").sleep(0.1)
"""


def test_gang_is_one_connected_command_per_node(tmp_path: Path, testbed: Sites) -> None:
    script = (
        f"cat > $TMPDIR/meet.py <<'EOF'\n{MEET}\nEOF\n{PROGRESS}\npython3 $TMPDIR/meet.py && sleep $MEDWEAVE_NODE_RANK"
    )
    write(tmp_path, {"first": (script, resources() | GANG)}, target={"locations": 2})
    ended = go(tmp_path, testbed)
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "results" / "result.txt").read_text() == "0 2 n1 node-0\n1 2 n2 node-1\n"
    assert ended.stderr.count("case 1/2") == 1, "node 0 reports the progress"
    assert site_of(ended)["nodes"] == "n[1-2]"
    assert sacct(testbed, site_of(ended)["slurm_job_id"])[:3] == ["COMPLETED", "0:0", "2"]


@pytest.mark.parametrize(
    ("end", "code"),
    [("kill -KILL $$", 137), ("echo 'medweave-step train: lost.' >&2; exit 70", 70)],
)
def test_one_rank_lost_ends_all_within_60_s_with_its_error(tmp_path: Path, testbed: Sites, end: str, code: int) -> None:
    script = f"{PROGRESS}echo half > result.txt; if [ $MEDWEAVE_NODE_RANK = 1 ]; then sleep 3; {end}; fi; sleep 600"
    write(tmp_path, {"first": (script, resources() | GANG)}, target={"locations": 2})
    going = begin(tmp_path, testbed)
    going.wait_for_line("case 1/2")
    before = time.monotonic()
    ended = going.wait(120)
    assert time.monotonic() - before < 60
    assert ended.exit_code == 1
    job = failure(ended)
    assert job["exit_code"] == code
    assert re.search(rf"node rank 1 \(.*\) ended first, exit code {code}", job["message"]), job["message"]
    if "lost" in end:
        assert "medweave-step train: lost." in job["message"]
    assert sacct(testbed, job["site"]["slurm_job_id"])[0] == "FAILED"
    assert testbed.hpc("squeue", "--me", "--noheader", "--steps").stdout.strip() == ""


@pytest.mark.long  # `make hybrid` says the same
def test_a_gang_runs_torch_over_two_nodes(tmp_path: Path, testbed: Sites) -> None:
    script = """python3 - <<'EOF'
import os, torch.distributed as dist, torch
rank, size = int(os.environ["MEDWEAVE_NODE_RANK"]), int(os.environ["MEDWEAVE_NUM_NODES"])
dist.init_process_group("gloo", init_method="tcp://" + os.environ["MEDWEAVE_RENDEZVOUS"], rank=rank, world_size=size)
total = torch.tensor([rank + 1.0])
dist.all_reduce(total)
if rank == 0:
    open("result.txt", "w").write(str(total.item()))
    open("run_report.json", "w").write("{}")
dist.destroy_process_group()
EOF"""
    write(tmp_path, {"first": (script, resources(memory_mib=1500) | GANG)}, target={"locations": 2})
    ended = go(tmp_path, testbed, 400)  # torch is read from a cold disk twice
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "results" / "result.txt").read_text() == "3.0"


@pytest.mark.long  # `make hybrid` says the same
def test_the_training_gives_the_same_weights_on_two_nodes_as_on_one_machine(tmp_path: Path, testbed: Sites) -> None:
    options = {
        "training_steps": 6,
        "batch_size": 2,
        "patch_shape": [16, 16, 16],
        "channels": [4, 4, 4, 4, 4],
        "epoch_steps": 2,
    }
    spread = {"strategy": "ddp", "ranks": 2, "threads_per_rank": 1, "validation_interval": 1}
    weights = []
    for name, target in (
        ("hpc", {"deployment": "hpc", "service": "usual", "locations": 2}),
        ("here", {"deployment": "here"}),
    ):
        folder = tmp_path / name
        folder.mkdir()
        data = {"training_set": {"class": "Directory", "path": str(training_set(folder / "data"))}}
        write_training(folder, data | options | spread | {"precision": "float32"}, target=target)
        ended = go(folder, testbed, 400)
        assert ended.exit_code == 0, ended.stderr
        assert ended.stderr.count("epoch 3/3") == 1, "node 0 reports the progress"
        weights.append((folder / "results" / "trained_model" / "models" / "model.safetensors").read_bytes())
        report = json.loads((ended.record / "reports" / "train" / "run_report.json").read_text())
        assert len({rank["host"] for rank in report["ranks"]}) == (2 if name == "hpc" else 1), report["ranks"]
    assert weights[0] == weights[1]
