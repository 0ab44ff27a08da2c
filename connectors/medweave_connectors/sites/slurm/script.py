"""The files of a job: their paths, and the shell scripts that Slurm starts. Pure.

They are next to the output folder, never in it: outputs collected by pattern would include them.
"""

from __future__ import annotations

import dataclasses
import posixpath
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from medweave_connectors.jobs.node_group import FIRST_PORT, NODE_RANK, NUM_NODES, NUM_PORTS, RENDEZVOUS
from medweave_connectors.jobs.remote_environment import shell_line
from medweave_connectors.jobs.retries.attempt_script import clean_start, with_process_id, with_signal
from medweave_connectors.jobs.worker_environment import NOTHING, WorkerEnvironment


@dataclass(frozen=True, slots=True)
class SlurmJobFiles:
    """Paths at the site, in a folder of the job."""

    folder: str

    @classmethod
    def next_to(cls, output_directory: str, token: str) -> SlurmJobFiles:
        """Return the files of one submission; its `token` makes the folder unique."""
        return cls(f"{output_directory.rstrip('/')}.slurm-{token}")

    @property
    def name(self) -> str:
        """Return the folder's name, unique to the job."""
        return posixpath.basename(self.folder)

    @property
    def token(self) -> str:
        """Return the end of the folder's name, to compare with paths from accounting and controller, which quote differently."""
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
        """Return the file of the job script's stderr; each node of a node group has another one, `stderr.<node rank>`."""
        return self.path("stderr")

    @property
    def exit(self) -> str:
        """Return the file with the exit record of the job script; each node of a node group writes another one."""
        return self.path("exit")

    @property
    def process_id(self) -> str:
        """Return the file with the process id of the command (of node 0), for the signal before the time limit."""
        return self.path("pid")

    @property
    def status(self) -> str:
        """Return the file with the command's exit code, used if the job script traps a signal."""
        return self.path("status")

    def followed(self, *, gang: bool) -> str:
        """Return the file with the step's progress events, which node 0 writes."""
        return f"{self.stderr}.0" if gang else self.stderr


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCommand:
    """The command of a step, as the engine requests it.

    Attributes:
        words: already quoted for a shell.
        stdin, stdout, stderr: files relative to the output folder.
        checkpoint_folder: name of the folder inside the output folder that outlives a failed attempt, which the step's hint
            declares; its command gets USR1 before the time limit. Empty for none.
        home: folder of the files of the step's first job; empty in the first one itself.
        was_empty: `home` is of a job that an earlier driver has submitted; only one that was to find an empty folder is taken over.
        worker: environment that is loaded before the command, on each node.
        worker_setting: its path in the file, for messages.
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

    def clean_start(self, files: SlurmJobFiles) -> tuple[str, ...]:
        """Return the lines at the start of each job script."""
        return clean_start(
            self.output_directory,
            home=self.home or files.folder,
            checkpoint_folder=self.checkpoint_folder,
            temporary=self.environment.get("TMPDIR", ""),
            was_empty=self.was_empty,
        )

    def with_signal(self, line: str, files: SlurmJobFiles) -> tuple[str, ...]:
        """Return the command line of a job script, with a trap that forwards Slurm's signal if the step has checkpoints."""
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
        # The engine creates all folders of a run in one parent folder.
        folder = posixpath.dirname(self.output_directory.rstrip("/"))
        return self.worker.inside(line, folder=folder, gpus=self.gpus)

    def worker_lines(self) -> tuple[str, ...]:
        return self.worker.lines(where=self.worker_setting)


def single_script(command: StepCommand, files: SlurmJobFiles, *, prologue: str, title: str) -> str:
    """Return the job script of a step on one node."""
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


def gang_script(
    command: StepCommand, files: SlurmJobFiles, *, num_nodes: int, cores: int, prologue: str, title: str
) -> str:
    """Return the job script of a node group: it starts `node.sh` once per node, and ends all of them when one fails.

    Slurm's signal goes to the command of node 0, which is on the machine of this script: srun would hand it to every process.
    """
    srun = (
        "srun",
        f"--nodes={num_nodes}",
        f"--ntasks={num_nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={cores}",  # srun does not take it from sbatch (Slurm 22.05 and later)
        "--kill-on-bad-exit=1",
        "--export=ALL",  # even if sbatch was called with --export=NONE
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
        # The job is submitted with --mem; other variables about memory or srun belong to another job.
        "unset SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU $(env | sed -nE 's/^(SRUN_[A-Za-z0-9_]*)=.*/\\1/p')",
        "started=$(date +%s)",
        *command.with_signal(" ".join(srun), files),
        *_exit_record(shlex.quote(files.exit)),
    )


def node_script(command: StepCommand, files: SlurmJobFiles) -> str:
    """Return the script of each node of a node group: the same command; only node 0 writes the tool's stream files."""
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
