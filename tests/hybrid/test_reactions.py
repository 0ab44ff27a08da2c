"""What a real Slurm does to jobs, and what follows: more memory, another attempt in a clean folder, on from the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.engine import Run
from support.slurm_runs import GANG, begin, go, jobs_of, resources, sacct, write, write_training
from support.testbed import Sites, wait_for
from support.training_set import training_set

AT_ONCE = {kind: {"wait": 0} for kind in ("Preempted", "NodeFail", "StepFailed")}
READY = 'echo \'medweave-progress {"unit":"case","done":1,"total":2}\' >&2\n'
SAVES = {"urn:medweave:cwl#Checkpoint": {"folder": "saved"}}


@pytest.fixture(autouse=True)
def clean(testbed: Sites) -> None:
    """Empty the folder of the tests before each test."""
    testbed.hpc("sh", "-c", f"rm -rf {testbed.layout.hpc}/scratch/tests")


def reactions(ended: Run) -> list[dict[str, Any]]:
    return [dict(event["data"]) for event in ended.of_type("job.reaction")]


def states(testbed: Sites, ended: Run) -> list[str]:
    """Return the accounting state of each attempt whose job is in the log, in order."""
    jobs = [event["data"]["site"]["slurm_job_id"] for event in ended.of_type("job.ended")]
    return [sacct(testbed, job_id)[0].split()[0] for job_id in jobs]


def push_out(testbed: Sites) -> str:
    """Submit a job of higher priority that takes both nodes for a moment."""
    return testbed.submitted(
        "--partition=urgent", "--nodes=2", "--ntasks-per-node=2", "--mem=8000M", "--output=/dev/null", script="sleep 2"
    )


def test_a_job_over_its_memory_gets_more_until_it_fits(tmp_path: Path, testbed: Sites) -> None:
    script = "python3 -c 'import time; x = bytearray(250 << 20); time.sleep(15)' && echo done > result.txt"
    write(tmp_path, {"first": (script, resources(memory_mib=100))}, reactions={"OutOfMemory": {"factor": 2}})
    ended = go(tmp_path, testbed, 300)
    assert ended.exit_code == 0, ended.stderr
    retries = reactions(ended)
    assert [retry["failure"] for retry in retries] == ["OutOfMemory"] * 2
    assert [retry["memory_mib"] for retry in retries] == [200, 400]
    jobs = [event["data"]["site"]["slurm_job_id"] for event in ended.of_type("job.ended")]
    assert [sacct(testbed, job_id, "ReqMem")[0] for job_id in jobs] == ["100M", "200M", "400M"]


def test_preempted_job_is_retried_in_a_clean_folder(tmp_path: Path, testbed: Sites) -> None:
    script = f"[ ! -e half.txt ] || exit 65; echo half > half.txt; {READY} sleep 15; echo done > result.txt"
    write(tmp_path, {"first": (script, resources(cores=2))}, reactions=AT_ONCE)
    going = begin(tmp_path, testbed)
    going.wait_for_line("case 1/2")
    push_out(testbed)
    ended = going.wait(240)
    assert ended.exit_code == 0, ended.stderr
    assert [retry["failure"] for retry in reactions(ended)] == ["Preempted"]
    assert states(testbed, ended) == ["PREEMPTED", "COMPLETED"]


COUNTS = """
[ "${MEDWEAVE_NODE_RANK:-0}" = 0 ] || { while [ ! -e result.txt ]; do sleep 1; done; exit 0; }
at=0; [ -z "$MEDWEAVE_RESUME_FROM" ] || at=$(cat "$MEDWEAVE_RESUME_FROM/at")
trap 'mkdir -p saved; echo $at > saved/part; mv saved/part saved/at; echo "v: note: saved at $at" >&2' USR1
echo "v: note: resumes from $at" >&2
while [ $at -lt 170 ]; do sleep 1 & wait $!; at=$((at+1)); done
echo $at > result.txt
"""


@pytest.mark.long
@pytest.mark.parametrize("locations", [1, 2])
def test_step_continues_past_its_time_limit(tmp_path: Path, testbed: Sites, locations: int) -> None:
    keys = resources(ToolTimeLimit={"timelimit": 120}) | {
        "hints": {**SAVES, **(GANG["hints"] if locations > 1 else {})}
    }
    write(
        tmp_path, {"first": (COUNTS, keys)}, target={"locations": locations}, service={"signalLeadTime": 20},
        reactions=AT_ONCE,
    )  # fmt: skip
    ended = go(tmp_path, testbed, 600)
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "results" / "result.txt").read_text() == "170\n"
    retries = reactions(ended)
    assert {retry["failure"] for retry in retries} == {"Timeout"}
    assert all(retry["from_checkpoint"] for retry in retries)
    assert states(testbed, ended) == ["TIMEOUT"] * len(retries) + ["COMPLETED"]
    assert "note: saved at " in ended.stderr
    assert ended.stderr.count("note: resumes from ") == len(retries) + 1


PLACES = {"hpc": {"deployment": "hpc", "service": "usual"}, "here": {"deployment": "here"}}


def training_at(folder: Path, name: str, options: dict[str, Any], **keys: Any) -> Path:
    """Write a training into a separate folder, bound to one of `PLACES`; return the folder."""
    own = folder / name
    own.mkdir()
    data = {"training_set": {"class": "Directory", "path": str(training_set(own / "data"))}}
    write_training(own, data | options, target=PLACES[name], reactions=AT_ONCE, **keys)
    return own


@pytest.mark.long
def test_training_continues_in_the_next_job_until_done_as_one_step(tmp_path: Path, testbed: Sites) -> None:
    """To the weights of one that has no limit."""
    options = {
        "training_steps": 14000, "batch_size": 2, "patch_shape": [16, 16, 16], "channels": [4, 4, 4, 4, 4],
        "epoch_steps": 700, "validation_interval": 20, "threads_per_rank": 1, "precision": "float32",
    }  # fmt: skip
    weights = []
    for name in PLACES:
        folder = training_at(tmp_path, name, options, service={"time": "00:02:00", "signalLeadTime": 30})
        ended = go(folder, testbed, 1800)
        assert ended.exit_code == 0, ended.stderr
        if name == "hpc":
            retries = reactions(ended)
            assert [(retry["failure"], retry["from_checkpoint"]) for retry in retries] == [("Timeout", True)] * len(
                retries
            )
            assert retries
            assert states(testbed, ended) == ["TIMEOUT"] * len(retries) + ["COMPLETED"]
            assert [event["data"]["state"] for event in ended.of_type("job.ended")][-1] == "completed"
            assert {event["step"] for event in ended.of_type("job.ended")} == {"/train"}
        weights.append((folder / "results" / "trained_model" / "models" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


@pytest.mark.long
def test_preempted_training_gives_the_weights_of_an_uninterrupted_one(tmp_path: Path, testbed: Sites) -> None:
    options = {
        "training_steps": 1000, "batch_size": 2, "patch_shape": [16, 16, 16], "channels": [4, 4, 4, 4, 4],
        "epoch_steps": 50, "validation_interval": 20, "threads_per_rank": 1, "precision": "float32",
    }  # fmt: skip
    weights = []
    for name in PLACES:
        folder = training_at(tmp_path, name, options)
        going = begin(folder, testbed)
        if name == "hpc":
            going.wait_for_line("epoch 2/20", 300)
            push_out(testbed)
        ended = going.wait(600)
        assert ended.exit_code == 0, ended.stderr
        if name == "hpc":
            assert [(retry["failure"], retry["from_checkpoint"]) for retry in reactions(ended)] == [("Preempted", True)]
            assert "resumed from a checkpoint at step " in ended.stderr
            assert states(testbed, ended) == ["PREEMPTED", "COMPLETED"]
        weights.append((folder / "results" / "trained_model" / "models" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_canceled_job_is_not_retried(tmp_path: Path, testbed: Sites) -> None:
    write(tmp_path, {"first": (READY + "echo 'one warning' >&2; sleep 600", resources())}, reactions={})
    going = begin(tmp_path, testbed)
    going.wait_for_line("case 1/2")
    log = going.record / "work" / "stderr" / "first"
    wait_for(lambda: (log.is_file() and "one warning" in log.read_text()) or None, "the line of a running job")
    (job_id,) = wait_for(lambda: testbed.hpc("squeue", "--me", "--noheader", "--format=%i").stdout.split(), "the job")
    testbed.hpc("scancel", job_id)
    ended = going.wait(120)
    assert ended.exit_code == 1
    (reaction,) = reactions(ended)
    assert (reaction["failure"], reaction["again"]) == ("Cancelled", False)
    assert states(testbed, ended) == ["CANCELLED"]


@pytest.mark.parametrize(("code", "attempts"), [(75, 3), (70, 1)])
def test_step_decides_whether_it_is_retried(tmp_path: Path, testbed: Sites, code: int, attempts: int) -> None:
    write(tmp_path, {"first": (f"exit {code}", resources())}, reactions=AT_ONCE)
    ended = go(tmp_path, testbed)
    assert ended.exit_code == 1
    assert states(testbed, ended) == ["FAILED"] * attempts


# Sends the signal $2 to the process of rank 1 of the job $1, and to that only.
TO_RANK_1 = """
for process in /proc/[0-9]*; do
  tr '\\0' '\\n' < $process/environ 2>/dev/null | grep -qx "SLURM_JOB_ID=$1" || continue
  tr '\\0' '\\n' < $process/environ | grep -qx MEDWEAVE_NODE_RANK=1 || continue
  ! grep -q spawn_main $process/cmdline || { kill -$2 "${process#/proc/}" && echo signaled; }
