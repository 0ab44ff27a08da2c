"""The testbed's slurmctld with other settings, or away for a while. It is as it was after that."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from medweave_testbed.catalogue import parts_of
from medweave_testbed.cli import make_testbed
from medweave_testbed.part import bring_up
from support.testbed import Sites

STOP_S = 60.0  # it saves its state before it ends


@contextmanager
def configured(testbed: Sites, preempt_mode: str, **settings: str) -> Iterator[None]:
    """Run a controller with other settings, while the block runs.

    Args:
        preempt_mode: what happens to jobs of the partition `normal` when `urgent` needs their nodes: CANCEL, REQUEUE or SUSPEND.
        settings: lines of slurm.conf.
    """
    file = testbed.layout.slurm / "etc" / "slurm.conf"
    usual = file.read_text(encoding="utf-8")
    stop_controller()
    file.write_text(other_conf(usual, preempt_mode, settings), encoding="utf-8")
    try:
        start_controller()
        yield
    finally:
        stop_controller()
        file.write_text(usual, encoding="utf-8")
        start_controller()


def other_conf(usual: str, preempt_mode: str, settings: Mapping[str, str]) -> str:
    """Return the text of slurm.conf with other settings."""
    everywhere = {"PreemptMode": "SUSPEND,GANG" if preempt_mode == "SUSPEND" else preempt_mode, **settings}
    lines = [line for line in usual.splitlines() if line.partition("=")[0] not in everywhere]
    lines = [line.replace("PreemptMode=CANCEL", f"PreemptMode={preempt_mode}") for line in lines]
    return "\n".join([*(f"{name}={value}" for name, value in everywhere.items()), *lines, ""])


def stop_controller() -> None:
    """End slurmctld as an operator does; return when it is gone."""
    make_testbed(dict(os.environ)).daemons.stop("slurmctld", patience_s=STOP_S)


def start_controller() -> None:
    """Start slurmctld and wait until it answers."""
    bed = make_testbed(dict(os.environ))
    (part,) = [part for part in parts_of(bed.layout, existing_cluster=False) if part.daemon == "slurmctld"]
    bring_up(part, bed)


def freeze_controller(testbed: Sites, *, frozen: bool) -> None:
    """Stop the process of slurmctld by a signal, or resume it: while stopped, it accepts connections and does not answer."""
    pid = make_testbed(dict(os.environ)).daemons.pid("slurmctld")
    outcome = testbed.inside("base", "kill", "-STOP" if frozen else "-CONT", str(pid))
    assert outcome.returncode == 0, outcome.stderr
