"""The pure parts of `medweave.slurm`: command lines, answers, states, words. Texts of Slurm 22.05 on Debian 12."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from medweave_connectors.requests import JobRequest, StepHints
from medweave_connectors.slurm import answers, commands, words
from medweave_connectors.slurm.commands import END
from medweave_connectors.slurm.connector import MedweaveSlurmConnector
from medweave_connectors.slurm.script import JobFiles, StepCommand, gang_script, node_script, single_script
from medweave_connectors.slurm.service import Allocation, Service, allocation, minutes_of, refuse_if_too_large
from medweave_connectors.slurm.states import JobState, Told, judge, shell_exit_code, state_of
from medweave_connectors.slurm.watch import Pace, interval_s
from medweave_steps.contracts.errors import UsageError

SACCT_TIMEOUT = """\
sacct 1|TIMEOUT|0:0|89|2026-11-21T20:19:57|2026-11-21T20:19:58|00:00.005||n1|00:01:00
sacct 1.batch|CANCELLED|0:15|89|2026-11-21T20:19:58|2026-11-21T20:19:58|00:00.005|4517888|n1|
"""
SACCT_MEMORY = """\
sacct 11|FAILED|0:9|2|2026-11-21T20:38:28|2026-11-21T20:38:30|00:00.004||n1|01:00:00
sacct 11.batch|CANCELLED by 0|0:9|2|2026-11-21T20:38:30|2026-11-21T20:38:30|00:00.004|376328192|n1|
"""
SCONTROL = (
    "scontrol JobId=10 JobName=sbatch UserId=me(1002) JobState=COMPLETED Reason=None Requeue=1 ExitCode=0:0 "
    "RunTime=1-00:00:02 TimeLimit=2-00:00:00 TimeMin=N/A SubmitTime=2026-11-21T20:38:22 StartTime=2026-11-21T20:38:24 "
    "EndTime=2026-11-22T20:38:26 ReqNodeList=(null) ExcNodeList=(null) NodeList=n[1-2] BatchHost=n1 NumNodes=2\n"
)
FILES = JobFiles.beside("/scratch/me/0a/", "1f2e")
ASKED = Allocation(num_nodes=1, cores=4, memory_mib=3072, gpus=0, minutes=None)


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("COMPLETED", JobState.COMPLETED),
        ("CANCELLED by 1000", JobState.CANCELLED),
        ("NODE_FAIL+", JobState.NODE_FAIL),
        ("DEADLINE", JobState.TIMEOUT),
        ("STAGE_OUT", JobState.GOING),
        ("REQUEUED", JobState.WAITING),
        ("SOMETHING_NEW", JobState.UNKNOWN),
        ("", JobState.UNKNOWN),
    ],
)
def test_words_of_slurm(word: str, state: JobState) -> None:
    assert state_of(word) is state


def test_an_unknown_word_is_no_end() -> None:
    assert not JobState.UNKNOWN.ended
    told = Told(source="sacct", word="SOMETHING_NEW")
    assert judge(told, None, Told(source="exit file", word="COMPLETED"), forgotten=False) is None


def told(source: str, word: str, exit_code: int = 0, signal_number: int = 0) -> Told:
    return Told(source=source, word=word, exit_code=exit_code, signal_number=signal_number)


def test_accounting_comes_first_then_the_controller_then_the_exit_file() -> None:
    sacct, scontrol, file = told("sacct", "COMPLETED"), told("scontrol", "FAILED"), told("exit file", "COMPLETED")
    assert judge(sacct, scontrol, file, forgotten=False) is sacct
    late = told("sacct", "RUNNING")
    assert judge(late, scontrol, file, forgotten=False) is scontrol
    assert judge(None, None, file, forgotten=True) is file
    # Put back into the queue, or started again: accounting still has the end of the start before.
    gone = Told(source="sacct", word="PREEMPTED")
    for word in ("PENDING", "RUNNING", "REQUEUED"):
        assert judge(gone, Told(source="scontrol", word=word), None, forgotten=False) is None
    assert judge(gone, Told(source="scontrol", word="COMPLETING"), None, forgotten=False) is gone
    assert judge(None, None, file, forgotten=False) is None, "while Slurm knows the job its script's end is not its own"


@pytest.mark.parametrize(
    "word", ["TIMEOUT", "PREEMPTED", "NODE_FAIL", "CANCELLED", "OUT_OF_MEMORY", "FAILED", "RUNNING", "SOMETHING_NEW"]
)
def test_no_state_but_completed_has_the_exit_code_0(word: str) -> None:
    assert shell_exit_code(told("sacct", word)) != 0


def test_exit_codes_as_a_shell_tells_them() -> None:
    assert shell_exit_code(told("sacct", "COMPLETED")) == 0
    assert shell_exit_code(told("sacct", "FAILED", 70)) == 70
    assert shell_exit_code(told("sacct", "FAILED", 0, 9)) == 137


def test_sacct_is_read() -> None:
    end = answers.read_end(f"{SACCT_TIMEOUT}scontrol slurm_load_jobs error: Invalid job id specified\n{END}", "1")
    assert end.sacct == Told(
        source="sacct", word="TIMEOUT", exit_code=0, signal_number=0, seconds=89.0, queue_seconds=1.0, cpu_seconds=0.005,
        peak_memory_mib=4.3, nodes="n1", time_limit="00:01:00",
    )  # fmt: skip
    assert end.scontrol is None
    assert end.forgotten
    end = answers.read_end(SACCT_MEMORY + END, "11")
    assert end.sacct is not None
    assert (end.sacct.signal_number, end.sacct.peak_memory_mib) == (9, 358.9)
    assert not end.forgotten


def test_scontrol_is_read() -> None:
    end = answers.read_end(SCONTROL + END, "10")
    assert end.scontrol == Told(
        source="scontrol", word="COMPLETED", seconds=86402.0, queue_seconds=2.0, nodes="n[1-2]", time_limit="2-00:00:00"
    )
    assert end.sacct is None


def test_the_jobs_own_records_are_read() -> None:
    text = (
        "file exit 3 100 107 n1\nfile exit.0 0 100 107 n1\nfile exit.1 137 100 105 n2\ntail stdout b3V0\ntail stderr \n"
    )
    end = answers.read_end(text + END, "1")
    assert end.exit_file == Told(source="exit file", word="FAILED", exit_code=3, seconds=7.0, nodes="n1")
    assert end.ranks == {0: (0, 107, "n1"), 1: (137, 105, "n2")}
    assert end.tails == {"stdout": b"out", "stderr": b""}


def test_what_is_cut_short_is_no_answer() -> None:
    for text in ("", SACCT_TIMEOUT, "job 1|RUNNING|None|N/A|x\nsqueue 0"):
        for read in (
            lambda t: answers.read_end(t, "1"),
            answers.read_poll,
            answers.read_probe,
            answers.read_submission,
        ):
            with pytest.raises(ValueError, match="not whole"):
                read(text)
    with pytest.raises(ValueError, match="not whole"):
        answers.read_poll(f"text 0 abc\n{END}")


def test_the_queue_is_read() -> None:
    polled = answers.read_poll(
        f"job 7|RUNNING|None|2026-11-22T10:00:00|a key\njob 8|PENDING|Resources|N/A|(null)\nsqueue 0\ntext 1 b3V0\nended 1\n{END}"
    )
    assert polled.answered
    assert polled.jobs == {"7": ("RUNNING", "None", "2026-11-22T10:00:00"), "8": ("PENDING", "Resources", "")}
    assert polled.by_key["a key"] == "7"
    assert (polled.text, polled.ended) == ({1: b"out"}, {1})
    failed = answers.read_poll(f"slurm_load_jobs error: Unable to contact slurm controller\nsqueue 1\n{END}")
    assert not failed.answered
    assert "Unable to contact" in failed.said
    assert not answers.read_poll(f"text 0 \n{END}").answered, "not asked is not answered"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("17\ncode 0", ("17", "")),
        ("17;cluster2\ncode 0", ("17", "")),  # fault Q9 of the engine: that is no id
        (
            "sbatch: error: Batch job submission failed: Invalid partition name specified\ncode 1",
            ("", "sbatch: error: …"),
        ),
        ("code 1", ("", "exit code 1")),
        ("code", ("", "")),
        ("17\ncode", ("17", "")),
    ],
)
def test_the_answer_to_a_submission(text: str, expected: tuple[str, str]) -> None:
    job_id, refusal = answers.read_submission(f"{text}\n{END}")
    assert job_id == expected[0]
    assert refusal.startswith(expected[1].removesuffix("…"))
    assert bool(refusal) == bool(expected[1])


def test_the_site_is_read() -> None:
    probe = answers.read_probe(
        f"missing scancel\npartition normal* 2 8000\npartition gpu 8 64000\npartition gpu 64 9\ncode 0\n{END}"
    )
    assert probe == answers.Probe(
        missing=("scancel",), nodes={"normal": ((2, 8000),), "gpu": ((8, 64000), (64, 9))}, default="normal"
    )
    assert answers.read_probe(f"sinfo: error: no answer\ncode 1\n{END}").said == "sinfo: error: no answer"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1-02:03:04", 93784), ("02:03:04", 7384), ("03:04.567", 184.567), ("Unknown", None), ("", None)],
)
def test_durations(text: str, expected: float | None) -> None:
    assert answers.seconds(text) == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(("text", "expected"), [("1024K", 1.0), ("1.5G", 1536.0), ("2097152", 2.0), ("", None)])
def test_sizes(text: str, expected: float | None) -> None:
    assert answers.mebibytes(text) == expected


def sbatch(asked: Allocation = ASKED, service: Service | None = None) -> list[str]:
    return commands.sbatch_words(FILES, asked, service or Service(), job_name="medweave.train", key="a:b")


def test_the_sbatch_command() -> None:
    assert sbatch() == [
        "sbatch", "--parsable", "--job-name=medweave.train", "--comment=a:b", "--nodes=1", "--ntasks=1",
        "--ntasks-per-node=1", "--cpus-per-task=4", "--mem=3072M", "--no-requeue", "--chdir=/scratch/me/0a.slurm-1f2e",
        "--output=/scratch/me/0a.slurm-1f2e/stdout", "--error=/scratch/me/0a.slurm-1f2e/stderr",
        "/scratch/me/0a.slurm-1f2e/job.sh",
    ]  # fmt: skip
    asked = Allocation(num_nodes=2, cores=8, memory_mib=64000, gpus=4, minutes=720)
    service = Service(
        partition="gpu", account="lab", qos="long", constraint="a100&ib", gres="gpu:a100", reservation="course",
        options=["--exclude=n7", "--exclusive"],
    )  # fmt: skip
    assert {
        "--nodes=2", "--ntasks=2", "--gres=gpu:a100:4", "--time=720", "--partition=gpu", "--account=lab", "--qos=long",
        "--constraint=a100&ib", "--reservation=course", "--exclude=n7", "--exclusive",
    } <= set(sbatch(asked, service))  # fmt: skip


def test_options_that_the_engine_misspells_are_not_sent() -> None:
    # Fault Q8 of the engine: --minpucs, --use-min_nodes, and --wait-all-nodes 0 with every job.
    line = " ".join(sbatch(Allocation(num_nodes=2, cores=1, memory_mib=1, gpus=1, minutes=1)))
    assert not any(word in line for word in ("minpucs", "use-min_nodes", "wait-all-nodes"))


def test_job_files_lie_beside_the_output_folder_each_submission_its_own() -> None:
    assert not FILES.folder.startswith("/scratch/me/0a/")
    assert JobFiles.beside("/scratch/me/0a", "1") != JobFiles.beside("/scratch/me/0a", "2")


def shell(line: str, folder: Path, **environment: str) -> str:
    found = subprocess.run(
        ["sh", "-c", line],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env={"PATH": os.environ["PATH"], **environment},
    )
    return found.stdout


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_a_submission_that_is_sent_twice_is_made_once(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    program(programs, "sbatch", f"echo x >> {tmp_path}/calls; echo 17")
    files = JobFiles(f"{tmp_path}/it's a job")
    line = commands.submit(["sbatch", "a b"], files, {files.script: "echo 'done' > \"$x\"\n"})
    path = f"{programs}:{os.environ['PATH']}"
    for _ in range(2):
        assert answers.read_submission(shell(line, tmp_path, PATH=path)) == ("17", "")
    assert (tmp_path / "calls").read_text() == "x\n"
    assert Path(files.script).read_text() == "echo 'done' > \"$x\"\n"
    assert Path(files.folder).stat().st_mode & 0o077 == 0, "what a job prints is for nobody else"
    shell(commands.open_claim(files), tmp_path)
    assert answers.read_submission(shell(line, tmp_path, PATH=path)) == ("17", "")
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
    folder, files = tmp_path / "it's out", JobFiles(str(tmp_path))
    folder.mkdir()
    command = step(folder, r"printf %s \"\$VALUE\$LOADED\"; exit " + str(code), stdout="o u t")
    text = single_script(command, files, prologue="LOADED=yes; export LOADED\n", title="key")
    assert run_script(tmp_path, text) == code
    assert (folder / "o u t").read_text() == "`touch harm` $HOME 'c'yes"
    end = answers.read_end(f"file exit {(tmp_path / 'exit').read_text()}\n{END}", "17")
    assert end.exit_file is not None
    assert (end.exit_file.exit_code, end.exit_file.seconds) == (code, pytest.approx(0, abs=2))


SRUN = """
for rank in 0 1; do SLURM_PROCID=$rank sh "{folder}/node.sh" & done; wait
"""


def test_a_gang_script_starts_each_node_with_its_place(tmp_path: Path) -> None:
    programs, folder, files = tmp_path / "programs", tmp_path / "out", JobFiles(str(tmp_path))
    for each in (programs, folder):
        each.mkdir()
    program(programs, "srun", f'echo "$@" > {tmp_path}/srun' + SRUN.format(folder=tmp_path))
    program(programs, "scontrol", "echo localhost; echo n2")
    command = step(
        folder,
        r"env | grep -E 'MEDWEAVE|TMPDIR' | sort > env.\$MEDWEAVE_NODE_RANK; echo \$MEDWEAVE_NODE_RANK",
        stdout="told",
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
    assert (folder / "told").read_text() == "0\n", "only node 0 writes the tool's files"
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


def test_a_cluster_without_names_meets_at_an_address(tmp_path: Path) -> None:
    programs, files = tmp_path / "programs", JobFiles(str(tmp_path))
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


def test_a_request_on_the_sites_terms() -> None:
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
def test_a_step_with_checkpoints_is_told_before_its_time_limit(
    limit_s: int | None, service: dict[str, Any], lead_s: int
) -> None:
    hints = StepHints(checkpoint_folder="saved")
    asked = asked_of(JobRequest(cores=1, memory_mib=1, hints=hints), Service(**service), limit_s)
    words = commands.sbatch_words(FILES, asked, Service(), job_name="x", key="y")
    assert f"--signal=B:USR1@{lead_s}" in words
    without = commands.sbatch_words(FILES, asked_of(request(), Service()), Service(), job_name="x", key="y")
    assert not [word for word in without if word.startswith("--signal")]


def test_what_a_service_cannot_give_is_refused() -> None:
    with pytest.raises(UsageError, match=r"services\.gpu\.gpusPerNode: too few"):
        asked_of(request((2, 2)), Service(gpusPerNode=1))
    with pytest.raises(UsageError, match="not a gang"):
        asked_of(request(num_nodes=2), Service())
    with pytest.raises(UsageError, match=r"services\.x\.partition: no node") as caught:
        refuse_if_too_large(ASKED, [(2, 8000), (2, 8000), (64, 1000)], where="services.x")
    assert caught.value.seen == "nodes with 2 cores and 8000 MiB; 64 cores and 1000 MiB"
    refuse_if_too_large(ASKED, [(2, 8000), (4, 3072)], where="x")
    refuse_if_too_large(ASKED, [], where="x")


@pytest.mark.parametrize(("text", "minutes"), [("00:01:00", 1), ("12:00:30", 721), ("2-01:00:00", 2940)])
def test_times(text: str, minutes: int) -> None:
    assert minutes_of(text, where="x") == minutes
    with pytest.raises(UsageError):
        minutes_of("60", where="x")


PLACE = words.Place(name="hpc/gpu4", setting="deployments.hpc.config.services.gpu4")


@pytest.mark.parametrize(
    ("word", "what", "do"),
    [
        ("TIMEOUT", "hit its time limit of 720 min", "raise deployments.hpc.config.services.gpu4.time"),
        ("PREEMPTED", "was pushed out", "run again"),
        ("NODE_FAIL", "lost a node", "run again"),
        ("CANCELLED by 1000", "was cancelled at the site", "sacct"),
        ("UNKNOWN", "is lost", "look at its files"),
    ],
)
def test_what_is_told_about_a_failure(word: str, what: str, do: str) -> None:
    asked = Allocation(num_nodes=1, cores=4, memory_mib=3072, gpus=0, minutes=720)
    seen = Told(source="sacct", word=word, signal_number=15, seconds=43219.0, time_limit="12:00:00", nodes="n1")
    lines = words.site_word("17", seen, asked, PLACE, out_of_memory=False).splitlines()
    assert lines[0].startswith("hpc/gpu4: Slurm job 17 ")
    assert what in lines[0]
    assert lines[1].startswith(f"  seen:     sacct State={word} ExitCode=0:15, 43219 s")
    assert lines[2] == "  expected: State=COMPLETED and ExitCode=0:0"
    assert do in lines[3]


def test_a_success_has_no_words() -> None:
    assert words.site_word("17", told("sacct", "COMPLETED"), ASKED, PLACE, out_of_memory=False) == ""


KILLED = ["slurmstepd: error: StepId=11.batch exceeded memory limit (376328192 > 104857600), being killed"]


@pytest.mark.parametrize(
    ("seen", "stderr", "expected"),
    [
        (told("sacct", "OUT_OF_MEMORY", 0, 125), [], True),
        (told("sacct", "FAILED", 0, 9), KILLED, True),
        (told("sacct", "FAILED", 137), ["slurmstepd: error: Detected 1 oom-kill event(s)"], True),
        (told("sacct", "FAILED", 0, 9), ["killed"], False),
        (told("sacct", "FAILED", 3), KILLED, False),
    ],
)
def test_out_of_memory_needs_evidence(seen: Told, stderr: Sequence[str], expected: bool) -> None:
    assert words.looks_out_of_memory(seen, stderr) is expected


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("sbatch: error: invalid partition specified: zz", "partition"),
        ("error: Batch job submission failed: Invalid account or account/partition combination specified", "account"),
        ("Batch job submission failed: Invalid qos specification", "qos"),
        ("Batch job submission failed: Invalid generic resource (gres) specification", "gres"),
        ("Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)", "time"),
        ("Batch job submission failed: Invalid feature specification", "constraint"),
        ("Batch job submission failed: Memory specification can not be satisfied", "partition"),
        ("something else", "partition"),
    ],
)
def test_a_refusal_names_its_setting(text: str, setting: str) -> None:
    assert words.refused_setting(text)[0] == setting
    assert not words.unanswered(text)


@pytest.mark.parametrize(
    ("reason", "setting"),
    [
        ("PartitionTimeLimit", "time"), ("QOSMaxWallDurationPerJobLimit", "time"), ("InvalidAccount", "account"),
        ("QOSNotAllowed", "qos"), ("BadConstraints", "constraint"), ("PartitionNodeLimit", "partition"),
    ],
)  # fmt: skip
def test_a_reason_that_does_not_go_away_names_its_setting(reason: str, setting: str) -> None:
    assert words.hopeless_setting(reason)[0] == setting


def test_a_refusal_without_a_controller_is_no_refusal() -> None:
    assert words.unanswered("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")
    assert words.unanswered("sbatch: error: Unable to contact slurm controller (connect failure)")


def test_the_rank_that_failed_first_is_found() -> None:
    assert words.lost_rank({0: (143, 120, "n1"), 1: (70, 105, "n2"), 2: (0, 90, "n3")}) == 1
    assert words.lost_rank({0: (0, 1, "n1")}) is None


def test_queries_are_dense_while_something_happens_and_rare_in_quiet() -> None:
    assert interval_s(0, 10) == 0.5
    assert interval_s(30, 10) == 3
    assert interval_s(3600, 10) == 10
    assert interval_s(3600, 2) == 2


@given(pauses=st.lists(st.floats(0.01, 20), min_size=1, max_size=400))
def test_the_controller_is_never_asked_more_than_once_a_second_over_any_30_s(pauses: list[float]) -> None:
    pace, now, asked = Pace(), 1000.0, []
    for pause in pauses:
        now += pause
        if pace.take(now):
            asked.append(now)
    assert all(sum(start <= time <= start + 30 for time in asked) <= 30 for start in asked)


def test_a_busy_site_is_asked_all_the_same() -> None:
    pace = Pace()
    assert sum(pace.take(1000 + step / 10) for step in range(600)) == pytest.approx(10 + 60 * 2 / 3, abs=1)


SCHEMA = json.loads(MedweaveSlurmConnector.get_schema())


@pytest.mark.parametrize(
    ("option", "fits"),
    [
        ("--exclude=n7", True),
        ("--mail-type=FAIL", True),
        ("--exclusive", True),
        ("--output=x", False),
        ("--requeue", False),
        ("--time=1", False),
        ("--time-min=1", True),
        ("-p", False),
        ("--wrap=rm", False),
        ("exclusive", False),
    ],
)
def test_options_that_medweave_sets_itself_are_refused_at_validation(option: str, fits: bool) -> None:
    errors = list(Draft202012Validator(SCHEMA).iter_errors({"services": {"x": {"options": [option]}}}))
    assert not errors if fits else "does not match" in errors[0].message
