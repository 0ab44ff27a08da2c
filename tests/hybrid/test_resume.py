"""Drivers of a real run over the laptop, Slurm and pods, killed three times in a row: the whole campaign is `make resume`."""

from __future__ import annotations

import random
from pathlib import Path

from resume.campaign import moments
from resume.cases import play, undisturbed
from resume.drivers import nth
from resume.stage import make_stage
from support.testbed import Sites

EVENTS = 34  # of an undisturbed run, as the campaign has counted them; one more or less only moves the kills


def test_run_with_killed_drivers_gives_equal_results(tmp_path: Path, testbed: Sites) -> None:
    stage = make_stage(testbed, tmp_path)
    wanted, _, _ = undisturbed(stage, "alone", alone=True)
    drawn = moments(random.Random(2), 3, EVENTS)
    with stage.pods:
        case = play(stage, "killed", [nth(moment) for moment in drawn], wanted)
    assert case.is_good, case
    assert len(wanted) == 2 * 3, "masks and tables of two cases"
    assert case.slurm_jobs == 1
    assert 1 <= case.releases <= 4, "one for each run that came so far"
    assert case.resumed_by == "medweave run --resume"
