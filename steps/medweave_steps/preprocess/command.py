"""`medweave-step preprocess`: from a checked cohort to volumes that a network can take."""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medweave_core.contracts.cohort import CaseEntry, CohortIndex, Split
from medweave_core.contracts.volume import are_images, are_signals
from medweave_core.errors import UsageError, UserInputError
from medweave_steps.preprocess.config import DEFAULT_FRACTIONS, CaseSettings, PreprocessConfig, settings_of
from medweave_steps.runtime.verb import StepContext, Verb

if TYPE_CHECKING:
    from medweave_steps.preprocess.case import CaseDone, CaseFailed, CaseJob

DESCRIPTION = """\
Reorients each case of a checked cohort to RAS (Right, Anterior, Superior), resamples it linearly to --spacing-mm, clips CT to
--window-hu, crops it to the lungs, and splits the cohort by patient. MR contrasts are normalized to mean 0 and standard
deviation 1 instead; PET keeps its SUV. MR and PET volumes are cropped to multiples of 8 voxels, or cropped and padded to --shape.
DICOM channels on another grid are resampled linearly to the grid of the first channel before, and the step reports it.

--brain-masks sets voxels outside of the brain to 0, after the normalization inside of it. --shape is centered on the mask. A case
without mask, with a mask on another grid or with a mask that is not binary is an error; a brain larger than --shape is skipped.

Input: the cohort folder and the cohort_index.json that `check` wrote for it.

Output: training_set/ (training and validation cases) and inference_batches/batch-000/ ... (test cases; all cases with
--purpose inference). Each has cohort.json and, per case, volume.npy (float32, HU; MR and PET: one channel per contrast, SUV for
PET), lung.npy (CT), label.npy and volume_info.json (geometry in mm, inverse transform). Inference batches also hold source_hu.npy
for CT (source HU inside the crop, for lesion measurements) and source_headers.zip for DICOM sources (the first channel).
source_headers.zip contains patient data. The training set contains neither file. The --output folder appears only when it is
complete.

Images (JPEG, PNG, CR, DX, MG) are scaled to --image-size with antialiasing: the whole image, in its aspect ratio, in the middle of
a black image. volume.npy is float32 [channel, column, row, 1] from 0 to 1, and volume_info.json has the position in the source.
With a table of targets, cases have classes and need no mask. If each case has one class, the split is stratified: each split
gets its share of the patients of each class.

ECG recordings become samples: 260 values (0.87 s at 300 Hz) centered on the R peak of each of five consecutive heartbeats, in mV.
volume.npy is float32 [1, 1300, 1, 1]. All samples of a recording are in one split.

A case with unusable data, such as a slice that cannot be decoded, is skipped with a notice.
Errors: an index with errors or of another cohort, a patient in two splits, too few patients, a class without training
case, a full disk.
Memory: less than 4 GB for a series of 512 x 512 x 600. Cases are processed in parallel by --num-threads processes."""
EXAMPLE = (
    "medweave-step preprocess --cohort cohort --cohort-index cohort_index.json --output prepared --spacing-mm 2 2 2"
)

MOST_CAUSES = 3
"""Failed cases that the error names if no case can be used."""


