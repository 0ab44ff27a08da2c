"""Faults of the connection to the site and of the driver: the job must complete once."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Sequence

import psutil

from faults.case import CannotPlay, Case, Kind
from faults.slurm_kinds import prepare
from faults.slurm_site import Row
from faults.stage import Stage, for_each_case

WORK_S = 8
MOMENTS = (
    "before it submits",
    "as it submits",
    "while the job runs",
    "after the job's end",
    "as the outputs come home",
)
CUTS = (MOMENTS[1], MOMENTS[2], MOMENTS[4])
QUICK_S = 0.002


def ssh_cut(stage: Stage, case: Case) -> None:
    """Kill the server's end of the driver's connection: at submission, while the job runs, or while outputs are copied."""
    prepare(case, case.script(f"sleep {WORK_S}"))
    moment = CUTS[(case.number + stage.seed) % len(CUTS)]
    _until(stage, case, moment)
    ports = _ports(case)
    servers = _servers(stage, ports)
    if not servers:
        raise CannotPlay("the driver had no connection")
    killed = stage.testbed.inside("base", "kill", "-KILL", *map(str, sorted(servers)))
    case.inject(f"SIGKILL to sshd of its connection {moment}")
    case.evidence.append(
        f"sshd {' '.join(map(str, sorted(servers)))} of port {' '.join(map(str, sorted(ports)))} killed"
    )
    case.refuted = killed.returncode != 0
    case.end()


def driver_killed(stage: Stage, case: Case) -> None:
    """Kill the driver at some moment and start the same again."""
    prepare(case, case.script(f"sleep {WORK_S}"))
    # The moments follow one another from a seeded one, so that five jobs cover all of them.
    moment = MOMENTS[(case.number + stage.seed) % len(MOMENTS)]
    _until(stage, case, moment)
    case.run.signal(signal.SIGKILL)
    case.run.process.join(30)
    case.inject(f"SIGKILL to the driver {moment}")
    case.evidence.append(f"the driver ended with {case.run.process.exitcode}")
    case.refuted = case.run.process.exitcode != -signal.SIGKILL
    time.sleep(case.chance.uniform(0, 3))
    with case.gate:
        case.begin()
    case.end()


def _until(stage: Stage, case: Case, moment: str) -> None:
    chance = case.chance.random()
    if moment == MOMENTS[0]:
        case.begin_and_wait((case.next_record / "events.jsonl").exists, what="its run begins")
        time.sleep(chance)
    elif moment == MOMENTS[1]:
        case.begin_and_wait((case.next_record / "work" / "slurm-jobs.jsonl").exists, what="it submits")
        time.sleep(chance / 2)
    else:
        case.begin_and_wait()
        if moment == MOMENTS[2]:
            time.sleep(chance * WORK_S * 0.8)
        elif moment == MOMENTS[3]:
            time.sleep(chance)
            case.run.signal(signal.SIGSTOP)  # so it does not notice the end
            case.wait_for(lambda: stage.slurm.final_rows(case.name), "Slurm has ended the job", limit_s=60)
        else:
            log = case.record / "events.jsonl"
            case.wait_for(lambda: b'"job.ended"' in log.read_bytes(), "its job has ended", limit_s=90, nap_s=QUICK_S)


def _ports(case: Case) -> set[int]:
    """Return local ports of the driver's connections to ssh servers."""
    connections = psutil.Process(case.run.process.pid).net_connections(kind="tcp")
    return {
        connection.laddr.port
        for connection in connections
        if connection.raddr and connection.raddr.port == 22 and connection.status == "ESTABLISHED"
    }


def _servers(stage: Stage, ports: set[int]) -> set[int]:
    """Return process ids of the server's ends of these connections."""
    output = stage.testbed.inside("base", "ss", "-H", "-t", "-n", "-p", "sport", "=", ":22").stdout
    lines = [line for line in output.splitlines() if any(re.search(rf":{port}\s", line) for port in ports)]
    return {int(pid) for line in lines for pid in re.findall(r"pid=(\d+)", line)}


def completed(case: Case, rows: Sequence[Row]) -> bool:
    """Return whether Slurm ran the job to its end."""
    return len(rows) > 0 and rows[-1].state == "COMPLETED"


KINDS = (
    Kind(name="ssh-cut", site="slurm", play=for_each_case(ssh_cut), proof=completed, fatal=False),
    Kind(name="driver-killed", site="slurm", play=for_each_case(driver_killed), proof=completed, fatal=False),
)
