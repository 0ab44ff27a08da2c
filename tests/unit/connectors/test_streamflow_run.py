"""Real runs of the real engine with tiny tools: the event log, failures, signals, limits, faults of the engine."""

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

from support import engine
from support.engine import FILE, run, start, wait_until, write_workflow
from support.engine_file import LOCAL, engine_file, ssh_site

GOOD = "echo {} > run_report.json; echo done > result.txt"
FIGURES = '{"verb":"v","unit":"case","done":1,"total":2,"seconds_left":3.5,"detail":"x","dice":NaN}'
PROGRESS = f"echo 'medweave-progress {FIGURES}' >&2\n"
BAD = """
echo 'v: note: one case has no mask' >&2
echo 'noise of a library' >&2
printf 'medweave-step v: "case-1" cannot be used.\\n  seen:     $HOME `id`\\n  do:       send it again\\n' >&2
exit 65
"""
SLOW = "echo $$ > {folder}/{name}.pid; while :; do sleep 0.1; done"
STUBBORN = "trap '' INT TERM; " + SLOW


def slow(folder: Path, name: str, script: str = SLOW) -> str:
    return PROGRESS + script.format(folder=folder, name=name)


def pid_of(folder: Path, name: str) -> int:
    wait_until(lambda: (folder / f"{name}.pid").exists() and bool((folder / f"{name}.pid").read_text()), 60)
    return int((folder / f"{name}.pid").read_text())


def gone(pid: int) -> bool:
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 5)
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_an_expression_tool_in_a_subworkflow_feeds_a_command(tmp_path: Path) -> None:
    write_workflow(tmp_path, {"first": GOOD})
    text = {"text": "string"}
    # A reference without JavaScript, for which the engine needs node.
    expression = {
        "class": "ExpressionTool", "requirements": {"InlineJavascriptRequirement": {}}, "inputs": text, "outputs": text,
        "expression": "$(inputs)",
    }  # fmt: skip
    inner = {
        "class": "Workflow", "inputs": text, "outputs": {"text": {"type": "string", "outputSource": "same/text"}},
        "steps": {"same": {"run": expression, "in": {"text": "text"}, "out": ["text"]}},
    }  # fmt: skip
    echo = {
        "class": "CommandLineTool", "baseCommand": "echo", "inputs": {"text": {"type": "string", "inputBinding": {}}},
        "stdout": "result.txt", "outputs": {"result": "stdout"},
    }  # fmt: skip
    document = {
        "cwlVersion": "v1.2", "class": "Workflow", "requirements": {"SubworkflowFeatureRequirement": {}},
        "inputs": text, "outputs": {"result": {"type": "File", "outputSource": "echo/result"}},
        "steps": {
            "inner": {"run": inner, "in": {"text": "text"}, "out": ["text"]},
            "echo": {"run": echo, "in": {"text": "inner/text"}, "out": ["result"]},
        },
    }  # fmt: skip
    (tmp_path / "tiny.cwl").write_text(json.dumps(document), encoding="utf-8")
    (tmp_path / "job.yml").write_text(json.dumps({"text": "a b"}), encoding="utf-8")
    ended = run(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "results" / "result.txt").read_text(encoding="utf-8") == "a b\n"


@pytest.mark.slow
@pytest.mark.parametrize("policy", [None, "nearest"])
def test_cwls_own_command_runs_it_too(tmp_path: Path, policy: str | None) -> None:
    # `cwl-runner` puts policies into the place of their names before a scheduler is made; `streamflow run` does so after it.
    file = yaml.safe_load(FILE)
    if policy is not None:
        file["scheduling"]["policies"] = {policy: {"type": "data_locality", "config": {}}}
        for deployment in file["deployments"].values():
            deployment["scheduling_policy"] = policy
    write_workflow(tmp_path, {"first": GOOD}, file=json.dumps(file))
    program = Path(sys.executable).with_name("cwl-runner")
    words = [program, "--streamflow-file", "streamflow.yml", "--outdir", "results", "tiny.cwl", "job.yml"]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "results" / "result.txt").read_text() == "done\n"
    assert json.loads(ended.stdout)["first_result"]["size"] == 5


