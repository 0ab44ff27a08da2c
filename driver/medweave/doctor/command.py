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
DESCRIPTION = (
    "Tests each hop of a site, all deployments at the same time, and reports its health and what to do about it: ssh with its\n"
    "host key and login, clock, programs, workdir, free space and quota, worker environment and its version, bandwidth; Slurm's\n"
    "partitions, accounts and GPUs by sbatch --test-only; of a cluster its version, clock, the rights that a run needs, what the\n"
    "chart renders to, quotas, claims, and each image by a pod that only sleeps and is removed; between two of these places\n"
    "the route of copies, with its speed, and the site's bucket. All traces are removed.\n\n"
    "exit codes: 0 a run can start (warnings are printed), 65 something is wrong or did not answer, 2 wrong usage"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `medweave doctor`."""
    parser.add_argument(
        "--site", required=True, metavar="SITE",
        help="name of a file in deployments/sites/ at or above this folder, or the path of a site file",
    )  # fmt: skip
    parser.add_argument(
        "--deployment",
        action="append",
        default=[],
        metavar="NAME",
        help="only this one; may be repeated (default: all)",
    )
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_S, metavar="S",
        help=f"how long one answer may take, in s (default {TIMEOUT_S:.0f})",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print a list of objects instead of a table")


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
                f"--deployment {name}: there is no such deployment.", seen=f"'{name}'",
                expected=f"one of {', '.join(site.deployments)}",
                do=closest(name, list(site.deployments)) or "choose one of these",
            )  # fmt: skip
    if not 0 < namespace.timeout < math.inf:
        raise UsageError(
            "--timeout: this is no valid time.",
            seen=f"{namespace.timeout} s",
            expected="more than 0 s",
            do="leave it out",
        )

    def show(hop: HopResult) -> None:
        if sys.stderr.isatty():
            print(line(hop), file=sys.stderr)

    hops = check_site(site, namespace.deployment, namespace.timeout, show)
    print(as_json(hops) if namespace.json else table(hops))
    return UserInputError.exit_code if any(hop.health in (Health.FAULT, Health.UNKNOWN) for hop in hops) else 0
