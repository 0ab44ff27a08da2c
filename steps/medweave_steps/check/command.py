"""`medweave-step check`: the data check of a cohort."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from medweave_core.contracts import codec
from medweave_core.errors import UsageError
from medweave_steps.runtime.options import option
from medweave_steps.runtime.verb import StepContext, Verb

DESCRIPTION = """\
Says in plain words what a folder of CT (or MR) holds and what is wrong with it, and writes the index that every later step reads.

Reads: DICOM series (CT and enhanced CT; any nesting and file names; DICOM SEG as ground truth), a data set of the Medical
Segmentation Decathlon (dataset.json; CT, or MR with the contrasts that it declares, such as Task01) or of nnU-Net (one
channel), or plain NIfTI (volumes, and masks of the same names in labels/ of the same folder, or named <volume>_seg).
splits.json ({"test": [case ids]}) and cohort_card.json are read where there are any. The pairs of volume and mask are printed.
--labels declares the labels once; preprocess, train and segment take them over. Masks with several foreground values need
--merge-labels: labels are never merged silently.
Refuses: missing, double, tilted or unevenly spaced slices, mixed series or acquisitions, values that are not HU, headers
without usable geometry or pixel format, masks on another grid, undeclared or several labels, a mask that fits two volumes,
patients in two splits, files that cannot be read. Lengths are in mm, values in HU. Every error is printed, then the exit code
is 65."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckConfig:
    """Options of `check`."""

    cohort: Path = option("folder with the volumes", metavar="DIR")
    output: Path = option("the index to write (JSON); it names files and stays with the data", metavar="FILE")
    labels: Path | None = option(
        "labels of the masks with their DICOM codes: a preset (lung-nodule), or a JSON or YAML file with a list of "
        "{value, name, category, type, anatomy, laterality} (default: the names that the cohort itself declares, without codes)",
        default=None, metavar="PRESET_OR_FILE",
    )  # fmt: skip
    merge_labels: tuple[str, ...] = option(
        "values of the masks that count as one label, and its name: 1,2:tumor; a merge with 0 becomes background",
        default=(), metavar="VALUES:NAME",
    )  # fmt: skip
    on_error: Literal["stop", "skip"] = option("bad cases: stop with all errors, or leave them out", default="stop")


def run(config: CheckConfig, context: StepContext) -> Mapping[str, Any]:
    """Write the index, print a summary, and return the figures of the run report."""
    from medweave_steps.check.cohort import check_cohort
    from medweave_steps.check.labels import LabelOptions
    from medweave_steps.check.summary import figures, print_summary, refusal
    from medweave_steps.io.cohort.labels import parse_merges, read_labels
    from medweave_steps.runtime.write import write_text

    if not config.cohort.is_dir():
        raise UsageError(
            "--cohort is not a folder.", expected="a folder that holds CT or MR volumes", do="correct the path"
        )
    label_options = LabelOptions(
        declared=None if config.labels is None else read_labels(config.labels), merges=parse_merges(config.merge_labels)
    )
    checked = check_cohort(config.cohort, context, skip=config.on_error == "skip", label_options=label_options)
    print_summary(checked, context)
    errors = [finding for finding in checked.index.findings if finding.severity == "error"]
    if errors:
        raise refusal(errors)
    write_text(config.output, codec.dumps(checked.index))
    return figures(checked)


VERB = Verb(name="check", description=DESCRIPTION, config=CheckConfig, run=run)
