"""The files of a job: where they lie, and the shell scripts that Slurm starts. Pure.

The files of a job lie beside its output folder, never in it: what lies there enters outputs that are collected by pattern.
"""

from __future__ import annotations

import dataclasses
import posixpath
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from medweave_connectors.jobs.node_group import NODE_RANK, NUM_NODES, RENDEZVOUS
from medweave_connectors.jobs.remote_environment import shell_line
from medweave_connectors.jobs.retries.attempt_script import clean_start, with_process_id, with_signal
from medweave_connectors.jobs.worker_environment import NOTHING, WorkerEnvironment

FIRST_PORT, NUM_PORTS = 20000, 12000  # below the ports that Linux gives to outgoing connections (32768 and up)


@dataclass(frozen=True, slots=True)
class JobFiles:
    """Paths at the site, below a folder of the job's own."""

    folder: str

    @classmethod
    def beside(cls, output_directory: str, token: str) -> JobFiles:
        """The folder of one submission, which no other shares: `token` is its own."""
        return cls(f"{output_directory.rstrip('/')}.slurm-{token}")

    @property
    def name(self) -> str:
        """The folder's name, which no other job has."""
        return posixpath.basename(self.folder)

    @property
    def token(self) -> str:
        """What the folder's name ends with. Accounting and controller name jobs' folders, with other quotes than they have."""
        return self.folder.rpartition("-")[2]

    def path(self, name: str) -> str:
        return posixpath.join(self.folder, name)

    @property
    def script(self) -> str:
        return self.path("job.sh")

    @property
    def node_script(self) -> str:
        return self.path("node.sh")

    @property
    def stdout(self) -> str:
        return self.path("stdout")

    @property
    def stderr(self) -> str:
        """Of the job script; in a gang each node has its own file beside it, `stderr.<node rank>`."""
        return self.path("stderr")

    @property
    def exit(self) -> str:
        """What the job script wrote when its command had ended; in a gang each node writes its own beside it."""
        return self.path("exit")

    @property
    def process_id(self) -> str:
        """Holds that of the command, in a gang of node 0's, where it gets a signal before its time limit."""
        return self.path("pid")

    @property
    def status(self) -> str:
        """Holds the exit code of what the job script runs, where the script listens to a signal meanwhile."""
        return self.path("status")

    def followed(self, *, gang: bool) -> str:
        """The file that holds the step's progress: node 0 tells it."""
        return f"{self.stderr}.0" if gang else self.stderr


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCommand:
    """What the engine wants to be run.

    Attributes:
        words: quoted for a shell already.
        stdin, stdout, stderr: files relative to the output folder.
        checkpoint_folder: name of the folder inside the output folder that outlives a failed attempt, which the step's hint
            declares; its command gets USR1 before the time limit. Empty for none.
        home: folder of the files of the step's first job; empty in the first one itself.
        was_empty: `home` is of a job that an earlier driver has submitted; only one that was to find an empty folder is taken over.
        worker: what is loaded before the command, on each node.
        worker_setting: its place in the file, for messages.
        gpus: the job has some.
    """

    words: Sequence[str]
    environment: Mapping[str, str]
    output_directory: str
    stdin: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    checkpoint_folder: str = ""
    home: str = ""
    was_empty: bool = False
    worker: WorkerEnvironment = NOTHING
    worker_setting: str = ""
    gpus: bool = False

    def clean_start(self, files: JobFiles) -> tuple[str, ...]:
        """Lines at the head of each job script."""
        return clean_start(
            self.output_directory,
            home=self.home or files.folder,
            checkpoint_folder=self.checkpoint_folder,
            temporary=self.environment.get("TMPDIR", ""),
            was_empty=self.was_empty,
        )

    def with_signal(self, line: str, files: JobFiles) -> tuple[str, ...]:
        """The line of a job script, which hands Slurm's signal on where there is something to save."""
        if not self.checkpoint_folder:
            return (line,)
        return with_signal(line, process_id=files.process_id, status=files.status)

    def line(self) -> str:
        line = shell_line(
            self.words,
            environment=self.environment,
            workdir=self.output_directory,
            stdin=self.stdin,
            stdout=self.stdout,
            stderr=self.stderr,
        )
        # The engine makes all folders of a run beside each other.
        folder = posixpath.dirname(self.output_directory.rstrip("/"))
        return self.worker.inside(line, folder=folder, gpus=self.gpus)

    def worker_lines(self) -> tuple[str, ...]:
        return self.worker.lines(where=self.worker_setting)


