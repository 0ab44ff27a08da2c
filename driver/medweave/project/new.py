"""`medweave new`: writes a valid workflow, step or site to start from."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from medweave.project.files import write_atomically
from medweave.project.schemas import streamflow_schema, text_of
from medweave.project.sites import role_names
from medweave.project.sites import schema as site_schema
from medweave.project.workflows import ROLES_FILE
from medweave_core.documents.line_numbers import shown
from medweave_core.documents.yaml_documents import not_installed
from medweave_core.errors import UsageError

SITES = Path("deployments/sites")
SCHEMAS = Path("schemas")
WORKFLOWS = Path("workflows")
KINDS = ("workflow", "step", "site")
SITE_KINDS = ("laptop", "slurm", "kubernetes")
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
DESCRIPTION = """\
Create a workflow, a step or a site file from a template, below the current folder, and print the next commands.
The files pass `medweave validate`. Existing files are never changed.

  workflow  a complete workflow: step, roles, job file, and a site file if there is none
  step      a CWL tool and its Python program in workflows/tools
  site      a site file; --kind chooses the template"""
EPILOG = """\
examples:
  medweave new workflow liver-lesions
  medweave new step resample
  medweave new site my-site --kind slurm

exit codes:
  0   all files written
  2   wrong usage, or a file exists already (then nothing is written)
  69  a library is missing"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `medweave new`."""
    parser.add_argument(
        "what", choices=KINDS, metavar="WHAT", help=f"what to create: {', '.join(KINDS[:-1])} or {KINDS[-1]}"
    )
    parser.add_argument("name", metavar="NAME", help="name: lower-case letters, digits and hyphens")
    parser.add_argument("--kind", choices=SITE_KINDS, default=None, help="template of a site file (default: laptop)")


def run(namespace: argparse.Namespace) -> int:
    """Write the files, and print the next commands.

    Raises:
        UsageError: the name is not valid, or a file exists already.
    """
    name, what = namespace.name, namespace.what
    if not NAME.fullmatch(name):
        raise UsageError(
            "invalid name.", seen=name, expected="lower-case letters, digits and hyphens, such as lung-volume",
            do="choose another name",
        )  # fmt: skip
    if namespace.kind is not None and what != "site":
        raise UsageError(
            "--kind applies only to sites.", expected="medweave new site NAME --kind slurm", do="remove --kind"
        )
    texts = files_of(what, name, kind=namespace.kind or SITE_KINDS[0], here=Path())
    if there := [path for path in texts if path.exists()]:
        raise UsageError(
            "no file was written, because a file exists already.", seen=", ".join(map(shown, there)),
            expected="a name that is not in use", do="choose another name, or move the existing file",
        )  # fmt: skip
    for path, text in texts.items():
        write_atomically(path, text)
        if text.startswith("#!"):
            path.chmod(0o755)
        print(f"  {path}")
    for line in next_lines(what, name, wrote_site=SITES / "laptop.yml" in texts):
        print(line)
    return 0


def files_of(what: str, name: str, *, kind: str, here: Path) -> dict[Path, str]:
    """Return the texts of the files, by path.

    Args:
        kind: of a site.
        here: folder that is searched for workflows and sites.
    """
    if what == "step":
        return dict(_step(WORKFLOWS / "tools", name))
    try:
        from medweave.project.job_schema import schema_of_inputs
        from medweave_core.documents.cwl_model import process_in
        from medweave_core.documents.source_documents import parse_strictly
    except ImportError as error:
        raise not_installed(error) from error
    if what == "site":
        files_by_path = {
            SITES / f"{name}.yml": _text(f"site-{kind}.yml", name=name, roles=role_names()),
            **_common_files(here),
        }
        return files_by_path | ({SITES / f"{name}-pods.yml": _text("pods.yml")} if kind == "kubernetes" else {})
    folder = WORKFLOWS / name
    text = _text("workflow.cwl", name=name)
    process = process_in(parse_strictly(folder / f"{name}.cwl", text, "CWL workflow"))
    files_by_path = {
        folder / f"{name}.cwl": text,
        folder / ROLES_FILE: _text("roles.yml", name=name),
        folder / "jobs" / f"demo-{name}.yml": _text("job.yml", name=name),
        folder / "jobs" / f"{name}.schema.json": text_of(schema_of_inputs(process, f"{name}/{name}.cwl")),
        **{folder / "jobs" / f"example-{number}.txt": f"test data: scan {number}\n" for number in (1, 2)},
        **dict(_step(folder / "tools", "measure")),
        **_common_files(here),
    }
    if not any((here / SITES).glob("*.yml")):
        files_by_path[SITES / "laptop.yml"] = _text("site-laptop.yml", roles=role_names())
    return files_by_path


def _common_files(here: Path) -> dict[Path, str]:
    """Return the files that a repository needs once: schemas for editors, and a .gitignore for runs and results."""
    files_by_path = {
        SCHEMAS / "site.schema.json": text_of(site_schema()),
        SCHEMAS / "streamflow.schema.json": text_of(streamflow_schema()),
        Path(".gitignore"): "runs/\nresults/\n",
    }
    return {path: text for path, text in files_by_path.items() if not (here / path).exists()}


def next_lines(what: str, name: str, *, wrote_site: bool) -> Iterator[str]:
    """Return the lines with the next commands."""
    yield ""
    if what == "workflow":
        yield "medweave validate"
        yield f"medweave run {WORKFLOWS / name / name}.cwl --site {'laptop' if wrote_site else 'SITE'} --outdir results"
    elif what == "step":
        yield f"In a workflow:   run: ../tools/{name}.cwl"
        yield f"In its {ROLES_FILE}:   /{name}: ROLE, one of {', '.join(role_names())}"
    else:
        yield f"medweave validate {SITES / name}.yml"
        yield f"medweave plan WORKFLOW --site {name}"


def _step(folder: Path, name: str) -> Iterator[tuple[Path, str]]:
    yield folder / f"{name}.cwl", _text("step.cwl", name=name)
    yield folder / f"{name}.py", _text("step.py", name=name)


def _text(template: str, **values: Any) -> str:
    try:
        import jinja2
    except ImportError as error:
        raise not_installed(error) from error
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("medweave.project", "scaffolds"), undefined=jinja2.StrictUndefined, keep_trailing_newline=True,
        autoescape=False,
    )  # fmt: skip
    return environment.get_template(f"{template}.j2").render(**values)
