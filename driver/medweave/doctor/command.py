"""`medweave doctor --site SITE`: test each connection and service that a run at this site needs, and suggest fixes."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from medweave.project.sites import find_site, read_site
from medweave_core.documents.closest_match import closest
from medweave_core.documents.yaml_documents import not_installed
from medweave_core.errors import UsageError, UserInputError

if TYPE_CHECKING:
    from medweave.doctor.hop_result import HopResult

TIMEOUT_S = 15.0
DESCRIPTION = """\
Test each connection and service of a site, and suggest a fix for each problem. All deployments are tested in
parallel. All test files and pods are removed.

  ssh         host key, login, clock, programs, work directory, free space, quota, worker environment, bandwidth
  Slurm       partitions, accounts and GPUs, by `sbatch --test-only`
  Kubernetes  version, clock, permissions, rendered chart, quotas, volume claims, each image in a test pod
  transfers   route and bandwidth between each pair of sites, bucket"""
EPILOG = """\
examples:
  medweave doctor --site my-site
  medweave doctor --site my-site --deployment hpc --timeout 60

exit codes:
  0   a run can start; warnings may be printed
  2   wrong usage
  65  a test failed or timed out"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `medweave doctor`."""
    parser.add_argument(
        "--site", required=True, metavar="SITE",
        help="site name (a file in deployments/sites/ of this folder or a parent folder) or path of a site file",
    )  # fmt: skip
    parser.add_argument(
        "--deployment",
        action="append",
        default=[],
        metavar="NAME",
        help="test only this deployment; may be repeated (default: all)",
    )
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_S, metavar="S",
        help=f"time limit for each answer, in s (default: {TIMEOUT_S:.0f})",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")


def run(namespace: argparse.Namespace) -> int:
    """Print the table and return the exit code."""
    try:
        from medweave.doctor.checks import check_site
        from medweave.doctor.hop_result import Health
        from medweave.doctor.table import as_json, line, table
    except ImportError as error:
        raise not_installed(error) from error
    site = read_site(find_site(namespace.site, Path.cwd()))
    for name in namespace.deployment:
        if name not in site.deployments:
            raise UsageError(
                f"--deployment {name}: unknown deployment.", seen=f"'{name}'",
                expected=f"one of {', '.join(site.deployments)}",
                do=closest(name, list(site.deployments)) or "choose a listed deployment",
            )  # fmt: skip
    if not 0 < namespace.timeout < math.inf:
        raise UsageError(
            "--timeout: invalid value.",
            seen=f"{namespace.timeout} s",
            expected="more than 0 s",
            do="remove --timeout, or give a positive number",
        )

    def show(hop: HopResult) -> None:
        if sys.stderr.isatty():
            print(line(hop), file=sys.stderr)

    hops = check_site(site, namespace.deployment, namespace.timeout, show)
    print(as_json(hops) if namespace.json else table(hops))
    return UserInputError.exit_code if any(hop.health in (Health.FAULT, Health.UNKNOWN) for hop in hops) else 0
