"""`medweave-step segment`: lesions of prepared cases, as masks, tables and DICOM objects on the source grid."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import gc
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_core.contracts import codec
from medweave_core.contracts.labels import shown
from medweave_core.contracts.model import ModelCard
from medweave_core.contracts.segmentations import RECORD_FILE, Segmentations, SegmentedCase
from medweave_core.contracts.volume import VolumeInfo
from medweave_core.errors import UsageError, UserInputError
from medweave_steps.inference.components import filter_outputs
from medweave_steps.inference.engine import Engine
from medweave_steps.inference.head import OutputHead
from medweave_steps.inference.restore import restore_labels
from medweave_steps.inference.runtimes.choice import BACKEND_HELP, Backend, choose_runtime
from medweave_steps.inference.runtimes.devices import DEVICE_HELP, Device, choose_device
from medweave_steps.io.cohort.prepared import CaseFolder, open_prepared
from medweave_steps.io.cohort.source_hu import open_source_hu
from medweave_steps.runtime.options import option
from medweave_steps.runtime.verb import StepContext, Verb
from medweave_steps.runtime.write import atomic_directory
from medweave_steps.segment.deliver import CaseDelivery, deliver_case, draft_dicom
from medweave_steps.segment.ensemble import SegmentationModel, predict_mean, read_models
from medweave_steps.segment.fit import check_fits
from medweave_steps.segment.lesions import columns_of

STAGES = ("load", "network", "restore", "write")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentConfig:
    """Options of `segment`."""

    segmentation_model: tuple[Path, ...] = option(
        "model folder of export or gate, with model_card.json; several folders are an ensemble: the mean of their probabilities, "
        "with the median of their thresholds and filters for each label or region",
        metavar="DIR",
    )
    case_batch: Path = option("batch folder of preprocess, such as prepared/inference_batches/batch-000")
    output: Path = option(
        "folder to write: <case_id>/lesion_mask.nii.gz, lesions.csv and, for DICOM, lesion_mask.dcm, lesions_sr.dcm"
    )
    backend: Backend = option(BACKEND_HELP, default="auto")
    device: Device = option(DEVICE_HELP, default="auto")
    threshold: float | None = option(
        "probability threshold for a voxel of the label, or of every region, between 0 and 1 (default: the thresholds in the model "
        "card; a model of several exclusive labels has none)",
        default=None,
    )


def run(config: SegmentConfig, context: StepContext) -> Mapping[str, Any]:
    """Segment every case of a batch; return the counts and the mean seconds per stage."""
    model = read_models(config.segmentation_model, config.backend)
    model = dataclasses.replace(model, card=_at(config.threshold, model.card, context))
    card = model.card
    runtime = choose_runtime(card, config.backend)
    device = choose_device(runtime, config.device)
    prepared = open_prepared(config.case_batch)
    cases = prepared.cases()
    infos = {case.case.case_id: case.info() for case in cases}
    check_fits(card, prepared.cohort, list(infos.values()))
    clock = time.perf_counter()
    engines = model.open(runtime=runtime, device=device, num_threads=context.num_threads)
    compile_s = time.perf_counter() - clock
    without_hu = sum(info.window_hu is not None and info.source_hu_start is None for info in infos.values())
    if without_hu:
        context.notice(
            f"{without_hu} of {len(infos)} cases were preprocessed without source HU: mean HU is omitted. "
            "Run preprocess again to measure mean HU."
        )
    if not cases:
        context.notice("the batch contains no case, so the output is empty")
    without_codes = [label for label in card.foreground_labels if not label.has_codes]
    if without_codes and any(info.source_format == "dicom" for info in infos.values()):
        which = f"label{'s' if len(without_codes) > 1 else ''} {shown(without_codes)}"
        context.notice(
            f"NIfTI masks and tables only, no DICOM SEG and SR: the {which} of the model card "
            f"{'have' if len(without_codes) > 1 else 'has'} no DICOM codes (category and type). Do: declare them with --labels of "
            "check, and train again."
        )
    progress = context.progress(unit="case", total=len(cases))
    records: list[SegmentedCase] = []
    stages: list[Mapping[str, float]] = []
    with atomic_directory(config.output) as folder:
        for case in cases:
            info = infos[case.case.case_id]
            delivery, seconds = segment_case(folder / info.case_id, case, info, engines, model)
            for finding in delivery.record.findings:
                details = f"(seen: {finding.seen}; body part of the label: {finding.expected})"
                context.notice(f"{finding.what} {details} Do: {finding.do}.")
            if delivery.no_dicom_reason:
                context.notice(
                    f"{info.case_id}: NIfTI mask and table only, no DICOM SEG and SR: {delivery.no_dicom_reason}."
                )
            records.append(delivery.record)
            stages.append(seconds)
            count = delivery.record.num_lesions
            total = sum(seconds.values())
            progress.step(f"{info.case_id}: {count} lesion{'' if count == 1 else 's'} ({total:.1f} s)", lesions=count)
            context.add_case(
                info.case_id,
                num_lesions=count,
                lesion_volume_mm3=delivery.record.lesion_volume_mm3,
                seconds={name: round(value, 3) for name, value in seconds.items()},
                files=dict(delivery.record.files),
                findings=codec.to_json(delivery.record.findings),
                **({"by_label": codec.to_json(delivery.record.by_label)} if delivery.record.by_label else {}),
            )
        record = Segmentations(
            model_name=card.name,
            model_sha256=model.sha256,
            precision=card.precision,
            backend=runtime,
            synthetic_data=prepared.cohort.synthetic,
            synthetic_model=card.synthetic_data,
            table_columns=columns_of(card.foreground_labels),
            labels=card.labels,
            regions=card.output.regions,
            ensemble=model.ensemble,
            thresholds=OutputHead.of(card).filters_of(card.postprocessing),
            cases=tuple(records),
        )
        (folder / RECORD_FILE).write_text(codec.dumps(record), encoding="utf-8")
    for engine in engines:
        engine.close()
    return {**_results(record, stages, compile_s), "device": device}


def _at(threshold: float | None, card: ModelCard, context: StepContext) -> ModelCard:
    """Return the card with the threshold of the option, if it is used."""
    filters = OutputHead.of(card).filters_of(card.postprocessing)
    if threshold is None or all(one.threshold == threshold for one in filters):
        return card
    if not 0 < threshold < 1:
        raise UsageError("invalid value of --threshold.", seen=str(threshold), expected="a probability between 0 and 1")
    if card.output.activation == "softmax":
        raise UsageError(
            "--threshold does not apply to this model: each voxel gets its most probable label.",
            seen=f"--threshold {threshold:g} with the labels {shown(card.foreground_labels)}",
            expected="no --threshold, or a model with one label or with regions",
        )
    own = ", ".join(f"{one.threshold:g}" for one in filters)
    context.notice(f"threshold {threshold:g} instead of {own}, the threshold of the metrics in the model card")
    by_output = tuple(dataclasses.replace(one, threshold=threshold) for one in card.postprocessing.by_output)
    chosen = dataclasses.replace(card.postprocessing, threshold=threshold, by_output=by_output)
    return dataclasses.replace(card, postprocessing=chosen)


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    # A case makes some 10^5 small objects of DICOM and frees them at once; looking through them costs a tenth of its time.
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@_without_collection()
def segment_case(
    folder: Path, case: CaseFolder, info: VolumeInfo, engines: Sequence[Engine], model: SegmentationModel
) -> tuple[CaseDelivery, dict[str, float]]:
    """Segment one prepared case and write its results; return the outputs and the seconds per stage."""
    marks, card, head = [time.perf_counter()], model.card, OutputHead.of(model.card)
    filters = head.filters_of(card.postprocessing)
    volume_CIJK, source_hu = case.volume_CIJK(), open_source_hu(case.folder, info)
    if volume_CIJK.shape[1:] != info.grid.shape:
        raise UserInputError(
            f"volume.npy of {info.case_id} does not match its volume_info.json.",
            seen=f"shape {volume_CIJK.shape[1:]}",
            expected=f"shape {info.grid.shape}",
            do="run preprocess again",
        )
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        # Hundreds of source images are named while the network computes outside the interpreter.
        drafting = pool.submit(draft_dicom, case, info, card, model_sha256=model.sha256)
        marks.append(time.perf_counter())
        probability_CIJK = predict_mean(engines, volume_CIJK, model.cards)
        marks.append(time.perf_counter())
        found = filter_outputs(probability_CIJK, head, filters, info.grid.spacing_mm)
        label_map = restore_labels(found.probability_CIJK, info, head, filters, boxes=found.boxes)
        marks.append(time.perf_counter())
        draft = drafting.result()
    delivery = deliver_case(folder, label_map, info, source_hu, draft, card, model_sha256=model.sha256)
    marks.append(time.perf_counter())
    return delivery, {name: b - a for name, (a, b) in zip(STAGES, itertools.pairwise(marks), strict=True)}


def _results(record: Segmentations, stages: list[Mapping[str, float]], compile_s: float) -> Mapping[str, Any]:
    names = stages[0] if stages else ()
    return {
        "num_cases": len(record.cases),
        "num_lesions": sum(case.num_lesions for case in record.cases),
        "model_name": record.model_name,
        "model_sha256": record.model_sha256,
        "precision": record.precision,
        "backend": record.backend,
        "labels": codec.to_json(record.labels),
        "synthetic_data": record.synthetic_data,
        "synthetic_model": record.synthetic_model,
        "compile_seconds": round(compile_s, 3),
        "mean_seconds": {name: round(sum(s[name] for s in stages) / len(stages), 3) for name in names},
        "intended_use": record.intended_use,
    }


DESCRIPTION = """\
Segments lesions in preprocessed cases and resamples the masks to the source grid. Per case, it writes lesion_mask.nii.gz (with the
label values of the model card) and lesions.csv (volume in mm³, longest diameter in mm, mean HU for CT, slice). DICOM sources also
get lesion_mask.dcm (DICOM SEG, one segment per label) and lesions_sr.dcm (DICOM SR, TID 1500), with the label codes of the model
card. If a label of the card has no codes, or the case shows another body part, only NIfTI and the table are written.
Inference has the precision and the runtime (OpenVINO, ONNX Runtime, torch) that the model card fixes.
Errors: a runtime that is not installed, or --device cuda without a GPU that it can use; a model whose
card does not match the cases (spacing in mm, HU window, crop); models of an ensemble whose contracts differ;
model files that were modified."""
EXAMPLE = """\
medweave-step segment --segmentation-model accepted_model \\
      --case-batch prepared/inference_batches/batch-000 --output segmentations"""

VERB = Verb(name="segment", description=DESCRIPTION, example=EXAMPLE, config=SegmentConfig, run=run)
