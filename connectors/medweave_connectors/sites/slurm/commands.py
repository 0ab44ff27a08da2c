"""Command lines for a login node. Pure.

Each is a line for a POSIX shell and exits with 0 whatever its parts do: a part prints its own exit code, and the last line of the
output marks it as complete (`answers.py` parses it).
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from medweave_connectors.jobs.retries.attempt_script import SIGNAL, look_for_checkpoint
from medweave_connectors.sites.slurm.script import SlurmJobFiles
from medweave_connectors.sites.slurm.service import Allocation, Service
from medweave_core.runlog.run_ownership import RunOwner

FOLLOW_BYTES = 65536
TAIL_BYTES = 16384
RECORD_BYTES = 400  # of a file that holds an exit code, two times and a host name, unless the job writes there
END = "medweave-end"
SACCT_FIELDS = (
    "JobIDRaw", "State", "ExitCode", "ElapsedRaw", "Submit", "Start", "TotalCPU", "MaxRSS", "NodeList", "Timelimit", "Reason",
    "WorkDir",
)  # fmt: skip
# Variables of Slurm's programs change their options (SBATCH_*, SQUEUE_*), and those of a job in which the driver itself may run
# (SLURM_*) contradict the options of the jobs that it submits. These stay: the configuration file, the cluster and the token.
_FOREIGN = "SLURM|SBATCH|SRUN|SALLOC|SQUEUE|SACCT|SINFO|SCANCEL|SCONTROL"
OWN_ENVIRONMENT = (
    f"for name in $({{ env | sed -nE 's/^(({_FOREIGN})_[A-Za-z0-9_]*)=.*/\\1/p'; }} 2> /dev/null); do "
    'case $name in SLURM_CONF|SLURM_CLUSTERS|SLURM_JWT) ;; *) unset "$name";; esac; done'
)
_JOBS = "'job %i|%T|%r|%S|%k'"
_WORDS_ALONE = "tr -dc '0-9A-Za-z._ -'"
_BASE64 = "base64 | tr -d '\\n'"


class FinalStateQuery(NamedTuple):
    """Query about a job that seems to have ended; `may_requeue`: Slurm may requeue it, which only the controller reports."""

    job_id: str
    files: SlurmJobFiles
    may_requeue: bool


def sbatch_words(
    files: SlurmJobFiles, allocation: Allocation, service: Service, *, job_name: str, key: str
) -> list[str]:
    """Build the sbatch command.

    Args:
        job_name: shown by `squeue`.
        key: the job's comment; finds a job whose submission had no answer.
    """
    words = ["sbatch", "--parsable", f"--job-name={job_name}", f"--comment={key}"]
    words += [f"--nodes={allocation.num_nodes}", f"--ntasks={allocation.num_nodes}", "--ntasks-per-node=1"]
    words += [f"--cpus-per-task={allocation.cores}", f"--mem={allocation.memory_mib}M"]
    options = {
        "gres": f"{service.gres}:{allocation.gpus}" if allocation.gpus else "",
        "time": str(allocation.minutes or ""),
        "signal": f"B:{SIGNAL}@{allocation.signal_s}" if allocation.signal_s else "",
        **place_options(service),
    }
    words += [*(f"--{option}={value}" for option, value in options.items() if value), *service.options]
    # Slurm requeues a job only if the site says so. Otherwise the retry policy decides, and the run reports it.
    words += ["--requeue", "--open-mode=append"] if service.requeue else ["--no-requeue"]
    words += [f"--chdir={files.folder}", f"--output={files.stdout}", f"--error={files.stderr}"]
    return [*words, files.script]


def place_options(service: Service) -> dict[str, str]:
    """Return sbatch's placement options; empty ones are left out of the command."""
    return {
        "partition": service.partition,
        "account": service.account,
        "qos": service.qos,
        "constraint": service.constraint,
        "reservation": service.reservation,
    }


def submit(words: Sequence[str], files: SlurmJobFiles, scripts: Mapping[str, str]) -> str:
    """Build the line that writes the scripts and submits once, however often it runs: the process that creates `claimed` submits.

    Args:
        words: the sbatch command.
        scripts: path to text.
    """
    write = [f"printf %s {_base64(text)} | base64 -d > {shlex.quote(path)}" for path, text in scripts.items()]
    answer, refusal, code = (shlex.quote(files.path(name)) for name in ("answer", "refusal", "code"))
    once = (
        f"if mkdir {_claim(files)} 2> /dev/null; then "
        f"{shlex.join(words)} > {answer} 2> {refusal} < /dev/null; echo $? > {code}; fi"
    )
    return line(
        " && ".join(("umask 077", f"mkdir -p {shlex.quote(files.folder)}", *write, once)),
        f"cat {answer} {refusal}",
        f"echo code $(cat {code} 2> /dev/null)",
    )


def open_claim(files: SlurmJobFiles) -> str:
    """Build the line that allows another submission, after Slurm reported that it has no job of the first one."""
    return line(f"rm -f {shlex.quote(files.path('answer'))}", f"rmdir {_claim(files)}")


