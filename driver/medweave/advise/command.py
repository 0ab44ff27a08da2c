"""`medweave advise FILE…`: predict which training strategy on how many GPUs finishes soonest, from a few measurements."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from medweave_core.errors import UsageError

DESCRIPTION = """\
Predict which training strategy finishes soonest, and on how many GPUs. Each prediction has an efficiency and
a lower and an upper bound. The output also lists effects that the measurements do not show.

FILE is a measurements file (YAML or JSON, times in s; `medweave schema measured-steps` prints its schema), the
run_report.json of a training, or the run_report.json of a search. Several files are combined. In a run report,
each rank counts as one GPU.

The command starts no job and contacts no site."""
EPILOG = """\
examples:
  medweave advise measured.yml --gpus 2 4 8
  medweave advise single/run_report.json ddp-4/run_report.json --num-trials 12
  medweave advise measured.yml --calibrate-up-to 4    compare predictions with the rows on more than 4 GPUs

exit codes:
  0   advice printed
  2   wrong usage
  65  invalid file, or the files describe different workloads"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `medweave advise`."""
    parser.add_argument(
        "files", type=Path, nargs="+", metavar="FILE", help="measurements file (YAML or JSON) or run_report.json"
    )
    parser.add_argument(
        "--gpus", type=_number, nargs="+", default=None, metavar="N",
        help="numbers of GPUs to predict for (default: those of the measurements file; 1 2 4 8 16 32 for run reports)",
    )  # fmt: skip
    parser.add_argument(
        "--num-trials", type=_number, default=None, metavar="N",
        help="number of trainings in the workload (default: the number in the measurements file; 1 for run reports)",
    )  # fmt: skip
    parser.add_argument(
        "--calibrate-up-to", type=_number, default=None, metavar="GPUS",
        help="calibrate on rows with at most this many GPUs, and compare the other rows with their prediction "
            "(default: use all rows)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print a JSON object (times in s) instead of text")


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
            "--calibrate-up-to excludes every row.",
            seen=str(limit),
            expected=f"at least {min(row.gpus for row in measured.rows)}, the smallest number of GPUs of a row",
        )
    advice = advise(measured, calibrate_up_to=limit)
    sys.stdout.write(dumps(advice) if namespace.json else text_of(advice))
    return 0


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)
