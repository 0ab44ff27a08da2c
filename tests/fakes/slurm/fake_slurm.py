#!/usr/bin/env -S python3 -IS
"""A stand-in for Slurm's programs, for faults that a real cluster shows rarely. It starts jobs, one process each.

Which program it is, its name says. $FAKE_SLURM is its folder: jobs/ID/{word,comment,reason,exit}; `submitted`, the words of each
sbatch; `alive`, how many jobs had not ended after each of them; `queries`, each squeue with its time, s, and each other query;
and files that a test makes:
  no-accounting       sacct fails, as at a site without slurmdbd
  end-word            the state of jobs that end, instead of COMPLETED or FAILED; several words: of the first job, the second …,
                      the last one for all others; `-` for the true one
  time-limit          time of a job, s, after which it is TIMEOUT; several, as above. At half of it comes the signal of --signal
  forget              the controller no longer has ended jobs, as after MinJobAge
  squeue-fails        number of times that squeue does not reach the controller, or `always`; sbatch-fails, scontrol-fails and
                      sinfo-fails too. `always` stays as it is: a test that takes it away is not written over
  sinfo-says          why sinfo fails
  sinfo-sleeps        sinfo does not come to its end
  sbatch-timeout      number of times that sbatch takes the job and then gets no answer
  sbatch-refuses      number of times that sbatch refuses the job
  sbatch-sleeps       sbatch takes the job and sleeps for so long before it answers, s
  requeue             the first job that may is killed when squeue has listed it as running, and started again when squeue has
                      listed it as waiting; the file goes with that
  pending             the reason for which jobs wait for ever
  trial               what sbatch --test-only says; it submits nothing
  accounts, qos       what sacctmgr lists
  reason              the reason printed with the state of jobs that end, instead of None
  start               the time at which they are expected to start
"""

