"""`medweave-step classify`: classes of prepared images, volumes or rows, as a table and DICOM Structured Reports."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_core.contracts import codec
from medweave_core.contracts.classifications import (
    RECORD_FILE,
    RECORDINGS_TABLE,
    TABLE,
    Classifications,
    ClassifiedCase,
)
from medweave_core.contracts.model import ModelCard, Runtime
from medweave_core.contracts.volume import VolumeInfo, are_signals, is_table
from medweave_steps.classify.deliver import CaseDelivery, deliver_case, has_codes
from medweave_steps.classify.rows import ROWS_AT_ONCE, check_table_fits, classify_rows
from medweave_steps.classify.tables import columns_of, recordings_table_of, table_of
from medweave_steps.inference.engine import Engine, open_engine
from medweave_steps.inference.runtimes.choice import BACKEND_HELP, Backend, choose_runtime
from medweave_steps.inference.runtimes.devices import DEVICE_HELP, Device, choose_device
from medweave_steps.io.cohort.prepared import CaseFolder, PreparedFolder, open_prepared
from medweave_steps.io.findings import first_of
from medweave_steps.io.model.folder import card_sha256, read_card
from medweave_steps.io.model.input_check import check_channels
from medweave_steps.runtime.options import option
from medweave_steps.runtime.verb import StepContext, Verb
from medweave_steps.runtime.write import atomic_directory, write_text
from medweave_steps.tasks.classification.fit import check_fits
from medweave_steps.tasks.classification.judging import predict_classes
from medweave_steps.tasks.classification.outputs import ClassTargets


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyConfig:
    """Options of `classify`."""

    model: Path = option(
        "model folder of export or gate, with model_card.json, of the task classification", metavar="DIR"
    )
    case_batch: Path = option(
        "batch folder of preprocess or encode-table, such as prepared/inference_batches/batch-000", metavar="DIR"
    )
    output: Path = option(
        "folder to write: classifications.csv, classifications.json and, for DICOM, <case_id>/classification_sr.dcm",
        metavar="DIR",
    )
    backend: Backend = option(BACKEND_HELP, default="auto")
    device: Device = option(DEVICE_HELP, default="auto")


def run(config: ClassifyConfig, context: StepContext) -> Mapping[str, Any]:
    """Classify every case of a batch; return the counts and the mean seconds per case."""
    card = read_card(config.model)
    model_sha256 = card_sha256(card)
    runtime = choose_runtime(card, config.backend)
    device = choose_device(runtime, config.device)
    prepared = open_prepared(config.case_batch)
    check_table_fits(card, prepared)
    if is_table(prepared.cohort.channels):
        return _classify_table(config, context, card, prepared, runtime, device)
    infos = {case.case.case_id: case.info() for case in prepared.cases()}
    check_fits(card, prepared.cohort, list(infos.values()))
    started = time.perf_counter()
    engine = open_engine(config.model, card, runtime=runtime, device=device, num_threads=context.num_threads)
    compile_s = time.perf_counter() - started
    _announce(card, infos, context)
    progress = context.progress(unit="case", total=len(infos), is_quick=True)
    records: list[ClassifiedCase] = []
    seconds: list[float] = []
    with atomic_directory(config.output) as folder:
        for case in prepared.cases():
            started = time.perf_counter()
            info = infos[case.case.case_id]
            delivery = classify_case(folder, case, info, engine, card, model_sha256=model_sha256)
            seconds.append(time.perf_counter() - started)
            if delivery.no_dicom_reason:
                context.notice(f"{info.case_id}: no DICOM SR: {delivery.no_dicom_reason}.")
            records.append(delivery.record)
            progress.step(f"{info.case_id}: {_shown(delivery.record)} ({seconds[-1]:.2f} s)")
            context.add_case(
                info.case_id,
                classes=list(delivery.record.classes),
                probabilities=dict(delivery.record.probabilities),
                seconds=round(seconds[-1], 3),
                files=dict(delivery.record.files),
            )
        record = _record(runtime, prepared, card, records, model_sha256=model_sha256)
        write_text(folder / TABLE, table_of(records, card.output_names))
        if are_signals(prepared.cohort.channels) and not record.is_multi_label:
            write_text(folder / RECORDINGS_TABLE, recordings_table_of(records, card.output_names))
        write_text(folder / RECORD_FILE, codec.dumps(record))
    engine.close()
    return {**_results(record, seconds, compile_s), "device": device}


def _classify_table(
    config: ClassifyConfig, context: StepContext, card: ModelCard, prepared: PreparedFolder, runtime: Runtime,
    device: Device,
) -> Mapping[str, Any]:  # fmt: skip
    check_channels(card, prepared.cohort)
    started = time.perf_counter()
    engine = open_engine(
        config.model, card, runtime=runtime, device=device, num_threads=context.num_threads, batch_size=ROWS_AT_ONCE
    )  # fmt: skip
    compile_s = time.perf_counter() - started
    total = sum(part.case.num_rows for part in prepared.cases())
    progress = context.progress(unit="block", total=-(-total // ROWS_AT_ONCE), is_quick=True)
    started, records = time.perf_counter(), []
    for block in classify_rows(prepared, engine, card):
        records += block
        progress.step(f"{len(records)} of {total} rows")
    seconds = time.perf_counter() - started
    engine.close()
    with atomic_directory(config.output) as folder:
        record = _record(runtime, prepared, card, records, model_sha256=card_sha256(card))
        write_text(folder / TABLE, table_of(records, card.output_names))
        write_text(folder / RECORD_FILE, codec.dumps(record))
    return {
        **_results(record, [seconds], compile_s),
        "device": device,
        "mean_seconds": round(seconds / max(total, 1), 6),
    }


def classify_case(
    output: Path, case: CaseFolder, info: VolumeInfo, engine: Engine, card: ModelCard, *, model_sha256: str
) -> CaseDelivery:
    """Classify one prepared case and write its DICOM result.

    Raises:
        UserInputError: its array cannot be read or has another shape than the model card; its source headers are missing.
    """
    targets = ClassTargets.of(card)
    probability_C = predict_classes(engine, case.volume_CIJK(), card, case_id=info.case_id)
    classes = targets.named(targets.decided(probability_C[None], card.postprocessing)[0])
    # The same rounding in every output; six decimals also of a probability that a threshold was compared with.
    probabilities = {name: round(float(value), 6) for name, value in zip(targets.names, probability_C, strict=True)}
    return deliver_case(output, case, info, classes, probabilities, card, model_sha256=model_sha256)


def _announce(card: ModelCard, infos: Mapping[str, VolumeInfo], context: StepContext) -> None:
    if not infos:
        context.notice("the batch contains no case, so the output is empty")
    if has_codes(card) or all(info.source_format != "dicom" for info in infos.values()):
        return
    without = [one.name for one in card.classes if one.code is None]
    context.notice(
        f"tables only, no DICOM SR: {len(without)} of {len(card.classes)} classes of the model card have no DICOM code "
        f"({first_of(without)}). Do: declare the codes in 'classes' of cohort_card.json, run check and preprocess, and train again."
    )


def _record(
    runtime: Runtime,
    prepared: PreparedFolder,
    card: ModelCard,
    records: list[ClassifiedCase],
    *,
    model_sha256: str,
) -> Classifications:
    targets = ClassTargets.of(card)
    return Classifications(
        model_name=card.name,
        model_sha256=model_sha256,
        precision=card.precision,
        backend=runtime,
        synthetic_data=prepared.cohort.synthetic,
        synthetic_model=card.synthetic_data,
        classes=card.classes,
        is_multi_label=targets.is_multi_label,
        temperature=card.postprocessing.temperature,
        thresholds=targets.thresholds(card.postprocessing) if targets.is_multi_label else (),
        table_columns=columns_of(targets.names),
        cases=tuple(records),
    )


def _shown(record: ClassifiedCase) -> str:
    classes = ", ".join(f"{name} {100 * record.probabilities[name]:.0f} %" for name in record.classes)
    return classes or "no class"


def _results(record: Classifications, seconds: list[float], compile_s: float) -> Mapping[str, Any]:
    names = [one.name for one in record.classes]
    return {
        "num_cases": len(record.cases),
        "num_cases_by_class": {name: sum(name in case.classes for case in record.cases) for name in names},
        "model_name": record.model_name,
        "model_sha256": record.model_sha256,
        "precision": record.precision,
        "backend": record.backend,
        "classes": codec.to_json(record.classes),
        "is_multi_label": record.is_multi_label,
        "synthetic_data": record.synthetic_data,
        "synthetic_model": record.synthetic_model,
        "compile_seconds": round(compile_s, 3),
        "mean_seconds": round(sum(seconds) / len(seconds), 3) if seconds else None,
        "intended_use": record.intended_use,
    }


DESCRIPTION = """\
Classifies preprocessed images or volumes. It writes classifications.csv with the predicted class of each case (several for a
multi-label model) and the calibrated probability of each class, and the same with the model and its settings as
classifications.json. Each DICOM case with a predicted class also gets classification_sr.dcm (DICOM Comprehensive SR, TID 1500):
the predicted class as a coded finding, with its probability as the certainty in percent. It has the codes of the model card; if
a class of the card has no code, no DICOM object is written.
Samples of ECG recordings also give recordings.csv: the mean of the probabilities of each recording's samples, and the class with
the largest one.
Rows of a table have their number in the source table as case id.
Inference has the precision and the runtime (OpenVINO, ONNX Runtime, torch) that the model card fixes.
Errors: a runtime that is not installed, or --device cuda without a GPU that it can use; a model of another
task; a model whose card does not match the cases (channels, modality, size in pixels, spacing of
volumes); model files that were modified."""
EXAMPLE = """\
medweave-step classify --model accepted_model --case-batch prepared/inference_batches/batch-000 --output classifications"""

VERB = Verb(name="classify", description=DESCRIPTION, example=EXAMPLE, config=ClassifyConfig, run=run)
