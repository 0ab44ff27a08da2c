"""The sites of the campaign, and threads for concurrent jobs."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from faults.case import CannotPlay, Case
from faults.pod_site import Pods
from faults.slurm_site import Slurm
from support.testbed import Sites

THREADS = 128  # most of them wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The sites of the testbed.

    Attributes:
        seed: seed of the campaign.
        say: prints a line.
    """

    testbed: Sites
    slurm: Slurm
    pods: Pods
    seed: int
    say: Callable[[str], None]
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(THREADS))

    def side_by_side(self, cases: Sequence[Case], one: Callable[[Case], None]) -> None:
        """Run a function for all cases without trouble at the same time; an error is recorded in its case."""

        def safely(case: Case) -> None:
            if case.trouble:
                return
            try:
                one(case)
            except CannotPlay as problem:
                case.trouble = str(problem)
            except Exception:  # an error of the campaign says nothing about medweave
                case.trouble = traceback.format_exc(limit=-3)

        list(self.threads.map(safely, cases))


def for_each_case(one: Callable[[Stage, Case], None]) -> Callable[[Stage, Sequence[Case]], None]:
    """Return a function that runs all cases of a kind at the same time."""

    def play(stage: Stage, cases: Sequence[Case]) -> None:
        stage.side_by_side(cases, lambda case: one(stage, case))

    return play
