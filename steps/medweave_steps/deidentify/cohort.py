"""The de-identification of a whole cohort: its layout, its cases (also in parallel), and the files that describe it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from medweave_core.contracts.cohort import Finding
from medweave_core.contracts.deidentification import PatientAtHome
from medweave_core.contracts.volume import DataClass
from medweave_steps.deidentify.brain_mask import find_masks, match_masks, names_of_volume
from medweave_steps.deidentify.deface import MaskOfFrame, mask_of_image
from medweave_steps.deidentify.describe import (
    bad_description,
    declared_faces,
    read_channels,
    read_description,
    write_card,
    write_dataset,
    write_splits,
)
from medweave_steps.deidentify.dicom_case import (
    SeriesDone,
    SeriesJob,
    deidentify_series,
    read_header,
    remove_empty_folders,
)
from medweave_steps.deidentify.dicom_cohort import SourceSeries, find_series
from medweave_steps.deidentify.faces import IDENTIFIABLE, DeclaredFaces, FaceState, face_in_image, face_in_volume
from medweave_steps.deidentify.nifti_case import NiftiJob, deidentify_nifti
from medweave_steps.deidentify.profile import FACES, Option
from medweave_steps.deidentify.pseudonyms import Pseudonyms
from medweave_steps.io.cohort.discovery import case_id_of_path, case_id_of_series, walk
from medweave_steps.io.cohort.files import (
    CARD_FILE,
    DATASET_FILE,
    DEIDENTIFIED,
    SPLITS_FILE,
    case_id_of_stem,
    listed_volumes,
)
from medweave_steps.io.cohort.foreign_layouts import dataset_as_msd, refuse_foreign_layout
from medweave_steps.io.cohort.prepared import INDEX_FILE
from medweave_steps.io.findings import FindingError, SeriesName
from medweave_steps.io.nifti.pairing import Pairing, pair_masks
from medweave_steps.io.nifti.volume import is_nifti
from medweave_steps.runtime.pool import finished_cases
from medweave_steps.runtime.verb import REPORT_NAME, StepContext

_ABOUT_THE_COHORT = {CARD_FILE, SPLITS_FILE, DATASET_FILE, INDEX_FILE, REPORT_NAME}


@dataclass(slots=True, kw_only=True)
class Deidentified:
    """The result of de-identifying a cohort.

    Attributes:
        case_ids: new ids of the written cases, in order, with the number of files of each.
        options: of the profile, beyond those of all files.
        faces: by new id of a case, whether it may show a face.
        num_resampled: series to which a brain mask of another grid was applied.
        findings: errors; with one or more of them the output is not complete.
    """

    patients: list[PatientAtHome] = field(default_factory=list)
    uids: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    actions: Counter[str] = field(default_factory=Counter)
    left_aside: Counter[str] = field(default_factory=Counter)
    case_ids: dict[str, int] = field(default_factory=dict)
    num_patients: int = 0
    options: set[Option] = field(default_factory=set)
    faces: dict[str, FaceState] = field(default_factory=dict)
    num_resampled: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def data_class(self) -> DataClass:
        """Return `identified` where a case may show a face, else `de-identified`."""
        return "identified" if IDENTIFIABLE & set(self.faces.values()) else DEIDENTIFIED


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The options of one de-identification.

    Attributes:
        faces: `auto` leaves it to the cohort card.
        brain_masks: folder of masks.
        refuse_faces: refuse cases that may show a face.
    """

    cohort: Path
    output: Path
    key: bytes
    retain_patient_characteristics: bool
    faces: DeclaredFaces
    brain_masks: Path | None
    refuse_faces: bool


def deidentify_cohort(task: Task, context: StepContext) -> Deidentified:
    """Write the de-identified cohort into an existing, empty folder.

    Raises:
        FindingError: a file that describes the cohort cannot be used.
    """
    everything = list(walk(task.cohort))
    if task.faces == "auto":
        task = dataclasses.replace(task, faces=declared_faces(task.cohort))
    names = [name for name in everything if name.rpartition("/")[2] not in _ABOUT_THE_COHORT]
    dataset = dataset_as_msd(read_description(task.cohort / DATASET_FILE), everything)
    if (task.cohort / DATASET_FILE).is_file():
        try:
            training, test = listed_volumes(dataset)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise bad_description(DATASET_FILE, "'training' or 'test' in an invalid form") from error
        done = _nifti(task, context, {"imagesTr": training, "imagesTs": test}, dataset)
    else:
        done = _dicom(task, context, [name for name in names if not is_nifti(name)])
        nifti = [name for name in names if is_nifti(name)]
        if nifti and not done.case_ids and not done.findings:
            aside = done.left_aside
            pairing = pair_masks(nifti)
            refuse_foreign_layout(nifti, everything, pairing)
            done = _nifti(task, context, {"images": pairing.pairs()}, None)
            done.findings += _ambiguous(pairing, names)
            done.left_aside += aside
            done.left_aside["mask-without-volume"] += len(pairing.orphans())
        elif nifti:
            done.left_aside["nifti-beside-dicom"] += len(nifti)
    is_free = done.data_class == DEIDENTIFIED and "removed" in done.faces.values()
    write_card(
        task.cohort, everything, task.output, data_class=done.data_class, faces="absent" if is_free else task.faces
    )
    return done


