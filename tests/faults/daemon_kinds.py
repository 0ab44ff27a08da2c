"""Daemons that are killed and restarted under running jobs: the job completes, or its failure is reported."""

from __future__ import annotations

import time
from collections.abc import Sequence

from faults.case import CannotPlay, Case, Kind
from faults.driver_kinds import completed
from faults.pod_site import PodHistory
from faults.slurm_kinds import prepare
from faults.slurm_site import restarted
from faults.stage import Stage
from medweave_connectors.jobs.retries.policy import FailureKind

WORK_S = 15
EVENT_S = 30.0
# The end of a command is unknown after its connection broke; it must be reported, not taken for a success.
CUT = frozenset({FailureKind.UNKNOWN, FailureKind.NODE_FAIL})


def controller(stage: Stage, cases: Sequence[Case]) -> None:
    """Kill slurmctld while jobs run and wait, and start it again some seconds later."""

    def one(case: Case) -> None:
        # One core for each job, so that one of five waits; the campaign's partition would be lost with the restart.
        prepare(case, case.script(f"sleep {WORK_S}"), node="", partition="normal")
        case.begin_and_wait(lambda: stage.slurm.job_id(case.name), what="Slurm has its job")

    stage.side_by_side(cases, one)
    # A controller that is killed before it has saved its jobs loses them, which is another fault.
    submitted = time.time()
    cases[0].wait_for(lambda: stage.slurm.saved_at() > submitted, "slurmctld has saved its state", limit_s=60)
    before = stage.slurm.boot_time()
    pause = cases[0].chance.uniform(1, 5)
    _inject_all(cases, f"SIGKILL to slurmctld, started again after {pause:.1f} s")
    restarted("slurmctld", after_s=pause)
    after = stage.slurm.boot_time()
    _note(cases, f"slurmctld boot time {before} then {after}", happened=before not in ("", after) and after != "")
    stage.side_by_side(cases, lambda case: case.end())


def kubelet(stage: Stage, cases: Sequence[Case]) -> None:
    """Kill the kubelet while commands run in its pods."""
    _start_in_pods(stage, cases)
    before = stage.pods.kubelet_starts()
    _strike(cases, "SIGKILL to the kubelet, started again", "kubelet")
    deadline = time.monotonic() + EVENT_S
    while (after := stage.pods.kubelet_starts()) <= before and time.monotonic() < deadline:
        time.sleep(0.5)
    stage.pods.wait_until_ready()
    _note(cases, f"{after - before} new event of the kubelet: Starting", happened=after > before)
    stage.side_by_side(cases, lambda case: case.end())


def api_server(stage: Stage, cases: Sequence[Case]) -> None:
    """Kill the API server while commands run over it."""
    _start_in_pods(stage, cases)
    before = stage.pods.server_started()
    _strike(cases, "SIGKILL to the API server, started again", "apiserver")
    after = stage.pods.server_started()
    _note(cases, f"API server started at {before} then {after}", happened=before not in ("", after) and after != "")
    stage.side_by_side(cases, lambda case: case.end())


def stayed(case: Case, history: PodHistory) -> bool:
    """Return whether the pod existed and its container was never restarted."""
    return bool(history.name) and history.restarts == 0


def _start_in_pods(stage: Stage, cases: Sequence[Case]) -> None:
    """Start jobs in pods that run until a file appears."""

    def one(case: Case) -> None:
        stage.pods.write(case, case.script(f"while [ ! -e {case.ledger_at_site}.end ]; do sleep 0.1; done"))
        case.begin_and_wait()
        case.uid = stage.pods.pod(case)["metadata"]["uid"]

    stage.side_by_side(cases, one)
    time.sleep(cases[0].chance.uniform(0, 3))


def _strike(cases: Sequence[Case], what: str, daemon: str) -> None:
    """Kill a daemon. Every third job ends just before, so that its outputs are being copied; the others afterwards."""
    for case in cases:
        if case.number % 3 == 0:
            _let_end(case)
    time.sleep(cases[0].chance.uniform(0, 0.4))
    _inject_all(cases, what)
    restarted(daemon, after_s=cases[0].chance.uniform(0, 3))
    for case in cases:
        _let_end(case)


def _let_end(case: Case) -> None:
    case.ledger.with_name(f"{case.name}.end").touch()


def _inject_all(cases: Sequence[Case], what: str) -> None:
    if all(case.trouble for case in cases):
        raise CannotPlay(cases[0].trouble)
    for case in cases:
        if not case.trouble and case.run.process.exitcode is not None:
            case.trouble = "its run had ended before the fault"
        if not case.trouble:
            case.inject(what)


def _note(cases: Sequence[Case], evidence: str, *, happened: bool) -> None:
    for case in cases:
        case.evidence.append(evidence)
        case.refuted = not happened


KINDS = (
    Kind(name="slurmctld-restarted", site="slurm", play=controller, proof=completed, fatal=False, alone=True),
    Kind(name="kubelet-restarted", site="pods", play=kubelet, proof=stayed, right=CUT, fatal=False, alone=True),
    Kind(name="apiserver-restarted", site="pods", play=api_server, proof=stayed, right=CUT, fatal=False, alone=True),
)
