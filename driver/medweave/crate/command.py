"""`medweave export RUN --crate CRATE`: a run as a Workflow Run RO-Crate, to be shared."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from medweave.project.run_files import file_of_run
from medweave_core.documents.line_numbers import shown
from medweave_core.errors import BackendMissingError, UserInputError
from medweave_core.runlog.history import read_run

DESCRIPTION = (
    "Writes a run as a Workflow Run RO-Crate, profile Provenance Run Crate 0.5: the workflow's documents, its steps and their\n"
    "connections, each job with place, times, end, resources and versions, and its inputs and outputs: files and folders by\n"
    "SHA-256, size and class of data, numbers and enumerated words by value. It contains no file of the run, and names no file,\n"
    "path, account or host; for texts of a job file it has the length. Places have the names of the site file.\n\n"
    "--include-outputs adds the run's outputs of the classes aggregate and model: metrics, decisions, model folders with their\n"
    "cards. Outputs that have changed since the run, name a host or look like a secret stay out, with a message."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `medweave export`."""
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run (runs/<run-id>)")
    parser.add_argument(
        "--crate", type=Path, required=True, metavar="PATH", help="folder to write, or a file whose name ends with .zip"
    )
    parser.add_argument(
        "--file", type=Path, default=None, metavar="FILE",
        help="the streamflow.yml of the run (default: the one in the run's folder, else the one next to the folder of runs)",
    )  # fmt: skip
    parser.add_argument(
        "--include-outputs", type=Path, default=None, metavar="DIR",
        help="folder to which the run delivered (--outdir), of which the classes aggregate and model go into the crate",
    )  # fmt: skip
    parser.add_argument("--with-hosts", action="store_true", help="include the names of hosts and registries")
    parser.add_argument("--json", action="store_true", help="print a summary of the crate as JSON")


def run(namespace: argparse.Namespace) -> int:
    """Write the crate and print its content.

    Raises:
        UserInputError: the run, its workflow or the folder of its outputs is not there.
        BackendMissingError: a library is not installed.
    """
    record = read_run(namespace.run)
    if namespace.include_outputs is not None and not namespace.include_outputs.is_dir():
        raise UserInputError(
            f"{shown(namespace.include_outputs)}: there is no such folder.", expected="the folder to which the run delivered",
            do="name the --outdir of the run",
        )  # fmt: skip
    try:
        from medweave.crate.make import make, write
    except ImportError as error:
        raise BackendMissingError(
            "a library is not installed.", seen=str(error), expected="medweave installed with its extra 'driver'",
            do="pip install 'medweave[driver]'",
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
        print(f"  holds {place}")
    for name, why in made.included.left_out:
        print(f"  without {name}: {why}")
    return 0
