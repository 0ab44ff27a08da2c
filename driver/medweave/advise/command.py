"""`medweave advise FILE…`: predict which training strategy on how many GPUs finishes soonest, from a few measurements."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from medweave_core.errors import UsageError

DESCRIPTION = (
    "Predicts from a few measured steps or runs which training strategy on how many GPUs finishes soonest, at what efficiency and\n"
    "between which bounds, and what the measurements cannot show. Reads a file of measurements (YAML or JSON, in s; `medweave\n"
    "schema measured-steps` describes it), run_report.json of trainings and of a search (ranks count as GPUs), or both.\n"
    "With --calibrate-up-to it reports its error on the rows with more GPUs. It starts nothing and connects to no site.\n\n"
    "exit codes: 0 an advice was made, 65 a file is wrong or the files are about different workloads, 2 wrong usage"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `medweave advise`."""
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="file of measurements, or run report")
    parser.add_argument(
        "--gpus", type=_number, nargs="+", default=None, metavar="N",
        help="numbers of GPUs to judge (default: those that the file names, 1 2 4 8 16 32 for reports alone)",
    )  # fmt: skip
    parser.add_argument(
        "--num-trials", type=_number, default=None, metavar="N",
        help="trainings of the workload (default: the number in the file, 1 for reports alone)",
    )  # fmt: skip
    parser.add_argument(
        "--calibrate-up-to", type=_number, default=None, metavar="GPUS",
        help="use only rows on so many GPUs, and compare the others with their prediction (default: use all)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one object with times in s, instead of text")


def run(namespace: argparse.Namespace) -> int:
    """Print the advice."""
    from medweave_core.documents.yaml_documents import not_installed

    try:
        from medweave.advise.judge import advise
        from medweave.advise.read import Overrides, read_measured
        from medweave.advise.text import text_of
        from medweave_core.contracts.codec import dumps

        gpus = tuple(namespace.gpus) if namespace.gpus else None
        measured = read_measured(namespace.files, Overrides(gpus=gpus, num_trials=namespace.num_trials))
    except ImportError as error:
        raise not_installed(error) from error
    limit = namespace.calibrate_up_to
    if limit is not None and all(row.gpus > limit for row in measured.rows):
        raise UsageError(
            "--calibrate-up-to leaves no row to calibrate on.",
            seen=str(limit),
            expected=f"{min(row.gpus for row in measured.rows)} or more, the fewest GPUs of a row",
        )
    advice = advise(measured, calibrate_up_to=limit)
    sys.stdout.write(dumps(advice) if namespace.json else text_of(advice))
    return 0


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)
