"""Runs of the real engine over real ssh, with a fake Slurm that fails as real ones sometimes do."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.engine import Run, start, wait_until, write_workflow
from support.engine_file import LOCAL
from support.fake_cluster import NEVER_AGAIN, Cluster, fake_cluster, interrupted

FIGURES = '{"unit":"case","done":1,"total":2,"seconds_left":3.5,"detail":"x"}'
PROGRESS = f"echo 'medweave-progress {FIGURES}' >&2\n"
GOOD = PROGRESS + "echo {} > run_report.json; echo done > result.txt"
BAD = "sleep 1; echo 'medweave-step v: no.' >&2; exit 65"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with fake_cluster(tmp_path) as made:
        yield made


def ended_job(ended: Run) -> dict[str, Any]:
    (event,) = ended.of_type("job.ended")
    return dict(event["data"])


@pytest.mark.slow
def test_a_job_with_its_cost(cluster: Cluster) -> None:
    ended = cluster.go({"first": GOOD})
    assert ended.exit_code == 0, ended.stderr
    job = ended_job(ended)
    assert (job["seconds"], job["cpu_seconds"], job["peak_memory_mib"]) == (2.0, 1.5, 20.0)
    assert job["site"] == {
        "slurm_job_id": "100", "state": "COMPLETED", "source": "sacct", "nodes": "n1", "queue_seconds": 3.0, "num_nodes": 1,
            "gpus": 0,
    }  # fmt: skip
    assert ended.of_type("job.report")
    assert ended.stderr.count("case 1/2: x, 4 s left") == 1


@pytest.mark.slow
def test_another_cluster_of_the_same_login_node(cluster: Cluster) -> None:
    # Fault Q9 of the engine: it takes `100;far` for the id, and queries the wrong cluster.
    cluster.config = {"reactions": NEVER_AGAIN, "cluster": "far"}
    ended = cluster.go({"first": GOOD})
    assert ended.exit_code == 0, ended.stderr
    site = ended_job(ended)["site"]
    assert (site["slurm_job_id"], site["source"]) == ("100", "sacct")
    assert (cluster.folder / "slurm" / "jobs" / "far" / "100").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("accounting", [True, False])
def test_a_requeued_job_starts_with_a_clean_folder(cluster: Cluster, accounting: bool) -> None:
    cluster.config = {"reactions": NEVER_AGAIN, "services": {"usual": {"requeue": True}}}
    cluster.knob("requeue")
    if not accounting:
        cluster.knob("no-accounting")
    script = f"echo begun >> {cluster.folder}/begun; echo {FIGURES!r} | sed 's/^/medweave-progress /' >&2; ls -A > result.txt; "
    script += f"[ $(wc -l < {cluster.folder}/begun) = 2 ] || {{ touch half; sleep 60; }}; {GOOD}; ls -A > result.txt"
    text = cluster.file.replace("deployment: hpc", "deployment: hpc, service: usual")
    write_workflow(cluster.folder, {"first": script}, file=text)
    ended = start(cluster.folder).wait(90)
    assert ended.exit_code == 0, ended.stderr
    assert "note: Slurm requeued the job; it will restart" in ended.stderr
    assert (cluster.folder / "results" / "result.txt").read_text().split() == ["result.txt", "run_report.json"]
    assert (cluster.folder / "begun").read_text() == "begun\nbegun\n"
    assert len(cluster.submitted) == 1
    assert ended_job(ended)["attempt"] == 1


@pytest.mark.slow
def test_a_site_without_accounting(cluster: Cluster) -> None:
    cluster.knob("no-accounting")
    ended = cluster.go({"first": GOOD})
    assert ended.exit_code == 0, ended.stderr
    assert ended_job(ended)["site"]["source"] == "scontrol"


@pytest.mark.slow
@pytest.mark.parametrize(("script", "code"), [(GOOD, 0), ("echo half > result.txt; exit 3", 3)])
def test_a_purged_job_is_judged_by_its_exit_file(cluster: Cluster, script: str, code: int) -> None:
    # Fault Q5 of the engine: after MinJobAge a good job fails.
    cluster.knob("no-accounting")
    cluster.knob("forget")
    ended = cluster.go({"first": script})
    job = ended_job(ended)
    assert (job["exit_code"], job["site"]["source"]) == (code, "exit file"), ended.stderr
    assert ended.exit_code == (1 if code else 0)


@pytest.mark.slow
def test_a_job_with_an_unknown_final_state_is_lost(cluster: Cluster) -> None:
    process = cluster.begin(
        {"first": PROGRESS + "echo half > result.txt; sleep 120"},
        "import medweave_connectors.sites.slurm.job as job; job.END_KNOWN_S = 1.0",
    )
    process.wait_for_line("case 1/2")
    cluster.knob("forget", "all")
    ended = process.wait(60)
    assert ended.exit_code == 1
    assert "Slurm job 100 is lost: its final state is unknown" in ended.stderr
    cluster.knob("forget", "")


@pytest.mark.slow
@pytest.mark.parametrize("word", ["TIMEOUT", "PREEMPTED", "NODE_FAIL", "CANCELLED", "OUT_OF_MEMORY"])
def test_only_completed_is_a_success(cluster: Cluster, word: str) -> None:
    # Fault Q1 of the engine: `0:0` of a TIMEOUT is a success to it.
    cluster.knob("end-word", word)
    ended = cluster.go({"first": GOOD})
    assert ended.exit_code == 1
    job = ended_job(ended)
    assert (job["state"], job["site"]["state"]) == ("failed", word)
    assert f"sacct State={word} ExitCode=0:0" in ended.stderr
    assert job["exit_code"] != 0
    assert ended.stderr.count("expected: State=COMPLETED") == 1, ended.stderr


@pytest.mark.slow
def test_the_reason_of_slurm_is_reported(cluster: Cluster) -> None:
    cluster.knob("end-word", "TIMEOUT")
    cluster.knob("reason", "TimeLimit")
    ended = cluster.go({"first": GOOD})
    assert ended.exit_code == 1
    assert "sacct State=TIMEOUT ExitCode=0:0 Reason=TimeLimit, 2 s" in ended.stderr
    assert ended_job(ended)["site"]["reason"] == "TimeLimit"


@pytest.mark.slow
def test_a_queue_that_does_not_answer_says_nothing_about_a_job(cluster: Cluster) -> None:
    # Fault Q2 of the engine: one failed squeue ends the job, and `0:0` of a running one is a success.
    process = cluster.begin({"first": PROGRESS + f"while [ ! -e {cluster.folder}/go ]; do sleep 0.1; done; " + GOOD})
    process.wait_for_line("case 1/2")
    cluster.knob("squeue-fails", 3)
    wait_until(lambda: (cluster.folder / "slurm" / "squeue-fails").read_text() == "0", 30)
    assert not (cluster.folder / "results").exists()
    (cluster.folder / "go").touch()
    assert process.wait(60).exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("word", ["SUSPENDED", "STOPPED"])
def test_a_suspended_job_has_not_ended(cluster: Cluster, word: str) -> None:
    process = cluster.begin({"first": PROGRESS + f"while [ ! -e {cluster.folder}/go ]; do sleep 0.1; done; " + GOOD})
    process.wait_for_line("case 1/2")
    note = f"note: Slurm suspended the job ({word}); it will continue from where it was"
    file = cluster.folder / "slurm" / "jobs" / "100" / "word"
    file.write_text(word)
    process.wait_for_line(note)
    file.write_text("RUNNING")
    (cluster.folder / "go").touch()
    ended = process.wait(60)
    assert ended.exit_code == 0, ended.stderr
    assert (ended.stderr.count(note), len(cluster.submitted)) == (1, 1)


@pytest.mark.slow
def test_a_connection_lost_at_the_submission_causes_no_second_job(cluster: Cluster) -> None:
    # Fault Q4 of the engine: its fall-back runs sbatch again.
    cluster.knob("sbatch-sleeps", 1.5)
    process = cluster.begin({"first": GOOD})
    wait_until(lambda: bool(cluster.submitted), 30)
    cluster.server.cut()
    ended = process.wait(60)
    assert ended.exit_code == 0, ended.stderr
    assert len(cluster.submitted) == 1
    assert ended_job(ended)["site"]["slurm_job_id"] == "100"


@pytest.mark.slow
def test_a_job_that_slurm_took_without_an_answer_is_found_by_its_key(cluster: Cluster) -> None:
    cluster.knob("sbatch-timeout", 1)
    ended = cluster.go({"first": GOOD})
    assert ended.exit_code == 0, ended.stderr
    assert len(cluster.submitted) == 1


@pytest.mark.slow
def test_a_connection_lost_during_a_job_does_not_end_it(cluster: Cluster) -> None:
    process = cluster.begin({"first": PROGRESS + f"while [ ! -e {cluster.folder}/go ]; do sleep 0.1; done; " + GOOD})
    process.wait_for_line("case 1/2")
    cluster.server.cut()
    time.sleep(1)
    (cluster.folder / "go").touch()
    ended = process.wait(60)
    assert ended.exit_code == 0, ended.stderr
    assert len(cluster.submitted) == 1


@pytest.mark.slow
def test_the_end_of_the_run_cancels_a_job_whose_id_is_not_known_yet(cluster: Cluster) -> None:
    cluster.knob("sbatch-sleeps", 1.5)
    process = cluster.begin({"first": "sleep 600"})
    wait_until(lambda: bool(cluster.submitted), 30)
    ended = interrupted(process, within_s=20)
    assert cluster.word() == "CANCELLED"
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_a_job_that_can_never_start_is_an_error_and_not_a_wait(cluster: Cluster) -> None:
    cluster.knob("pending", "AssocMaxWallDurationPerJobLimit")
    ended = cluster.go({"first": GOOD})
    assert ended.exit_code == 1
    assert "can never start; it was canceled" in ended.stderr
    assert "deployments.hpc.config.services.….time: Slurm job 100" in ended.stderr
    assert "reason AssocMaxWallDurationPerJobLimit" in ended.stderr
    assert cluster.word() == "CANCELLED"


@pytest.mark.slow
def test_the_reason_of_a_wait_and_the_expected_start_are_reported(cluster: Cluster) -> None:
    cluster.knob("pending", "Priority")
    process = cluster.begin({"first": GOOD})
    process.wait_for_line("waits in the queue: Priority")
    cluster.knob("start", "2026-11-22T14:30:00")
    process.wait_for_line(
        "waits in the queue: Priority; Slurm expects it to start at 2026-11-22T14:30:00 of the site's clock"
    )
    cluster.knob("start", "2026-11-22T14:31:00")  # the same hour is not reported again
    process.signal(signal.SIGINT)
    assert process.wait(60).stderr.count("waits in the queue") == 2


@pytest.mark.slow
def test_a_login_node_without_slurm_is_reported_at_the_start(cluster: Cluster) -> None:
    bare = cluster.folder / "bare"
    bare.mkdir()
    for name in ("sh", "cat", "nproc", "free", "grep", "awk", "df", "tail"):
        (bare / name).symlink_to(shutil.which(name) or name)
    cluster.server.environment["PATH"] = str(bare)
    ended = cluster.go({"first": GOOD})
    assert ended.exit_code == 1
    assert "deployments.hpc: Slurm does not respond on 127.0.0.1" in ended.stderr
    assert re.search(r"seen: +no sbatch, squeue, scontrol, scancel, sinfo", ended.stderr)


@pytest.mark.slow
def test_a_driver_on_the_login_node_itself(cluster: Cluster) -> None:
    file = cluster.file_with(LOCAL | {"workdir": "site"})
    write_workflow(cluster.folder, {"first": GOOD, "bad": BAD}, file=file)
    ended = start(cluster.folder, environment=cluster.server.environment).wait(60)
    assert ended.exit_code == 1, ended.stderr
    assert "medweave-step v: no." in ended.stderr
    assert ended.of_type("job.report")


@pytest.mark.slow
def test_what_slurm_writes_does_not_enter_a_folder_of_outputs(cluster: Cluster) -> None:
    # Fault Q6 of the engine: slurm-<id>.out is in the output folder.
    write_workflow(cluster.folder, {"first": "echo talk; echo done > result.txt"}, file=cluster.file)
    ended = start(cluster.folder, environment={"MEDWEAVE_KEEP_WORK": "1"}).wait()
    assert ended.exit_code == 0, ended.stderr
    (of_slurm,) = (cluster.folder / "site").glob("*/*.slurm-*")
    assert (of_slurm / "stdout").read_text() == "talk\n"
    output = of_slurm.with_name(of_slurm.name.partition(".slurm-")[0])
    assert [path.name for path in output.iterdir()] == ["result.txt"]


@pytest.mark.slow
def test_many_jobs_share_one_query(cluster: Cluster) -> None:
    keys = {"inputs": {"n": {"type": "int"}}, "outputs": {}}
    tool = {"class": "CommandLineTool", "baseCommand": ["sleep", "0.5"], **keys}
    step = {"run": tool, "in": {"n": "n"}, "scatter": "n", "out": []}
    document = {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "requirements": {"ScatterFeatureRequirement": {}},
        "inputs": {"n": "int[]"},
        "outputs": {},
        "steps": {"many": step},
    }
    write_workflow(
        cluster.folder,
        {},
        job={"n": list(range(20))},
        file=cluster.file,
    )
    (cluster.folder / "tiny.cwl").write_text(json.dumps(document))
    ended = start(cluster.folder).wait(120)
    assert ended.exit_code == 0, ended.stderr
    assert len(cluster.submitted) == 20
    assert len(ended.of_type("job.ended")) == 20
    num_queries = (cluster.folder / "slurm" / "queries").read_text().count("squeue")
    assert num_queries < 20, "a query for each job would be at least one each, and several with their waiting"


@pytest.mark.slow
def test_an_exit_code_that_sacct_reduces_is_reported_in_full(cluster: Cluster) -> None:
    # Found by the fault campaign: sacct takes 128 from codes of 128 and more, and 203 became 75, which allows a retry.
    ended = cluster.go({"first": "exit 203"})
    assert ended.exit_code == 1
    job = ended_job(ended)
    assert (job["exit_code"], job["site"]["failure"]) == (203, "StepFailed")
    assert "sacct State=FAILED ExitCode=75:0" in ended.stderr, "the site's word stays as it is"


@pytest.mark.slow
def test_the_success_of_another_job_with_the_same_id_does_not_count(cluster: Cluster) -> None:
    # Found by the fault campaign: a controller that was killed before it had saved its state assigns the ids again.
    half = "echo half > result.txt; echo {} > run_report.json; " + PROGRESS + "sleep 100"
    process = cluster.begin(
        {"first": half}, preload="from medweave_connectors.sites.slurm import job\njob.END_KNOWN_S = 1.0\n"
    )
    process.wait_for_line("case 1/2")
    job = cluster.folder / "slurm" / "jobs" / "100"
    (job / "folder").write_text("/elsewhere/another.slurm-0a1b2c3d")
    (job / "word").write_text("COMPLETED")
    ended = process.wait()
    assert ended.exit_code == 1, "an incomplete output does not count"
    assert ended_job(ended)["site"]["failure"] == "Unknown"
    assert "is lost: its final state is unknown" in ended.stderr


@pytest.mark.slow
def test_another_job_with_the_same_id_is_not_cancelled(cluster: Cluster) -> None:
    # A controller that was killed before it had saved its state assigns the ids again.
    script = PROGRESS + f"for n in $(seq 200); do [ ! -e {cluster.folder}/go ] || exit 0; sleep 0.1; done"
    process = cluster.begin({"first": script})
    process.wait_for_line("case 1/2")
    comment = cluster.folder / "slurm" / "jobs" / "100" / "comment"
    comment.write_text("medweave:nightly.0123456789abcdef:/train/0:1a2b3c4d")
    ended = interrupted(process, within_s=20)
    assert cluster.word() == "RUNNING"
    assert "Slurm jobs may still run" not in ended.stderr
    (cluster.folder / "go").touch()
