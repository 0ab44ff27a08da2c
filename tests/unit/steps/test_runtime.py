"""The frame of a verb: options, exit codes, signals, outputs that are complete or absent."""

from __future__ import annotations

import errno
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from medweave_core.documents.closest_match import closest
from medweave_core.errors import InternalError, UsageError, UserInputError
from medweave_steps import cli
from medweave_steps.runtime import environment
from medweave_steps.runtime.options import option
from medweave_steps.runtime.progress import duration
from medweave_steps.runtime.verb import StepContext, Verb, add_verb_options, execute
from medweave_steps.runtime.write import atomic_directory, atomic_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    output: Path = option("the output")
    spacing_mm: tuple[float, float, float] = option("voxel size, mm", default=(2.0, 2.0, 2.0))
    crop: Literal["lungs", "none"] = option("field of view", default="lungs")
    batches: tuple[Path, ...] = option("folders", default=())
    fast: bool = option("less exact", default=False)
    limit: int | None = option("at most", default=None)

    def __post_init__(self) -> None:
        if min(self.spacing_mm) <= 0:
            raise UsageError("--spacing-mm must be positive.", seen=str(self.spacing_mm))


def run_verb(tmp_path: Path, run: Any, *words: str) -> tuple[int, Path]:
    verb = Verb(name="demo", description="A verb for tests.", example="medweave-step demo", config=Config, run=run)
    import argparse

    parser = argparse.ArgumentParser()
    add_verb_options(parser, verb)
    report = tmp_path / "run_report.json"
    namespace = parser.parse_args(["--output", str(tmp_path / "out"), "--run-report", str(report), *words])
    return execute(verb, namespace), report


def test_options_reach_the_configuration_and_paths_stay_out_of_the_report(tmp_path: Path) -> None:
    seen: list[Config] = []

    def run(config: Config, context: StepContext) -> Mapping[str, Any]:
        seen.append(config)
        context.add_case("case-01", dice=0.5)
        return {"answer": 42}

    words = ("--spacing-mm", "1", "1", "2.5", "--crop", "none", "--batches", "a", "b", "--fast", "--limit", "3")
    exit_code, report = run_verb(tmp_path, run, *words)
    assert exit_code == 0
    expected = {
        "spacing_mm": (1.0, 1.0, 2.5),
        "crop": "none",
        "batches": (Path("a"), Path("b")),
        "fast": True,
        "limit": 3,
    }
    assert seen == [Config(output=tmp_path / "out", **expected)]
    written = json.loads(report.read_text())
    assert written["results"] == {"answer": 42}
    assert written["cases"] == [{"case_id": "case-01", "dice": 0.5}]
    assert written["config"] == {"spacing_mm": [1.0, 1.0, 2.5], "crop": "none", "fast": True, "limit": 3}
    assert str(tmp_path) not in report.read_text()


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (UsageError("no"), 2),
        (UserInputError("the mask is on another grid", seen="3", expected="4", do="fix it"), 65),
        (InternalError("the loss is NaN or infinite"), 70),
        (OSError(errno.ENOSPC, "No space left on device", "/somewhere/jane-doe.npy"), 74),
        (ZeroDivisionError("a bug"), 70),
        (MemoryError(), 75),
    ],
)
def test_each_failure_has_its_exit_code_and_leaves_no_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: Exception, exit_code: int
) -> None:
    def run(config: Config, context: StepContext) -> Mapping[str, Any]:
        raise error

    ended, report = run_verb(tmp_path, run)
    assert ended == exit_code
    assert not report.exists()
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    assert "jane-doe" not in shown


def test_a_full_disk_is_reported_through_a_library_that_hides_its_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pydicom
    from pydicom.dataset import FileMetaDataset

    class NearlyFull(io.BytesIO):
        def write(self, data: Any, /) -> int:
            if len(data) > 10_000:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    def run(config: Config, context: StepContext) -> Mapping[str, Any]:
        dataset = pydicom.Dataset()
        dataset.file_meta = FileMetaDataset()
        dataset.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
        dataset.SOPClassUID, dataset.SOPInstanceUID = pydicom.uid.CTImageStorage, "2.25.1"
        dataset.BitsAllocated, dataset.PixelData = 8, bytes(100_000)
        dataset.save_as(NearlyFull(), enforce_file_format=True)
        return {}

    assert run_verb(tmp_path, run)[0] == 74
    shown = capsys.readouterr().err
    assert "ENOSPC: No space left on device" in shown
    assert "free space on the disk" in shown
    assert "Traceback" not in shown


