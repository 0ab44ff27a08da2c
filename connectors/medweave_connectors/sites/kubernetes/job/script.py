"""The script in the pod of a Job, which writes output and exit code to files that outlive the pod. Pure."""

from __future__ import annotations

import posixpath
import shlex
from dataclasses import dataclass

from medweave_connectors.host.stdin_script import is_long
from medweave_connectors.jobs.remote_environment import shell_line
from medweave_connectors.jobs.retries.attempt_script import SIGNAL, clean_start, lead_s
from medweave_connectors.sites.pods.exec.commands import COUNTERS, Counters, PodStep, parse_counters
from medweave_core.errors import TryAgainError
from medweave_core.untrusted_text import whole_number

TAIL_BYTES = 2**16
_CODE = "medweave-code "


@dataclass(frozen=True, slots=True)
class KubernetesJobFiles:
    """Paths of a job's files in the pods, below a folder next to its output folder."""

    folder: str

    @classmethod
    def next_to(cls, output_directory: str, token: str) -> KubernetesJobFiles:
        """Return the paths of one submission; `token` makes the folder unique."""
        return cls(f"{output_directory.rstrip('/')}.job-{token}")

    @property
    def begun(self) -> str:
        """Return the empty file whose timestamp is that of the submission."""
        return posixpath.join(self.folder, "begun")

    @property
    def stdout(self) -> str:
        return posixpath.join(self.folder, "stdout")

    @property
    def stderr(self) -> str:
        return posixpath.join(self.folder, "stderr")

    @property
    def script(self) -> str:
        """Path of the script, used if it is too long for a word of the container's command."""
        return posixpath.join(self.folder, "job.sh")

    @property
    def end(self) -> str:
        """Path of the script's record after its command: exit code, seconds, counters of the container."""
        return posixpath.join(self.folder, "end")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptEnd:
    """Exit code and counters that the script recorded.

    Attributes:
        seconds: wall time of the command, s.
    """

    exit_code: int
    seconds: int
    counters: Counters


def build_job_script(
    step: PodStep,
    files: KubernetesJobFiles,
    *,
    home: str,
    checkpoint_folder: str,
    signal_lead_s: int,
    was_empty: bool = False,
) -> str:
    """Return the script for the POSIX shell that is the first process of the container.

    Only this shell gets TERM, so it forwards it; when it ends, the kernel kills the remaining processes. If Kubernetes restarts the
    pod, the script restores the output folder as the engine created it, with the newest checkpoints.

    Args:
        home: folder of the step's first job.
        checkpoint_folder: name of the folder inside the output folder that outlives a start; empty for none.
        signal_lead_s: how long before its time limit a step with such a folder gets USR1, s; at most half of the limit.
        was_empty: the engine created an empty output folder, which may have been used since.
    """
    line = shell_line(step.words, environment=step.environment, workdir=step.output_directory, **step.streams)
    folder, end = shlex.quote(files.folder), shlex.quote(files.end)
    return "\n".join(
        (
            f"mkdir -p {folder} && rm -f {end} || exit {TryAgainError.exit_code}",
            f"exec > {shlex.quote(files.stdout)} 2> {shlex.quote(files.stderr)} || exit {TryAgainError.exit_code}",
            *clean_start(
                step.output_directory,
                home=home,
                checkpoint_folder=checkpoint_folder,
                temporary=step.environment.get("TMPDIR", ""),
                was_empty=was_empty,
            ),
            "command=",
            'trap \'[ -z "$command" ] || kill -s TERM "$command"\' TERM',
            "started=$(date +%s)",
            f"( {line} ) < /dev/null &",
            "command=$!",
            *_signal(step.limit_s if checkpoint_folder else None, signal_lead_s),
            # A signal interrupts `wait`; the exit code is the command's once it has ended.
            'code=0; wait "$command" || code=$?',
            'while kill -s 0 "$command" 2> /dev/null; do code=0; wait "$command" || code=$?; done',
            f'{{ echo "{_CODE}$code $(($(date +%s) - started))"; {COUNTERS}; }} > {end}.part && mv {end}.part {end}',
            'exit "$code"',
        )
    )


def _signal(limit_s: int | None, wanted_s: int) -> tuple[str, ...]:
    """Return lines that signal the command before its time limit; their processes end with the container."""
    if limit_s is None:
        return ()
    wait_s = limit_s - lead_s(limit_s, wanted_s)
    return (f'( sleep {wait_s}; kill -s {SIGNAL} "$command" ) > /dev/null 2>&1 &',)


def build_folder_command(files: KubernetesJobFiles, script: str) -> str:
    """Return a shell line that creates the job's folder before its pod exists, and a long script as a file in it."""
    make = f"mkdir -p {shlex.quote(files.folder)} && : > {shlex.quote(files.begun)}"
    return f"{make} && printf '%s\\n' {shlex.quote(script)} > {shlex.quote(files.script)}" if is_long(script) else make


def build_container_command(script: str, files: KubernetesJobFiles) -> str:
    """Return the command of the container's shell: the script, or the file that `make_folder` wrote."""
    return f". {shlex.quote(files.script)}" if is_long(script) else script


def build_follow_command(file: str, offset: int) -> str:
    """Return a shell line that prints at most `TAIL_BYTES` of a file from an offset, in base64."""
    return f"tail -c +{offset + 1} {shlex.quote(file)} 2> /dev/null | head -c {TAIL_BYTES} | base64"


def build_tail_command(file: str) -> str:
    """Return a shell line that prints the last bytes of a file in base64."""
    return f"tail -c {TAIL_BYTES} {shlex.quote(file)} 2> /dev/null | base64"


def build_end_command(files: KubernetesJobFiles) -> str:
    """Return a shell line that prints the end file."""
    return f"cat {shlex.quote(files.end)}"


def read_end(text: str) -> ScriptEnd | None:
    """Return the parsed end file; None if it is missing or incomplete."""
    first, *rest = text.splitlines() or [""]
    if first.startswith(_CODE):
        code, seconds = (whole_number(word) for word in (*first.removeprefix(_CODE).split(), "", "")[:2])
        if code is not None and code <= 255 and seconds is not None:
            return ScriptEnd(exit_code=code, seconds=seconds, counters=parse_counters(rest))
    return None
