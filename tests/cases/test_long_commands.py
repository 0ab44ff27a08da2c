"""Commands with many or long arguments: they run, or are refused with their size and the limit of the machine."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from medweave_connectors.host.command_size import MAX_WORD_BYTES, checked, measure
from medweave_connectors.host.stdin_script import WORDS, encode
from medweave_connectors.jobs.remote_environment import shell_line
from medweave_connectors.jobs.worker_environment import NOTHING, WorkerEnvironment
from medweave_connectors.sites.kubernetes.job import script as job_script
from medweave_connectors.sites.local import utility
from medweave_connectors.sites.local.process import LocalCommand
from medweave_connectors.sites.pods.exec.commands import build_start_command
from medweave_connectors.sites.slurm import commands
from medweave_connectors.sites.slurm.script import SlurmJobFiles
from support.engine import run
from support.small_cluster import small_cluster, write

PRINT = "import os, sys; print(len(sys.argv) - 1, sum(map(len, sys.argv[1:])), len(os.environ.get('LONG', '')))"
COUNT = ["python3", "-c", shlex.quote(PRINT)]
NAMES = [f"case-{number:06}/{'x' * 50}" for number in range(3000)]
NUM_BYTES = sum(map(len, NAMES))
STREAMFLOW = """\
version: v1.0
workflows: {w: {type: cwl, config: {file: wf.cwl, settings: job.yml}, bindings: [{step: /, target: {deployment: here}}]}}
deployments: {here: {type: medweave.local, config: {}}}
scheduling: {scheduler: {type: medweave.scheduler, config: {}}}
database: {type: medweave.database, config: {}}
dataManager: {type: medweave.transfer, config: {}}
"""
ARRAY = """\
cwlVersion: v1.2
class: Workflow
inputs: {values: '%(type)s[]'}
outputs: {out: {type: File, outputSource: a/out}}
steps:
  a:
    in: {values: values}
    out: [out]
    run:
      class: CommandLineTool
      baseCommand: [python3, -c, 'import sys; print(len(sys.argv)-1, sum(map(len, sys.argv[1:])))']
      inputs: {values: {type: '%(type)s[]', inputBinding: {position: 1}}}
      stdout: out.txt
      outputs: {out: stdout}
"""


@pytest.mark.slow
@pytest.mark.case("long-command-local", expected="3,000 values of 186 KB, and 1,000 input files, reach the tool")
@pytest.mark.parametrize("kind", ["string", "File"])
def test_a_long_command_of_a_local_run(tmp_path: Path, kind: str, seen: Callable[[object], None]) -> None:
    values: list[object] = list(NAMES)
    if kind == "File":
        (tmp_path / "data").mkdir()
        paths = [tmp_path / "data" / f"{number:04}-{'x' * 80}.txt" for number in range(1000)]
        for path in paths:
            path.touch()
        values = [{"class": "File", "path": str(path)} for path in paths]
    (tmp_path / "wf.cwl").write_text(ARRAY % {"type": kind})
    (tmp_path / "job.yml").write_text(json.dumps({"values": values}))
    (tmp_path / "streamflow.yml").write_text(STREAMFLOW)
    ended = run(tmp_path)
    seen(ended.exit_code)
    assert ended.exit_code == 0, ended.stderr
    number, num_bytes = map(int, (tmp_path / "results" / "out.txt").read_text().split())
    assert number == len(values)
    assert num_bytes == NUM_BYTES if kind == "string" else num_bytes > 80_000


def local(words: list[str], folder: Path, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Run a job on this machine; return exit code, output and last line of errors."""
    import os

    async def go() -> tuple[int, str, str]:
        command = LocalCommand(
            words, environment=dict(os.environ) | (environment or {}), workdir=folder, stdout="out.txt"
        )
        ended = await command.wait()
        return (
            ended.exit_code,
            (folder / "out.txt").read_text() if ended.exit_code == 0 else "",
            "\n".join(command.stderr_tail),
        )

    return asyncio.run(go())


def test_long_arguments_and_variables_reach_a_local_job(tmp_path: Path) -> None:
    assert local([*COUNT, *NAMES], tmp_path)[1] == f"3000 {NUM_BYTES} 0\n"
    assert local([*COUNT, *NAMES], tmp_path, {"LONG": "y'\\n" * 20_000})[1] == f"3000 {NUM_BYTES} 80000\n"
    assert local([*COUNT, "a"], tmp_path, {"LONG": "y" * 120_000})[1] == "1 1 120000\n"


@pytest.mark.parametrize(
    ("words", "environment", "expected"),
    [
        (NAMES * 20, {}, r"at most [\d,]+ bytes together with"),
        (NAMES * 50, {}, "at most 6,291,456 bytes together"),
        (["x" * 140_000], {}, "at most 131,072 bytes in each"),
        (["x"], {"LONG": "y" * 140_000}, "140,006 bytes in environment variable LONG"),
    ],
)
def test_a_command_beyond_the_limits_is_refused_with_its_size(
    tmp_path: Path, words: list[str], environment: dict[str, str], expected: str
) -> None:
    code, _, errors = local([*COUNT, *words], tmp_path, environment)
    assert code == 65
    assert errors.startswith("medweave: the command of this step is too long.")
    assert re.search(r"seen: +[\d,]+ bytes", errors)
    assert re.search(expected, errors.replace(subprocess.getoutput("hostname"), "")), errors


