"""De-identification of a cohort of JPEG and PNG files: its images (also in parallel), and their tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from medweave_core.contracts.deidentification import PatientAtHome
from medweave_core.errors import UsageError
from medweave_steps.deidentify.describe import card_classes, read_description
from medweave_steps.deidentify.faces import IDENTIFIABLE, face_in_photograph
from medweave_steps.deidentify.images.photograph import PhotographDone, PhotographJob, deidentify_photograph
from medweave_steps.deidentify.images.tables import ImageTables
from medweave_steps.deidentify.pseudonyms import Pseudonyms
from medweave_steps.deidentify.task import Deidentified, Task, load_libraries
from medweave_steps.io.cohort.files import CARD_FILE, has_public_file_names
from medweave_steps.io.cohort.images import case_ids_of_photographs
from medweave_steps.io.cohort.tables import is_table
from medweave_steps.io.findings import SeriesName
from medweave_steps.io.image.raster import is_raster
from medweave_steps.runtime.pool import finished_cases
from medweave_steps.runtime.verb import StepContext

IMAGE_FOLDER = "images"


def deidentify_photographs(
    task: Task, context: StepContext, names: Sequence[str], *, is_synthetic: bool
) -> Deidentified:
    """Write the images and the tables about them, but not the card and the splits.

    Args:
        names: files of the cohort that are not DICOM, sorted; at least one JPEG or PNG file.
        is_synthetic: whether a card of the cohort says that its data is synthetic.
    """
    if task.brain_masks is not None:
        raise UsageError(
            "--brain-masks applies to scans, and the cohort has photographs.",
            expected="no brain masks",
            do="leave out --brain-masks; if no image shows a face, declare --faces absent",
        )
    files = [name for name in names if is_raster(name)]
    has_public_names = has_public_file_names(read_description(task.cohort / CARD_FILE))
    case_ids = case_ids_of_photographs(files, has_public_names=has_public_names)
    tables = ImageTables.read(task.cohort, [name for name in names if is_table(name)], case_ids)
    written = _run(task, context, files)
    result = Deidentified(findings=[done.finding for done in written if done.finding])
    new_files = {done.source: done.file for done in written if done.file}
    result.files |= new_files
    result.actions["metadata-removed"] += sum(done.has_lost_bytes and not done.is_turned for done in written)
    if num_turned := sum(done.is_turned for done in written):
        result.actions["turned-upright"] = num_turned
        context.notice(
            f"{num_turned} {'image has' if num_turned == 1 else 'images have'} an EXIF orientation: written upright as PNG, with "
            "the same pixels."
        )
    face = face_in_photograph(task.faces)
    pseudonyms = Pseudonyms(task.key)
    identities = tables.identities(new_files)
    result.patients = patients_of(identities.values(), pseudonyms)
    result.num_patients = len({identities.get(file, f"file {file}") for file in new_files})
    is_output_public = is_synthetic or face not in IDENTIFIABLE
    new_ids = case_ids_of_photographs(sorted(new_files.values()), has_public_names=is_output_public)
    result.new_ids = {case_ids[file]: new_ids.get(new_files.get(file, ""), "") for file in files}
    result.case_ids = dict.fromkeys(sorted(new_ids.values()), 1)
    result.faces = dict.fromkeys(result.case_ids, face)
    others = [name for name in names if name not in case_ids and name not in tables.tables]
    if others:
        result.left_aside["no-image-or-table"] = len(others)
    if new_files:
        write_tables(tables, task, context, result, {})
    return result


def _run(task: Task, context: StepContext, files: Sequence[str]) -> list[PhotographDone]:
    """Write the images; return the results in the order of the source."""
    pseudonyms = Pseudonyms(task.key)
    jobs = []
    for ordinal, file in enumerate(files, start=1):
        stem = f"image-{pseudonyms.token('photograph', file, digits=12)}"
        jobs.append(
            PhotographJob(
                cohort=task.cohort, output=task.output, name=SeriesName(case_id=stem, ordinal=ordinal, noun="image"), source=file,
                target=f"{IMAGE_FOLDER}/{stem}", face=face_in_photograph(task.faces), refuse_faces=task.refuse_faces,
            )
        )  # fmt: skip
    load_libraries("PIL.Image", "PIL.ImageOps", "scipy.ndimage")
    (task.output / IMAGE_FOLDER).mkdir()
    progress = context.progress(unit="image", total=len(jobs), is_quick=True)
    finished = []
    for done in finished_cases(deidentify_photograph, jobs, num_processes=context.num_threads):
        finished.append(done)
        progress.step(f"{done.name.case_id}{', ' + done.finding.code if done.finding else ''}")
    return sorted(finished, key=lambda done: done.name.ordinal)


def patients_of(identities: Collection[str], pseudonyms: Pseudonyms) -> list[PatientAtHome]:
    """Return the patients that tables name; photographs have no dates to shift."""
    ids = {identity.removesuffix("\n") for identity in identities if identity.endswith("\n")}
    patients = [
        PatientAtHome(patient_id=one, issuer="", pseudonym=pseudonyms.patient(f"{one}\n"), date_shift_days=0)
        for one in ids
    ]
    return sorted(patients, key=lambda patient: patient.pseudonym)


def write_tables(
    tables: ImageTables, task: Task, context: StepContext, result: Deidentified, patients: dict[str, str]
) -> None:
    """Write the tables about the images of the result, and add their files and findings to it.

    Args:
        patients: pseudonym of each image whose header names a patient.
    """
    retain = task.retain_patient_characteristics
    declared = [one.name for one in card_classes(read_description(task.cohort / CARD_FILE))]
    written = tables.write(task.output, result.files, patients, Pseudonyms(task.key), declared=declared, retain=retain)
    result.files = {**result.files, **written.files}
    result.findings += written.findings
    for text in written.notices:
        context.notice(text)
