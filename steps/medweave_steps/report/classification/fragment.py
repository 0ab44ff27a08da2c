"""The report of a classification."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from medweave_core.contracts import codec
from medweave_core.contracts.classification_evaluation import ClassificationEvaluation
from medweave_core.contracts.report_fragment import FRAGMENT_FILE, SUMMARY_FILE, ReportSummary
from medweave_core.contracts.volume import is_table
from medweave_core.errors import UserInputError
from medweave_steps.report import charts, gather, page
from medweave_steps.report.classification import sections
from medweave_steps.report.classification.charts import reliability_chart
from medweave_steps.report.classification.explanations import (
    WHOLE_BRAIN,
    ExplanationPicture,
    explanation_pictures,
    layer_sentence,
    read_explained,
    region_rows,
    sanity_sentences,
)
from medweave_steps.report.classification.material import ClassMaterial, read_class_evaluation, read_classified
from medweave_steps.report.classification.pictures import CasePicture, picture_of, worst_cases
from medweave_steps.report.sections import sections_of, shown
from medweave_steps.runtime.write import atomic_directory, write_text

if TYPE_CHECKING:
    from medweave_steps.report.config import ReportConfig
    from medweave_steps.runtime.verb import StepContext


def write_classification(config: ReportConfig, context: StepContext) -> Mapping[str, Any]:
    """Write the report's fragment and return the figures of the run report.

    Raises:
        UserInputError: a file cannot be read, or the folders are of different runs.
    """
    reports = gather.read_reports(config.run_reports)
    material = ClassMaterial(
        evaluation=read_class_evaluation(config.evaluation),
        cohort=gather.prepared_cohort(config.case_batches),
        classified=read_classified(config.classifications),
        explained=read_explained(config.explanations),
        curves=gather.read_curves(config.training_log, tuple(charts.CLASS_FIGURES)),
        hardware=gather.read_hardware(config.training_log),
        reports=reports,
        gate=gather.gate_decision(reports),
        statistics=gather.read_statistics(config.statistics),
        cases=gather.prepared_cases(config.case_batches),
    )
    pictures = _pictures(material, config.max_overlays, context)
    maps = explanation_pictures(material.explained, config.max_overlays)
    summary = _summary(material, config.title or sections.title_of(material))
    html = _fragment(material, summary, pictures, maps)
    with atomic_directory(config.output) as folder:
        write_text(folder / FRAGMENT_FILE, html)
        write_text(folder / SUMMARY_FILE, codec.dumps(summary))
    return {
        "synthetic": material.evaluation.synthetic,
        "cases": material.evaluation.cases,
        "pictures": len(pictures),
        "maps": len(maps),
        "fragment_bytes": len(html.encode()),
    }


def _pictures(material: ClassMaterial, most: int, context: StepContext) -> list[CasePicture]:
    chosen = [] if is_table(material.cohort.channels) else worst_cases(material.evaluation, most)
    progress = context.progress(unit="picture", total=len(chosen))
    pictures = []
    for case in chosen:
        if case.case_id not in material.cases:
            raise UserInputError(
                "evaluation and case batches do not match.",
                seen=f"{case.case_id} was evaluated, but its preprocessed case is missing",
                expected="every evaluated case in --case-batches",
                do="use all folders of the same run",
            )
        pictures.append(picture_of(case, material.cases[case.case_id], material.cohort))
        progress.step(case.case_id)
    return pictures


def _summary(material: ClassMaterial, title: str) -> ReportSummary:
    evaluation = material.evaluation
    return ReportSummary(
        title=title,
        synthetic=evaluation.synthetic,
        patients=evaluation.patients,
        cases=evaluation.cases,
        lesions=0,
        figures=sections.headline(material),
        precision=material.classified.precision,
        gate=material.gate.reason if material.gate else None,
        sections=sections_of(material, sections.own_sections(material)),
    )


def _fragment(
    material: ClassMaterial, summary: ReportSummary, pictures: list[CasePicture], maps: list[ExplanationPicture]
) -> str:
    evaluation, curves, case_word = material.evaluation, material.curves, sections.case_word(material)
    how, map_rows = f"whole {case_word}s", region_rows(material.explained)
    validation = charts.validation_chart(curves, charts.CLASS_FIGURES, how) if curves.validation else None
    return page.render(
        "classification/fragment.html.j2",
        material,
        summary,
        case_word=case_word,
        patient_word=sections.patient_word(material),
        inference_verb="classify",
        timed_word=case_word,
        evaluation=evaluation,
        figures=[(item, shown(item)) for item in sections.all_figures(material)],
        remarks=sections.remarks(material),
        class_rows=sections.class_rows(evaluation.by_class, evaluation.classes),
        recordings=_of_recordings(evaluation),
        covariate_tables=sections.covariate_tables(evaluation),
        covariates_title=sections.COVARIATES[1],
        confusion_rows=sections.confusion_rows(evaluation.confusion_matrix, evaluation.classes),
        decision_rows=sections.decision_rows(evaluation),
        reliability_chart=reliability_chart(evaluation, material.classified.temperature) if evaluation.cases else None,
        pictures=pictures,
        maps=maps,
        maps_title=sections.EXPLANATIONS[1],
        maps_cases=sum(len(batch.record.cases) for batch in material.explained),
        maps_layer=layer_sentence(material.explained) if material.explained else "",
        maps_sanity=sanity_sentences(material.explained),
        map_rows=map_rows,
        maps_have_brain=any(region == WHOLE_BRAIN for _, region, _ in map_rows),
        wrong_cases=sum(not case.is_correct for case in evaluation.per_case),
        training_charts=page.training_charts(material, validation),
        training_facts=sections.facts_of_training(material),
        model_facts=sections.model_facts(material),
    )


def _of_recordings(evaluation: ClassificationEvaluation) -> Mapping[str, Any] | None:
    """Return title, figures and tables of whole recordings; None for cases other than samples of an ECG."""
    own = evaluation.by_recording
    if own is None:
        return None
    return {
        "title": sections.RECORDINGS[1],
        "figures": sections.recording_figures(own),
        "class_rows": sections.class_rows(own.by_class, evaluation.classes),
        "confusion_rows": sections.confusion_rows(own.confusion_matrix, evaluation.classes),
    }
