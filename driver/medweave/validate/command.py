"""`medweave validate [PATHS]`: find errors in workflows, StreamFlow files, sites, jobs and charts, without running anything."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from medweave_core.documents.yaml_documents import not_installed

DESCRIPTION = (
    "Looks for mistakes in CWL workflows, StreamFlow files, site files, roles, job files, charts and images, and for secrets and\n"
    "forbidden data routes; nothing is run and no network is used. What a file is follows from its keys, and from its folder.\n"
    "Files that git ignores, folders of runs, and what .medweave-ignore at the top of the working tree names, are left out; of\n"
    "hidden files, those that git keeps are looked through for secrets.\n\n"
    "exit codes: 0 nothing found, 1 warnings only, 65 errors, 2 wrong usage, 70 a fault of this command (--debug shows where)"
)
FORMATS = ("text", "json", "github", "sarif")
IMAGES = ("tag", "digest")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `medweave validate`."""
    parser.add_argument(
        "paths",
        nargs="*",
        type=Path,
        default=[Path()],
        metavar="PATHS",
        help="files and folders to look at (default: the current folder)",
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="text",
        help="text for people, json, github for annotations of GitHub Actions, sarif for code scanning (default: text)",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=Path, default=None, metavar="FILE", help="file to write to (default: standard output)"
    )
    parser.add_argument(
        "--images", choices=IMAGES, default="tag",
        help="what an image must be named by: a digest or a tag that stays, or a digest (default: tag)",
    )  # fmt: skip
    parser.add_argument(
        "--helm", action="store_true", help="also run `helm lint` and `helm template` on each chart; takes seconds"
    )
    parser.add_argument(
        "--cwltool",
        action="store_true",
        help="also run the validator of cwltool, CWL's reference implementation, on each document; takes seconds",
    )


def run(namespace: argparse.Namespace) -> int:
    """Print the findings; return the exit code."""
    from medweave.project.files import write_atomically
    from medweave.validate.formats import render

    try:
        findings, num_files = validate(
            namespace.paths, images=namespace.images, with_helm=namespace.helm, with_cwltool=namespace.cwltool
        )
    except ImportError as error:
        raise not_installed(error) from error
    text = render(findings, num_files, namespace.format)
    if namespace.output is None:
        sys.stdout.write(text)
    else:
        write_atomically(namespace.output, text)
    return max((int(finding.severity) for finding in findings), default=0)


def validate(paths: list[Path], *, images: str = "tag", with_helm: bool = False, with_cwltool: bool = False):  # type: ignore[no-untyped-def]  # heavy types are imported late
    """Return the findings in some files and folders, and the number of files that were looked at."""
    from medweave.validate.checks import check
    from medweave.validate.repository import open_repository

    repository = open_repository(paths)
    return check(repository, images=images, with_helm=with_helm, with_cwltool=with_cwltool), len(repository.files)
