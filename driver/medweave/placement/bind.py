"""`medweave bind WORKFLOW --site SITE`: where each step runs, written down as an ordinary streamflow.yml."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave.placement.bound_file import EDITOR_LINE, BoundWorkflow, render, used_deployments
from medweave.placement.data_rules import SiteClasses, check_data_rules
from medweave.project.deployments import connector_schemas
from medweave.project.files import write_atomically
from medweave.project.job_files import check_path_at_site, default_job, first_fault_of_job, read_job
from medweave.project.sites import Site, find_site, read_site, with_role
from medweave.project.workflows import Pipeline, inputs_around, read_pipeline
from medweave_core.documents.closest_match import closest
from medweave_core.documents.cwl_reader import CwlReader
from medweave_core.documents.field_errors import fault_at
from medweave_core.documents.line_numbers import shown
from medweave_core.documents.source_documents import parse_strictly
from medweave_core.errors import InternalError, UserInputError

SITE_SCHEMA, SCHEMA = "site.schema.json", "streamflow.schema.json"  # what `medweave schema` prints, in one folder
DESCRIPTION = """\
Write a StreamFlow file that binds a workflow to a site. The workflow's roles.yml gives each step a role. The site
file gives each role a deployment and a service. The workflow itself does not change.

The same inputs always give the same text. The file contains only relative paths, so you can commit it and run it
with `streamflow run`."""
EPILOG = """\
examples:
  medweave bind workflows/lung-nodule-segmentation/train.cwl --site laptop --job my-job.yml -o streamflow.yml
  medweave bind workflows/lung-nodule-segmentation/train.cwl --site my-site --role train=hpc/gpu:2 -o streamflow.yml
  streamflow run streamflow.yml --outdir results"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `medweave bind`."""
    add_place_options(parser)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE",
        help="StreamFlow file to write; its relative paths start at its folder",
    )  # fmt: skip