def test_a_wrong_option_value_is_a_usage_error(tmp_path: Path) -> None:
    assert run_verb(tmp_path, lambda config, context: {}, "--spacing-mm", "1", "0", "1")[0] == 2


def test_an_unknown_verb_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["segmant"]) == 2
    assert "segment" in capsys.readouterr().err


def test_ctrl_c_while_a_verb_is_being_imported_is_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_name: str) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "load_verb", interrupted)
    assert cli.main(["segment"]) == 130
    assert capsys.readouterr().err == "medweave-step: interrupted\n"


def test_the_bare_command_lists_the_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in cli.VERBS)


@pytest.mark.parametrize("name", cli.VERBS)
def test_the_help_of_a_verb_ends_with_an_example_that_its_parser_accepts(name: str) -> None:
    verb = cli.load_verb(name)
    parser = cli.build_parser(verb)
    assert parser.format_help().rstrip().endswith(f"example:\n  {verb.example}")
    command, named, *arguments = shlex.split(verb.example.replace("\\\n", ""))
    assert (command, named) == ("medweave-step", name)
    parser.parse_args(arguments)


def test_a_file_is_complete_or_absent(tmp_path: Path) -> None:
    def write_half() -> None:
        with atomic_file(tmp_path / "a.txt") as aside:
            aside.write_text("half")
            raise UserInputError("stop")

    with pytest.raises(UserInputError):
        write_half()
    assert list(tmp_path.iterdir()) == []
    with atomic_file(tmp_path / "a.txt") as aside:
        aside.write_text("whole")
        assert not (tmp_path / "a.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_folder_is_complete_or_absent_and_never_overwrites(tmp_path: Path) -> None:
    def write_half() -> None:
        with atomic_directory(tmp_path / "out") as aside:
            (aside / "a").write_text("half")
            raise UserInputError("stop")

    with pytest.raises(UserInputError):
        write_half()
    assert list(tmp_path.iterdir()) == []
    with atomic_directory(tmp_path / "out") as aside:
        (aside / "b").write_text("whole")
    assert (tmp_path / "out" / "b").read_text() == "whole"
    with pytest.raises(UsageError, match="exists already"), atomic_directory(tmp_path / "out"):
        pass
    assert (tmp_path / "out" / "b").read_text() == "whole"


PROGRAM = """
import sys, time
from pathlib import Path
sys.argv[0] = "x"
from medweave_steps.runtime import signals
from medweave_steps.runtime.verb import Verb, add_verb_options, execute
from medweave_steps.runtime.write import atomic_directory
from medweave_steps.runtime.options import option
from dataclasses import dataclass
import argparse

@dataclass(frozen=True, kw_only=True)
class Config:
    output: Path = option("out")

def run(config, context):
    with atomic_directory(config.output) as aside:
        (aside / "half").write_text("x")
        print("started", flush=True)
        WORK
    return {}

verb = Verb(name="x", description="", example="", config=Config, run=run)
parser = argparse.ArgumentParser()
add_verb_options(parser, verb)
sys.exit(execute(verb, parser.parse_args(["--output", sys.argv[1]])))
"""


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize(
    "work",
    [
        "time.sleep(60)",
        "__import__('ctypes').CDLL(None).usleep(20_000_000)",
        r"exec('try:\n time.sleep(60)\nexcept BaseException:\n raise ImportError(1)')",
    ],
    ids=["interruptible", "inside a C call that never returns to Python", "inside a library that raises its own error"],
)
def test_a_signal_ends_a_verb_within_two_seconds_and_leaves_nothing(
    tmp_path: Path, number: signal.Signals, exit_code: int, work: str
) -> None:
    program = textwrap.dedent(PROGRAM).replace("WORK", work)
    words = [sys.executable, "-c", program, str(tmp_path / "out")]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    sent = time.monotonic()
    os.kill(process.pid, number)
    _, errors = process.communicate(timeout=20)
    # The promise to the user is two seconds; it is a property of the design, not a measurement of this machine.
    assert time.monotonic() - sent < 10
    assert process.returncode == exit_code
    assert "interrupted" in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_second_signal_adds_nothing_to_the_first(tmp_path: Path) -> None:
    # As a run that is cancelled in pods: INT comes twice, and the second came while the interpreter waited for a thread.
    work = "[__import__('threading').Thread(target=time.sleep, args=[1]).start(), time.sleep(60)]"
    program = textwrap.dedent(PROGRAM).replace("WORK", work)
    words = [sys.executable, "-c", program, str(tmp_path / "out")]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "started\n"
    os.kill(process.pid, signal.SIGINT)
    assert "interrupted" in process.stderr.readline()
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    # The interpreter's last act gives the signal its default back, which ends the process with the same status for its parent.
    assert process.returncode in (130, -signal.SIGINT)
    assert errors == ""


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (125, "2 min 05 s"), (11400, "3 h 10 min")])
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.slow
def test_the_peak_of_memory_is_the_programs_own() -> None:
    """The kernel's rusage begins with the memory of the process that started the program, here this one."""
    ballast = b"x" * 400_000_000
    code = "from medweave_steps.runtime.environment import peak_memory_mib; print(peak_memory_mib()[0])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert len(ballast) > 0
    assert 5 < float(printed) < 200


