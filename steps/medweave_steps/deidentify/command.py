"""`medweave-step deidentify`: turns identified data into de-identified data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from medweave_core.contracts import codec
from medweave_core.errors import UsageError, UserInputError
from medweave_steps.io.cohort.files import in_cohort
from medweave_steps.runtime.options import option
from medweave_steps.runtime.verb import StepContext, Verb

if TYPE_CHECKING:
    from medweave_steps.deidentify.task import Deidentified

DESCRIPTION = """\
De-identifies a cohort by the DICOM PS3.15 Basic Application Level Confidentiality Profile (Table E.1-1, 2026c) with modified
dates. Modality and contrasts do not change; pixel values change only outside of brain masks. Comments in compressed pixel
data and bytes after the pixel data are removed. SeriesDescription and ContrastBolusAgent of MR and PET keep the words that name
the contrast; PET keeps PatientWeight, which the standardized uptake value (SUV) needs.

Input: DICOM series (CT, MR, PET images, or CR, DX and MG radiographs), DICOM SEG, RTSTRUCT and SR; NIfTI volumes and masks in a
layout that `check` reads (MSD, nnU-Net, BIDS-like, one file per MR contrast, plain); photographs (JPEG, PNG); or ECG recordings
(WFDB) of one lead. NIfTI output has the layout of its source.

Photographs keep their pixels and lose all metadata; one with an EXIF orientation becomes an upright PNG. Tables about images keep
the targets and, under pseudonyms, the columns for image, patient and lesion; class names are kept as they are. A class that only
one patient has must be declared in 'classes' of cohort_card.json, since it may be other text about this patient.

ECG recordings become new MATLAB v4 files with a header: the values do not change; record names become pseudonyms; comments, dates
and times are removed. REFERENCE.csv keeps the labels.

Of participants.tsv (BIDS, or next to DICOM series of CT, MR and PET) only the columns of --keep-columns are kept, if they cannot
identify a subject: free text, dates, identifiers and words that only one subject has are refused.

Output: the --output folder has pseudonyms for folders, files, UIDs and patients. All dates of a patient are shifted by the
same number of whole days. Private and unknown attributes, overlays and free text are removed. The --home folder (mode 0700)
must stay at the source site. It holds the re-identification map way_back.json (patients, UIDs, date shifts, files) and, if
--key names no file, the pseudonym key. The same key and the same source give the same output, byte for byte. The run report
contains no patient data.

Skipped, with a notice: secondary captures, other DICOM objects, files that are not DICOM.
Rejected and not written: images with burned-in text (by their header or their pixels); unreadable pixel data; overlays in
unused bits of the pixel data; a study with several patients.

Faces: a cohort with a scan of the head (also as part of a larger scan) gets the data class de-identified only if --brain-masks
removes the face, or if the headers, cohort_card.json or --faces declare it absent; else it keeps the class identified, with a
notice. MR and PET without body part count as scans of the head. Photographs may show a face or a tattoo: they keep the cohort
identified, until --faces absent or the card declares that no photograph shows such a mark.

