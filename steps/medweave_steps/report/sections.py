"""The content of each section of the fragment, as plain values for the template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from medweave_core.contracts.evaluation import CaseFigures, Evaluation
from medweave_core.contracts.labels import Label, upper_first
from medweave_core.contracts.model import RUNTIME_TITLES
from medweave_core.contracts.report_fragment import HeadlineFigure
from medweave_core.contracts.volume import CT_CHANNELS
from medweave_steps.report import hardware, scaling, trials
from medweave_steps.report.gather import Material, RunMaterial
from medweave_steps.report.words import NOT_DEFINED, figure, interval, minus, plural, triple

SECTIONS = (
    ("results", "Results"),
    ("overlays", "Segmentations in three planes"),
    ("cases", "Case by case"),
)
"""Sections of a segmentation, before those of every task."""
_OF_EVERY_TASK = (
    ("statistics", "Statistics"),
    ("training", "Training"),
    ("hardware", "Hardware during training"),
    ("trials", "Trials of the search"),
    ("scaling", "Ranks, time and speed-up"),
    ("gate", "Which model and runtime were accepted"),
    ("model", "Model and data"),
)

_HEADLINE = (
    ("dice_mean", "dice_ci", "Dice, mean over cases", None),
    ("lesion_sensitivity_10mm", None, "Sensitivity, lesions from 10 mm", "lesions_10mm"),
    ("lesion_sensitivity_6mm", None, "Sensitivity, lesions from 6 mm", "lesions"),
    ("lesion_sensitivity_6_to_8mm", None, "Sensitivity, lesions of 6 to 8 mm", "lesions_6_to_8mm"),
    ("false_positives_per_scan", None, "False positives per scan", None),
)
_MORE = (
    ("lesion_sensitivity_any_size", None, "Sensitivity, lesions of any size", "lesions_any_size"),
    ("dice_median", None, "Dice, median over cases", None),
    ("nsd_2mm_mean", "nsd_2mm_ci", "NSD at 2 mm, mean over cases", None),
    ("hd95_mm_median", None, "HD95 in mm, median over cases", None),
)

BACKENDS = {str(name): title for name, title in RUNTIME_TITLES.items()}
_ORDER = ("dice", "nsd", "hd95", "lesion", "false")


def sections_of(material: RunMaterial, own: Sequence[tuple[str, str]] = SECTIONS) -> tuple[tuple[str, str], ...]:
    """Return the id and heading of each section; `hardware` needs a training with a monitor, `trials` a search, `scaling` a table.

    Args:
        own: sections of the task, which come first.
    """
    has = {
        "statistics": bool(material.statistics),
        "hardware": hardware.section_of(material) is not None,
        "trials": bool(trials.trials_of(material.reports)),
        "scaling": scaling.table_of(material.reports) is not None,
    }
    return tuple(section for section in (*own, *_OF_EVERY_TASK) if has.get(section[0], True))


def headline(evaluation: Evaluation) -> tuple[HeadlineFigure, ...]:
    """Return the figures that the report opens with."""
    return tuple(_figure(evaluation, *row) for row in _headline_rows(evaluation))


def _headline_rows(evaluation: Evaluation) -> tuple[tuple[str, str | None, str, str | None], ...]:
    if not evaluation.by_label:
        return _HEADLINE
    first, *others = _HEADLINE
    union = (first[0], first[1], "Dice of all labels as one mask, mean over cases", first[3])
    return (
        ("dice_by_label_mean", "dice_by_label_ci", f"Dice, mean over {output_word(evaluation)}s", None),
        union,
        *others,
    )


def all_figures(evaluation: Evaluation) -> tuple[HeadlineFigure, ...]:
    """Return every pooled figure, for the table."""
    rows = sorted((*_headline_rows(evaluation), *_MORE), key=lambda row: _ORDER.index(row[0].split("_")[0]))
    return tuple(_figure(evaluation, *row) for row in rows)


def _figure(evaluation: Evaluation, key: str, ci_key: str | None, label: str, count_key: str | None) -> HeadlineFigure:
    value, is_share = getattr(evaluation, key), "positives" not in key and "hd95" not in key
    note = f"{evaluation.cases} scans of {plural(evaluation.patients, 'patient')}"
    if count_key is not None:
        count = getattr(evaluation, count_key)
        note = f"{round((value or 0) * count)} of {plural(count, 'lesion')}"
    return HeadlineFigure(
        key=key,
        label=label,
        value=value,
        interval=getattr(evaluation, ci_key or f"{key}_ci"),
        baseline=getattr(evaluation.baseline, key, None),
        note=note,
        is_share=is_share,
    )


def remarks(evaluation: Evaluation) -> list[str]:
    """Return remarks that a reader needs to interpret the figures."""
    sentences = [
        *_about_labels(evaluation),
        "Metrics are computed on the grid of the source series, from the delivered masks "
        f"({_formats(evaluation.per_case)}). A lesion is a connected component (26 neighbors) of the ground truth; it counts "
        "as detected if a predicted component overlaps it. A false positive is a predicted component that overlaps no lesion.",
        f"{about_intervals(evaluation.bootstrap)} If every lesion is detected, the interval has zero width, which does not mean "
        "certainty.",
        f"Baseline: voxels of {_threshold(evaluation)}, in components of "
        f"{evaluation.baseline.volume_mm3[0]:g} to {evaluation.baseline.volume_mm3[1]:g} mm³; the baseline is not trained.",
    ]
    if evaluation.cases_both_empty:
        count = plural(evaluation.cases_both_empty, "case")
        sentences.append(
            f"{count} without a lesion in either mask: no Dice, NSD and HD95; included in false positives per scan only."
        )
    if evaluation.cases_one_empty:
        count = plural(evaluation.cases_one_empty, "case")
        sentences.append(
            f"{count} with exactly one empty mask: Dice and NSD are 0; HD95 is the worst value in the median."
        )
    if evaluation.cases_without_ground_truth:
        names = ", ".join(evaluation.cases_without_ground_truth)
        sentences.append(f"Segmented, but excluded from all metrics because there is no ground truth: {names}.")
    return sentences


def about_intervals(draws: Mapping[str, float]) -> str:
    """Return how the intervals were computed.

    Args:
        draws: settings of the bootstrap, as `evaluate` writes them.
    """
    return (
        f"Intervals: {draws['level']:.0%} percentile bootstrap over patients, {draws['num_resamples']:g} resamples, seed "
        f"{draws['seed']:g}."
    )


def output_word(evaluation: Evaluation) -> str:
    """Return `region` or `label`: what has figures of its own."""
    return "region" if any(len(one.values) > 1 for one in evaluation.by_label) else "label"


def _about_labels(evaluation: Evaluation) -> list[str]:
    """Return how several labels are counted; nothing for one."""
    if not evaluation.by_label:
        return []
    sentences = [f"The first table counts all labels as one mask, except for the mean over {output_word(evaluation)}s."]
    if evaluation.labels_not_evaluated:
        names = ", ".join(evaluation.labels_not_evaluated)
        sentences.append(
            f"Not evaluated, because the ground truth has no such labels: {names}. Voxels of these labels count as background."
        )
    return sentences


def _threshold(evaluation: Evaluation) -> str:
    baseline = evaluation.baseline
    if baseline.threshold_hu is not None:
        return f"{minus(baseline.threshold_hu)} HU or more" + (
            " inside the filled lungs" if baseline.inside_lungs else ""
        )
    return f"the first contrast at {baseline.threshold_sd:g} standard deviations or more above its mean"


def _formats(cases: Sequence[CaseFigures]) -> str:
    names = {"dicom-seg": "DICOM SEG", "nifti": "NIfTI"}
    counts = {name: sum(case.mask_format == key for case in cases) for key, name in names.items()}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def ranked_cases(evaluation: Evaluation) -> list[CaseFigures]:
    """Return cases from the worst to the best; those without a Dice come last."""
    return sorted(evaluation.per_case, key=lambda c: (c.dice is None, c.dice or 0.0, c.case_id))


def tags(evaluation: Evaluation) -> dict[str, str]:
    """Return the tags `worst`, `median` and `best` by case id."""
    ranked = [case.case_id for case in ranked_cases(evaluation) if case.dice is not None]
    if not ranked:
        return {}
    return {ranked[(len(ranked) - 1) // 2]: "median", ranked[0]: "worst", ranked[-1]: "best"}


def shown_cases(evaluation: Evaluation, most: int) -> list[CaseFigures]:
    """Return the best, median and worst case and others between them, from the best to the worst."""
    ranked = ranked_cases(evaluation)
    marked = list(tags(evaluation))
    last = max(len(ranked) - 1, 0)
    spread = [ranked[round(i * last / max(most - 1, 1))].case_id for i in range(most)] if ranked else []
    rest = [case.case_id for case in ranked]
    wanted = list(dict.fromkeys([*marked, *spread, *rest]))[:most]
    return [case for case in reversed(ranked) if case.case_id in wanted]


def shown_as(material: Material) -> str:
    """Return the text that says how the pictures display a volume, such as the lung window."""
    return upper_first(material.display.text)


def model_facts(material: Material) -> list[tuple[str, str]]:
    """Return the rows about the model, its input and its training data."""
    prepared, segmented = material.results_of("preprocess"), material.results_of("segment")
    facts = [
        ("Model", segmented.get("model_name")),
        ("Model card, SHA-256", segmented.get("model_sha256")),
        ("Precision and library", _precision(segmented)),
        ("Input", _input_of(prepared)),
        ("HU window", "{} to {} HU".format(*map(minus, prepared["window_hu"])) if "window_hu" in prepared else None),
        ("Label" if len(material.labels) == 1 else "Labels", "; ".join(map(_label_text, material.labels))),
        ("Regions", "; ".join(region.text for region in material.regions)),
        ("Merged labels", "; ".join(f"values {merge.text}" for merge in material.merges)),
        ("Field of view", _FIELDS_OF_VIEW.get(prepared.get("crop", ""))),
        *data_facts(material, synthetic=material.evaluation.synthetic),
        ("Intended use", segmented.get("intended_use", "research use only; not a medical device")),
    ]
    return [(name, str(value)) for name, value in facts if value]


def data_facts(material: RunMaterial, *, synthetic: bool) -> list[tuple[str, str]]:
    """Return the rows about the patients of each split and the origin of the data; an empty text without a run of `preprocess`."""
    splits = material.results_of("preprocess").get("patients_per_split", {})
    return [
        ("Patients", ", ".join(f"{count} {split}" for split, count in splits.items())),
        ("Data", "synthetic (medweave-step phantom)" if synthetic else "provided by the user"),
    ]


def _label_text(label: Label) -> str:
    terms = [term.meaning for term in (label.type, label.laterality, label.anatomy) if term]
    return f"{label.name} (value {label.value}; {', '.join(terms) or 'without DICOM codes'})"


def case_findings(material: Material) -> list[str]:
    """Return the findings of `segment` about single cases, such as a body part that differs from the model's."""
    findings = [
        finding
        for report in material.reports
        if report.verb == "segment"
        for case in report.cases
        for finding in case.get("findings", ())
    ]
    return [
        f"{finding['what']} Seen: {finding['seen']}. Body part of the label: {finding['expected']}."
        for finding in findings
    ]


