"""`medweave-step report`: the deterministic part of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medweave_core.contracts import codec
from medweave_core.contracts.body_parts import scans_of_labels
from medweave_core.contracts.labels import Label, declared_or_lesion, upper_first
from medweave_core.contracts.volume import modality_of
from medweave_core.errors import UserInputError
from medweave_steps.report.config import ReportConfig
from medweave_steps.runtime.verb import StepContext, Verb

if TYPE_CHECKING:
    from medweave_core.contracts.cohort import PreparedCohort
    from medweave_core.contracts.report_fragment import ReportSummary
    from medweave_steps.io.cohort.prepared import CaseFolder
    from medweave_steps.report.gather import Material
    from medweave_steps.report.outlines import ShownLabel
    from medweave_steps.report.overlay import Display, Focus, Picture


_LONGEST_NAMES = 80  # characters of the names of several labels in a title


def run(config: ReportConfig, context: StepContext) -> Mapping[str, Any]:
    """Write the report's fragment and return the figures of the run report."""
    if config.classifications:
        from medweave_steps.report.classification.fragment import write_classification

        return write_classification(config, context)
    return _write_segmentation(config, context)


def _write_segmentation(config: ReportConfig, context: StepContext) -> Mapping[str, Any]:
    from medweave_core.contracts.report_fragment import FRAGMENT_FILE, SUMMARY_FILE
    from medweave_steps.report import charts, gather
    from medweave_steps.report.outlines import ONLY_LABEL, shown_labels
    from medweave_steps.report.overlay import display_of
    from medweave_steps.runtime.write import atomic_directory, write_text

    evaluation, lesions = gather.read_evaluation(config.evaluation)
    reports = gather.read_reports(config.run_reports)
    cohort = gather.prepared_cohort(config.case_batches)
    labels = declared_or_lesion(cohort.labels)
    delivered, regions = gather.delivered_outputs(config.segmentations, labels)
    material = gather.Material(
        evaluation=evaluation,
        lesions=lesions,
        curves=gather.read_curves(config.training_log, tuple(charts.MASK_FIGURES)),
        hardware=gather.read_hardware(config.training_log),
        reports=reports,
        gate=gather.gate_decision(reports),
        statistics=gather.read_statistics(config.statistics),
        cases=gather.prepared_cases(config.case_batches),
        masks=gather.delivered_masks(config.segmentations),
        labels=labels,
        merges=cohort.merges,
        shown=shown_labels(delivered) if evaluation.by_label else ONLY_LABEL,
        regions=regions,
        display=display_of(cohort, labels),
    )
    with atomic_directory(config.output) as folder:
        overlays = _overlays(material, config.max_overlays, context)
        summary = _summary(material, config.title or _title(cohort, labels))
        html = _fragment(material, summary, overlays)
        write_text(folder / FRAGMENT_FILE, html)
        write_text(folder / SUMMARY_FILE, codec.dumps(summary))
    return {
        "synthetic": evaluation.synthetic,
        "cases": evaluation.cases,
        "overlays": len(overlays),
        "fragment_bytes": len(html.encode()),
    }


def _overlays(material: Material, most: int, context: StepContext) -> list[dict[str, Any]]:
    from medweave_steps.report import sections
    from medweave_steps.runtime.pool import finished_cases

    chosen = sections.shown_cases(material.evaluation, most)
    marks = sections.tags(material.evaluation)
    for case in chosen:
        if case.case_id not in material.cases or case.case_id not in material.masks:
            raise UserInputError(
                "evaluation, case batches and segmentations do not match.",
                seen=f"{case.case_id} was evaluated, but its preprocessed case or its mask is missing",
                expected="every evaluated case in --case-batches and in --segmentations",
                do="use all folders of the same run",
            )
    progress = context.progress(unit="overlay", total=len(chosen))
    drawn = {}
    jobs = [
        (material.cases[case.case_id], material.masks[case.case_id], material.display, material.shown)
        for case in chosen
    ]
    for case_id, made, focus in finished_cases(_drawn, jobs, num_processes=context.num_threads):
        drawn[case_id] = made, focus
        progress.step(case_id)
    return [
        {
            "case": case,
            "cells": sections.case_cells(case),
            "tag": marks.get(case.case_id),
            "focus": drawn[case.case_id][1].what,
            "pictures": drawn[case.case_id][0],
        }
        for case in chosen
    ]