def add_place_options(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the arguments of `fit`."""
    parser.add_argument(
        "workflow", type=Path, nargs=None if required else "?", metavar="WORKFLOW",
        help="CWL workflow; its folder contains roles.yml",
    )  # fmt: skip
    parser.add_argument(
        "--site", required=required, metavar="SITE",
        help="site name (a file in deployments/sites/ of the workflow's folder or a parent folder) or path of a "
            "site file",
    )  # fmt: skip
    parser.add_argument(
        "--job", type=Path, default=None, metavar="FILE",
        help="job file with the workflow inputs (default: jobs/demo-<workflow>.yml in the workflow's folder)",
    )  # fmt: skip
    parser.add_argument(
        "--role", action="append", default=[], metavar="ROLE=DEPLOYMENT[/SERVICE][:LOCATIONS]",
        help="run a role at another deployment than in the site file, such as train=cluster/cpu; may be repeated",
    )  # fmt: skip


def run(namespace: argparse.Namespace) -> int:
    """Write the bound file and print its path."""
    text = bind(namespace.workflow, namespace.site, namespace.output, namespace.job, namespace.role)
    write_atomically(namespace.output, text)
    print(namespace.output)
    return 0


def bind(
    workflow: Path,
    site_name: str,
    output: Path,
    job: Path | None = None,
    role_options: Sequence[str] = (),
    job_link: Path | None = None,
    reader: CwlReader | None = None,
) -> str:
    """Return the text of the bound file; nothing is written.

    Args:
        site_name: name or path of a site file, see `find_site`.
        job: inputs of the workflow; the demo's where None.
        role_options: other places for roles, see `with_role`.
        job_link: a link to the job file, absolute, that is written instead of the job file.
        reader: reader of the command, which reads each document once.

    Raises:
        UsageError: there is no such site or no job file, or no such place for a role.
        UserInputError: the workflow, its roles, the job or the site file is wrong, or they do not fit together.
    """
    fitted = fit(workflow, site_name, job, role_options, reader)
    binding = BoundWorkflow(
        pipeline=fitted.pipeline,
        site=fitted.site,
        job=job_link or fitted.job,
        job_is_default=job is None,
        output=_normal(output),
        role_options=tuple(role_options),
        site_classes=fitted.site_classes,
        schema=_schema_beside(fitted.site),
    )
    text = render(binding, connector_schemas())
    _check_copy(text, binding)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A workflow, a site and a job file that fit together.

    Attributes:
        job: the job file, absolute.
        values: its content.
        site_classes: see `check_data_rules`.
    """

    pipeline: Pipeline
    site: Site
    job: Path
    values: Mapping[str, Any]
    site_classes: SiteClasses | None


def fit(
    workflow: Path,
    site_name: str,
    job: Path | None = None,
    role_options: Sequence[str] = (),
    reader: CwlReader | None = None,
) -> Fitted:
    """Read a workflow, a site and a job file, and check that they fit together; for arguments and errors see `bind`."""
    reader = reader or CwlReader()
    pipeline = read_pipeline(_normal(workflow), reader)
    site = read_site(_normal(find_site(site_name, pipeline.path.parent)), reader)
    for option in role_options:
        site = with_role(site, option)
    chosen = _normal(job) if job is not None else default_job(pipeline)
    values = _check_fit(pipeline, site, chosen, reader)
    return Fitted(
        pipeline=pipeline, site=site, job=chosen, values=values, site_classes=check_data_rules(pipeline, site, values)
    )


def _schema_beside(site: Site) -> Path | None:
    """Return the schema of StreamFlow files, next to the schema that the first line of the site file names, or None."""
    first = site.text.partition("\n")[0]
    named = first.removeprefix(EDITOR_LINE).strip()
    if named == first.strip() or "://" in named or not named.endswith(SITE_SCHEMA):
        return None
    return _normal((site.path.parent / named).with_name(SCHEMA))


def _normal(path: Path) -> Path:
    """Return the absolute path without `..` and links: the bound text must not depend on the spelling."""
    return Path(os.path.realpath(path))  # of links in a circle `resolve` makes a RuntimeError


def _check_fit(pipeline: Pipeline, site: Site, job: Path, reader: CwlReader) -> dict[str, Any]:
    """Return the inputs in a job file, after checking that workflow, site and job file fit together."""
    gang_roles = {step.role for step in pipeline.steps if step.gang}
    for step in pipeline.steps:
        if step.role not in site.roles:
            raise fault_at(
                site.path, ("roles",), f"the site file has no deployment for role '{step.role}'.",
                seen=f"roles {', '.join(site.roles)}; step {step.path} of {shown(pipeline.path)} has role {step.role}",
                expected=f"{step.role}: {{deployment: …}}", do=f"add '{step.role}' under `roles` of the site file",
            )  # fmt: skip
        if site.roles[step.role].locations > 1 and step.role not in gang_roles:
            raise fault_at(
                site.path, ("roles", step.role, "locations"),
                f"step {step.path} runs on one node, but its role reserves several.",
                seen=f"locations: {site.roles[step.role].locations}",
                expected="1, because its tool has no hint medweave:Gang",
                do="remove `locations`, or add the hint medweave:Gang to the tool",
            )  # fmt: skip
    inputs = read_job(job, pipeline, reader)
    if (fault := first_fault_of_job(inputs, pipeline.process)) is not None:
        raise fault_at(job, fault.field, fault.what, seen=fault.seen, expected=fault.expected, do=fault.fix)
    for name, place in site.inputs.items():
        if name not in pipeline.folder_inputs and name not in inputs_around(pipeline, reader):
            raise fault_at(
                site.path, ("inputs", name), f"no workflow in {shown(pipeline.path.parent)} or a sibling folder has this input.",
                seen=f"'{name}'", expected=f"one of {', '.join(sorted(pipeline.folder_inputs))}",
                do=closest(name, sorted(pipeline.folder_inputs)) or "correct the input name",
            )  # fmt: skip
        if inputs.get(name) is not None:  # an optional input may be missing
            check_path_at_site(job, inputs, name, place.workdir or "")
    return inputs


def _check_copy(text: str, binding: BoundWorkflow) -> None:
    """Check that the copied text of the deployments means the same as in the site file."""
    site = binding.site
    try:
        copied = parse_strictly(binding.output, text, "bound file").data["deployments"]
    except UserInputError as error:
        raise fault_at(
            site.path, ("deployments",), "the site file's deployments cannot be copied.", seen=error.seen,
            expected="deployments without YAML aliases (*name) of anchors in other parts of the file",
            do="write the values instead of the aliases",
        ) from error  # fmt: skip
    original = {name: site.deployments[name] for name in used_deployments(binding)}
    if _shape(copied) != _shape(original):
        raise InternalError(
            "internal error: the bound file would change the site's deployments.",
            seen=str(site.path),
            do="report this bug",
        )


def _shape(value: object) -> object:
    """Return a document with empty strings: paths in it were rewritten."""
    if isinstance(value, dict):
        return {key: _shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shape(item) for item in value]
    return "" if isinstance(value, str) else value
