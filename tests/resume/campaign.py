"""Kill drivers of real runs with SIGKILL and resume the runs: the same result, no job twice, no step twice.

    make testbed
    python tests/resume/campaign.py [--seed 1] [--kills 20] [--training-kills 3]

The kills are spread over the events of the inference pipeline over the laptop, Slurm and pods; those of the training while it
computes. At the end build/resume/summary.json has `kills`, `same_result`, `doubled_jobs`, `repeated_steps`, and a row for each
kill. The exit code is 0 if all results are the same and nothing was done twice.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CONCURRENT_CASES = 2  # a driver waits most of the time
SUMMARY = ROOT / "build" / "resume" / "summary.json"
for _folder in (ROOT / "tests", ROOT / "deployments" / "testbed"):
    sys.path.insert(0, str(_folder))

from resume.cases import Case, play, undisturbed  # noqa: E402
from resume.drivers import Event, nth, nth_progress  # noqa: E402
from resume.stage import make_stage  # noqa: E402
from resume.verdict import boundaries  # noqa: E402
from support.testbed import down_parts, sites  # noqa: E402


def say(text: str) -> None:
    """Print a line and flush it."""
    print(f"resume: {text}", flush=True)


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the moments (1)")
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="kills in the inference pipeline (20)")
    parser.add_argument("--training-kills", type=int, default=3, metavar="N", help="kills in the training (3)")
    return parser.parse_args()


def check() -> None:
    """Exit with one message if the testbed is not up."""
    down = {name: why for name, why in down_parts().items() if name not in ("environment", "images")}
    if os.geteuid() != 0 or down:
        sys.exit(
            "resume: the testbed is not up, or you are not root.\n"
            f"  seen:     {'; '.join(f'{name}: {why}' for name, why in down.items()) or 'another user'}\n"
            "  expected: all of its parts up, and root\n"
            "  do:       run `make testbed`, then run again"
        )


def moments(draw: random.Random, count: int, last: int) -> list[int]:
    """Return numbers of events from 1 to `last`, one from each of `count` equal parts."""
    return [1 + int((number + draw.random()) * last / count) for number in range(count)]


def campaign(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run all cases and return the summary."""
    draw, started = random.Random(arguments.seed), time.monotonic()
    stage, warm_s = make_stage(sites(), folder), 0.0
    played: list[Future[Case]] = []

    def begin(
        name: str, is_it: Callable[[Event], bool], expected: Mapping[str, str], *, training: bool = False
    ) -> None:
        plain = len(played) % 2 == 0
        played.append(lanes.submit(play, stage, name, [is_it], expected, training=training, plain=plain))
        played[-1].add_done_callback(lambda done: say(str(done.exception() or done.result())))

    with stage.pods, ThreadPoolExecutor(CONCURRENT_CASES) as lanes:
        if arguments.kills:
            undisturbed(stage, "warm")  # first imports and pulls
            expected, events, warm_s = undisturbed(stage, "reference")
            say(f"an undisturbed run takes {warm_s:.0f} s and has {boundaries(events)} moments")
            for number, moment in enumerate(moments(draw, arguments.kills, boundaries(events))):
                begin(f"kill-{number}", nth(moment), expected)
        if arguments.training_kills:
            weights, events, _ = undisturbed(stage, "training", training=True)
            lines = sum(event["type"] == "job.progress" and event["step"] == "/train" for event in events)
            for number, moment in enumerate(moments(draw, arguments.training_kills, max(lines - 2, 1))):
                begin(f"training-{number}", nth_progress(moment, "/train"), weights, training=True)
    cases = [future.result() for future in played]
    return summary(cases, seed=arguments.seed, warm_s=warm_s, seconds=time.monotonic() - started)


def summary(cases: Sequence[Case], *, seed: int, warm_s: float, seconds: float) -> dict[str, Any]:
    """Return the content of the summary file."""
    return {
        "kills": len(cases),
        "same_result": sum(case.same_result for case in cases),
        "doubled_jobs": sum(case.doubled_jobs + case.doubled_pods for case in cases),
        "doubled_slurm_jobs": sum(case.doubled_jobs for case in cases),
        "doubled_pods": sum(case.doubled_pods for case in cases),
        "repeated_steps": sum(case.repeated_steps for case in cases),
        "ended_well": sum(case.is_good for case in cases),
        "seed": seed,
        "warm_run_seconds": round(warm_s, 1),
        "seconds": round(seconds, 1),
        "cases": [dataclasses.asdict(case) for case in cases],
    }


def main() -> int:
    """Run the campaign and return the exit code."""
    arguments = options()
    check()
    folder = Path(tempfile.mkdtemp(prefix="medweave-resume-"))
    result = campaign(arguments, folder)
    SUMMARY.parent.mkdir(parents=True, exist_ok=True)
    part = SUMMARY.with_suffix(".json.part")
    part.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    part.replace(SUMMARY)
    counts = {name: result[name] for name in ("kills", "same_result", "doubled_jobs", "repeated_steps")}
    print(f"\n{json.dumps(counts)}\n{SUMMARY.relative_to(ROOT)}")
    if result["ended_well"] < result["kills"]:
        say(f"the files of the bad cases are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
