"""Inject real faults into real jobs, and compare the reports of Slurm and Kubernetes with medweave's.

    make testbed
    python tests/faults/campaign.py [--seed 1] [--jobs-per-kind 5] [--kinds time-limit node-down …]

Each fault is one job. At the end a table is printed; build/faults/summary.json has a row per fault. The exit code is 0 if every
fault happened, and there is no false success, no lost or doubled job and no orphan.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SUMMARY = ROOT / "build" / "faults" / "summary.json"
# Drivers are forked from a process that executes this file again, so it has only the imports that they need.
for _folder in (ROOT / "tests", ROOT / "deployments" / "testbed"):
    sys.path.insert(0, str(_folder))


def say(text: str) -> None:
    """Print a line and flush it."""
    print(f"faults: {text}", flush=True)


def options() -> argparse.Namespace:
    """Parse the command line."""
    from faults.lanes import KINDS

    names = [kind.name for kind in KINDS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="seed of the random moments and exit codes (1)"
    )
    parser.add_argument("--jobs-per-kind", type=int, default=5, metavar="N", help="jobs of each kind of fault (5)")
    parser.add_argument(
        "--kinds", nargs="+", choices=names, default=names, metavar="KIND", help=f"of {', '.join(names)}"
    )
    arguments = parser.parse_args()
    if arguments.jobs_per_kind < 1:
        parser.error("--jobs-per-kind must be 1 or more")
    return arguments


def broken() -> dict[str, str]:
    """Return the reason for each part of the testbed that is down, except parts that are only older than the source."""
    from support.testbed import down_parts

    return {name: reason for name, reason in down_parts().items() if name not in ("environment", "images")}


def check() -> None:
    """Exit with one message if the testbed is not up."""
    down = {"user": "only root may break the testbed"} if os.geteuid() != 0 else broken()
    if down:
        sys.exit(
            "faults: the testbed is not up.\n"
            f"  seen:     {'; '.join(f'{name}: {reason}' for name, reason in down.items())}\n"
            "  expected: all of its parts up, and root\n"
            "  do:       run `make testbed`, then run again"
        )


def mend() -> None:
    """Bring up the parts of the testbed that are down."""
    from support.testbed import call

    if down := broken():
        say(f"bringing up again: {', '.join(down)}")
        call("up", timeout_s=300)
    if down := broken():
        say(f"STILL DOWN: {down}")


def play(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the campaign and return its summary."""
    from faults import tally
    from faults.lanes import KINDS, Campaign
    from faults.pod_site import Pods
    from faults.slurm_site import Slurm
    from faults.stage import Stage
    from support.hybrid_runs import laptop
    from support.testbed import sites

    testbed, name, started = sites(), secrets.token_hex(3), time.monotonic()
    stage = Stage(testbed=testbed, slurm=Slurm(testbed), pods=Pods(testbed, name), seed=arguments.seed, say=say)
    environment = laptop(testbed) | {"KUBECONFIG": str(testbed.layout.laptop_home / ".kube" / "tenant-a.kubeconfig")}
    campaign = Campaign(stage=stage, name=name, environment=environment)
    say(
        f"seed {arguments.seed}, {arguments.jobs_per_kind} jobs of each of {len(arguments.kinds)} kinds; runs in {campaign.folder}"
    )
    keep = True
    try:
        stage.pods.open()
        with stage.slurm.shared_partition():
            campaign.play([kind for kind in KINDS if kind.name in arguments.kinds], arguments.jobs_per_kind)
        result = tally.summary(
            campaign.rows,
            seed=arguments.seed,
            jobs_per_kind=arguments.jobs_per_kind,
            seconds=time.monotonic() - started,
        )
        keep = not tally.is_good(result)
        return result
    finally:
        campaign.stop()
        stage.pods.close()
        stage.threads.shutdown()
        campaign.clean(keep=keep)
        mend()


def write(result: dict[str, Any]) -> None:
    """Write the summary file atomically."""
    SUMMARY.parent.mkdir(parents=True, exist_ok=True)
    part = SUMMARY.with_suffix(".json.part")
    part.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    part.replace(SUMMARY)


def main() -> int:
    """Run the campaign and return the exit code."""
    from faults import tally

    arguments = options()
    check()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        result = play(arguments)
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    write(result)
    print(f"\n{tally.table(result)}\n{SUMMARY.relative_to(ROOT)}")
    return 0 if tally.is_good(result) else 1


if __name__ == "__main__":
    sys.exit(main())
