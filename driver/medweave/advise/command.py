"""`medweave advise FILE…`: predict which training strategy on how many GPUs finishes soonest, from a few measurements."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from medweave_core.errors import UsageError

if TYPE_CHECKING:
    from medweave.advise.document import Advice, Measured

DESCRIPTION = """\
Predict which training strategy finishes soonest, and on how many GPUs. Each prediction has an efficiency and
a lower and an upper bound. The output also lists effects that the measurements do not show.

FILE is a measurements file (YAML or JSON, times in s; `medweave schema measured-steps` prints its schema), the
run_report.json of a training, or the run_report.json of a search. Several files are combined. In a run report,
each rank counts as one GPU.

A FILE can also be the placement.json of `medweave-step place-layers`. The command then prints the stages that
`train --strategy hybrid` would have, the bound of their speed-up, and whether ddp is the better choice.

The command starts no job and contacts no site."""
EPILOG = """\
examples:
  medweave advise measured.yml --gpus 2 4 8
  medweave advise single/run_report.json ddp-4/run_report.json --num-trials 12
  medweave advise measured.yml --calibrate-up-to 4    compare predictions with the rows on more than 4 GPUs
  medweave advise placement.json

exit codes:
  0   advice printed
  2   wrong usage
  65  invalid file, or the files describe different workloads"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `medweave advise`."""
    parser.add_argument(
        "files",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="measurements file (YAML or JSON), run_report.json, or placement.json of place-layers",
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
        from medweave.advise.stages import read_placement, stage_advice
        from medweave.advise.text import text_of
        from medweave_core.contracts.codec import dumps

        placements = {path: read_placement(path) for path in namespace.files}
        measured = _measured([path for path, placement in placements.items() if placement is None], namespace)
    except ImportError as error:
        raise not_installed(error) from error
    memory = measured.gpu_memory_mib if measured else None
    hybrid = [stage_advice(one, gpu_memory_mib=memory) for one in placements.values() if one is not None]
    advice = dataclasses.replace(_advice(measured, namespace.calibrate_up_to), hybrid=tuple(hybrid))
    sys.stdout.write(dumps(advice) if namespace.json else text_of(advice))
    return 0


def _measured(paths: Sequence[Path], namespace: argparse.Namespace) -> Measured | None:
    """Return the measurements of the files that are no placements; None without such a file."""
    from medweave.advise.read import Overrides, read_measured

    gpus = tuple(namespace.gpus) if namespace.gpus else None
    if paths:
        return read_measured(paths, Overrides(gpus=gpus, num_trials=namespace.num_trials))
    for option, value in (
        ("--gpus", gpus),
        ("--num-trials", namespace.num_trials),
        ("--calibrate-up-to", namespace.calibrate_up_to),
    ):
        if value is not None:
            raise UsageError(
                f"{option} needs measurements.",
                seen="placements only",
                expected="a measurements file or run_report.json",
                do=f"add such a file, or leave {option} out; the placement has its number of GPUs",
            )
    return None


def _advice(measured: Measured | None, limit: int | None) -> Advice:
    """Return the advice by measurements, empty without them."""
    from medweave.advise.judge import advise, no_advice

    if measured is None:
        return no_advice()
    if limit is not None and all(row.gpus > limit for row in measured.rows):
        raise UsageError(
            "--calibrate-up-to excludes every row.",
            seen=str(limit),
            expected=f"at least {min(row.gpus for row in measured.rows)}, the smallest number of GPUs of a row",
        )
    return advise(measured, calibrate_up_to=limit)


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)
