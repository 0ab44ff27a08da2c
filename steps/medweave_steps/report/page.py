"""The HTML fragment: sections that every task has, rendered with those of one task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from medweave_core.contracts.report_fragment import SECTIONS_BEGIN, SECTIONS_END, ReportSummary, stylesheet
from medweave_steps.report import charts, gate_table, hardware, scaling, sections, trials
from medweave_steps.report.gather import RunMaterial
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.svg import Chart


def render(template: str, material: RunMaterial, summary: ReportSummary, **values: Any) -> str:
    """Return the fragment.

    Args:
        template: file of this package, with the sections of the task.
        values: what the template shows besides the sections about precisions, trials, times by ranks and versions.
    """
    jinja2 = require("jinja2", extra="report")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("medweave_steps.report", "."), autoescape=True, trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    text: str = environment.get_template(template).render(
        title=summary.title,
        intended_use=summary.intended_use,
        style=stylesheet(),
        begin=SECTIONS_BEGIN,
        end=SECTIONS_END,
        statistics=material.statistics,
        hardware=hardware.section_of(material),
        searches=trials.trials_of(material.reports),
        scaling=scaling.table_of(material.reports),
        gate=material.gate,
        gate_choice=gate_table.gate_choice(material.gate) if material.gate else "",
        gate_columns=gate_table.gate_columns(material.gate) if material.gate else (),
        gate_rule=gate_table.gate_rule(material.gate) if material.gate else "",
        gate_rows=gate_table.gate_rows(material.gate) if material.gate else [],
        gate_test_rows=gate_table.gate_test_rows(material.gate) if material.gate else [],
        versions=sections.versions(material),
        **values,
    )
    return text


def training_charts(material: RunMaterial, validation: Chart | None) -> Sequence[Chart]:
    """Return the loss, and the chart of the validation split, where the training log has points."""
    curves = material.curves
    loss = [charts.loss_chart(curves)] if curves.loss else []
    return loss + ([validation] if validation else [])
