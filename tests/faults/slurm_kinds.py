"""Faults that end Slurm jobs: limits, other jobs, cancellation, signals, lost nodes. Each is a typed failure."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from faults.case import CannotPlay, Case, Kind
from faults.slurm_site import PARTITION, Row
from faults.stage import Stage, for_each_case
from medweave_connectors.jobs.retries.policy import FailureKind
from support.slurm_runs import resources, write

STEADY, FRAGILE = "n1", "n2"  # jobs on the second node are preempted, and it goes down
MEMORY_MIB = 100
WAIT = "sleep 900"
# Uses more than its request, and then waits until Slurm notices.
GREEDY = "python3 -c 'import time; x = bytearray(400 << 20); time.sleep(120)'"
SIGKILL = 128 + signal.SIGKILL


def prepare(
    case: Case,
    script: str,
    *,
    node: str = STEADY,
    partition: str = PARTITION,
    tool: Mapping[str, Any] | None = None,
) -> None:
    """Write the workflow of a case whose step is a Slurm job, without retries."""
    service = {"partition": partition, **({"options": [f"--nodelist={node}"]} if node else {})}
    write(case.folder, {case.name: (script, tool or resources(memory_mib=MEMORY_MIB))}, service=service)


def has_state(state: str, exit_code: str = "") -> Any:
    """Return a proof that the case's last job is in a state."""

    def proof(case: Case, rows: Sequence[Row]) -> bool:
        return len(rows) > 0 and rows[-1].state == state and (not exit_code or rows[-1].exit_code == exit_code)

    return proof


def time_limit(stage: Stage, case: Case) -> None:
    """Run past a time limit of one minute; Slurm checks every half minute."""
    prepare(case, case.script(WAIT), tool=resources(memory_mib=MEMORY_MIB, ToolTimeLimit={"timelimit": 30}))
    case.begin_and_wait()
    case.inject("a step of 15 min in a job of 1 min")
    case.end()


def memory(stage: Stage, case: Case) -> None:
    """Use four times the requested memory without control groups: Slurm's accounting notices and kills the step."""
    prepare(case, case.script(GREEDY))
    case.begin_and_wait()
    case.inject(f"400 MiB used of {MEMORY_MIB}, no control groups")
    case.end()


def overused(case: Case, rows: Sequence[Row]) -> bool:
    """Return whether Slurm killed the job after it used more than its request."""
    row = rows[-1] if rows else None
    if row is None or row.peak_mib is None or row.requested_mib is None:
        return False
    return row.state in ("FAILED", "OUT_OF_MEMORY") and row.peak_mib > row.requested_mib


def confined_memory(stage: Stage, cases: Sequence[Case]) -> None:
    """Use too much memory on a node with control groups. Every second step ignores the kill and ends with 0."""
    with stage.slurm.confined(FRAGILE):

        def one(case: Case) -> None:
            ignored = case.number % 2 == 0
            prepare(case, case.script(f"{GREEDY} || " + ("true" if ignored else "exit $?")), node=FRAGILE)
            case.begin_and_wait()
            case.inject(f"400 MiB used of {MEMORY_MIB}, control groups" + (", the step ends with 0" if ignored else ""))
            case.end()

        stage.side_by_side(cases, one)


def preemption(stage: Stage, cases: Sequence[Case]) -> None:
    """Preempt the jobs by one of higher priority that needs the whole node."""
    stage.side_by_side(cases, lambda case: _wait_on(case, FRAGILE))
    urgent = stage.testbed.submitted(
        "--partition=urgent", f"--nodelist={FRAGILE}", "--ntasks=2", "--mem=8000M", "--output=/dev/null", "--exclusive",
        script="sleep 2",
    )  # fmt: skip
    _inject_all(cases, f"job {urgent} of partition urgent wants {FRAGILE}")
    stage.side_by_side(cases, lambda case: case.end())


def node_down(stage: Stage, cases: Sequence[Case]) -> None:
    """Set the node of the jobs down."""
    stage.side_by_side(cases, lambda case: _wait_on(case, FRAGILE))
    try:
        stage.slurm.done("scontrol", "update", f"nodename={FRAGILE}", "state=down", "reason=fault campaign")
        _inject_all(cases, f"scontrol update nodename={FRAGILE} state=down")
        stage.side_by_side(cases, lambda case: case.end())
    finally:
        stage.slurm.resume(FRAGILE)