@pytest.mark.slow
def test_a_good_run(tmp_path: Path) -> None:
    write_workflow(tmp_path, {"first": PROGRESS + GOOD, "second": GOOD})
    ended = run(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "results" / "result.txt").read_text() == "done\n"

    (begun,), (over,) = ended.of_type("run.started"), ended.of_type("run.ended")
    assert ended.events[0] == begun
    assert ended.events[-1] == over
    assert begun["data"]["workflow_file"] == "tiny.cwl"
    assert begun["data"]["bindings"] == [{"step": "/", "deployment": "here"}]
    assert str(tmp_path) not in (ended.record / "events.jsonl").read_text(), "the log holds no path of this machine"
    assert over["data"]["state"] == "completed"

    of_first = [event for event in ended.events if event["job"] == "/first/0"]
    assert [event["type"] for event in of_first] == [
        "job.scheduled", "job.started", "job.progress", "job.data", "job.report", "job.ended",
    ]  # fmt: skip
    assert {(event["step"], event["deployment"]) for event in of_first} == {("/first", "here")}
    assert of_first[0]["data"]["cores"] == 1
    assert of_first[2]["data"]["text"] == "case 1/2: x, 4 s left"
    assert of_first[2]["data"]["dice"] is None
    outcome = of_first[-1]["data"]
    assert (outcome["state"], outcome["exit_code"]) == ("completed", 0)
    assert outcome["seconds"] > 0
    assert outcome["cpu_seconds"] >= 0

    assert {event["job"] for event in ended.events if event["job"]} == {"/first/0", "/second/0"}
    assert (ended.record / "reports" / "first" / "run_report.json").is_file()
    assert re.search(r"^  first +case 1/2: x, 4 s left$", ended.stderr, re.MULTILINE)
    assert re.search(r"^  first +done in", ended.stderr, re.MULTILINE)
    assert f"folder runs/{ended.record.name}" in ended.stderr
    assert not (ended.record / "work").exists()


def test_the_first_cause_is_what_the_user_reads(tmp_path: Path) -> None:
    write_workflow(tmp_path, {"bad": BAD, "sleeper": slow(tmp_path, "sleeper")})
    ended = run(tmp_path)
    assert ended.exit_code == 1
    message = 'medweave-step v: "case-1" cannot be used.\n  seen:     $HOME `id`\n  do:       send it again\n'
    assert ended.stderr.count(message) == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.splitlines()) < 20, ended.stderr
    assert re.search(r"^  bad +note: one case has no mask$", ended.stderr, re.MULTILINE)
    assert re.search(r"first cause: bad on here, exit code 65, bad data", ended.stderr)

    ends = {event["job"]: event["data"] for event in ended.of_type("job.ended")}
    assert (ends["/bad/0"]["state"], ends["/bad/0"]["exit_code"]) == ("failed", 65)
    assert ends["/bad/0"]["message"] == message.rstrip()
    assert ends["/sleeper/0"]["state"] == "cancelled"
    (over,) = ended.of_type("run.ended")
    assert (over["data"]["state"], over["data"]["first_cause"]) == ("failed", "/bad/0")
    assert "noise" not in (ended.record / "events.jsonl").read_text()
    if (tmp_path / "sleeper.pid").exists():
        assert gone(pid_of(tmp_path, "sleeper")), "no orphan is left"
    assert (ended.record / "work").is_dir(), "scratch remains after a failure"


def test_an_output_that_is_missing_is_a_failure(tmp_path: Path) -> None:
    write_workflow(tmp_path, {"forgets": "true"})
    ended = run(tmp_path)
    assert ended.exit_code == 1
    (job,) = ended.of_type("job.ended")
    assert (job["data"]["state"], job["data"]["exit_code"]) == ("failed", 0)
    assert ended.of_type("run.ended")[0]["data"]["state"] == "failed"
    assert "its outputs are not complete" in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_jobs_and_says_so(tmp_path: Path, number: signal.Signals) -> None:
    # Fault C6 of the engine: after TERM and HUP its jobs continue as orphans.
    write_workflow(tmp_path, {"sleeper": slow(tmp_path, "sleeper")})
    going = start(tmp_path)
    going.wait_for_line("case 1/2")
    pid = pid_of(tmp_path, "sleeper")
    going.signal(number)
    ended = going.wait()
    assert ended.exit_code == -number, "whoever started it sees the true reason"
    assert gone(pid)
    assert "Traceback" not in ended.stderr
    (over,) = ended.of_type("run.ended")
    assert (over["data"]["state"], over["data"]["signal"]) == ("cancelled", number)
    assert ended.of_type("job.ended")[0]["data"]["state"] == "cancelled"


def test_a_second_signal_kills_what_does_not_listen(tmp_path: Path) -> None:
    write_workflow(tmp_path, {"stubborn": slow(tmp_path, "stubborn", STUBBORN)})
    going = start(tmp_path)
    going.wait_for_line("case 1/2")
    pid = pid_of(tmp_path, "stubborn")
    going.signal(signal.SIGINT)
    going.wait_for_line("canceling the jobs")
    before = time.monotonic()
    going.signal(signal.SIGINT)
    ended = going.wait()
    assert gone(pid)
    assert ended.of_type("run.ended")[0]["data"]["state"] == "cancelled"
    assert ended.of_type("job.ended")[0]["data"]["exit_code"] == 137
    assert time.monotonic() - before < 60