@pytest.mark.slow
def test_a_signal_to_a_forked_child_does_not_end_its_parent() -> None:
    # Like the processes that cut patches: SIGTERM to one of them made the training's watchdog end the training.
    code = (
        "import os, signal, time\n"
        "from medweave_steps.runtime import signals\n"
        "signals.install()\n"
        "signals._grace_s = 0.1\n"
        "reading, writing = os.pipe()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        os.write(writing, b'.')\n"
        "        time.sleep(60)\n"
        "    finally:\n"
        "        os._exit(0)\n"
        "os.read(reading, 1)\n"
        "os.kill(child, signal.SIGTERM)\n"
        "os.waitpid(child, 0)\n"
        "time.sleep(1)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_who_has_called_a_verb_as_a_function_is_not_ended_by_it_later(tmp_path: Path) -> None:
    # As pytest's processes: a signal to one that has run a verb, or to its child, ended it without a word.
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    exit_code, _ = run_verb(tmp_path, lambda config, context: {})
    assert exit_code == 0
    assert {number: signal.getsignal(number) for number in before} == before
    assert signal.set_wakeup_fd(-1) == -1
    deadline = time.monotonic() + 10
    while any(item.name == "signal-watchdog" for item in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [item for item in threading.enumerate() if item.name == "signal-watchdog"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stepss", "4"], "unknown option '--stepss'.\n  do:       write '--steps' (closest match), or see "),
        (["--stepss=/data/Doe"], "unknown option '--stepss'.\n  do:       write '--steps' (closest match), or see "),
        (["--training-set", "a", "--output", "b", "/data/Doe"], "unknown option, or value without an option.\n"),
        (["--steps", "4"], "the following arguments are required: --training-set, --output.\n"),
    ],
)
def test_a_wrong_command_line_is_reported_without_its_values(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["train", *words])
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"medweave-step train: {message}")
    assert shown.endswith("see `medweave-step train --help`\n")
    assert "Doe" not in shown


def test_a_name_that_contains_the_unknown_one_is_the_closest_match() -> None:
    known = ["--help", "--segmentation-model", "--run-report"]
    assert closest("--model", known) == "write '--segmentation-model' (closest match)"
    assert closest("--hepl", known) == "write '--help' (closest match)"


def test_an_unknown_verb_gets_the_closest_match(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trian"]) == 2
    assert "do:       write 'train' (closest match)" in capsys.readouterr().err


def test_waiting_threads_spin_briefly_unless_the_user_chose_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    environment.limit_threads(2)
    assert (os.environ["OMP_NUM_THREADS"], os.environ["GOMP_SPINCOUNT"]) == ("2", "1000")
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    environment.limit_threads(2)
    assert os.environ["GOMP_SPINCOUNT"] == "7"
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    environment.limit_threads(2)
    assert "GOMP_SPINCOUNT" not in os.environ