def _ambiguous(pairing: Pairing, names: Sequence[str]) -> list[Finding]:
    """Return an error for each volume whose mask is not certain."""
    case_names = {
        image: SeriesName(case_id=case_id_of_path(image), ordinal=ordinal)
        for ordinal, image in enumerate(pairing.masks, start=1)
    }
    numbers = {name: number for number, name in enumerate(names, start=1)}
    return list(pairing.refusals(case_names.__getitem__, numbers).values())


def _dicom(task: Task, context: StepContext, names: Sequence[str]) -> Deidentified:
    pseudonyms = Pseudonyms(task.key)
    sources = find_series(task.cohort, names)
    if sources.num_joined:
        context.notice(
            f"{sources.num_joined} series have a PatientID without issuer (0010,0021): they count as the patient with that ID "
            "and the issuer in other series."
        )
    refused = {ordinal for ordinal, _ in sources.findings}
    series = {one.ordinal: one for one in sources.series if one.ordinal not in refused}
    result = Deidentified(left_aside=sources.left_aside, findings=[finding for _, finding in sources.findings])
    masks = _masks_by_patient(task, list(series.values()))
    defaced = _defaced_series(task, list(series.values()), masks)
    jobs = [
        SeriesJob(
            cohort=task.cohort, ordinal=one.ordinal, study_uid=one.study_uid, series_uid=one.series_uid, files=tuple(one.files),
            identity=one.identity, output=task.output, key=task.key,
            retain_patient_characteristics=task.retain_patient_characteristics, faces=task.faces,
            masks=tuple(masks.get(one.identity, ())), defaced=defaced.get(one.identity, frozenset()),
            refuse_faces=task.refuse_faces,
        )
        for one in series.values()
    ]  # fmt: skip
    _load_libraries("pydicom", "scipy.ndimage", *(["nibabel"] if masks else [])) if jobs else None
    progress = context.progress(unit="series", total=len(jobs))
    finished: list[SeriesDone] = []
    for done in finished_cases(deidentify_series, jobs, num_processes=context.num_threads):
        finished.append(done)
        outcome = done.finding.code if done.finding else f"{len(done.files)} file{'' if len(done.files) == 1 else 's'}"
        progress.step(f"{case_id_of_series(done.series_uid)}, {outcome}")
    new_ids = {case_id_of_series(one.series_uid): "" for one in sources.series}
    for done in sorted(finished, key=lambda done: done.ordinal):
        if done.finding:
            result.findings.append(done.finding)
            continue
        case_id = case_id_of_series(done.series_uid)
        new_ids[case_id_of_series(series[done.ordinal].series_uid)] = case_id
        if done.is_image:
            result.case_ids[case_id] = len(done.files)
            result.faces[case_id] = done.face
        result.num_resampled += done.resampled
        result.left_aside["picture-of-a-head"] += done.num_left_aside
        result.options |= done.options
        result.uids |= done.uids
        result.files |= done.files
        result.actions += done.actions
    result.patients = _patients([series[d.ordinal] for d in finished if not d.finding], pseudonyms)
    result.num_patients = len(result.patients)
    remove_empty_folders(task.output)
    if result.case_ids:
        write_splits(task.cohort, task.output, new_ids)
    return result


def _masks_by_patient(task: Task, series: Sequence[SourceSeries]) -> dict[str, list[MaskOfFrame]]:
    """Return the brain masks by identity of the patient; each belongs to the frame of reference of its series."""
    names = {str(one.ordinal): [case_id_of_series(one.series_uid)] for one in series if one.is_image}
    if task.brain_masks is None or not names:
        return {}
    matched = match_masks(find_masks(task.brain_masks), names)
    masks: dict[str, list[MaskOfFrame]] = {}
    for one in series:
        if path := matched.get(str(one.ordinal)):
            frame = str(read_header(task.cohort / one.files[0], one.ordinal).get("FrameOfReferenceUID") or "").strip(
                " \0"
            )
            masks.setdefault(one.identity, []).append(
                MaskOfFrame(path=path, frame_of_reference=frame, ordinal=one.ordinal)
            )
    return masks


