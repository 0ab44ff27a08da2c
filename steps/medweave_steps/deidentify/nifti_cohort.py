"""De-identification of a cohort of NIfTI files: its cases (also in parallel), and the files that describe them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from medweave_steps.deidentify.faces import face_in_volume
from medweave_steps.deidentify.nifti_case import NiftiDone, NiftiJob, deidentify_nifti
from medweave_steps.deidentify.nifti_layouts import (
    NewFiles,
    NiftiCohort,
    case_ids_in,
    describe_output,
    names_for_brain_mask,
    new_files,
    renamed,
)
from medweave_steps.deidentify.profile import FACES
from medweave_steps.deidentify.pseudonyms import Pseudonyms
from medweave_steps.deidentify.task import Deidentified, Task, load_libraries
from medweave_steps.io.cohort.bids import title_of
from medweave_steps.io.cohort.brain_mask import find_masks, match_masks, write_masks
from medweave_steps.io.cohort.files import DEIDENTIFIED
from medweave_steps.io.cohort.listed import ListedCase
from medweave_steps.runtime.pool import finished_cases
from medweave_steps.runtime.verb import StepContext


def deidentify_nifti_cohort(
    task: Task, context: StepContext, cohort: NiftiCohort, *, is_synthetic: bool
) -> Deidentified:
    """Write the cases of a NIfTI cohort, and the files that describe them but the card and the splits.

    Args:
        is_synthetic: whether a card of the cohort says that its data is synthetic.
    """
    cases = {case.name.ordinal: case for case in cohort.listed.cases}
    pseudonyms = Pseudonyms(task.key)
    news = {ordinal: new_files(cohort, case, pseudonyms) for ordinal, case in cases.items()}
    errors = {ordinal: cohort.errors_of(case) for ordinal, case in cases.items()}
    masks = _brain_masks(task, cohort)
    jobs = [
        _job(task, cohort, case, news[ordinal], masks.get(str(ordinal)))
        for ordinal, case in cases.items()
        if not errors[ordinal]
    ]
    load_libraries("nibabel", "scipy.ndimage")
    result = Deidentified()
    result.findings = [
        renamed(error, cases[ordinal].name, news[ordinal].name) for ordinal in cases for error in errors[ordinal]
    ]
    for text in cohort.not_written:
        context.notice(text)
    if cohort.num_orphans:
        result.left_aside["mask-without-volume"] += cohort.num_orphans
    good = _run(jobs, context, result)
    for job in jobs:
        if job.name.ordinal in good:
            pairs = [part.pair for part in job.parts()]
            result.files |= dict(pairs)
            result.case_ids[job.name.case_id] = len(pairs)
            result.actions["header-cleared"] += len(pairs)
            if job.brain_mask is not None:
                result.actions["face-removed"] += len(job.images)
    written = [(cases[ordinal], news[ordinal]) for ordinal in cases if ordinal in good]
    if task.keep_brain_masks and cohort.layout == "bids":
        kept = {
            title_of(job.images[0][1]): job.brain_mask for job in jobs if job.name.ordinal in good and job.brain_mask
        }
        write_masks(task.mask_folder, kept)
    result.num_patients = len({case.patient or new.name.case_id for case, new in written})
    if written:
        retain = task.retain_patient_characteristics
        for text in describe_output(cohort, task.cohort, task.output, written, task.columns, retain=retain):
            context.notice(text)
        is_public = is_synthetic or result.data_class == DEIDENTIFIED
        result.new_ids = _new_ids(task, cohort, written, is_public=is_public)
    return result


def _brain_masks(task: Task, cohort: NiftiCohort) -> dict[str, Path]:
    """Return the brain masks by the ordinal of their case."""
    if task.brain_masks is None:
        return {}
    names = {str(case.name.ordinal): names_for_brain_mask(cohort, case) for case in cohort.listed.cases}
    return match_masks(find_masks(task.brain_masks), names)


def _job(task: Task, cohort: NiftiCohort, case: ListedCase, new: NewFiles, brain_mask: Path | None) -> NiftiJob:
    channels = None if cohort.layout == "plain" else case.channels  # a plain folder declares no modality
    return NiftiJob(
        cohort=task.cohort,
        output=task.output,
        name=new.name,
        images=tuple(zip(case.files, new.images, strict=True)),
        mask=(case.mask, new.mask) if case.mask and new.mask else None,
        channels=channels,
        face=face_in_volume(channels, task.faces),
        brain_mask=brain_mask,
        refuse_faces=task.refuse_faces,
    )


def _run(jobs: Sequence[NiftiJob], context: StepContext, result: Deidentified) -> set[int]:
    """Write the cases; return the ordinals of those that were written, and add findings and faces to the result."""
    progress = context.progress(unit="case", total=len(jobs))
    finished: dict[int, NiftiDone] = {}
    for done in finished_cases(deidentify_nifti, jobs, num_processes=context.num_threads):
        finished[done.name.ordinal] = done
        progress.step(f"{done.name.case_id}{', ' + done.finding.code if done.finding else ''}")
    resampled: list[str] = []
    for _, done in sorted(finished.items()):
        if done.finding:
            result.findings.append(done.finding)
            continue
        result.faces[done.name.case_id] = done.face
        result.options |= {FACES} if done.face == "removed" else set()
        resampled += done.resampled
    if resampled:
        count = len(resampled)
        context.notice(
            f"{count} {'channel is' if count == 1 else 'channels are'} not on the grid of the brain mask of "
            f"{'its case' if count == 1 else 'their cases'}: the mask was sampled at the voxel centers (nearest neighbor). "
            "Review these channels: the mask fits only if the channels of a case show one position of the head."
        )
    return {ordinal for ordinal, done in finished.items() if done.finding is None}


def _new_ids(
    task: Task, cohort: NiftiCohort, written: Sequence[tuple[ListedCase, NewFiles]], *, is_public: bool
) -> dict[str, str]:
    """Return the id of each case of the source with that of the output; empty for one that was left out."""
    by_file: Mapping[str, str] = case_ids_in(task.output, cohort.layout, has_public_names=is_public)
    left_out = {case.name.case_id: "" for case in cohort.listed.cases}
    return left_out | {case.name.case_id: by_file[new.images[0]] for case, new in written}
