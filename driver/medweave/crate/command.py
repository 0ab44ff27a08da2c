"""`medweave export RUN --crate CRATE`: a run as a Workflow Run RO-Crate, to be shared."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from medweave.project.run_files import file_of_run
from medweave_core.documents.line_numbers import shown
from medweave_core.errors import BackendMissingError, UserInputError
from medweave_core.runlog.history import read_run

DESCRIPTION = """\
Export a run as a Workflow Run RO-Crate (profile Provenance Run Crate 0.5). The crate describes:

  workflow  the CWL documents, steps and connections
  jobs      deployment, start, end, final state, resources and versions
  data      inputs and outputs as SHA-256, size and data class; numbers and enumerated values; lengths of texts

The crate contains no data of the run. It names no file, path, account or host; sites have the names of the site
file.

--include-outputs adds outputs of the data classes `aggregate` and `model`, such as metrics, decisions and model
folders with their cards. An output that changed since the run, names a host or looks like a secret is left out,
with a message."""
EPILOG = """\
examples:
  medweave export runs/lung-20260827-101500-3f2a --crate crate.zip
  medweave export runs/lung-20260827-101500-3f2a --crate crate --include-outputs results

exit codes:
  0   crate written
  2   wrong usage
  65  the run cannot be exported
  69  a library is missing"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `medweave export`."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder (runs/<run-id>)")
    parser.add_argument("--crate", type=Path, required=True, metavar="PATH", help="folder or .zip file to write")
    parser.add_argument(
        "--file", type=Path, default=None, metavar="FILE",
        help="StreamFlow file of the run (default: streamflow.yml in the run folder, else next to runs/)",
    )  # fmt: skip
    parser.add_argument(
        "--include-outputs", type=Path, default=None, metavar="DIR",
        help="results folder of the run (its --outdir); include its outputs of the data classes `aggregate` and "
            "`model`",
    )  # fmt: skip
    parser.add_argument("--with-hosts", action="store_true", help="include host and registry names")
    parser.add_argument("--json", action="store_true", help="print a JSON summary of the crate")


def run(namespace: argparse.Namespace) -> int:
    """Write the crate and print its content.

    Raises:
        UserInputError: the run, its workflow or the folder of its outputs is not there.
        BackendMissingError: a library is not installed.
    """
    record = read_run(namespace.run)
    if namespace.include_outputs is not None and not namespace.include_outputs.is_dir():
        raise UserInputError(
            f"{shown(namespace.include_outputs)}: no such folder.", expected="the results folder of the run (its --outdir)",
            do="correct the path of --include-outputs",
        )  # fmt: skip
    try:
        from medweave.crate.make import make, write
    except ImportError as error:
        raise BackendMissingError(
            "a library is missing.", seen=str(error), expected="medweave with the extra 'driver'",
            do="install it: pip install 'medweave[driver]'",
        ) from error  # fmt: skip
    file = file_of_run(record, namespace.file)
    workflow = (file.parent / str(record.facts.get("workflow_file", ""))).resolve()
    made = make(record, workflow, outputs=namespace.include_outputs, hosts=namespace.with_hosts)
    write(made.crate, namespace.crate)
    kinds = [str(entity.type) for entity in made.crate.get_entities()]
    summary = {
        "crate": str(namespace.crate),
        "run_id": record.run_id,
        "state": record.state,
        "jobs": kinds.count("ControlAction"),
        "included": sorted(place for place, _ in made.included.by_digest.values()),
        "left_out": [{"output": name, "why": why} for name, why in made.included.left_out],
    }
    if namespace.json:
        print(json.dumps(summary, indent=2))
        return 0
    print(namespace.crate)
    print(f"  {summary['jobs']} jobs of run {record.run_id}, {record.state}")
    for place in sorted(place for place, _ in made.included.by_digest.values()):
        print(f"  includes {place}")
    for name, why in made.included.left_out:
        print(f"  excluded {name}: {why}")
    return 0
