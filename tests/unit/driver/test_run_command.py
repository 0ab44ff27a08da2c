"""`medweave run`: real runs of the real engine, started and shown by the real command, mostly in the test's process."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from medweave.cli import main_command
from medweave.runs.follow.plain_lines import PlainLines
from medweave.runs.run import check_resumable
from medweave_core.contracts.schema import schema_of
from medweave_core.errors import UsageError, UserInputError
from medweave_core.runlog.history import read_events, read_run
from medweave_core.runlog.log_state import driver_lives
from medweave_core.runlog.run_state import RunState, fold
from support import engine
from support.cluster_connections import write_kubeconfig
from support.driver_calls import call
from support.engine import valid_events, wait_until, write_workflow
from support.engine_file import engine_file

PROGRAM = Path(sys.executable).parent / "medweave"
GOOD = "echo {} > run_report.json; echo done > result.txt"
BAD = """
echo 'v: note: one case has no mask' >&2
printf 'medweave-step v: "case-1" cannot be used.\\n  seen:     3 slices\\n  do:       send it again\\n' >&2
exit 65
"""
SLOW = "trap '' INT TERM; echo $$ > {folder}/pid; while :; do sleep 0.1; done"


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MEDWEAVE_")}
    return subprocess.Popen(
        [PROGRAM, "run", "--outdir", "results", *words],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(folder: Path, *words: str) -> tuple[int, str, str]:
    """Run `medweave run` in the test's process; return its exit code, standard output and standard error."""
    return call("run", "--outdir", "results", *words, cwd=folder)