@pytest.mark.slow
def test_a_killed_driver_leaves_a_valid_log_without_an_end(tmp_path: Path) -> None:
    write_workflow(tmp_path, {"sleeper": slow(tmp_path, "sleeper")})
    going = start(tmp_path)
    going.wait_for_line("case 1/2")
    pid = pid_of(tmp_path, "sleeper")
    going.signal(signal.SIGKILL)
    ended = going.wait()
    assert ended.exit_code == -9
    assert [event["type"] for event in ended.events][-1] == "job.progress"  # each line is whole and valid
    assert not ended.of_type("run.ended")
    signal_orphan(pid)


def signal_orphan(pid: int) -> None:
    import os

    os.killpg(pid, signal.SIGKILL)
    assert gone(pid)


@pytest.mark.slow
def test_a_time_limit_is_reported_as_such(tmp_path: Path) -> None:
    limit = {"requirements": {"ToolTimeLimit": {"timelimit": 1}}}
    write_workflow(tmp_path, {"sleeper": (slow(tmp_path, "sleeper"), limit)})
    ended = run(tmp_path)
    assert ended.exit_code == 1
    assert "the time limit of 1 s (ToolTimeLimit of the tool) was reached" in ended.stderr
    assert gone(pid_of(tmp_path, "sleeper"))
    assert ended.of_type("job.ended")[0]["data"]["state"] == "failed"


def test_a_request_that_no_location_can_meet_is_refused(tmp_path: Path) -> None:
    # Fault C2 of the engine: it waits for ever, in silence.
    huge = {"requirements": {"ResourceRequirement": {"coresMin": 4096, "ramMin": 128}}}
    write_workflow(tmp_path, {"huge": (GOOD, huge)})
    ended = run(tmp_path)
    assert ended.exit_code == 1
    assert "/huge/0 requests 4096 cores and 128 MiB of memory" in ended.stderr
    assert re.search(r"seen: +here has \d+ cores and \d+ MiB", ended.stderr)
    assert ended.of_type("run.ended")[0]["data"]["state"] == "failed"


def test_a_job_without_a_place_ends_the_run_at_once(tmp_path: Path) -> None:
    # The engine alone would wait for the other steps, perhaps for hours, and fail then.
    huge = {"requirements": {"ResourceRequirement": {"coresMin": 4096, "ramMin": 128}}}
    write_workflow(tmp_path, {"huge": (GOOD, huge), "sleeper": slow(tmp_path, "sleeper")})
    before = time.monotonic()
    ended = run(tmp_path)
    assert time.monotonic() - before < 30
    assert ended.exit_code == 1
    assert "Traceback" not in ended.stderr
    if (tmp_path / "sleeper.pid").exists():
        assert gone(pid_of(tmp_path, "sleeper"))
    assert ended.of_type("run.ended")[0]["data"]["state"] == "failed"


def test_environment_values_are_not_run_by_a_shell(tmp_path: Path) -> None:
    # Fault C7 of the engine.
    value = "a\"b `touch harm` $HOME 'c'"
    keys = {"requirements": {"EnvVarRequirement": {"envDef": {"VALUE": value}}}}
    write_workflow(tmp_path, {"shows": ('printf %s "$VALUE" > result.txt', keys)})
    ended = run(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "results" / "result.txt").read_text() == value


def test_stdout_in_a_file_holds_no_progress(tmp_path: Path) -> None:
    keys = {"stdout": "result.txt"}
    write_workflow(tmp_path, {"prints": (PROGRESS + "echo value", keys)})
    ended = run(tmp_path)
    assert (tmp_path / "results" / "result.txt").read_text() == "value\n"
    assert "case 1/2" in ended.stderr


def test_a_relative_workdir_and_the_users_runs_folder(tmp_path: Path) -> None:
    file = FILE.replace("type: medweave.local,", "type: medweave.local, workdir: 'scratch of ${WHO}',")
    write_workflow(tmp_path, {"first": GOOD + "; pwd > result.txt"}, file=file)
    ended = run(
        tmp_path, environment={"WHO": "me", "MEDWEAVE_RUNS_DIR": str(tmp_path / "elsewhere"), "MEDWEAVE_RUN_ID": "mine"}
    )
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "results" / "result.txt").read_text().startswith(str(tmp_path / "scratch of me"))
    assert engine.valid_events(tmp_path / "elsewhere" / "mine" / "events.jsonl")
    assert not (tmp_path / "runs").exists()