def test_the_limit_is_that_of_the_kernel(tmp_path: Path) -> None:
    """The largest command that is not refused can be started, and the one that is refused cannot."""
    outcomes = set()
    for number in (24_000, 35_000):
        words = ["true", *(f"{'x' * 50}{index:06}" for index in range(number))]
        code, _, _ = local(words, tmp_path)
        assert code in (0, 65)
        outcomes.add(code)
    assert outcomes == {0, 65}


def by_shell(words: list[str], script: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(words, input=script, capture_output=True, check=False)


def test_a_long_line_reaches_a_pod_by_standard_input(tmp_path: Path) -> None:
    line = shell_line([*COUNT, *NAMES], environment={"A": "1\n2"}, workdir=str(tmp_path), stdout="out.txt")
    words = build_start_command(line)
    assert sum(map(len, words)) < 4096, "words become part of a URL"
    done = by_shell(list(words), words.stdin)  # type: ignore[attr-defined]
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.txt").read_text() == f"3000 {NUM_BYTES} 0\n"


def test_a_long_line_reaches_a_job_of_kubernetes_by_a_file(tmp_path: Path) -> None:
    files = job_script.KubernetesJobFiles(str(tmp_path / "job"))
    script = "\n".join(
        ("code=7", shell_line([*COUNT, *NAMES], environment={}, workdir=str(tmp_path), stdout="out.txt"))
    )
    assert by_shell(WORDS, encode(job_script.build_folder_command(files, script))).returncode == 0
    command = job_script.build_container_command(script, files)
    assert len(command) < 4096
    assert by_shell(["sh", "-c", command], b"").returncode == 0
    assert (tmp_path / "out.txt").read_text() == f"3000 {NUM_BYTES} 0\n"
    assert job_script.build_container_command("exit 3", files) == "exit 3", "a short one needs no file"


def test_a_long_line_reaches_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "apptainer"
    program.write_text('#!/bin/sh\nwhile [ "$1" != sh ]; do shift; done\nexec "$@"\n')
    program.chmod(0o755)
    worker = WorkerEnvironment(apptainer="/image.sif")
    line = shell_line([*COUNT, *NAMES], environment={}, workdir=str(tmp_path), stdin="/dev/null", stdout="out.txt")
    inside = worker.inside(line, folder="/", gpus=False)
    for text in (f"PATH={tmp_path}:$PATH; {inside}", f"PATH={tmp_path}:$PATH\n( {inside} )\n"):
        (tmp_path / "out.txt").unlink(missing_ok=True)
        assert by_shell(WORDS, encode(text)).returncode == 0
        assert (tmp_path / "out.txt").read_text() == f"3000 {NUM_BYTES} 0\n"
    assert NOTHING.inside(line, folder="/", gpus=False) == line


def test_a_long_line_of_the_engine(tmp_path: Path) -> None:
    words = [f"echo {' '.join(NAMES)} | wc -c"]
    ended = utility.execute(words, environment={}, workdir=str(tmp_path), stdin=None, wanted=True, timeout_s=30)
    assert asyncio.run(ended) == (str(NUM_BYTES + len(NAMES)), 0)


def test_a_long_job_script_reaches_slurm(tmp_path: Path) -> None:
    files = SlurmJobFiles.next_to(str(tmp_path / "out"), "token")
    text = shell_line([*COUNT, *NAMES], environment={}, workdir=str(tmp_path))
    line = commands.submit(["echo", "17"], files, {files.script: text})
    ended = utility.execute([line], environment={}, workdir=None, stdin=None, wanted=True, timeout_s=30)
    answer, code = asyncio.run(ended)
    assert (code, "17" in answer) == (0, True), answer
    assert Path(files.script).read_text() == text


@pytest.mark.slow
def test_a_long_command_of_a_run_in_pods(tmp_path: Path) -> None:
    with small_cluster(tmp_path):
        write(tmp_path, {"first": f": {' '.join(NAMES[:1500])}; echo done > result.txt"})
        ended = run(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "results" / "result.txt").read_text() == "done\n"


def test_short_commands_are_not_measured() -> None:
    assert checked("line", ["echo", "a"], {"B": "c"}) == "line"
    size = measure(["echo", "'a b'"], {"B": "c"})
    assert (size.num_words, size.largest_bytes, size.largest) == (3, 4, "argument 1")
    assert MAX_WORD_BYTES == 2**17


@pytest.mark.parametrize("shell", [["dash"], ["bash"], ["busybox", "sh"], ["zsh"]])
def test_any_script_by_standard_input(shell: list[str]) -> None:
    if shutil.which(shell[0]) is None:
        pytest.skip(f"no {shell[0]} here (apt-get install {shell[0]})")
    script = "cat <<'E'\na\\nb\\\\c 'd' \"e\" $HOME `id` ü %s\nE\nprintf '%s\\n' \"$(cat)\"; exit 3"
    done = by_shell([*shell, *WORDS[1:]], encode(script) + b"what follows\n")
    assert done.stdout.decode() == "a\\nb\\\\c 'd' \"e\" $HOME `id` ü %s\nwhat follows\n"
    assert done.returncode == 3
