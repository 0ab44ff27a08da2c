"""Commands for Slurm: the pure parts of `medweave.slurm`, and job scripts in real shells."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from medweave_connectors.jobs.job_requests import JobRequest, StepHints
from medweave_connectors.sites.slurm import answers, commands
from medweave_connectors.sites.slurm.commands import END
from medweave_connectors.sites.slurm.script import SlurmJobFiles, StepCommand, gang_script, node_script, single_script
from medweave_connectors.sites.slurm.service import (
    Allocation,
    Service,
    allocation,
    minutes_of,
    refuse_if_too_large,
)
from medweave_core.errors import UsageError
from medweave_core.runlog.run_ownership import RunOwner
from support.fake_cluster import FAKES
from support.slurm_words import ALLOCATION

FILES = SlurmJobFiles.next_to("/scratch/me/0a/", "1f2e")


def sbatch(allocation: Allocation = ALLOCATION, service: Service | None = None) -> list[str]:
    return commands.sbatch_words(FILES, allocation, service or Service(), job_name="medweave.train", key="a:b")


def test_the_sbatch_command() -> None:
    assert sbatch() == [
        "sbatch", "--parsable", "--job-name=medweave.train", "--comment=a:b", "--nodes=1", "--ntasks=1",
        "--ntasks-per-node=1", "--cpus-per-task=4", "--mem=3072M", "--no-requeue", "--chdir=/scratch/me/0a.slurm-1f2e",
        "--output=/scratch/me/0a.slurm-1f2e/stdout", "--error=/scratch/me/0a.slurm-1f2e/stderr",
        "/scratch/me/0a.slurm-1f2e/job.sh",
    ]  # fmt: skip
    allocation = Allocation(num_nodes=2, cores=8, memory_mib=64000, gpus=4, minutes=720)
    service = Service(
        partition="gpu", account="lab", qos="long", constraint="a100&ib", gres="gpu:a100", reservation="course",
        options=["--exclude=n7", "--exclusive"],
    )  # fmt: skip
    assert {
        "--nodes=2", "--ntasks=2", "--gres=gpu:a100:4", "--time=720", "--partition=gpu", "--account=lab", "--qos=long",
        "--constraint=a100&ib", "--reservation=course", "--exclude=n7", "--exclusive",
    } <= set(sbatch(allocation, service))  # fmt: skip


def test_options_that_the_engine_misspells_are_not_sent() -> None:
    # Fault Q8 of the engine: --minpucs, --use-min_nodes, and --wait-all-nodes 0 with every job.
    line = " ".join(sbatch(Allocation(num_nodes=2, cores=1, memory_mib=1, gpus=1, minutes=1)))
    assert not any(word in line for word in ("minpucs", "use-min_nodes", "wait-all-nodes"))


def test_each_submission_has_its_files_next_to_the_output_folder() -> None:
    assert not FILES.folder.startswith("/scratch/me/0a/")
    assert SlurmJobFiles.next_to("/scratch/me/0a", "1") != SlurmJobFiles.next_to("/scratch/me/0a", "2")


def shell(line: str, folder: Path, **environment: str) -> str:
    result = subprocess.run(
        ["sh", "-c", line],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env={"PATH": os.environ["PATH"], **environment},
    )
    return result.stdout


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_a_submission_that_is_sent_twice_runs_once(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    program(programs, "sbatch", f"echo x >> {tmp_path}/calls; echo 17")
    files = SlurmJobFiles(f"{tmp_path}/it's a job")
    line = commands.submit(["sbatch", "a b"], files, {files.script: "echo 'done' > \"$x\"\n"})
    path = f"{programs}:{os.environ['PATH']}"
    for _ in range(2):
        assert answers.parse_submission(shell(line, tmp_path, PATH=path)) == ("17", "")
    assert (tmp_path / "calls").read_text() == "x\n"
    assert Path(files.script).read_text() == "echo 'done' > \"$x\"\n"
    assert Path(files.folder).stat().st_mode & 0o077 == 0, "only the owner can read a job's output"
    shell(commands.open_claim(files), tmp_path)
    assert answers.parse_submission(shell(line, tmp_path, PATH=path)) == ("17", "")
    assert (tmp_path / "calls").read_text() == "x\nx\n"


def step(folder: Path, script: str, **streams: str) -> StepCommand:
    environment = {"TMPDIR": str(folder / "tmp"), "VALUE": "`touch harm` $HOME 'c'"}
    return StepCommand(
        words=["sh", "-c", f'"{script}"'], environment=environment, output_directory=str(folder), **streams
    )


def run_script(folder: Path, text: str, **environment: str) -> int:
    path = folder / "script.sh"
    path.write_text(text)
    variables = {"PATH": f"{folder / 'programs'}:{os.environ['PATH']}", "SLURM_JOB_ID": "17", **environment}
    return subprocess.run(["sh", str(path)], env=variables, check=False).returncode


@pytest.mark.parametrize("code", [0, 3])
def test_a_job_script_runs_the_step_and_records_its_end(tmp_path: Path, code: int) -> None:
    folder, files = tmp_path / "it's out", SlurmJobFiles(str(tmp_path))
    folder.mkdir()
    command = step(folder, r"printf %s \"\$VALUE\$LOADED\"; exit " + str(code), stdout="o u t")
    text = single_script(command, files, prologue="LOADED=yes; export LOADED\n", title="key")
    assert run_script(tmp_path, text) == code
    assert (folder / "o u t").read_text() == "`touch harm` $HOME 'c'yes"
    end = answers.parse_final_report(f"file exit {(tmp_path / 'exit').read_text()}\n{END}", "17")
    assert end.exit_file is not None
    assert (end.exit_file.exit_code, end.exit_file.seconds) == (code, pytest.approx(0, abs=2))


SRUN = """
for rank in 0 1; do SLURM_PROCID=$rank sh "{folder}/node.sh" & done; wait
"""


def test_a_node_group_script_starts_each_node_with_its_rank(tmp_path: Path) -> None:
    programs, folder, files = tmp_path / "programs", tmp_path / "out", SlurmJobFiles(str(tmp_path))
    for folder_of_job in (programs, folder):
        folder_of_job.mkdir()
    program(programs, "srun", f'echo "$@" > {tmp_path}/srun' + SRUN.format(folder=tmp_path))
    program(programs, "scontrol", "echo localhost; echo n2")
    command = step(
        folder,
        r"env | grep -E 'MEDWEAVE|TMPDIR' | sort > env.\$MEDWEAVE_NODE_RANK; echo \$MEDWEAVE_NODE_RANK",
        stdout="out.txt",
    )
    (tmp_path / "node.sh").write_text(node_script(command, files))
    text = gang_script(command, files, num_nodes=2, cores=4, prologue="", title="key")
    assert run_script(tmp_path, text, SLURM_JOB_NODELIST="n[1-2]") == 0
    for rank in (0, 1):
        assert (folder / f"env.{rank}").read_text().splitlines() == [
            f"MEDWEAVE_NODE_RANK={rank}",
            "MEDWEAVE_NUM_NODES=2",
            "MEDWEAVE_RENDEZVOUS=localhost:20017",
            f"TMPDIR={folder}/tmp/node-{rank}",
        ]
        assert (tmp_path / f"exit.{rank}").read_text().startswith("0 ")
        assert (folder / "tmp" / f"node-{rank}").is_dir()
    assert (folder / "out.txt").read_text() == "0\n", "only node 0 writes the tool's files"
    options = (tmp_path / "srun").read_text()
    for option in (
        "--nodes=2",
        "--ntasks=2",
        "--ntasks-per-node=1",
        "--kill-on-bad-exit=1",
        "--wait=0",
        "--cpus-per-task=4",
    ):
        assert option in options.split()


def test_a_cluster_without_host_names_uses_an_address(tmp_path: Path) -> None:
    programs, files = tmp_path / "programs", SlurmJobFiles(str(tmp_path))
    programs.mkdir()
    program(programs, "srun", f"echo $MEDWEAVE_RENDEZVOUS > {tmp_path}/met")
    program(programs, "getent", "exit 2")
    program(
        programs,
        "scontrol",
        'case "$2" in hostnames) echo n1;; node) echo "NodeName=n1 NodeAddr=10.0.0.7 NodeHostName=n1";; esac',
    )
    (tmp_path / "out").mkdir()
    text = gang_script(step(tmp_path / "out", "true"), files, num_nodes=2, cores=1, prologue="", title="key")
    assert run_script(tmp_path, text, SLURM_JOB_NODELIST="n[1-2]") == 0
    assert (tmp_path / "met").read_text() == "10.0.0.7:20017\n"


def request(gpus: tuple[int, int] = (0, 0), *, num_nodes: int = 1, gang: bool = False) -> JobRequest:
    hints = StepHints(gang=gang, gpus_min=gpus[0], gpus_max=gpus[1])
    return JobRequest(cores=1.5, memory_mib=100.2, hints=hints, num_nodes=num_nodes)


def asked_of(request_: JobRequest, service: Service, limit: int | None = None) -> Allocation:
    return allocation(request_, service, time_limit_s=limit, where="deployments.hpc.config.services.gpu")


def test_a_request_becomes_an_allocation() -> None:
    got = asked_of(request((0, 4)), Service(gpusPerNode=2, time="12:00:00"), 172800)
    assert got == Allocation(num_nodes=1, cores=2, memory_mib=101, gpus=2, minutes=720)
    assert asked_of(request(), Service(time="12:00:00"), 61).minutes == 2
    assert asked_of(request((0, 4)), Service()).gpus == 0
    assert asked_of(request(), Service()).minutes is None
    assert asked_of(request(num_nodes=2, gang=True), Service()).num_nodes == 2


@pytest.mark.parametrize(
    ("limit_s", "service", "lead_s"),
    [
        (600, {}, 120),
        (120, {}, 60),
        (None, {}, 120),
        (36000, {"signalLeadTime": 900}, 900),
        (None, {"time": "0:02:00"}, 60),
    ],
)
def test_a_step_with_checkpoints_gets_a_signal_before_its_time_limit(
    limit_s: int | None, service: dict[str, Any], lead_s: int
) -> None:
    hints = StepHints(checkpoint_folder="saved")
    allocation = asked_of(JobRequest(cores=1, memory_mib=1, hints=hints), Service(**service), limit_s)
    words = commands.sbatch_words(FILES, allocation, Service(), job_name="x", key="y")
    assert f"--signal=B:USR1@{lead_s}" in words
    without = commands.sbatch_words(FILES, asked_of(request(), Service()), Service(), job_name="x", key="y")
    assert not [word for word in without if word.startswith("--signal")]


def test_requests_above_the_service_are_refused() -> None:
    with pytest.raises(UsageError, match=r"services\.gpu\.gpusPerNode: too few"):
        asked_of(request((2, 2)), Service(gpusPerNode=1))
    with pytest.raises(UsageError, match="not a node group"):
        asked_of(request(num_nodes=2), Service())
    with pytest.raises(UsageError, match=r"services\.x\.partition: no node") as caught:
        refuse_if_too_large(ALLOCATION, [(2, 8000), (2, 8000), (64, 1000)], where="services.x")
    assert caught.value.seen == "nodes with 2 cores and 8000 MiB; 64 cores and 1000 MiB"
    refuse_if_too_large(ALLOCATION, [(2, 8000), (4, 3072)], where="x")
    refuse_if_too_large(ALLOCATION, [], where="x")


@pytest.mark.parametrize(("text", "minutes"), [("00:01:00", 1), ("12:00:30", 721), ("2-01:00:00", 2940)])
def test_times(text: str, minutes: int) -> None:
    assert minutes_of(text, where="x") == minutes
    with pytest.raises(UsageError):
        minutes_of("60", where="x")


def test_slurm_variables_of_the_driver_do_not_reach_its_jobs(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    program(programs, "sbatch", f"env | grep -E '^(SLURM|SBATCH|SRUN|OTHER)' | sort > {tmp_path}/seen; echo 17")
    files = SlurmJobFiles(f"{tmp_path}/job")
    own = {
        "SLURM_MEM_PER_CPU": "700",
        "SLURM_JOB_ID": "5",
        "SBATCH_PARTITION": "x",
        "SRUN_DEBUG": "1",
        "SQUEUE_PARTITION": "y",
    }
    allowed = {
        "OTHER": "a\nSLURM_FAKE=1",
        "SLURM_CLUSTERS": "east",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_JWT": "token",
    }
    line = commands.at_cluster("west", commands.submit(["sbatch"], files, {files.script: ""}))
    shell(f"{line}; [ $SLURM_JOB_ID = 5 ]", tmp_path, PATH=f"{programs}:{os.environ['PATH']}", **own, **allowed)
    assert (tmp_path / "seen").read_text().split() == [
        "OTHER=a", "SLURM_CLUSTERS=west", "SLURM_CONF=/etc/slurm.conf", "SLURM_FAKE=1", "SLURM_JWT=token",
    ]  # fmt: skip


def test_only_the_jobs_of_the_run_are_cancelled_after_it(tmp_path: Path) -> None:
    owner = RunOwner("nightly", "0123456789abcdef")
    keys = {
        "100": "medweave:nightly.0123456789abcdef:/train/0:1a2b3c4d",
        "101": "medweave:nightly.fedcba9876543210:/train/0:1a2b3c4d",  # of a run with the same name in another project
        "102": "medweave:nightly:/train/0:1a2b3c4d",  # of a run of an older version
        "103": "medweave:earlier.0011223344556677:/train/0:5e6f7a8b",  # re-attached: in the run's journal
        "104": "(null)",
    }
    for job_id, key in keys.items():
        job = tmp_path / "jobs" / job_id
        job.mkdir(parents=True)
        (job / "word").write_text("PENDING")
        (job / "comment").write_text(key)
    environment = {"PATH": f"{FAKES}:/usr/bin:/bin", "FAKE_SLURM": str(tmp_path)}
    script = commands.cancel_all(owner, [keys["103"]])
    printed = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["2"]
    words = {job_id: (tmp_path / "jobs" / job_id / "word").read_text() for job_id in keys}
    assert [job_id for job_id, word in words.items() if word == "CANCELLED"] == ["100", "103"]
    older = commands.cancel_all(RunOwner("nightly", ""), [])
    subprocess.run(["sh", "-c", older], env=environment, check=True)
    assert (tmp_path / "jobs" / "102" / "word").read_text() == "PENDING", (
        "its name is chosen, and its journal names no job"
    )