def queue() -> str:
    """Build the query for all jobs of the user, ended ones too; without ids, because a purged id makes squeue fail."""
    return f"squeue --me --noheader --states=all --format={_JOBS} 2>&1; echo squeue $?"


def follow(number: int, files: SlurmJobFiles, followed: str, offset: int) -> str:
    """Build the part that prints a job's new output, and whether its script has ended.

    Args:
        number: identifies the job in the output.
        followed: the file that the job writes to.
        offset: bytes that were read before.
    """
    text, ended = shlex.quote(followed), shlex.quote(files.exit)
    return (
        f"[ -f {text} ] && echo text {number} $(tail -c +{offset + 1} {text} | head -c {FOLLOW_BYTES} | {_BASE64}); "
        f"[ -f {ended} ] && echo ended {number}"
    )


def poll(*parts: str) -> str:
    """Build one line of `queue` and `follow` parts."""
    return line(*parts)


def ends(jobs: Sequence[FinalStateQuery]) -> str:
    """Build the line that prints the reports of accounting, controller and jobs, and the last lines of the jobs' streams.

    It queries accounting once for all jobs, and the controller about each job that accounting does not report as COMPLETED.
    """
    ids = ",".join(job.job_id for job in jobs)
    return line(
        f"states=$(sacct ${{SLURM_CLUSTERS:+--clusters=$SLURM_CLUSTERS}} --jobs={ids} --noheader --parsable2 --noconvert "
        f"--format={','.join(SACCT_FIELDS)} 2>/dev/null)",
        "printf '%s\\n' \"$states\" | sed 's/^/sacct /'",
        *(part for job in jobs for part in _end_of(job)),
    )


def _end_of(job: FinalStateQuery) -> tuple[str, ...]:
    # Another job may have had this id: the folder is the last column, and its name ends with a unique token.
    row = f"^{job.job_id}|COMPLETED|.*{job.files.token}$"
    completed = f"printf '%s\\n' \"$states\" | grep -q {shlex.quote(row)}"
    controller = f"scontrol show job --oneliner {job.job_id} 2>&1 | sed 's/^/scontrol /'"
    return (
        f"echo of {job.job_id}",
        controller if job.may_requeue else f"{completed} || {controller}",
        f"if cd {shlex.quote(job.files.folder)}; then "
        f'for f in exit exit.*; do [ -f "$f" ] && echo file "$f" $(head -c {RECORD_BYTES} "$f" | {_WORDS_ALONE}); done; '
        f'for f in stdout stderr stderr.*; do [ -f "$f" ] && echo tail "$f" $(tail -c {TAIL_BYTES} "$f" | {_BASE64}); done; fi',
    )


def checkpoint(folder: str, files: SlurmJobFiles) -> str:
    """Build the line that prints whether a step wrote a checkpoint, and whether it is newer than its last job's submission."""
    return line(*look_for_checkpoint(folder, since=files.script))


def cancel(job_ids: Sequence[str]) -> str:
    """Build the line that cancels jobs and prints their states after that."""
    return line(f"scancel {' '.join(job_ids)}", queue())


def line(*parts: str) -> str:
    """Build one line for the login node; its output ends with a marker."""
    # A sub-shell: some connectors keep one shell for many lines, whose folder, umask and environment must stay.
    return f"( {'; '.join((OWN_ENVIRONMENT, *parts, f'echo {END}'))} )"


def program_of(line: str) -> str:
    """Return the first of Slurm's programs in a line, for the log; `script` without one."""
    return next((name for name in ("sbatch", "sacct", "scancel", "sinfo", "squeue") if f"{name} " in line), "script")


def _claim(files: SlurmJobFiles) -> str:
    return shlex.quote(files.path("claimed"))


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def at_cluster(cluster: str, text: str) -> str:
    """Return a line or script that runs for one of several clusters of a login node; `cluster` is empty for the default."""
    return f"export SLURM_CLUSTERS={cluster}; {text}" if cluster else text


def cancel_all(owner: RunOwner, keys: Sequence[str]) -> str:
    """Return a script that cancels all jobs of a run, waits until none is in the queue, and prints how many there were.

    Args:
        keys: of the jobs in the run's journal, re-attached ones too.
    """
    own = [f"{shlex.quote(f'medweave:{owner.process_key}:')}*"] if owner.is_certain else []
    patterns = "|".join((*own, *map(shlex.quote, keys))) or "''"
    return (
        f"{OWN_ENVIRONMENT}\n"
        f"queued() {{ queue=$(squeue --me --noheader --format={_JOBS}) || exit 75; "
        "echo \"$queue\" | while IFS='|' read -r id state reason start key; do "
        'case "$key" in ' + patterns + ') echo "${id#job }";; esac; done; }\n'
        "jobs=$(queued) || exit 75\n"
        '[ -z "$jobs" ] || scancel $jobs\n'
        "for second in $(seq 60); do\n"
        "  now=$(queued) || exit 75\n"
        '  if [ -z "$now" ]; then echo "$jobs" | wc -w; break; fi\n'
        "  sleep 1\n"
        "done\n"
        '[ -z "$now" ] || { echo "jobs $now are still in the queue" >&2; exit 75; }'
    )
