"""`medweave validate [PATHS]`: find errors in workflows, StreamFlow files, sites, jobs and charts, without running anything."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from medweave_core.documents.yaml_documents import not_installed

DESCRIPTION = """\
Check CWL workflows, StreamFlow files, site files, roles, job files, charts and images, and search for plaintext
secrets and forbidden data routes. Nothing runs, and no network is used.

medweave recognizes a file type by the keys and the folder of the file. The check skips files that git ignores,
run folders, and paths in the .medweave-ignore file at the top of the working tree. In hidden files that git
tracks, it only searches for secrets."""
EPILOG = """\
examples:
  medweave validate                                   the current folder
  medweave validate workflows deployments --format github
  medweave validate --helm --cwltool                  slower, more thorough (seconds)

exit codes:
  0   no findings
  1   warnings only
  2   wrong usage
  65  errors found
  69  a library or helm is missing
  70  internal error (bug in medweave); --debug shows the traceback"""
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
        help="files and folders to check (default: the current folder)",
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="text",
        help="output format: text, json, github (annotations of GitHub Actions) or sarif (code scanning); "
            "default: text",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=Path, default=None, metavar="FILE", help="output file (default: standard output)"
    )
    parser.add_argument(
        "--images", choices=IMAGES, default="tag",
        help="required image reference: tag (a fixed tag or a digest) or digest (default: tag)",
    )  # fmt: skip
    parser.add_argument(
        "--helm", action="store_true", help="also run `helm lint` and `helm template` on each chart (takes seconds)"
    )
    parser.add_argument(
        "--cwltool",
        action="store_true",
        help="also validate each CWL document with cwltool, the reference implementation (takes seconds)",
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