def _defaced_series(
    task: Task, series: Sequence[SourceSeries], masks: Mapping[str, Sequence[MaskOfFrame]]
) -> dict[str, frozenset[str]]:
    """Return by identity of the patient the UIDs of the series that masks apply to."""
    defaced: dict[str, frozenset[str]] = {}
    for one in series:
        if one.is_image and one.identity in masks:
            image = read_header(task.cohort / one.files[0], one.ordinal)
            if mask_of_image(image, masks[one.identity], one.ordinal, face_in_image(image, task.faces)):
                defaced[one.identity] = defaced.get(one.identity, frozenset()) | {one.series_uid}
    return defaced


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


def _nifti(
    task: Task,
    context: StepContext,
    folders: Mapping[str, Sequence[tuple[str, str | None]]],
    dataset: Mapping[str, object] | None,
) -> Deidentified:
    """Return volumes by the folder that they go to; `dataset` where the cohort has a dataset.json."""
    jobs = _nifti_jobs(task, folders, None if dataset is None else read_channels(dataset))
    _load_libraries("nibabel", "scipy.ndimage")
    result = Deidentified()
    progress = context.progress(unit="case", total=len(jobs))
    good: set[int] = set()
    refused: dict[int, Finding] = {}
    for done in finished_cases(deidentify_nifti, jobs, num_processes=context.num_threads):
        if done.finding:
            refused[done.name.ordinal] = done.finding
        else:
            good.add(done.name.ordinal)
            result.faces[done.name.case_id] = done.face
            result.options |= {FACES} if done.face == "removed" else set()
        progress.step(f"{done.name.case_id}{', ' + done.finding.code if done.finding else ''}")
    result.findings = [refused[ordinal] for ordinal in sorted(refused)]
    written = [job for job in jobs if job.name.ordinal in good]
    for job in written:
        pairs = [pair for pair in (job.image, job.mask) if pair is not None]
        result.files |= dict(pairs)
        result.case_ids[job.name.case_id] = len(pairs)
        result.actions["header-cleared"] += len(pairs)
        if job.brain_mask is not None:
            result.actions["face-removed"] += 1
    result.num_patients = len(written)
    case_id = case_id_of_path if dataset is None else case_id_of_stem
    write_splits(
        task.cohort, task.output,
        {case_id(job.image[0]): case_id(job.image[1]) if job in written else "" for job in jobs},
    )  # fmt: skip
    if dataset is not None:
        with_mask = [(job.image[1], job.mask[1]) for job in written if job.mask is not None]
        write_dataset(task.output, dataset, with_mask, [job.image[1] for job in written if job.mask is None])
    return result


def _nifti_jobs(
    task: Task, folders: Mapping[str, Sequence[tuple[str, str | None]]], channels: tuple[str, ...] | None
) -> list[NiftiJob]:
    pseudonyms = Pseudonyms(task.key)
    masks: Mapping[str, Path] = {}
    if task.brain_masks is not None:
        images = [image for pairs in folders.values() for image, _ in pairs]
        masks = match_masks(find_masks(task.brain_masks), {image: names_of_volume(image) for image in images})
    jobs: list[NiftiJob] = []
    for folder, pairs in folders.items():
        for image, mask in pairs:
            name = f"case-{pseudonyms.token('nifti', image, digits=12)}"
            labels = folder.replace("images", "labels")
            jobs.append(
                NiftiJob(
                    cohort=task.cohort,
                    output=task.output,
                    name=SeriesName(case_id=name, ordinal=len(jobs) + 1),
                    image=(image, f"{folder}/{name}{_suffix(image)}"),
                    mask=None if mask is None else (mask, f"{labels}/{name}{_suffix(mask)}"),
                    channels=channels,
                    face=face_in_volume(channels, task.faces),
                    brain_mask=masks.get(image),
                    refuse_faces=task.refuse_faces,
                )
            )
    return jobs


def _suffix(name: str) -> str:
    return ".nii.gz" if name.endswith(".gz") else ".nii"


def _load_libraries(*modules: str) -> None:
    """Import the libraries before processes are forked, so that a missing one is reported early and all have them loaded."""
    from medweave_steps.runtime.imports import require

    for module in modules:
        require(module, extra="deidentify")


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
