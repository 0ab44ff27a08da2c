"""`medweave-step check`: the data check of a cohort."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from medweave_steps.contracts import codec
from medweave_steps.contracts.errors import UsageError
from medweave_steps.runtime.options import option
from medweave_steps.runtime.verb import StepContext, Verb

DESCRIPTION = """\
Says in plain words what a folder of CT (or MR) holds and what is wrong with it, and writes the index that every later step reads.

Reads: DICOM series (CT and enhanced CT; any nesting and file names; DICOM SEG as ground truth), a data set of the Medical
Segmentation Decathlon (dataset.json; CT, or MR with the contrasts that it declares, such as Task01), or plain NIfTI
(volumes, and masks of the same names below labels/). splits.json ({"test": [case ids]}) and cohort_card.json are read
where there are any.
Refuses: missing, double, tilted or unevenly spaced slices, mixed series or acquisitions, values that are not HU, headers
without usable geometry or pixel format, masks on another grid, undeclared labels, patients in two splits, files that cannot
be read. Lengths are in mm, values in HU. Every error is printed, then the exit code is 65."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckConfig:
    """Options of `check`."""

    cohort: Path = option("folder with the volumes", metavar="DIR")
    output: Path = option("the index to write (JSON); it names files and stays with the data", metavar="FILE")
    on_error: Literal["stop", "skip"] = option("bad cases: stop with all errors, or leave them out", default="stop")


def run(config: CheckConfig, context: StepContext) -> Mapping[str, Any]:
    """Writes the index, prints a summary, and returns the figures of the run report."""
    from medweave_steps.check.cohort import check_cohort
    from medweave_steps.check.summary import figures, print_summary, refusal
    from medweave_steps.runtime.write import write_text

    if not config.cohort.is_dir():
        raise UsageError(
            "--cohort is not a folder.", expected="a folder that holds CT or MR volumes", do="correct the path"
        )
    checked = check_cohort(config.cohort, context, skip=config.on_error == "skip")
    print_summary(checked, context)
    errors = [finding for finding in checked.index.findings if finding.severity == "error"]
    if errors:
        raise refusal(errors)
    write_text(config.output, codec.dumps(checked.index))
    return figures(checked)


VERB = Verb(name="check", description=DESCRIPTION, config=CheckConfig, run=run)