Not detected: low-contrast text, dark text in color images, handwriting, faces that nothing declares, and names in codes,
segment labels or ROI names that occur nowhere else in the header. Review the output before you share it."""
EXAMPLE = "medweave-step deidentify --cohort /data/chest-ct --output de-identified --home home --key pseudonym.key"

WAY_BACK, KEY_NAME = "way_back.json", "pseudonym.key"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeidentifyConfig:
    """Options of `deidentify`."""

    cohort: Path = option("folder with the identified cohort", metavar="DIR")
    output: Path = option("folder for the de-identified data; must not exist", metavar="DIR")
    home: Path = option(
        "folder for the re-identification map and the key; must not exist; keep it inside your institution",
        metavar="DIR",
    )
    key: Path | None = option(
        "file with the pseudonym key; created (32 random bytes, mode 0600) if absent. Default: pseudonym.key in --home",
        default=None,
        metavar="FILE",
    )
    retain_patient_characteristics: bool = option(
        "keep sex, age (above 89 years: 90), size, weight, ethnic group, smoking and pregnancy status; of participants.tsv the "
        "columns age, sex, weight and height; of tables about images age and sex",
        default=False,
    )
    keep_columns: tuple[str, ...] = option(
        "columns of participants.tsv to keep, such as group and mmse, under the pseudonyms of the subjects; only numbers, or few "
        "words that several subjects have (an age above 89 years becomes 90)",
        default=(), metavar="NAME",
    )  # fmt: skip
    faces: Literal["auto", "present", "absent"] = option(
        "whether scans or photographs show faces. auto: cohort_card.json, else the DICOM headers (BodyPartExamined, "
        "RecognizableVisualFeatures); present: all of them; absent: none, because they show another part of the body or the "
        "face was removed before (defaced or skull-stripped); of photographs: none shows a face, a tattoo or another such mark",
        default="auto",
    )
    brain_masks: Path | None = option(
        "folder of brain masks (NIfTI); all voxels outside are removed. For NIfTI: the file name of a volume of the case, or of "
        "the case without channel, or as BIDS derivatives (sub-01_desc-brain_mask.nii.gz); for DICOM: CASE_ID.nii.gz, with "
        "the case id of one series of the study, for all series in its frame of reference. Also a path below the cohort, such as "
        "derivatives/brain",
        default=None,
        metavar="DIR",
    )
    keep_brain_masks: bool = option(
        "write the masks of --brain-masks under the pseudonyms of their cases, for preprocess --brain-masks: into the same folder "
        "below the output, or, for masks outside of the cohort, into brain-masks/; for BIDS and DICOM",
        default=False,
    )
    require_deidentified: bool = option(
        "refuse scans that may show a face; without it they are written, and the cohort keeps the data class identified",
        default=False,
    )
    on_error: Literal["stop", "skip"] = option(
        "invalid cases: stop after all errors are reported, or skip these cases", default="stop"
    )

    @property
    def masks(self) -> Path | None:
        """Folder of `brain_masks`, which may be a path below the cohort."""
        return None if self.brain_masks is None else in_cohort(self.cohort, self.brain_masks)

    def __post_init__(self) -> None:
        _check_places(self)
        if self.brain_masks is not None and self.faces == "absent":
            raise UsageError(
                "--brain-masks and --faces absent contradict each other.",
                expected="masks only for scans that show faces",
                do="leave one of them out",
            )
        if self.keep_brain_masks and self.brain_masks is None:
            raise UsageError("--keep-brain-masks needs --brain-masks.", expected="a folder of masks with --brain-masks")


def _check_places(config: DeidentifyConfig) -> None:
    """Check that the folders for the output, the key and the re-identification map are apart from the cohort and each other."""
    cohort, output, home = (path.resolve() for path in (config.cohort, config.output, config.home))
    key = home if config.key is None else config.key.resolve()
    if not config.cohort.is_dir():
        raise UsageError(
            "--cohort is not an existing folder.", expected="a folder with DICOM or NIfTI files", do="correct the path"
        )
    masks = None if config.masks is None else config.masks.resolve()
    if masks is not None and not masks.is_dir():
        raise UsageError("--brain-masks is not an existing folder.", expected="a folder of NIfTI files")
    # Masks in derivatives/ of the cohort are no volumes of it.
    apart = (
        masks is None
        or _nested(masks, cohort / "derivatives")
        or not (_nested(masks, cohort) or _nested(cohort, masks))
    )
    wrong = {
        "--brain-masks and --cohort overlap.": not apart,
        "--output and --cohort overlap.": _nested(output, cohort) or _nested(cohort, output),
        "--home and --output overlap.": _nested(home, output) or _nested(output, home),
        "--home and --cohort overlap.": _nested(home, cohort) or _nested(cohort, home),
        "--key is inside --output.": _nested(key, output),
        "--key is inside --cohort.": _nested(key, cohort),
    }
    for what, is_wrong in wrong.items():
        if is_wrong:
            raise UsageError(what, expected="separate folders", do="choose another folder")


def _nested(inner: Path, outer: Path) -> bool:
    return inner == outer or outer in inner.parents


def run(config: DeidentifyConfig, context: StepContext) -> Mapping[str, Any]:
    """Write the de-identified cohort and the re-identification map; return the figures of the run report."""
    from medweave_steps.deidentify.cohort import deidentify_cohort, left_out, refusal
    from medweave_steps.deidentify.participants import kinds_of_columns
    from medweave_steps.deidentify.pseudonyms import new_key, write_private
    from medweave_steps.deidentify.task import Task
    from medweave_steps.runtime.write import atomic_directory

    key = _existing_key(config, context)
    secret = new_key() if key is None else key
    # HOME is renamed first: no output exists before the re-identification map is on the disk.
    with atomic_directory(config.output) as output, atomic_directory(config.home) as home:
        home.chmod(0o700)
        task = Task(
            cohort=config.cohort, output=output, key=secret,
            retain_patient_characteristics=config.retain_patient_characteristics, faces=config.faces,
            brain_masks=config.masks, refuse_faces=config.require_deidentified,
            keep_brain_masks=config.keep_brain_masks,
            columns=kinds_of_columns(config.cohort, config.keep_columns),
        )  # fmt: skip
        done = deidentify_cohort(task, context)
        codes = Counter(finding.code for finding in done.findings)
        if done.findings and config.on_error == "stop":
            raise refusal(done.findings)
        for finding in left_out(done.findings):
            context.notice(finding.what)
        if not done.case_ids:
            raise _nothing(done)
        write_private(home / WAY_BACK, codec.dumps(_way_back(done)).encode())
        if key is None:
            if config.key is None:
                write_private(home / KEY_NAME, secret)
            else:
                config.key.parent.mkdir(parents=True, exist_ok=True)
                write_private(config.key, secret)
    return _report(config, context, done, codes)


def _existing_key(config: DeidentifyConfig, context: StepContext) -> bytes | None:
    """Return the key in the file that --key names; None where a new one is needed."""
    from medweave_steps.deidentify.pseudonyms import is_open_to_others, read_key

    if config.key is None or not config.key.exists():
        return None
    if is_open_to_others(config.key):
        context.notice("the file of --key is readable by other users: run chmod 600 on it.")
    return read_key(config.key)


def _way_back(done: Deidentified) -> Any:
    from medweave_core.contracts.deidentification import ReidentificationMap

    return ReidentificationMap(patients=tuple(done.patients), uids=dict(sorted(done.uids.items())), files=done.files)


def _nothing(done: Deidentified) -> UserInputError:
    aside = ", ".join(f"{number} {reason}" for reason, number in sorted(done.left_aside.items()))
    return UserInputError(
        "the cohort contains no case to de-identify.",
        seen=f"{len(done.findings)} cases skipped" if done.findings else aside or "an empty folder",
        expected="DICOM images, NIfTI volumes, a data set with dataset.json, photographs (JPEG, PNG), or ECG recordings (WFDB)",
        do="set --cohort to the folder that contains the series",
    )


def _report(
    config: DeidentifyConfig, context: StepContext, done: Deidentified, codes: Counter[str]
) -> Mapping[str, Any]:
    from medweave_core.contracts.deidentification import Deidentification
    from medweave_steps.deidentify.dicom_case import options_of
    from medweave_steps.deidentify.faces import notices_of
    from medweave_steps.deidentify.profile import PROFILE

    for reason, number in sorted(done.left_aside.items()):
        if number:
            context.notice(f"{number} {'file' if number == 1 else 'files'} skipped and not written: {reason}.")
    for text in notices_of(done.faces):
        context.notice(text)
    if done.num_resampled:
        context.notice(
            f"{done.num_resampled} series are not on the grid of their brain mask: the mask was sampled at their voxel centers "
            "(nearest neighbor)."
        )
    if done.num_unstated:
        context.notice(
            f"{done.num_unstated} {'radiograph does' if done.num_unstated == 1 else 'radiographs do'} not state whether text is "
            "burned in (BurnedInAnnotation, 0028,0301): the pixels were only searched for it. Look at these images."
        )
    for case_id, number in done.case_ids.items():
        context.add_case(case_id, num_files=number)
    options = options_of(done.options, retain_patient_characteristics=config.retain_patient_characteristics)
    figures: Mapping[str, Any] = codec.to_json(
        Deidentification(
            profile=PROFILE,
            options=tuple(meaning for _, meaning in options),
            num_patients=done.num_patients,
            num_cases=len(done.case_ids),
            num_files=len(done.files),
            num_uids=len(done.uids),
            actions=dict(sorted(done.actions.items())),
            left_aside={reason: number for reason, number in sorted(done.left_aside.items()) if number},
            left_out=dict(sorted(codes.items())),
        )
    )
    return figures


VERB = Verb(name="deidentify", description=DESCRIPTION, example=EXAMPLE, config=DeidentifyConfig, run=run)