def run(config: PreprocessConfig, context: StepContext) -> Mapping[str, Any]:
    """Write the prepared cohort and return the figures of the run report."""
    from medweave_steps.io.channel_grid import resampled_text
    from medweave_steps.io.cohort.source import MaskValues
    from medweave_steps.preprocess.case import CaseJob, check_files
    from medweave_steps.preprocess.layout import make_folders, parts_of, write_cohort_file
    from medweave_steps.runtime.write import atomic_directory

    index, settings = _inputs(config, context)
    values = MaskValues.of(index) if config.purpose == "training" else None
    splits = _splits(index, config, context)
    entries = [entry for entry in index.cases if entry.case_id in splits]
    for entry in entries:
        check_files(config.cohort, entry)
    _load_libraries(entries, settings)
    brain_masks = _brain_masks(config, entries, is_bids=index.layout == "bids")
    places = parts_of(splits, entries, cases_per_batch=config.cases_per_batch)
    with atomic_directory(config.output) as output:
        folders = make_folders(output, places)
        jobs = [
            CaseJob(
                cohort=config.cohort,
                entry=entry,
                settings=settings,
                folder=folders[entry.case_id],
                values=values if entry.ground_truth is not None else None,
                for_segment=splits[entry.case_id] == "test",
                keep_all_lesions=splits[entry.case_id] == "train",
                num_workers=context.num_threads if len(entries) == 1 else 1,
                brain_mask=brain_masks.get(entry.case_id),
            )
            for entry in entries
        ]
        done, failed = _prepare_all(jobs, context)
        for place in places:
            write_cohort_file(
                output, place, index=index, settings=settings, splits=splits, split_seed=config.split_seed, done=done
            )
    for failure in sorted(failed, key=lambda failure: failure.case_id):
        error = failure.error
        context.notice(f"skipped: {error.what} (seen: {error.seen}) Do: {error.do}.")
    entries = [entry for entry in entries if entry.case_id in done]
    for entry in sorted(entries, key=lambda entry: entry.case_id):
        case = done[entry.case_id]
        context.add_case(entry.case_id, split=splits[entry.case_id], **case.figures)
        for text in case.notices:
            context.notice(text)
    figures = [done[entry.case_id].figures for entry in entries]
    resampled = Counter(channel for case in figures for channel in case.get("resampled_channels", ()))
    if resampled:
        context.notice(resampled_text(resampled, settings.channels[0]))
    padded = sum(case.get("padded_pixels", 0) > 0 for case in figures)
    if padded:
        context.notice(
            f"{padded} of {len(figures)} images have another aspect ratio than --image-size: they were padded with black."
        )
    return {**_results(entries, splits, settings, figures, len(places) - 1), "num_failed_cases": len(failed)}


def _prepare_all(jobs: Sequence[CaseJob], context: StepContext) -> tuple[dict[str, CaseDone], list[CaseFailed]]:
    """Prepare all cases; return the prepared ones by case id, and those whose data cannot be used.

    Raises:
        UserInputError: not one case can be prepared.
    """
    from medweave_steps.preprocess.case import CaseFailed

    is_image, is_signal = _are_images(jobs), _are_signals(jobs)
    done: dict[str, CaseDone] = {}
    failed: list[CaseFailed] = []
    progress = context.progress(unit="case", total=len(jobs), is_quick=True)
    for result in _attempted(jobs, num_processes=context.num_threads):
        if isinstance(result, CaseFailed):
            failed.append(result)
            progress.step(f"{result.case_id}, skipped")
            continue
        done[result.case_id] = result
        sizes = result.figures["shape"]
        shape = f"{sizes[0]} x {sizes[1]} pixels" if is_image else f"{' x '.join(map(str, sizes))} voxels"
        shape = f"{sizes[0]} values" if is_signal else shape
        progress.step(f"{result.case_id}, {shape}", seconds=result.figures["seconds"])
    if failed and not done:
        raise _all_failed(failed)
    return done, failed


def _attempted(jobs: Sequence[CaseJob], *, num_processes: int) -> Iterator[CaseDone | CaseFailed]:
    """Prepare the cases and yield the results as they are finished; a recording is read once for all its samples."""
    from medweave_steps.preprocess.case import attempt_case, prepare_case
    from medweave_steps.preprocess.images import prepare_image
    from medweave_steps.preprocess.signals import attempt_recording
    from medweave_steps.runtime.pool import finished_cases

    if _are_signals(jobs):
        recordings: dict[str, list[CaseJob]] = {}
        for job in jobs:
            recordings.setdefault(job.entry.files[0], []).append(job)
        for results in finished_cases(attempt_recording, list(recordings.values()), num_processes=num_processes):
            yield from results
        return
    work = functools.partial(attempt_case, prepare=prepare_image if _are_images(jobs) else prepare_case)
    yield from finished_cases(work, jobs, num_processes=num_processes)


def _are_images(jobs: Sequence[CaseJob]) -> bool:
    return all(job.settings.image_size is not None for job in jobs)


def _are_signals(jobs: Sequence[CaseJob]) -> bool:
    return all(are_signals(job.entry.channels) for job in jobs)


