"""`medweave-step check`: the data check of a cohort."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from medweave_core.contracts import codec
from medweave_core.contracts.labels import HIGHEST_VALUE
from medweave_core.errors import UsageError
from medweave_steps.io.cohort.files import in_cohort
from medweave_steps.runtime.options import check_option, option
from medweave_steps.runtime.verb import StepContext, Verb

DESCRIPTION = """\
Validates a cohort of CT, MR or PET volumes, of images, or of ECG recordings: lists its cases, reports problems, and writes the
cohort index that every later step reads.

Input: DICOM series (CT, MR, enhanced CT and MR, PET; any nesting and file names; DICOM SEG or RTSTRUCT as ground truth), an MSD
data set (dataset.json; CT, or MR with the contrasts that it declares, such as Task01), an nnU-Net data set (v1, v2; any number of
channels, regions, ignore label), a BIDS-like folder (anat/, masks in derivatives/, participants.tsv), one NIfTI file per MR
contrast (CASE_flair, CASE_t1, ..., CASE_seg, as in BraTS), or plain NIfTI, read as CT (masks under the names of their volumes in
labels/ of the same folder, or named VOLUME_seg). splits.json ({"test": [case ids]}) and cohort_card.json are read if present.
The step prints the rule by which files became cases, and the pairs of volume and mask. Channels on another grid than the first
channel are resampled linearly to its grid by later steps, and reported.

MR and PET from DICOM: --channels groups the series of a study into named channels; without it, each study has one series. Without
--channels, a cohort with CT is read as CT, and other modalities of its studies are ignored. PET values become SUV by body weight.

Images: photographs (JPEG, PNG) or radiographs (DICOM CR, DX, MG for presentation), each a case, of one kind: color, gray, CR, DX
or MG. EXIF orientation, modality and VOI LUT or window are applied, MONOCHROME1 is inverted, and 16-bit gray keeps its range.

ECG: WFDB records (.hea with .mat or .dat), one lead, 100 to 10,000 Hz, and REFERENCE.csv (record,label) as in the PhysioNet/CinC
Challenge 2017. A case is a sample of five heartbeats; its class is the label of the recording. --channels names one lead of
several.

Targets: a table gives the classes of images, or with --targets those of volumes: columns of 0 and 1 (ISIC), a column 'Finding
Labels' (NIH ChestX-ray14), a column class, label, diagnosis, dx, target or category, or the column group of participants.tsv
(BIDS). The step prints how it read the table. --classes keeps the cases of some classes only.
Patients of images come from the DICOM header, else from a column patient_id, else from lesion_id; 'classes' of cohort_card.json
declares the order and the codes of the classes.

Labels: --labels declares the labels once; preprocess, train and segment use them. Masks with several foreground values need a
name for each of them (--labels, or the names in dataset.json, cohort_card.json or DICOM SEG), or --merge-labels: labels are never
merged silently. --ignore-label names the value of voxels without annotation.