def on_a_terminal(folder: Path) -> tuple[int, int]:
    """Start the command in the foreground of a new terminal; return its process id and the controlling end of the terminal."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
        for name in ("NO_COLOR", "MEDWEAVE_RUN_ID", "MEDWEAVE_RUNS_DIR", "PYTHONUNBUFFERED"):
            os.environ.pop(name, None)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run with HUP ignored
        os.execv(PROGRAM, ["medweave", "run", "--outdir", "results"])
    return process, terminal


def record(folder: Path) -> Path:
    (log,) = (folder / "runs").glob("*/events.jsonl")
    return log.parent


def pid_of(folder: Path) -> int:
    path = folder / "pid"
    wait_until(lambda: path.exists() and path.read_text(encoding="utf-8").strip() != "", 60)
    return int(path.read_text(encoding="utf-8"))


def gone(pid: int) -> bool:
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_a_good_run_in_lines(tmp_path: Path) -> None:
    write_workflow(tmp_path, {"first": GOOD, "second": GOOD})
    process = start(tmp_path)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert (tmp_path / "results" / "result.txt").read_text(encoding="utf-8") == "done\n"
    assert set(json.loads(out)) == {"first_result", "second_result"}, "as `streamflow run` prints"
    lines = err.splitlines()
    assert len(lines) == len(set(lines)), "nothing twice"
    assert "completed after" in err
    assert "delivered   in results: first_result, second_result" in err
    assert "\x1b" not in err, "no terminal, no codes of one"

    # The log alone gives the same lines.
    state, plain = RunState(), PlainLines()
    events = read_events((record(tmp_path) / "events.jsonl").read_text(encoding="utf-8"))
    again = [line for event in events for line in plain.of(event, fold(state, event))]
    assert again == lines[: len(again)]
    assert (state.end, len(state.jobs)) == ("completed", 2)


@pytest.mark.slow
def test_a_failing_step_as_events(tmp_path: Path) -> None:
    write_workflow(tmp_path, {"bad": BAD})
    code, out, err = ended(tmp_path, "--json")
    assert code == 1, "as of `streamflow run`"
    assert out == (record(tmp_path) / "events.jsonl").read_text(encoding="utf-8"), "the log, and nothing else"
    last = json.loads(out.splitlines()[-1])
    assert (last["type"], last["data"]["state"]) == ("run.ended", "failed")
    assert "exit code 65, bad data\n    medweave-step v:" in err


@pytest.mark.slow
def test_on_a_terminal_it_is_a_picture_and_ctrl_c_is_one_signal(tmp_path: Path) -> None:
    script = "trap 'exit 130' INT; " + SLOW.replace("trap '' INT TERM; ", "")
    write_workflow(tmp_path, {"slow": script.format(folder=tmp_path), "other": GOOD})
    process, terminal = on_a_terminal(tmp_path)
    seen = bytearray()
    typed = False
    with contextlib.suppress(OSError):  # read fails when the last process has closed the terminal
        while data := os.read(terminal, 65536):
            seen += data
            if not typed and "✓".encode() in seen and (tmp_path / "pid").exists():
                typed = os.write(terminal, b"\x03") == 1  # Ctrl-C, for the whole foreground group
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 130
    text = seen.decode()
    assert "SIGINT received: canceling the run and cleaning up" in text
    assert "\x1b[?25h" in text[text.rindex("\x1b[?25l") :], "the cursor is restored"
    assert "cancelled after" in text[text.rindex("\x1b[?25h") :], "and the summary comes after the picture"
    assert gone(pid_of(tmp_path))
    events = valid_events(record(tmp_path) / "events.jsonl")
    assert (events[-1]["data"]["state"], events[-1]["data"]["signal"]) == ("cancelled", signal.SIGINT)
    (end,) = [event["data"] for event in events if event["type"] == "job.ended" and event["step"] == "/slow"]
    assert end["exit_code"] != 137, "a second signal would have killed it"


@pytest.mark.slow
def test_a_terminal_that_goes_away_ends_the_run_cleanly(tmp_path: Path) -> None:
    write_workflow(tmp_path, {"slow": SLOW.replace("trap '' INT TERM; ", "").format(folder=tmp_path)})
    process, terminal = on_a_terminal(tmp_path)
    job = -1
    while data := os.read(terminal, 65536):
        if b"slow" in data and (tmp_path / "pid").exists():
            job = pid_of(tmp_path)
            break
    os.close(terminal)  # the kernel sends HUP, and every write fails from now on
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 128 + signal.SIGHUP
    assert gone(job)
    last = valid_events(record(tmp_path) / "events.jsonl")[-1]
    assert (last["type"], last["data"]["signal"]) == ("run.ended", signal.SIGHUP)


@pytest.mark.slow
def test_ctrl_c_twice_exits_at_once(tmp_path: Path) -> None:
    write_workflow(tmp_path, {"slow": SLOW.format(folder=tmp_path)})
    process = start(tmp_path)
    job = pid_of(tmp_path)
    assert process.stderr is not None
    process.send_signal(signal.SIGINT)
    while "again to exit at once" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert gone(job)
    assert "may run on  slow on here" in err
    assert f"medweave clean runs/{record(tmp_path).name}" in err


@pytest.mark.slow
def test_a_failed_run_is_resumed(tmp_path: Path) -> None:
    after_first = f"until grep -q job.ended.*/first {tmp_path}/runs/*/events.jsonl; do sleep 0.1; done"
    write_workflow(tmp_path, {"first": GOOD, "second": f"{after_first}; [ -e {tmp_path}/there ] || exit 65; {GOOD}"})
    code, _, err = ended(tmp_path)
    assert code == 1
    failed = record(tmp_path)
    command = next(line for line in err.splitlines() if "resume; finished steps" in line).split("   resume;")[0].split()
    (failed / "streamflow.yml").write_text((tmp_path / "streamflow.yml").read_text(encoding="utf-8").replace(
        "tiny.cwl", "../../tiny.cwl").replace("job.yml", "../../job.yml"), encoding="utf-8")  # fmt: skip
    (tmp_path / "streamflow.yml").unlink()
    (tmp_path / "there").touch()
    assert command[:4] == ["medweave", "run", "--resume", f"runs/{failed.name}"]
    code, _, err = ended(tmp_path, *command[2:])
    assert code == 0, err
    assert f"medweave: resuming run {failed.name}" in err
    assert err.count(f"cache hit: outputs of run {failed.name}") == 1
    (done,) = {log.parent for log in (tmp_path / "runs").glob("*/events.jsonl")} - {failed}
    assert (done / "streamflow.yml").exists(), "medweave clean finds it there"
    code, _, err = ended(tmp_path, "--resume", f"runs/{done.name}")
    assert code == UserInputError.exit_code
    assert f"run {done.name} cannot be resumed" in err
    assert "state completed" in err


@pytest.mark.slow
def test_a_running_run_or_another_workflow_is_not_resumed(tmp_path: Path) -> None:
    write_workflow(tmp_path, {"slow": f"echo $$ > {tmp_path}/pid; exec sleep 120"})
    running = engine.start(tmp_path)
    pid_of(tmp_path)
    with pytest.raises(UserInputError, match="is running"):
        check_resumable(read_run(record(tmp_path)), "tiny", "streamflow.yml")
    running.signal(signal.SIGTERM)
    running.wait()
    assert not driver_lives(record(tmp_path) / "events.jsonl")
    check_resumable(read_run(record(tmp_path)), "tiny", "streamflow.yml")
    with pytest.raises(UserInputError, match=r"workflow 'tiny', and 'lung' in other\.yml"):
        check_resumable(read_run(record(tmp_path)), "lung", "other.yml")
    assert main_command.main(["run", "x.cwl", "--resume", str(record(tmp_path))]) == UsageError.exit_code


@pytest.mark.slow
def test_a_run_that_cannot_begin_leaves_nothing_and_shows_the_engines_error(tmp_path: Path) -> None:
    write_workflow(tmp_path, {"first": GOOD})
    document = json.loads((tmp_path / "tiny.cwl").read_text(encoding="utf-8"))
    older = document | {
        "cwlVersion": "v1.0",
        "requirements": {"NoRequirement": {}},
    }  # the checks cover v1.2 only
    (tmp_path / "tiny.cwl").write_text(json.dumps(older), encoding="utf-8")
    code, out, err = ended(tmp_path, "--json")
    assert code == UserInputError.exit_code, "the engine has 1 for this and for a step that failed"
    assert "is not valid" in err
    assert "before the run started" in err
    (line,) = out.splitlines()
    jsonschema.Draft202012Validator(schema_of("event")).validate(json.loads(line))
    assert (json.loads(line)["type"], json.loads(line)["data"]["exit_code"]) == ("run.ended", 65)
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.slow
def test_a_site_that_is_refused_at_its_start_ends_it_as_a_wrong_file_does(tmp_path: Path) -> None:
    """A context missing from the kubeconfig is noticed at the deployment, when the run has already begun."""
    config = {"kubeconfig": str(tmp_path / "kubeconfig"), "kubeContext": "radiologie", "selector": "app=w"}
    write_kubeconfig(tmp_path / "kubeconfig", {"server": "https://127.0.0.1:1"})
    pods = {"type": "medweave.kubernetes", "workdir": "/scratch/me", "config": config}
    write_workflow(tmp_path, {"first": GOOD}, file=engine_file({"pods": pods}))
    code, out, err = ended(tmp_path, "--json")
    assert "the kubeconfig has no context 'radiologie'" in err
    assert code == UserInputError.exit_code, err
    assert json.loads(out.splitlines()[-1])["data"]["refused"] is True


def test_a_file_without_our_log_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("streamflow.yml").write_text("version: v1.0\nworkflows: {tiny: {type: cwl}}\n", encoding="utf-8")
    assert main_command.main(["run"]) == UsageError.exit_code
    assert "streamflow run streamflow.yml" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [tmp_path / "streamflow.yml"], "nothing was begun"


@pytest.mark.parametrize(
    "words", [["--site", "laptop"], ["x.cwl"], ["x.cwl", "--site", "laptop", "--file", "y"]], ids=" ".join
)
def test_a_workflow_and_its_site_belong_together(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main_command.main(["run", *words]) == UsageError.exit_code
    assert "WORKFLOW" in capsys.readouterr().err
