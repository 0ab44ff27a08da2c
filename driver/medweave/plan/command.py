"""`medweave plan WORKFLOW --site SITE`: print what a run would do, without starting it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from medweave.placement.bind import add_place_options, fit
from medweave.project.files import write_atomically
from medweave_core.documents.line_numbers import shown
from medweave_core.documents.yaml_documents import not_installed
from medweave_core.errors import UsageError, UserInputError

FORMATS = ("text", "json", "svg")
RUNS = Path("runs")
DESCRIPTION = """\
Show what a run would do, without starting it. The plan lists:

  placement  order of the steps, where each step runs and why
  resources  what each job requests and the limits of its service
  transfers  data to copy, with size, route and data class
  cache      steps that are cache hits from an earlier run
  history    duration, energy and cost of earlier runs

The command contacts no site. Values that only the run itself can determine are printed as unknown."""
EPILOG = """\
examples:
  medweave plan workflows/lung-nodule-segmentation/train.cwl --site laptop
  medweave plan workflows/lung-nodule-segmentation/train.cwl --site my-site --job my-job.yml
  medweave plan workflows/lung-nodule-segmentation/train.cwl --site my-site --format svg -o plan.svg

exit codes:
  0   no problem found
  2   wrong usage
  65  the run would fail; the plan gives the reason"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `medweave plan`."""
    add_place_options(parser)
    parser.add_argument(
        "--runs", type=Path, action="append", default=[], metavar="FOLDER",
        help="folder of earlier runs, for durations and sizes; may be repeated (default: runs/)",
    )  # fmt: skip
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="text",
        help="output format; svg is a picture for a browser (default: text)",
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=None, metavar="FILE", help="output file (default: standard output)"
    )


def run(namespace: argparse.Namespace) -> int:
    """Print the plan; return the exit code."""
    try:
        from medweave.plan.past_runs import read_past
        from medweave.plan.picture import picture_of
        from medweave.plan.planner import make_plan
        from medweave.plan.text import text_of
        from medweave_core.contracts.codec import dumps
    except ImportError as error:
        raise not_installed(error) from error
    fitted = fit(namespace.workflow, namespace.site, namespace.job, namespace.role)
    plan = make_plan(fitted, read_past(folders_of_runs(namespace.runs), fitted.pipeline.path))
    written = {"text": text_of, "json": dumps, "svg": picture_of}
    text = written[namespace.format](plan)
    if namespace.output is None:
        sys.stdout.write(text)
    else:
        write_atomically(namespace.output, text)
    return UserInputError.exit_code if plan.problems else 0


def folders_of_runs(named: list[Path]) -> list[Path]:
    """Return the folders of earlier runs.

    Raises:
        UsageError: one that was named is not there.
    """
    for folder in named:
        if not folder.is_dir():
            raise UsageError(
                f"--runs {shown(folder)}: no such folder.", expected="a folder that contains run folders, such as runs/",
                do="correct the path, or remove --runs",
            )  # fmt: skip
    return named or [RUNS]