def _all_failed(failed: Sequence[CaseFailed]) -> UserInputError:
    first = failed[0].error
    if len(failed) == 1:
        return first
    causes = [" ".join(filter(None, (failure.error.what, failure.error.seen))) for failure in failed[:MOST_CAUSES]]
    more = f"; {len(failed) - MOST_CAUSES} more" if len(failed) > MOST_CAUSES else ""
    return UserInputError(
        f"none of {len(failed)} cases can be preprocessed.",
        seen="; ".join(causes) + more,
        expected=first.expected,
        do=first.do,
    )


def _brain_masks(config: PreprocessConfig, entries: Sequence[CaseEntry], *, is_bids: bool) -> Mapping[str, Path]:
    """Return the brain mask of each case by case id; none without `--brain-masks`."""
    from medweave_steps.io.cohort.files import in_cohort
    from medweave_steps.preprocess.brain_masks import masks_of_cases

    if config.brain_masks is None:
        return {}
    return masks_of_cases(in_cohort(config.cohort, config.brain_masks), entries, is_bids=is_bids)


def _load_libraries(entries: Sequence[CaseEntry], settings: CaseSettings) -> None:
    """Import the libraries before processes are forked, so that a missing one is reported early and all have them loaded."""
    from medweave_steps.runtime.imports import require

    by_format = {"dicom": {"pydicom", "pydicom.pixels"}, "nifti": {"nibabel"}, "image": {"PIL.Image", "PIL.ImageOps"}}
    by_format["wfdb"] = {"wfdb.processing", "scipy.signal"}
    modules = {"scipy.ndimage", *(("nibabel",) if settings.has_brain_masks else ())}
    for entry in entries:
        modules |= by_format[entry.source_format] | ({"PIL.Image"} if are_images(entry.channels) else set())
    for module in sorted(modules):
        require(module, extra="preprocess")
    if settings.bias_correction == "n4":
        require("SimpleITK", extra="bias-correction")


def _inputs(config: PreprocessConfig, context: StepContext) -> tuple[CohortIndex, CaseSettings]:
    from medweave_steps.io.cohort.prepared import read_index
    from medweave_steps.io.model.folder import read_card

    if not config.cohort.is_dir():
        raise UsageError(
            "--cohort is not an existing folder.",
            expected="the cohort folder that `check` validated",
            do="correct the path",
        )
    index = read_index(config.cohort_index)
    errors = [finding for finding in index.findings if finding.severity == "error"]
    if errors:
        first = errors[0]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise UserInputError(
            "the cohort index contains errors.",
            seen=f"{first.what} {first.seen}".strip() + more,
            expected="an index without errors",
            do="correct the cohort and run check again, or run check with --on-error skip to skip invalid cases",
        )
    if not index.cases:
        raise UserInputError(
            "the cohort index contains no case.",
            seen="0 cases",
            expected="at least one volume",
            do="run check on a folder with DICOM series or NIfTI volumes",
        )
    if config.spacing_rule == "nnunet" and not (are_images(index.channels) or are_signals(index.channels)):
        config = _with_spacing_of(index, config, context)
    if config.shape is not None and config.purpose == "training" and not index.classes:
        raise UsageError(
            "--shape applies to classifications.",
            seen="a cohort without classes",
            expected="a cohort index with classes",
            do="leave --shape out, or run check with --targets",
        )
    card = None if config.segmentation_model is None else read_card(config.segmentation_model, verify=False)
    return index, settings_of(config, card, index.channels)


def _with_spacing_of(index: CohortIndex, config: PreprocessConfig, context: StepContext) -> PreprocessConfig:
    """Return the options with the voxel size of nnU-Net's rule for the scans, between 0.2 and 10 mm."""
    from medweave_steps.io.cohort.target_spacing import target_spacing_mm
    from medweave_steps.io.geometry import along_ras

    grids = [along_ras(entry.grid) for entry in index.cases]
    target = target_spacing_mm([spacing for spacing, _ in grids], [shape for _, shape in grids])
    i, j, k = (round(min(max(value, 0.2), 10), 3) for value in target)
    context.notice(f"spacing of {i:g} x {j:g} x {k:g} mm by nnU-Net's rule, from {len(grids)} scans.")
    return dataclasses.replace(config, spacing_rule="fixed", spacing_mm=(i, j, k))