Reported as errors: missing, duplicate, tilted or unevenly spaced slices; mixed series or acquisitions; values that are not HU;
headers without usable geometry or pixel format; a missing or ambiguous channel; channels that do not overlap, or of different
patients or frames of reference; PET without the attributes that SUV need; masks on another grid; undeclared labels; a mask that
matches two volumes; a patient in two splits; unreadable files; images of several kinds, transparent, CMYK, or with several
frames; mammograms of several views; rows of targets without image, and images without row; a class without training case; ECG
recordings whose header and data disagree, without the lead, or with fewer than five heartbeats. The
step prints every error, then exits with code 65.
Lengths are in mm, values in HU, SUV, or (MR) as stored."""
EXAMPLE = "medweave-step check --cohort cohort --labels lung-nodule --output cohort_index.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckConfig:
    """Options of `check`."""

    cohort: Path = option(
        "cohort folder: DICOM series, NIfTI volumes, a BIDS folder, an MSD or nnU-Net data set, or images",
        metavar="DIR",
    )
    output: Path = option(
        "cohort index to write (JSON); it contains file names, so keep it with the data", metavar="FILE"
    )
    labels: Path | None = option(
        "labels of the masks with their DICOM codes: a preset (lung-nodule), or a JSON or YAML file with a list of "
        "{value, name, category, type, anatomy, laterality} (default: the label names that the cohort declares, without codes)",
        default=None, metavar="PRESET_OR_FILE",
    )  # fmt: skip
    merge_labels: tuple[str, ...] = option(
        "merge mask values into one label, as VALUES:NAME, for example 1,2:tumor; values merged with 0 become background",
        default=(), metavar="VALUES:NAME",
    )  # fmt: skip
    ignore_label: int | None = option(
        "mask value of voxels without annotation (1 to 255); they count in no loss and no metric (default: the value that an "
        "nnU-Net data set declares as ignore)",
        default=None, metavar="VALUE",
    )  # fmt: skip
    channels: Path | None = option(
        "channel rules for DICOM series of MR or PET (JSON or YAML): a list of {name, modality, series_description, contrast, "
        "echo_time_ms, inversion_time_ms, repetition_time_ms, scanning_sequence}; each study needs one series for each rule, and "
        "the first rule sets the grid (default: each study has one series); for NIfTI with a file per channel a list of {name}: "
        "the channels to read, in their order",
        default=None, metavar="FILE",
    )  # fmt: skip
    targets: Path | None = option(
        "table of targets (CSV or TSV) for a classification: a column that names the image, case or patient, and a column "
        "'Finding Labels', a column of classes, or columns of 0 and 1 (default: the only such table of a cohort of images; none "
        "for volumes); also a path below the cohort, such as participants.tsv",
        default=None, metavar="FILE",
    )  # fmt: skip
    classes: tuple[str, ...] = option(
        "classes of the table of targets to keep, for example AD NC; cases of other classes are left out and counted (default: "
        "all classes)",
        default=(), metavar="NAME",
    )  # fmt: skip
    on_error: Literal["stop", "skip"] = option(
        "invalid cases: stop after all errors are reported, or skip these cases", default="stop"
    )

    def __post_init__(self) -> None:
        """Raise UsageError for a value that no mask of bytes can hold, or fewer than two classes."""
        value = self.ignore_label
        check_option(value is None or 1 <= value <= HIGHEST_VALUE, "ignore_label", value, f"1 to {HIGHEST_VALUE}")
        names = self.classes
        is_usable = not names or len(names) == len(set(names)) > 1
        check_option(is_usable, "classes", " ".join(names), "two or more different names")


def run(config: CheckConfig, context: StepContext) -> Mapping[str, Any]:
    """Write the index, print a summary, and return the figures of the run report."""
    from medweave_steps.check.cohort import check_cohort
    from medweave_steps.check.labels import LabelOptions
    from medweave_steps.check.summary import figures, print_summary, refusal
    from medweave_steps.io.cohort.channel_rules import read_channel_rules
    from medweave_steps.io.cohort.labels import parse_merges, read_labels
    from medweave_steps.runtime.write import write_text

    if not config.cohort.is_dir():
        raise UsageError(
            "--cohort is not an existing folder.", expected="a folder with CT, MR or PET volumes", do="correct the path"
        )
    label_options = LabelOptions(
        declared=None if config.labels is None else read_labels(config.labels),
        merges=parse_merges(config.merge_labels),
        ignore_value=config.ignore_label,
    )
    rules = () if config.channels is None else read_channel_rules(config.channels)
    checked = check_cohort(
        config.cohort,
        context,
        skip=config.on_error == "skip",
        label_options=label_options,
        channel_rules=rules,
        targets=None if config.targets is None else in_cohort(config.cohort, config.targets),
        classes=config.classes,
    )
    print_summary(checked, context)
    errors = [finding for finding in checked.index.findings if finding.severity == "error"]
    if errors:
        raise refusal(errors)
    write_text(config.output, codec.dumps(checked.index))
    return figures(checked)


VERB = Verb(name="check", description=DESCRIPTION, example=EXAMPLE, config=CheckConfig, run=run)