def scancel(stage: Stage, case: Case) -> None:
    """Cancel the job at the site."""
    prepare(case, case.script(WAIT))
    case.begin_and_wait()
    time.sleep(case.chance.uniform(0, 4))
    job_id = stage.slurm.job_id(case.name)
    stage.slurm.done("scancel", job_id)
    case.inject(f"scancel {job_id}")
    case.end()


def exit_code(stage: Stage, case: Case) -> None:
    """End the command with some exit code; every second one writes its complete output nevertheless."""
    code = case.chance.randint(1, 255)
    whole = case.number % 2 == 0
    case.right_code = code
    prepare(case, case.script("sleep 1" if whole else f"exit {code}", rest=f"exit {code}"))
    case.begin_and_wait()
    case.inject(f"exit {code}" + (", with a complete output" if whole else ""))
    case.end()


def exited(case: Case, rows: Sequence[Row]) -> bool:
    """Return whether Slurm has the exit code; sacct subtracts 128 from codes of 128 and more."""
    codes = {f"{case.right_code}:0", f"{(case.right_code or 0) - 128}:0"}
    return len(rows) > 0 and rows[-1].state == "FAILED" and rows[-1].exit_code in codes


def kill(stage: Stage, case: Case) -> None:
    """Kill the step's process, or the process group of the job script."""
    case.right_code = SIGKILL
    prepare(case, case.script(f"exec {WAIT}"))
    case.begin_and_wait()
    time.sleep(case.chance.uniform(0, 4))
    pid, of = str(case.processes[-1]), "the step's process"
    if case.number % 2 == 0:  # this Slurm loses the children of a script that is killed alone (proctrack/linuxproc)
        pid, of = f"-{batch_shell(stage, int(pid))}", "the job script's process group"
    killed = stage.testbed.inside("base", "kill", "-KILL", "--", pid)
    case.inject(f"SIGKILL to {of}, {pid.lstrip('-')}")
    if killed.returncode:
        raise CannotPlay(killed.stderr.strip())
    case.end()


def killed(case: Case, rows: Sequence[Row]) -> bool:
    """Return whether Slurm has the signal, or the exit code for it."""
    return len(rows) > 0 and rows[-1].state == "FAILED" and rows[-1].exit_code in ("0:9", "9:0", f"{SIGKILL}:0")


def batch_shell(stage: Stage, pid: int) -> int:
    """Return the process id of the job script's shell above a step's process."""
    while pid > 1:
        fields = stage.testbed.inside("base", "ps", "-o", "ppid=,args=", "-p", str(pid)).stdout.split(None, 1)
        if len(fields) == 2 and "slurm_script" in fields[1]:
            return pid
        pid = int(fields[0]) if fields else 0
    raise CannotPlay("the job script's shell was not found")


def _wait_on(case: Case, node: str) -> None:
    prepare(case, case.script(WAIT), node=node)
    case.begin_and_wait()


def _inject_all(cases: Sequence[Case], what: str) -> None:
    for case in cases:
        if not case.trouble:
            case.inject(what)


KINDS = (
    Kind(
        name="time-limit",
        site="slurm",
        play=for_each_case(time_limit),
        proof=has_state("TIMEOUT"),
        right=frozenset({FailureKind.TIMEOUT}),
    ),
    Kind(
        name="memory",
        site="slurm",
        play=for_each_case(memory),
        proof=overused,
        right=frozenset({FailureKind.OUT_OF_MEMORY}),
    ),
    Kind(
        name="preemption",
        site="slurm",
        play=preemption,
        proof=has_state("PREEMPTED"),
        right=frozenset({FailureKind.PREEMPTED}),
    ),
    Kind(
        name="scancel",
        site="slurm",
        play=for_each_case(scancel),
        proof=has_state("CANCELLED"),
        right=frozenset({FailureKind.CANCELLED}),
    ),
    Kind(
        name="exit-code",
        site="slurm",
        play=for_each_case(exit_code),
        proof=exited,
        right=frozenset({FailureKind.STEP_FAILED}),
        most=10,
    ),
    Kind(
        name="sigkill", site="slurm", play=for_each_case(kill), proof=killed, right=frozenset({FailureKind.STEP_FAILED})
    ),
    Kind(
        name="node-down",
        site="slurm",
        play=node_down,
        proof=has_state("NODE_FAIL"),
        right=frozenset({FailureKind.NODE_FAIL}),
        alone=True,
    ),
    Kind(
        name="memory-confined",
        site="slurm",
        play=confined_memory,
        proof=has_state("OUT_OF_MEMORY"),
        right=frozenset({FailureKind.OUT_OF_MEMORY}),
        alone=True,
    ),
)