_FIELDS_OF_VIEW = {
    "lungs": "cropped to the lungs",
    "none": "whole scan",
    "multiple-of-8": "whole scan, cropped to multiples of 8 voxels",
    "fixed-shape": "fixed shape, cropped and padded around the brain mask or the middle of the scan",
}


def _input_of(prepared: Mapping[str, Any]) -> str | None:
    if "spacing_mm" not in prepared:
        return None
    channels = tuple(prepared.get("channels", CT_CHANNELS))
    standard = f"MR ({', '.join(channels)}), each with mean 0 and standard deviation 1,"
    return f"{'CT in HU' if channels == CT_CHANNELS else standard} on a grid of {triple(prepared['spacing_mm'])} mm"


def _precision(segmented: Mapping[str, Any]) -> str | None:
    if "precision" not in segmented:
        return None
    backend = BACKENDS.get(segmented.get("backend", ""), "")
    return f"{segmented['precision']}, {backend}" if backend else str(segmented["precision"])


def versions(material: RunMaterial) -> list[tuple[str, str]]:
    """Return name and version of every library that a step imported; two where steps differ."""
    seen: dict[str, list[str]] = {}
    for report in material.reports:
        for name, version in {"medweave": report.medweave_version, **report.versions}.items():
            if version not in seen.setdefault(name, []):
                seen[name].append(version)
    return [(name, ", ".join(versions)) for name, versions in sorted(seen.items())]


def case_cells(case: CaseFigures) -> dict[str, str]:
    """Return one row of the table of cases."""
    return {
        "dice": figure(case.dice) if case.dice is not None else "no lesion",
        "nsd": figure(case.nsd_2mm) if case.nsd_2mm is not None else "–",
        "hd95": "–" if case.hd95_mm is None else f"{case.hd95_mm:.1f}",
        "found": f"{case.lesions_hit} of {case.lesions}",
        "found_6mm": f"{case.lesions_6mm_hit} of {case.lesions_6mm}",
        "volume": f"{case.reference_volume_mm3 / 1000:.2f}",
        "predicted": f"{case.predicted_volume_mm3 / 1000:.2f}",
        "baseline": "–" if case.baseline_dice is None else figure(case.baseline_dice),
    }


def shown(item: HeadlineFigure) -> dict[str, str]:
    """Return a pooled figure as texts."""
    return {
        "value": NOT_DEFINED if item.value is None else figure(item.value),
        "interval": interval(item.interval),
        "baseline": "–" if item.baseline is None else figure(item.baseline),
    }
