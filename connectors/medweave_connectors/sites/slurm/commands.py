"""The command lines for a login node. Pure.

Every line is a POSIX shell's and ends well whatever its parts do: each part says its own exit code, and the last line says that
the answer is whole (`answers.py` reads it).
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from medweave_connectors.jobs.retries.attempt_script import SIGNAL, look_for_checkpoint
from medweave_connectors.sites.slurm.script import JobFiles
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
# (SLURM_*) contradict the options of the jobs that it submits. These stay: the file, the cluster and the token.
_FOREIGN = "SLURM|SBATCH|SRUN|SALLOC|SQUEUE|SACCT|SINFO|SCANCEL|SCONTROL"
OWN_ENVIRONMENT = (
    f"for name in $({{ env | sed -nE 's/^(({_FOREIGN})_[A-Za-z0-9_]*)=.*/\\1/p'; }} 2> /dev/null); do "
    'case $name in SLURM_CONF|SLURM_CLUSTERS|SLURM_JWT) ;; *) unset "$name";; esac; done'
)
_JOBS = "'job %i|%T|%r|%S|%k'"
_WORDS_ALONE = "tr -dc '0-9A-Za-z._ -'"
_BASE64 = "base64 | tr -d '\\n'"


class EndOf(NamedTuple):
    """A job whose end is asked for; `starts_again`: Slurm itself may start it again, which only the controller knows."""

    job_id: str
    files: JobFiles
    starts_again: bool


def sbatch_words(files: JobFiles, asked: Allocation, service: Service, *, job_name: str, key: str) -> list[str]:
    """The sbatch command.

    Args:
        job_name: what `squeue` shows.
        key: stands in the job's comment; by it a job is found whose submission was not answered.
    """
    words = ["sbatch", "--parsable", f"--job-name={job_name}", f"--comment={key}"]
    words += [f"--nodes={asked.num_nodes}", f"--ntasks={asked.num_nodes}", "--ntasks-per-node=1"]
    words += [f"--cpus-per-task={asked.cores}", f"--mem={asked.memory_mib}M"]
    options = {
        "gres": f"{service.gres}:{asked.gpus}" if asked.gpus else "",
        "time": str(asked.minutes or ""),
        "signal": f"B:{SIGNAL}@{asked.signal_s}" if asked.signal_s else "",
        **place_options(service),
    }
    words += [*(f"--{option}={value}" for option, value in options.items() if value), *service.options]
    # Unless the site wants it, Slurm starts no job again by itself: what follows is said by the table of reactions, and is told.
    words += ["--requeue", "--open-mode=append"] if service.requeue else ["--no-requeue"]
    words += [f"--chdir={files.folder}", f"--output={files.stdout}", f"--error={files.stderr}"]
    return [*words, files.script]


def place_options(service: Service) -> dict[str, str]:
    """The options of sbatch that say where; empty ones are left out of its command."""
    return {
        "partition": service.partition,
        "account": service.account,
        "qos": service.qos,
        "constraint": service.constraint,
        "reservation": service.reservation,
    }


def submit(words: Sequence[str], files: JobFiles, scripts: Mapping[str, str]) -> str:
    """Writes the scripts and submits, once however often the line runs: whoever makes `claimed` submits.

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


def open_claim(files: JobFiles) -> str:
    """Opens the way for another submission, when Slurm does not know the first one."""
    return line(f"rm -f {shlex.quote(files.path('answer'))}", f"rmdir {_claim(files)}")


def queue() -> str:
    """All jobs of the user, ended ones too, in one query; without ids, since one that Slurm has forgotten spoils the answer."""
    return f"squeue --me --noheader --states=all --format={_JOBS} 2>&1; echo squeue $?"


def follow(number: int, files: JobFiles, followed: str, offset: int) -> str:
    """What a job has printed since, and whether its script has ended.

    Args:
        number: stands for the job in the answer.
        followed: the file that it prints to.
        offset: bytes that are known.
    """
    text, ended = shlex.quote(followed), shlex.quote(files.exit)
    return (
        f"[ -f {text} ] && echo text {number} $(tail -c +{offset + 1} {text} | head -c {FOLLOW_BYTES} | {_BASE64}); "
        f"[ -f {ended} ] && echo ended {number}"
    )


def poll(*parts: str) -> str:
    """One line of `queue` and `follow`."""
    return line(*parts)


def ends(jobs: Sequence[EndOf]) -> str:
    """What accounting, the controller and the jobs themselves say, and the last lines of all their streams.

    Accounting is asked once for all of them, and the controller about each job that did not do well by that.
    """
    ids = ",".join(job.job_id for job in jobs)
    return line(
        f"told=$(sacct ${{SLURM_CLUSTERS:+--clusters=$SLURM_CLUSTERS}} --jobs={ids} --noheader --parsable2 --noconvert "
        f"--format={','.join(SACCT_FIELDS)} 2>/dev/null)",
        "printf '%s\\n' \"$told\" | sed 's/^/sacct /'",
        *(part for job in jobs for part in _end_of(job)),
    )


def _end_of(job: EndOf) -> tuple[str, ...]:
    # Another job may have had this id: the folder stands last in its row, and its name ends with a token of its own.
    row = f"^{job.job_id}|COMPLETED|.*{job.files.token}$"
    well = f"printf '%s\\n' \"$told\" | grep -q {shlex.quote(row)}"
    controller = f"scontrol show job --oneliner {job.job_id} 2>&1 | sed 's/^/scontrol /'"
    return (
        f"echo of {job.job_id}",
        controller if job.starts_again else f"{well} || {controller}",
        f"if cd {shlex.quote(job.files.folder)}; then "
        f'for f in exit exit.*; do [ -f "$f" ] && echo file "$f" $(head -c {RECORD_BYTES} "$f" | {_WORDS_ALONE}); done; '
        f'for f in stdout stderr stderr.*; do [ -f "$f" ] && echo tail "$f" $(tail -c {TAIL_BYTES} "$f" | {_BASE64}); done; fi',
    )


def checkpoint(folder: str, files: JobFiles) -> str:
    """Whether a step has left a checkpoint, and whether it is newer than the submission of its last job."""
    return line(*look_for_checkpoint(folder, since=files.script))


def cancel(job_ids: Sequence[str]) -> str:
    """Cancels, and says in which state the jobs are then."""
    return line(f"scancel {' '.join(job_ids)}", queue())


def line(*parts: str) -> str:
    """One line for the login node, whose answer ends with a mark."""
    # A sub-shell: some connectors keep one shell for many lines, whose folder, umask and environment must stay.
    return f"( {'; '.join((OWN_ENVIRONMENT, *parts, f'echo {END}'))} )"


def _claim(files: JobFiles) -> str:
    return shlex.quote(files.path("claimed"))


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def at_cluster(cluster: str, text: str) -> str:
    """The same line or script for one of several clusters of a login node; empty for its own."""
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
        f"left() {{ queue=$(squeue --me --noheader --format={_JOBS}) || exit 75; "
        "echo \"$queue\" | while IFS='|' read -r id state reason start key; do "
        'case "$key" in ' + patterns + ') echo "${id#job }";; esac; done; }\n'
        "found=$(left) || exit 75\n"
        '[ -z "$found" ] || scancel $found\n'
        "for second in $(seq 60); do\n"
        "  now=$(left) || exit 75\n"
        '  if [ -z "$now" ]; then echo "$found" | wc -w; break; fi\n'
        "  sleep 1\n"
        "done\n"
        '[ -z "$now" ] || { echo "jobs $now are still in the queue" >&2; exit 75; }'
    )