done
"""


def lose_rank_1(going: Run, testbed: Sites) -> None:
    """Kill rank 1 as soon as the training has a checkpoint."""
    ((job_id, _),) = jobs_of(testbed, going.record.name)
    find = f"find {testbed.layout.hpc}/scratch/tests -name checkpoint.pt"
    assert testbed.hpc("sh", "-c", TO_RANK_1, "sh", job_id, "USR1").stdout == "signaled\n"
    wait_for(lambda: testbed.hpc("sh", "-c", find).stdout or None, "a checkpoint")
    assert testbed.hpc("sh", "-c", TO_RANK_1, "sh", job_id, "KILL").stdout == "signaled\n"


@pytest.mark.long
def test_lost_rank_is_replaced_and_the_training_continues(tmp_path: Path, testbed: Sites) -> None:
    """To the same weights, as tests/unit/steps/test_strategy_resume.py has it: a second gang here would take a minute."""
    options = {
        "training_set": {"class": "Directory", "path": str(training_set(tmp_path / "data"))},
        "training_steps": 1500, "batch_size": 2, "patch_shape": [16, 16, 16], "channels": [4, 4, 4, 4, 4], "epoch_steps": 100,
        "validation_interval": 20, "strategy": "ddp", "ranks": 2, "threads_per_rank": 1, "precision": "float32",
    }  # fmt: skip
    target = {"deployment": "hpc", "service": "usual", "locations": 2}
    write_training(tmp_path, options, target=target, reactions=AT_ONCE)
    going = begin(tmp_path, testbed)
    going.wait_for_line("epoch 2/15", 300)
    lose_rank_1(going, testbed)
    ended = going.wait(300)
    assert ended.exit_code == 0, ended.stderr
    assert [(retry["failure"], retry["from_checkpoint"]) for retry in reactions(ended)] == [("StepFailed", True)]
    assert "killed by signal 9" in ended.of_type("job.ended")[0]["data"]["message"]
    assert "resumed from a checkpoint at step " in ended.stderr
    assert "epoch 15/15" in ended.stderr
    assert states(testbed, ended) == ["FAILED", "COMPLETED"]
    card = json.loads((tmp_path / "results" / "trained_model" / "model_card.json").read_text())
    assert (card["training"]["steps_done"], card["training"]["world_size"]) == (1500, 2)