def _title(cohort: PreparedCohort, labels: Sequence[Label]) -> str:
    scans = scans_of_labels(labels, modality_of(cohort.channels))
    if len(labels) == 1:
        return f"{upper_first(labels[0].title)} segmentation in {scans}"
    *first, last = [label.name for label in labels]
    names = f"{', '.join(first)} and {last}"
    return f"Segmentation of {names if len(names) <= _LONGEST_NAMES else f'{len(labels)} labels'} in {scans}"


def _drawn(job: tuple[CaseFolder, Path, Display, tuple[ShownLabel, ...]]) -> tuple[str, list[Picture], Focus]:
    from medweave_steps.report.overlay import pictures

    case, mask, display, labels = job
    return case.case.case_id, *pictures(case, mask, display, labels)


def _summary(material: Material, title: str) -> ReportSummary:
    from medweave_core.contracts.report_fragment import ReportSummary
    from medweave_steps.report import sections

    evaluation = material.evaluation
    return ReportSummary(
        title=title,
        synthetic=evaluation.synthetic,
        patients=evaluation.patients,
        cases=evaluation.cases,
        lesions=evaluation.lesions,
        figures=sections.headline(evaluation),
        precision=material.results_of("segment").get("precision"),
        gate=material.gate.reason if material.gate else None,
        sections=sections.sections_of(material),
    )


def _fragment(material: Material, summary: ReportSummary, overlays: list[dict[str, Any]]) -> str:
    from medweave_steps.report import by_label, charts, page, sections, training_facts

    evaluation, curves = material.evaluation, material.curves
    result_charts = [charts.dice_chart(evaluation)] if any(c.dice is not None for c in evaluation.per_case) else []
    result_charts += [charts.size_chart(material.lesions)] if material.lesions else []
    how = "sliding-window inference"
    validation = charts.validation_chart(curves, charts.MASK_FIGURES, how) if curves.validation else None
    return page.render(
        "fragment.html.j2",
        material,
        summary,
        case_word="scan",
        inference_verb="segment",
        timed_word="volume",
        evaluation=evaluation,
        figures=[(item, sections.shown(item)) for item in sections.all_figures(evaluation)],
        result_charts=result_charts,
        remarks=[*sections.remarks(evaluation), *sections.case_findings(material)],
        overlays=overlays,
        label_rows=by_label.label_rows(evaluation),
        label_cases=by_label.case_rows(evaluation, sections.ranked_cases(evaluation)),
        output_word=sections.output_word(evaluation),
        shown_labels=material.shown,
        shown_as=sections.shown_as(material),
        cases=[(case, sections.case_cells(case)) for case in sections.ranked_cases(evaluation)],
        tags=sections.tags(evaluation),
        training_charts=page.training_charts(material, validation),
        training_facts=training_facts.training_facts(material),
        model_facts=sections.model_facts(material),
    )


DESCRIPTION = """\
Writes metrics with their intervals, the table of cases, overlays in three planes, training curves and the gate decision to one
self-contained HTML fragment. Of a classification it writes figures of each class, the confusion matrix, a reliability diagram and
the worst cases as pictures. Equal inputs give identical bytes. `medweave report` adds where and when the steps ran, from the
event log of the run."""
EXAMPLE = """\
medweave-step report --evaluation evaluation --segmentations segmentations \\
      --case-batches prepared/inference_batches/batch-000 --run-reports run_report.json --output report"""

VERB = Verb(name="report", description=DESCRIPTION, example=EXAMPLE, config=ReportConfig, run=run)