def test_a_run_id_is_used_once(tmp_path: Path) -> None:
    write_workflow(tmp_path, {"first": GOOD})
    assert run(tmp_path, environment={"MEDWEAVE_RUN_ID": "mine"}).exit_code == 0
    again = run(tmp_path, environment={"MEDWEAVE_RUN_ID": "mine"})
    assert again.exit_code == 1
    assert "a run or another file named 'mine' exists already" in again.stderr
    assert again.of_type("run.ended")[0]["data"]["state"] == "completed", "the first log is untouched"


def test_validation_writes_nothing(tmp_path: Path) -> None:
    write_workflow(tmp_path, {"first": GOOD})
    assert run(tmp_path, "--validate").exit_code == 0
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (
            {"scan": {"class": "File", "path": "job.yml"}},
            ["job.yml:1: required input 'slices' of tiny.cwl is missing", "slices: … (int[])"],
        ),
        ({"scan": "Doe.nii", "slices": [1]}, ["job.yml:1: scan: wrong type for input 'scan'", "a text"]),
        (
            {"scan": {"class": "File", "path": "job.yml"}, "slices": [1, "two"]},
            ["job.yml:1: slices[1]: wrong type for an item of input", "write a value of type int"],
        ),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit_are_refused_before_the_run_begins(
    job: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    """StreamFlow logs a line for each without its place, starts the run, and runs the steps that do not read them."""
    write_workflow(tmp_path, {"first": GOOD}, job=job)
    document = json.loads((tmp_path / "tiny.cwl").read_text(encoding="utf-8"))
    document["inputs"] = {"scan": "File", "slices": "int[]", "window": {"type": "int", "default": 3}}
    (tmp_path / "tiny.cwl").write_text(json.dumps(document), encoding="utf-8")
    ended = run(tmp_path)
    assert ended.exit_code == 1
    assert all(word in ended.stderr for word in words), ended.stderr
    assert "Doe" not in ended.stderr, "a log may keep it"
    assert not list((tmp_path / "runs").glob("*/events.jsonl"))


def test_a_deployment_that_cannot_be_built_ends_the_run_before_the_others_do_their_work(tmp_path: Path) -> None:
    far = ssh_site(1, f"{tmp_path}/site")
    far["config"]["environment"] = {"virtualEnvironment": "/a", "apptainer": "/b.sif"}
    file = engine_file(
        {"far": far, "here": LOCAL}, {"/first": {"deployment": "here"}, "/second": {"deployment": "far"}}
    )
    write_workflow(tmp_path, {"first": f"sleep 5; touch {tmp_path}/done; {GOOD}", "second": GOOD}, file=file)
    ended = run(tmp_path)
    assert "deployments.far.config.environment.apptainer: an image and a virtual environment exclude" in ended.stderr
    assert not (tmp_path / "done").exists()
    (end,) = ended.of_type("run.ended")
    assert (end["data"]["state"], end["data"]["refused"], ended.exit_code) == ("failed", True, 1)


@pytest.mark.slow
def test_two_runs_at_once_do_not_lock_each_other_out(tmp_path: Path) -> None:
    # Fault C5 of the engine: on its default file the second run dies of "database is locked".
    write_workflow(tmp_path, {"first": "sleep 1; " + GOOD})
    both = [start(tmp_path, environment={"MEDWEAVE_RUN_ID": name}) for name in ("a", "b")]
    assert [started.wait().exit_code for started in both] == [0, 0]
    for name in ("a", "b"):
        assert engine.valid_events(tmp_path / "runs" / name / "events.jsonl")[-1]["data"]["state"] == "completed"


@pytest.mark.slow
def test_with_retries_each_attempt_is_an_event(tmp_path: Path) -> None:
    file = FILE + "failureManager: {type: rollback, config: {max_retries: 2, retry_delay: 0}}\n"
    tried = tmp_path / "tried"
    script = f"if [ -e {tried} ]; then {GOOD}; else touch {tried}; echo 'medweave-step v: later.' >&2; exit 70; fi"
    write_workflow(tmp_path, {"flaky": script}, file=file)
    ended = run(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    ends = [(event["data"]["attempt"], event["data"]["state"]) for event in ended.of_type("job.ended")]
    assert ends == [(1, "failed"), (2, "completed")]
    assert ended.of_type("run.ended")[0]["data"] | {"seconds": 0} == {"state": "completed", "seconds": 0, "failed": []}