def _splits(index: CohortIndex, config: PreprocessConfig, context: StepContext) -> dict[str, Split]:
    """Return the split of each case that is to be prepared, by case id."""
    from medweave_steps.preprocess.split import assign_splits

    if config.purpose == "inference":
        if config.fractions is not None:
            context.notice("--fractions has no effect with --purpose inference: all cases are segmented.")
        return {entry.case_id: "test" for entry in index.cases}
    labelled = _with_target(index, context)
    splits = assign_splits(
        labelled,
        fractions=config.fractions or DEFAULT_FRACTIONS,
        seed=config.split_seed,
        is_stratified=bool(index.classes) and not index.is_multi_label,
    )
    _check_training_classes(index, splits)
    return splits


def _with_target(index: CohortIndex, context: StepContext) -> list[CaseEntry]:
    """Return the cases with what a training needs: classes where the cohort has some, else a mask; report the others.

    Raises:
        UserInputError: there are none.
    """
    target, source, without_target = ("ground truth", "a mask (DICOM SEG or NIfTI)", "without mask")
    labelled = [entry for entry in index.cases if entry.ground_truth is not None]
    verb = "segment"
    if index.classes or are_images(index.channels) or are_signals(index.channels):
        target, source, without_target, verb = (
            "class",
            "a row in the table of targets (of an ECG, REFERENCE.csv)",
            "without class",
            "classify",
        )
        labelled = [entry for entry in index.cases if entry.classes is not None]
    if not labelled:
        raise UserInputError(
            f"no case of the cohort has a {target}, so training is not possible.",
            seen=f"{len(index.cases)} cases {without_target}",
            expected=f"{source} for the training cases",
            do=f"add the {'masks' if verb == 'segment' else 'table'} and run check again; to {verb} without training, "
            "use --purpose inference",
        )
    without = len(index.cases) - len(labelled)
    if without:
        context.notice(
            f"{without} {'case has' if without == 1 else 'cases have'} no {target} and {'is' if without == 1 else 'are'} "
            f"skipped; to {verb} such cases, use --purpose inference."
        )
    return labelled


def _check_training_classes(index: CohortIndex, splits: Mapping[str, Split]) -> None:
    """Refuse a split in which a class has no training case.

    Raises:
        UserInputError: names the classes.
    """
    trained = {name for entry in index.cases if splits.get(entry.case_id) == "train" for name in entry.classes or ()}
    missing = [one.name for one in index.classes if one.name not in trained]
    if missing:
        raise UserInputError(
            "classes of the cohort have no training case.",
            seen=", ".join(missing),
            expected="a training case of each class",
            do="add cases of these classes, choose another --split-seed, or fix the split in splits.json",
        )


def _results(
    entries: Sequence[CaseEntry],
    splits: Mapping[str, Split],
    settings: CaseSettings,
    figures: Sequence[Mapping[str, Any]],
    num_batches: int,
) -> Mapping[str, Any]:
    return {
        "num_cases": len(entries),
        "num_patients": len({entry.patient_key for entry in entries}),
        "num_lesions": sum(case["num_lesions"] for case in figures),
        "num_batches": num_batches,
        "cases_per_split": {
            split: sum(splits[entry.case_id] == split for entry in entries) for split in ("train", "validation", "test")
        },
        "patients_per_split": {
            split: len({entry.patient_key for entry in entries if splits[entry.case_id] == split})
            for split in ("train", "validation", "test")
        },
        **_grid_figures(settings),
        **({"window_hu": list(settings.window_hu)} if settings.window_hu else {}),
        "channels": list(settings.channels),
        "crop": settings.crop,
        **({"shape": list(settings.shape)} if settings.shape else {}),
        **({"num_brain_masks": len(entries)} if settings.has_brain_masks else {}),
        "median_seconds_per_case": round(statistics.median(case["seconds"] for case in figures), 3),
        "seconds_of_all_cases": round(sum(case["seconds"] for case in figures), 3),
    }


def _grid_figures(settings: CaseSettings) -> Mapping[str, Any]:
    if settings.image_size:
        return {"image_size": list(settings.image_size)}
    return {} if are_signals(settings.channels) else {"spacing_mm": list(settings.spacing_mm)}


VERB = Verb(name="preprocess", description=DESCRIPTION, example=EXAMPLE, config=PreprocessConfig, run=run)