import os
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["FAKE_SLURM"])
CLUSTER = os.environ.get("SLURM_CLUSTERS", "")
JOBS = FOLDER / "jobs" / CLUSTER
ENDED = {"COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "PREEMPTED", "NODE_FAIL", "OUT_OF_MEMORY"}


def knob(name: str) -> str:
    path = FOLDER / name
    return path.read_text().strip() if path.exists() else ""


def knob_of(name: str, job: Path) -> str:
    """Return this job's word in the file; empty for `-`."""
    words = knob(name).split()
    word = words[min(int(job.name) - 100, len(words) - 1)] if words else "-"
    return "" if word == "-" else word


def countdown(name: str) -> bool:
    value = knob(name)
    if value == "always":
        return True
    left = int(value or 0)
    if left:
        (FOLDER / name).write_text(str(left - 1))
    return left > 0


def unreached(program: str) -> bool:
    away = countdown(f"{program}-fails")
    if away:
        print(f"{program}: error: Unable to contact slurm controller (connect failure)", file=sys.stderr)
    return away


def note(job: Path, name: str, text: str) -> None:
    part = job / f".{name}"
    part.write_text(text)
    part.rename(job / name)


def word_of(job: Path) -> str:
    return (job / "word").read_text()


def listed(job: Path) -> str:
    """Return the state in which squeue listed a job last; empty if it has not."""
    path = job / "listed"
    return path.read_text() if path.exists() else ""


def known() -> list[Path]:
    jobs = sorted(JOBS.glob("*"), key=lambda job: int(job.name)) if JOBS.exists() else []
    return [job for job in jobs if not (knob("forget") == "all" or (knob("forget") and word_of(job) in ENDED))]


def sbatch(words: list[str]) -> int:
    if "--test-only" in words:
        print(knob("trial") or "sbatch: Job 1 to start at 2026-11-22T10:00:00", file=sys.stderr)
        return 0
    if unreached("sbatch"):
        return 1
    options = dict(word.removeprefix("--").split("=", 1) for word in words if "=" in word)
    with (FOLDER / "submitted").open("a") as file:
        file.write(" ".join(words) + "\n")
    if countdown("sbatch-refuses"):
        print("sbatch: error: Batch job submission failed: Job violates accounting/QOS policy", file=sys.stderr)
        return 1
    JOBS.mkdir(parents=True, exist_ok=True)
    made = FOLDER / f"new-{os.getpid()}"
    made.mkdir()
    note(made, "comment", options["comment"])
    note(made, "folder", options["chdir"])
    note(made, "signal", options.get("signal", ""))
    note(made, "may-requeue", "1" if "--requeue" in words else "")
    note(made, "open-mode", "ab" if options.get("open-mode") == "append" else "wb")
    note(made, "word", "PENDING" if knob("pending") else "RUNNING")
    job = JOBS / str(100 + len(list(JOBS.glob("*"))))
    while True:  # others submit at the same time; a job is there with all its files or not at all
        try:
            made.rename(job)
            break
        except OSError:
            job = JOBS / str(int(job.name) + 1)
    with (FOLDER / "alive").open("a") as file:
        file.write(f"{sum(word_of(job) not in ENDED for job in known())}\n")
    if not knob("pending"):
        import subprocess  # a test starts dozens of these programs, of which few start a job

        words = [
            sys.executable,
            "-IS",
            str(Path(__file__).resolve()),
            "run",
            str(job),
            words[-1],
            options["output"],
            options["error"],
        ]
        subprocess.Popen(
            words,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    time.sleep(float(knob("sbatch-sleeps") or 0))
    if countdown("sbatch-timeout"):
        print("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", file=sys.stderr)
        return 1
    print(f"{job.name};{CLUSTER}" if CLUSTER else job.name)
    return 0


def run(words: list[str]) -> int:
    import signal
    import subprocess

    job, script, output, error = map(Path, words)
    mode = (job / "open-mode").read_text()
    with output.open(mode) as stdout, error.open(mode) as stderr:
        process = subprocess.Popen(
            ["sh", script],
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, "SLURM_JOB_ID": job.name},
            start_new_session=True,
        )
        limit_s, final_word, started = float(knob_of("time-limit", job) or 1e9), "", time.monotonic()
        signal_option = (job / "signal").read_text()
        while process.poll() is None:
            elapsed_s = time.monotonic() - started
            if signal_option.startswith("B:USR1@") and elapsed_s > limit_s / 2:
                process.send_signal(signal.SIGUSR1)  # to the job's script alone, as `B:` says
                signal_option = ""
            if elapsed_s > limit_s:
                final_word = "TIMEOUT"
            if word_of(job) == "CANCELLED" or final_word:
                os.killpg(process.pid, signal.SIGKILL)
            may_requeue = knob("requeue") and (job / "may-requeue").read_text()
            if may_requeue and elapsed_s > 0.5 and listed(job) == "RUNNING":
                (FOLDER / "requeue").unlink()
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                note(job, "word", "PENDING")
                while listed(job) != "PENDING":
                    time.sleep(0.05)
                note(job, "word", "RUNNING")
                return run(words)
            time.sleep(0.05)
    if word_of(job) != "CANCELLED":
        note(job, "exit", f"{max(process.returncode, 0)}:{max(-process.returncode, 0)}")
        note(job, "word", final_word or knob_of("end-word", job) or ("FAILED" if process.returncode else "COMPLETED"))
    return 0


def squeue(words: list[str]) -> int:
    with (FOLDER / "queries").open("a") as file:
        file.write(f"squeue {time.time():.2f}\n")
    if unreached("squeue"):
        return 1
    for job in known():
        word = word_of(job)
        if "--states=all" not in words and word in ENDED:
            continue
        print(
            f"job {job.name}|{word}|{knob('pending') or 'None'}|{knob('start') or 'N/A'}|{(job / 'comment').read_text()}"
        )
        note(job, "listed", word)
    return 0


def exit_code(job: Path) -> str:
    return (job / "exit").read_text() if (job / "exit").exists() and not knob_of("end-word", job) else "0:0"


def scontrol(words: list[str]) -> int:
    with (FOLDER / "queries").open("a") as file:
        file.write("scontrol\n")
    if unreached("scontrol"):
        return 1
    job = JOBS / words[-1]
    if job not in known():
        print("slurm_load_jobs error: Invalid job id specified")
        return 1
    print(
        f"JobId={job.name} JobName=x JobState={word_of(job)} Reason={knob('reason') or 'None'} ExitCode={exit_code(job)} "
        f"RunTime=00:00:02 NodeList=n1 WorkDir={(job / 'folder').read_text()}"
    )
    return 0


def sacct(words: list[str]) -> int:
    if CLUSTER and f"--clusters={CLUSTER}" not in words:  # alone among the programs, it does not read the variable
        return 0
    if knob("no-accounting"):
        print("Slurm accounting storage is disabled", file=sys.stderr)
        return 1
    with (FOLDER / "queries").open("a") as file:
        file.write("sacct\n")
    ids = next(word for word in words if word.startswith("--jobs=")).removeprefix("--jobs=").split(",")
    for job in (job for job in known() if job.name in ids):
        first, _, second = exit_code(job).partition(":")
        code = f"{int(first) % 128}:{second}"  # as sacct writes codes of 128 and more
        print(
            f"{job.name}|{word_of(job)}|{code}|2|2026-11-21T10:00:00|2026-11-21T10:00:03|00:01.500||n1|01:00:00|None|"
            f"{(job / 'folder').read_text()}"
        )
        print(f"{job.name}.batch|{word_of(job)}|{code}|2|||00:01.500|20480K|n1|")
    return 0


def scancel(words: list[str]) -> int:
    for job in known():
        if job.name in words and word_of(job) not in ENDED:
            note(job, "word", "CANCELLED")
    return 0


def sinfo(words: list[str]) -> int:
    with (FOLDER / "queries").open("a") as file:
        file.write("sinfo\n")
    if knob("sinfo-sleeps"):
        time.sleep(600)
    if knob("sinfo-says"):
        print(f"sinfo: error: {knob('sinfo-says')}", file=sys.stderr)
        return 1
    if unreached("sinfo"):
        return 1
    print("partition normal* 2 8000 1-00:00:00 (null) (null)")
    print("partition gpu 8 64000 infinite gpu:a100:4(S:0-1),tpu:1 avx512,big")
    return 0


def sacctmgr(words: list[str]) -> int:
    print(knob("qos" if "qos" in words else "accounts"))
    return 0


if __name__ == "__main__":
    name = Path(sys.argv[0]).name
    words = sys.argv[1:]
    if name == "fake_slurm.py":
        name, words = words[0], words[1:]
    sys.exit(globals()[name](words))
