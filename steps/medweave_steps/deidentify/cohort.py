"""The de-identification of a whole cohort: its layout, its DICOM series (also in parallel), and the files that describe it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from medweave_core.contracts.cohort import Finding
from medweave_core.contracts.deidentification import PatientAtHome
from medweave_core.errors import UsageError
from medweave_steps.deidentify.bids_output import described_files
from medweave_steps.deidentify.deface import MaskOfFrame, mask_of_image
from medweave_steps.deidentify.describe import declared_faces, has_synthetic_card, write_card, write_splits
from medweave_steps.deidentify.dicom_case import (
    SeriesDone,
    SeriesJob,
    deidentify_series,
    read_header,
    remove_empty_folders,
)
from medweave_steps.deidentify.dicom_cohort import SourceSeries, find_series
from medweave_steps.deidentify.faces import face_in_image
from medweave_steps.deidentify.images.photographs import deidentify_photographs, write_tables
from medweave_steps.deidentify.images.radiographs import (
    name_patients,
    new_cases,
    source_case_ids,
    tables_of_radiographs,
)
from medweave_steps.deidentify.nifti_cohort import deidentify_nifti_cohort
from medweave_steps.deidentify.nifti_layouts import list_data_set, list_folder
from medweave_steps.deidentify.participants import write_participants
from medweave_steps.deidentify.pseudonyms import Pseudonyms
from medweave_steps.deidentify.signals import deidentify_signals
from medweave_steps.deidentify.task import Deidentified, Task, load_libraries
from medweave_steps.io.cohort.bids import is_bids
from medweave_steps.io.cohort.bids_tables import PARTICIPANTS_FILE
from medweave_steps.io.cohort.brain_mask import find_masks, match_masks, write_masks
from medweave_steps.io.cohort.discovery import case_id_of_series, walk
from medweave_steps.io.cohort.files import CARD_FILE, DATASET_FILE, SPLITS_FILE
from medweave_steps.io.cohort.prepared import INDEX_FILE
from medweave_steps.io.cohort.signals import is_header
from medweave_steps.io.dicom.values import HeaderValues
from medweave_steps.io.findings import FindingError
from medweave_steps.io.image.raster import is_raster
from medweave_steps.io.nifti.volume import is_nifti
from medweave_steps.runtime.pool import finished_cases
from medweave_steps.runtime.verb import REPORT_NAME, StepContext

_ABOUT_THE_COHORT = {CARD_FILE, SPLITS_FILE, DATASET_FILE, INDEX_FILE, REPORT_NAME}


def deidentify_cohort(task: Task, context: StepContext) -> Deidentified:
    """Write the de-identified cohort into an existing, empty folder.

    Raises:
        FindingError: a file that describes the cohort cannot be used.
    """
    everything = list(walk(task.cohort))
    if task.faces == "auto":
        task = dataclasses.replace(task, faces=declared_faces(task.cohort))
    is_synthetic = has_synthetic_card(task.cohort, everything)
    names = [name for name in everything if name.rpartition("/")[2] not in _ABOUT_THE_COHORT]
    if (task.cohort / DATASET_FILE).is_file():
        done = deidentify_nifti_cohort(task, context, list_data_set(task.cohort, everything), is_synthetic=is_synthetic)
    elif any(map(is_header, names)) and not any(map(is_nifti, names)):
        done = deidentify_signals(task, context, names)
    else:
        nifti = [name for name in names if is_nifti(name)]
        tables = set(described_files(names)) if is_bids(nifti) else set()
        done, not_dicom = _dicom(task, context, [name for name in names if not is_nifti(name) and name not in tables])
        has_dicom = bool(done.case_ids or done.findings)
        if nifti and not has_dicom:
            aside = done.left_aside
            cohort = list_folder(task.cohort, names, everything)
            done = deidentify_nifti_cohort(task, context, cohort, is_synthetic=is_synthetic)
            done.left_aside += aside
        elif nifti:
            done.left_aside["nifti-beside-dicom"] += len(nifti)
        elif any(map(is_raster, not_dicom)) and not has_dicom:
            aside = done.left_aside - Counter({"not-dicom": len(not_dicom)})
            done = deidentify_photographs(task, context, not_dicom, is_synthetic=is_synthetic)
            done.left_aside += aside
    if task.columns and done.case_ids and not (task.output / PARTICIPANTS_FILE).is_file():
        raise UsageError(
            f"--keep-columns applies to {PARTICIPANTS_FILE} of a BIDS folder, or of DICOM series of CT, MR and PET.",
            seen="another layout",
            expected="no --keep-columns",
            do="leave the option out",
        )
    if task.keep_brain_masks and done.case_ids and not task.mask_folder.is_dir():
        raise UsageError(
            "--keep-brain-masks applies to BIDS folders and to DICOM series.",
            seen="another layout",
            expected="no --keep-brain-masks",
            do="leave the option out",
        )
    states = set(done.faces.values())
    is_free = "removed" in states and states <= {"absent", "removed"}
    faces = "absent" if is_free else task.faces
    write_card(task.cohort, task.output, data_class=done.data_class, is_synthetic=is_synthetic, faces=faces)
    if done.case_ids:
        write_splits(task.cohort, task.output, done.new_ids)
    return done


def _dicom(task: Task, context: StepContext, names: Sequence[str]) -> tuple[Deidentified, list[str]]:
    """Write the DICOM series and, with radiographs, the tables about them; return the result and the files that are not DICOM."""
    pseudonyms = Pseudonyms(task.key)
    sources = find_series(task.cohort, names)
    if sources.num_joined:
        context.notice(
            f"{sources.num_joined} series have a PatientID without issuer (0010,0021): they count as the patient with that ID "
            "and the issuer in other series."
        )
    tables = tables_of_radiographs(task.cohort, sources.series, sources.not_dicom)
    sources.findings += name_patients(sources.series, tables)
    refused = {ordinal for ordinal, _ in sources.findings}
    series = {one.ordinal: one for one in sources.series if one.ordinal not in refused}
    result = Deidentified(left_aside=sources.left_aside, findings=[finding for _, finding in sources.findings])
    masks = _masks_by_patient(task, sources.series, list(series.values()))
    no_masks = _PatientMasks()
    jobs = [
        SeriesJob(
            cohort=task.cohort, ordinal=one.ordinal, study_uid=one.study_uid, series_uid=one.series_uid, files=tuple(one.files),
            identity=one.identity, output=task.output, key=task.key,
            retain_patient_characteristics=task.retain_patient_characteristics, faces=task.faces,
            masks=masks.get(one.identity, no_masks).masks, mask_by_series=masks.get(one.identity, no_masks).by_series,
            refuse_faces=task.refuse_faces, is_radiograph=bool(one.radiographs),
        )
        for one in series.values()
    ]  # fmt: skip
    load_libraries("pydicom", "scipy.ndimage", *(["nibabel"] if masks else [])) if jobs else None
    progress = context.progress(unit="series", total=len(jobs))
    finished: list[SeriesDone] = []
    for done in finished_cases(deidentify_series, jobs, num_processes=context.num_threads):
        finished.append(done)
        outcome = done.finding.code if done.finding else f"{len(done.files)} file{'' if len(done.files) == 1 else 's'}"
        progress.step(f"{case_id_of_series(done.series_uid)}, {outcome}")
    result.new_ids = {case_id: "" for one in sources.series for case_id in source_case_ids(one)}
    pseudonym_of: dict[str, str] = {}
    for done in sorted(finished, key=lambda done: done.ordinal):
        if done.finding:
            result.findings.append(done.finding)
            continue
        for old_id, (case_id, num_files) in new_cases(series[done.ordinal], done).items():
            result.new_ids[old_id] = case_id
            if done.is_image:
                result.case_ids[case_id] = num_files
                result.faces[case_id] = done.face
        pseudonym_of |= dict.fromkeys(done.files, done.pseudonym)
        result.num_resampled += done.resampled
        result.num_unstated += done.num_unstated
        result.left_aside["picture-of-a-head"] += done.num_left_aside
        result.options |= done.options
        result.uids |= done.uids
        result.files |= done.files
        result.actions += done.actions
    result.patients = _patients([series[d.ordinal] for d in finished if not d.finding], pseudonyms)
    result.num_patients = len(result.patients)
    remove_empty_folders(task.output)
    if task.keep_brain_masks and result.files:
        paths = {mask.ordinal: mask.path for own in masks.values() for mask in own.masks}
        new_ids = {one.ordinal: result.new_ids[case_id_of_series(one.series_uid)] for one in series.values()}
        kept = {new_id: paths[ordinal] for ordinal, new_id in new_ids.items() if new_id and ordinal in paths}
        write_masks(task.mask_folder, kept)
    if task.columns and result.files and not any(one.radiographs for one in series.values()):
        _write_participants(task, context, result, sources.series, pseudonyms)
    if tables.tables and result.files:
        result.left_aside["not-dicom"] -= len(tables.tables)
        write_tables(tables, task, context, result, pseudonym_of)
    return result, sources.not_dicom


def _write_participants(
    task: Task, context: StepContext, result: Deidentified, series: Sequence[SourceSeries], pseudonyms: Pseudonyms
) -> None:
    """Write participants.tsv with the written patients, named by their PatientID; an id of several issuers names none."""
    identities: dict[str, set[str]] = {}
    for one in series:
        identities.setdefault(one.patient_id, set()).add(one.identity)
    written = {patient.pseudonym for patient in result.patients}
    names = {
        patient_id: pseudonyms.patient(next(iter(own)))
        for patient_id, own in identities.items()
        if patient_id and len(own) == 1
    }
    subjects = {patient_id: name for patient_id, name in names.items() if name in written}
    retain = task.retain_patient_characteristics
    for text in write_participants(task.cohort, task.output, subjects, task.columns, retain=retain):
        context.notice(text)
    result.left_aside["not-dicom"] -= 1


@dataclass(frozen=True, slots=True)
class _PatientMasks:
    """The brain masks of a patient, and the one that applies to each image series by its UID; None where none does."""

    masks: tuple[MaskOfFrame, ...] = ()
    by_series: Mapping[str, MaskOfFrame | None] = field(default_factory=dict)


def _masks_by_patient(
    task: Task, found: Sequence[SourceSeries], series: Sequence[SourceSeries]
) -> dict[str, _PatientMasks]:
    """Return the brain masks by identity of the patient, of patients with a mask.

    Args:
        found: all series of the cohort: masks of refused ones match their case, too.
        series: those that are de-identified.
    """
    names = {str(one.ordinal): [case_id_of_series(one.series_uid)] for one in found if one.is_image}
    if task.brain_masks is None or not names:
        return {}
    matched = match_masks(find_masks(task.brain_masks), names)
    images: dict[str, list[SourceSeries]] = {}
    for one in series:
        if one.is_image:
            images.setdefault(one.identity, []).append(one)
    return {
        identity: _masks_of_patient(task, of_patient, matched)
        for identity, of_patient in images.items()
        if any(str(one.ordinal) in matched for one in of_patient)
    }


def _masks_of_patient(task: Task, series: Sequence[SourceSeries], matched: Mapping[str, Path]) -> _PatientMasks:
    """Return the masks of a patient; each belongs to the frame of reference of its series.

    Args:
        series: images of the patient.
        matched: mask by the ordinal of its series.
    """
    headers = {one.ordinal: read_header(task.cohort / one.files[0], one.ordinal) for one in series}
    masks = tuple(
        MaskOfFrame(path=path, frame_of_reference=HeaderValues(header).text("FrameOfReferenceUID"), ordinal=ordinal)
        for ordinal, header in headers.items()
        if (path := matched.get(str(ordinal)))
    )
    by_series: dict[str, MaskOfFrame | None] = {}
    for one in series:
        header = headers[one.ordinal]
        mask = mask_of_image(header, masks, one.ordinal, face_in_image(header, task.faces))
        by_series[one.series_uid] = by_series.get(one.series_uid) or mask  # one UID may be in several studies
    return _PatientMasks(masks, by_series)


def _patients(series: Sequence[SourceSeries], pseudonyms: Pseudonyms) -> list[PatientAtHome]:
    table = {
        one.identity: PatientAtHome(
            patient_id=one.patient_id,
            issuer=one.issuer,
            pseudonym=pseudonyms.patient(one.identity),
            date_shift_days=pseudonyms.date_shift_days(one.identity),
        )
        for one in series
    }
    return sorted(table.values(), key=lambda patient: patient.pseudonym)


def left_out(findings: Sequence[Finding]) -> list[Finding]:
    """Return errors as notices, for `--on-error skip`."""
    return [dataclasses.replace(finding, severity="notice", what=f"skipped: {finding.what}") for finding in findings]


def refusal(findings: Sequence[Finding]) -> FindingError:
    """Return all errors as one."""
    if len(findings) == 1:
        return FindingError(findings[0])
    texts = "\n".join(str(FindingError(finding)) for finding in findings)
    return FindingError(
        Finding(severity="error", code="several", what=f"the cohort has {len(findings)} errors.\n{texts}")
    )
