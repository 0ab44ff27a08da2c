"""The testbed's Slurm is a real one: two nodes, fake GPUs that are allocated, preemption, and true accounting."""

from __future__ import annotations

import pytest

from support.testbed import Sites, unique, wait_for


def test_both_nodes_are_idle_with_two_gpus_each(testbed: Sites) -> None:
    rows = testbed.hpc("sinfo", "-N", "-h", "-p", "normal", "-o", "%N %c %G %T").stdout.split("\n")
    assert rows[:2] == ["n1 2 gpu:2 idle", "n2 2 gpu:2 idle"]


def test_the_laptop_starts_a_program_on_both_nodes(testbed: Sites) -> None:
    outcome = testbed.ssh("srun -N2 hostname")
    assert sorted(outcome.stdout.split()) == ["n1", "n2"], outcome.stderr


def test_sacct_distinguishes_success_from_failure(testbed: Sites) -> None:
    good, bad = testbed.submitted(script="true"), testbed.submitted(script="exit 3")
    assert wait_for(lambda: testbed.job_state(good), "the good job") == "COMPLETED"
    assert wait_for(lambda: testbed.job_state(bad), "the bad job") == "FAILED"

    def complete() -> str | None:
        """The database learns a short job's end before its partition."""
        row = testbed.hpc("sacct", "-X", "-n", "-P", "-j", bad, "-o", "ExitCode,Account,User,Partition").stdout.strip()
        return None if row.endswith("|") else row

    assert wait_for(complete, "the whole record") == "3:0|research|medweave-hpc|normal"


def test_jobs_find_the_worker_environment_even_without_the_submitters_variables(testbed: Sites) -> None:
    name = unique("path")
    script = 'command -v medweave-step; medweave-step --version; echo "TMP $(ls -A /tmp | wc -l)"'
    options = ["--export=NONE", "--output", f"{testbed.layout.hpc}/scratch/{name}.out"]
    job = testbed.submitted(*options, script=script)
    assert wait_for(lambda: testbed.job_state(job), "the job") == "COMPLETED"
    output = testbed.hpc("cat", f"{testbed.layout.hpc}/scratch/{name}.out").stdout
    assert output.splitlines()[0] == f"{testbed.layout.environment}/bin/medweave-step"


def test_gpus_are_counted_and_allocated(testbed: Sites) -> None:
    outcome = testbed.hpc("srun", "-N1", "--gres=gpu:2", "printenv", "CUDA_VISIBLE_DEVICES")
    assert outcome.stdout.strip() == "0,1", outcome.stderr
    refused = testbed.hpc("srun", "-N1", "--gres=gpu:3", "true")
    assert refused.returncode != 0
    assert "Requested node configuration is not available" in refused.stderr


def test_urgent_partition_preempts_jobs(testbed: Sites) -> None:
    low = testbed.submitted("--no-requeue", "-N2", "--exclusive", script="sleep 300")
    wait_for(lambda: "RUNNING" in testbed.hpc("squeue", "-h", "-j", low, "-o", "%T").stdout or None, "the low job runs")
    high = testbed.submitted("-p", "urgent", "-N2", "--exclusive", script="true")
    assert wait_for(lambda: testbed.job_state(high), "the urgent job") == "COMPLETED"
    assert wait_for(lambda: testbed.job_state(low), "the low job") == "PREEMPTED"


def test_job_over_its_memory_is_killed_with_a_message(testbed: Sites) -> None:
    name = unique("memory")
    out = f"{testbed.layout.hpc}/scratch/{name}.out"
    grow = "python3 -c 'import time; memory = bytearray(600_000_000); time.sleep(60)'"
    job = testbed.submitted("--no-requeue", "--mem=200M", "--output", out, script=grow)
    assert wait_for(lambda: testbed.job_state(job), "the job") != "COMPLETED"
    assert "exceeded memory limit" in testbed.hpc("cat", out).stdout


def test_a_cancelled_job_is_gone_within_seconds(testbed: Sites) -> None:
    job = testbed.submitted("-N2", script="trap '' TERM; srun sleep 300")
    wait_for(lambda: "RUNNING" in testbed.hpc("squeue", "-h", "-j", job, "-o", "%T").stdout or None, "the job runs")
    testbed.hpc("scancel", job)
    state = wait_for(lambda: testbed.job_state(job), "the cancelled job", deadline_s=15)
    assert state.startswith("CANCELLED")


def test_an_unknown_partition_is_refused_at_once(testbed: Sites) -> None:
    outcome = testbed.hpc("sbatch", "-p", "nowhere", text="#!/bin/sh\ntrue\n")
    assert outcome.returncode != 0
    assert "invalid partition specified" in outcome.stderr


def test_only_a_user_with_an_account_may_submit(testbed: Sites) -> None:
    as_another_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    outcome = testbed.inside("hpc", *as_another_user, "srun", "true")
    assert outcome.returncode != 0
    assert "Invalid account" in outcome.stderr


@pytest.mark.long
def test_torchrun_connects_across_the_nodes(testbed: Sites) -> None:
    program = (
        "import torch, torch.distributed as d; d.init_process_group('gloo'); t = torch.ones(1) * (d.get_rank() + 1)"
    )
    program += "; d.all_reduce(t); print('sum', int(t.item()), 'of', d.get_world_size())"
    path = f"{testbed.layout.hpc}/scratch/{unique('gloo')}.py"
    assert testbed.hpc("tee", path, text=program).returncode == 0
    words = "torchrun --nnodes $SLURM_NNODES --node-rank $SLURM_PROCID --nproc-per-node 1 --master-port 29511 "
    words += "--master-addr $(scontrol show hostnames $SLURM_JOB_NODELIST | head -1) " + path
    outcome = testbed.hpc("srun", "-N2", "--ntasks-per-node=1", "bash", "-c", words)
    assert outcome.stdout.count("sum 3 of 2") == 2, outcome.stdout + outcome.stderr
    assert outcome.returncode == 0
