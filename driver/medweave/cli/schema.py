"""`medweave schema NAME`: print the JSON Schema of a kind of file."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from medweave.advise import document as advice
from medweave.plan import document
from medweave.project import deployments, sites
from medweave.project.schedules import schema as schedule_schema
from medweave.project.schemas import streamflow_schema, text_of
from medweave_core.contracts.schema import PUBLISHED, schema_of
from medweave_core.documents.closest_match import closest
from medweave_core.documents.yaml_documents import not_installed
from medweave_core.errors import UsageError

WORKFLOW_ENDS = ".cwl"
DESCRIPTION = """\
Print the JSON Schema (2020-12) of a file type: site files, StreamFlow files, connector settings, files that steps
and runs write. For the path of a workflow, print the schema of its job files. Without NAME, list the names.

For completion and checks in an editor, make `# yaml-language-server: $schema=PATH` the first line of a YAML
file."""
EPILOG = """\
examples:
  medweave schema
  medweave schema site > site.schema.json
  medweave schema workflows/lung-nodule-segmentation/train.cwl"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `medweave schema`."""
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="name of a schema, or path of a CWL workflow (default: list the names)",
    )


def run(namespace: argparse.Namespace) -> int:
    """Print one schema, or the names of all."""
    print(list_of_schemas() if namespace.name is None else text_of(schema_named(namespace.name)), end="")
    return 0


def schemas() -> dict[str, Callable[[], Mapping[str, Any]]]:
    """Return a function for each schema name that builds the schema."""
    builders: dict[str, Callable[[], Mapping[str, Any]]] = {
        "site": sites.schema,
        "streamflow": streamflow_schema,
        "schedule": schedule_schema,
        document.SCHEMA: document.schema,
        advice.MEASURED: partial(advice.schema, advice.MEASURED),
        advice.ADVICE: partial(advice.schema, advice.ADVICE),
    }
    builders |= {name: partial(_of_connector, name) for name in deployments.connector_schemas()}
    return builders | {name: partial(schema_of, name) for name in PUBLISHED}


def _of_connector(name: str) -> Mapping[str, Any]:
    return deployments.connector_schemas()[name]


def schema_named(name: str) -> Mapping[str, Any]:
    """Return a schema by its name, or the schema of a workflow's job files by the workflow's path.

    Raises:
        UsageError: there is no such name.
        UserInputError: the file is missing or no CWL document.
    """
    if name.endswith(WORKFLOW_ENDS):
        try:
            from medweave.project.job_schema import job_schema
        except ImportError as error:
            raise not_installed(error) from error
        return job_schema(Path(name).resolve())
    known = schemas()
    if name not in known:
        raise UsageError(
            f"unknown schema '{name}'.",
            seen=f"'{name}'",
            expected=f"one of {', '.join(known)}, or the path of a workflow (*.cwl)",
            do=closest(name, list(known)) or "choose a listed name",
        )
    return known[name]()


def list_of_schemas() -> str:
    """Return one line per schema: its name and the files that it describes."""
    known = schemas()
    width = max(map(len, known))
    lines = [f"{name:<{width}}  {_summary(make())}" for name, make in known.items()]
    return (
        "\n".join([*lines, f"{'WORKFLOW.cwl':<{width}}  Job files of this workflow, derived from its inputs."]) + "\n"
    )


def _summary(schema: Mapping[str, Any]) -> str:
    """Return the first sentence of a schema's description."""
    return str(schema["description"]).partition(". ")[0].rstrip(".") + "."