def single_script(command: StepCommand, files: JobFiles, *, prologue: str, title: str) -> str:
    """The job script of a step on one node."""
    line = f"( {command.line()} )"
    if command.checkpoint_folder:
        line = with_process_id(line, file=files.process_id)
    return _script(
        f"# {title}",
        f"rm -f {shlex.quote(files.exit)} {shlex.quote(files.exit)}.*",  # of an earlier start by Slurm
        *command.clean_start(files),
        *_prologue(prologue),
        *command.worker_lines(),
        "started=$(date +%s)",
        *command.with_signal(command.worker.started(line), files),
        *_exit_record(shlex.quote(files.exit)),
    )


def gang_script(command: StepCommand, files: JobFiles, *, num_nodes: int, cores: int, prologue: str, title: str) -> str:
    """The job script of a gang: it starts `node.sh` once per node, and ends all of them when one fails.

    Slurm's signal goes to the command of node 0, which is on the machine of this script: srun would hand it to every process.
    """
    srun = (
        "srun",
        f"--nodes={num_nodes}",
        f"--ntasks={num_nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={cores}",  # srun does not take it from sbatch (Slurm 22.05 and later)
        "--kill-on-bad-exit=1",
        "--export=ALL",  # also where sbatch was told to take nothing along
        "--wait=0",  # a node that has done its part leaves early; that must end nothing
        f"--output={shlex.quote(files.stdout)}.%t",
        f"--error={shlex.quote(files.stderr)}.%t",
        f"sh {shlex.quote(files.node_script)}",
    )
    address = "sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p'"
    return _script(
        f"# {title}",
        f"rm -f {shlex.quote(files.exit)} {shlex.quote(files.exit)}.*",  # of an earlier start by Slurm
        *command.clean_start(files),
        *_prologue(prologue),
        'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "# Nodes that do not know each other by name know their addresses.",
        f'getent hosts "$first" > /dev/null || first=$(scontrol show node --oneliner "$first" | {address})',
        f"export {NUM_NODES}={num_nodes}",
        f'export {RENDEZVOUS}="$first:$(({FIRST_PORT} + SLURM_JOB_ID % {NUM_PORTS}))"',
        # The job is submitted with --mem; what else says how much memory, or how srun works, is not of this job.
        "unset SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU $(env | sed -nE 's/^(SRUN_[A-Za-z0-9_]*)=.*/\\1/p')",
        "started=$(date +%s)",
        *command.with_signal(" ".join(srun), files),
        *_exit_record(shlex.quote(files.exit)),
    )


def node_script(command: StepCommand, files: JobFiles) -> str:
    """What each node of a gang runs: the same command; only node 0 writes the files that the tool names for its streams."""
    own = {name: value for name, value in command.environment.items() if name != "TMPDIR"}
    first = dataclasses.replace(command, environment=own)
    others = dataclasses.replace(first, stdout=command.stdout and "/dev/null", stderr=command.stderr and "/dev/null")
    line = f"( {first.line()} )"
    if command.checkpoint_folder:
        line = with_process_id(line, file=files.process_id)
    return _script(
        f"export {NODE_RANK}=$SLURM_PROCID",
        "# Temporary files of nodes that share a file system must not meet.",
        f"export TMPDIR={shlex.quote(command.environment['TMPDIR'])}/node-$SLURM_PROCID",
        'mkdir -p "$TMPDIR"',
        *command.worker_lines(),
        "started=$(date +%s)",
        command.worker.started(f'if [ "$SLURM_PROCID" = 0 ]; then\n{line}\nelse\n( {others.line()} )\nfi'),
        *_exit_record(f"{shlex.quote(files.exit)}.$SLURM_PROCID"),
    )


def _script(*lines: str) -> str:
    return "\n".join(("#!/bin/sh", *lines, ""))


def _prologue(text: str) -> tuple[str, ...]:
    return (text.rstrip("\n"),) if text.strip() else ()


def _exit_record(file: str) -> tuple[str, ...]:
    # Complete or absent: code, seconds since 1970 at the start and at the end, host.
    return (
        "code=$?",
        f'echo "$code $started $(date +%s) $(hostname)" > {file}.part && mv {file}.part {file}',
        "exit $code",
    )
