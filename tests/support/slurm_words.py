"""Slurm's output about a job, and a request, for tests of parsers."""

from __future__ import annotations

from medweave_connectors.sites.slurm.service import Allocation
from medweave_connectors.sites.slurm.states import SchedulerState

ALLOCATION = Allocation(num_nodes=1, cores=4, memory_mib=3072, gpus=0, minutes=None)


def reported(source: str, word: str, exit_code: int = 0, signal_number: int = 0) -> SchedulerState:
    return SchedulerState(source=source, word=word, exit_code=exit_code, signal_number=signal_number)
