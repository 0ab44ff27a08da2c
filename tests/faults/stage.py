"""What the kinds of fault play on: the sites, and threads for jobs that go side by side."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from faults.case import CannotPlay, Case
from faults.pod_site import Pods
from faults.slurm_site import Slurm
from support.testbed import Sites

THREADS = 128  # they wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The sites of the testbed.

    Attributes:
        seed: of the campaign.
        say: prints a line.
    """

    testbed: Sites
    slurm: Slurm
    pods: Pods
    seed: int
    say: Callable[[str], None]
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(THREADS))

    def side_by_side(self, cases: Sequence[Case], one: Callable[[Case], None]) -> None:
        """Does the same with all cases that still can be played, at once; what goes wrong with one is noted there."""

        def safely(case: Case) -> None:
            if case.trouble:
                return
            try:
                one(case)
            except CannotPlay as problem:
                case.trouble = str(problem)
            except Exception:  # an error of the campaign's own is no verdict about medweave
                case.trouble = traceback.format_exc(limit=-3)

        list(self.threads.map(safely, cases))


def each(one: Callable[[Stage, Case], None]) -> Callable[[Stage, Sequence[Case]], None]:
    """Plays all cases of a kind side by side."""

    def play(stage: Stage, cases: Sequence[Case]) -> None:
        stage.side_by_side(cases, lambda case: one(stage, case))

    return play
