"""The output of `check`: a summary for people, and the figures of its run report."""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from medweave_core.contracts import codec
from medweave_core.contracts.cohort import Finding
from medweave_core.contracts.labels import Label
from medweave_core.contracts.volume import COLOR_CHANNELS, GRAY_CHANNELS, MODALITY_NAMES, modality_of
from medweave_core.errors import UserInputError
from medweave_steps.check.cohort import Checked
from medweave_steps.runtime.verb import StepContext

_MOST_PAIRS = 10


def refusal(errors: Sequence[Finding]) -> UserInputError:
    """Return all errors as one, each with its four parts."""
    parts = [UserInputError(error.what, error.seen, error.expected, error.do) for error in errors]
    if len(parts) == 1:
        return parts[0]
    return UserInputError("\n".join([f"the cohort has {len(parts)} errors.", *map(str, parts)]))


def figures(checked: Checked) -> dict[str, Any]:
    """Return counts, voxel sizes in mm and all findings, for the run report."""
    cases = checked.index.cases
    usable = {case.case_id for case in cases}
    examined = [e for e in checked.examined if e.name.case_id in usable]
    findings = checked.index.findings
    return {
        "layout": checked.index.layout,
        "synthetic": checked.index.synthetic,
        "num_cases": len(cases),
        "num_series": len(checked.examined),
        "num_patients": len({case.patient_key for case in cases}),
        "num_labelled": sum(case.ground_truth is not None for case in cases),
        "num_lesions": sum(e.num_lesions or 0 for e in examined),
        "num_empty_masks": sum(e.num_lesions == 0 for e in examined),
        "mib_read": round(sum(e.bytes_read for e in checked.examined) / 2**20, 1),
        "num_errors": sum(finding.severity == "error" for finding in findings),
        "num_notices": sum(finding.severity == "notice" for finding in findings),
        "spacing_mm": {} if checked.index.layout in ("images", "signals") else _spacing(checked),
        "labels": codec.to_json(checked.index.labels),
        "merges": codec.to_json(checked.index.merges),
        "channels": list(checked.index.channels),
        **({"regions": codec.to_json(checked.index.regions)} if checked.index.regions else {}),
        **({"ignore_value": checked.index.ignore_value} if checked.index.ignore_value is not None else {}),
        **({"rule": checked.rule} if checked.rule else {}),
        **({"image_size": image_sizes(checked)} if checked.index.layout == "images" else {}),
        **({"cases_by_class": cases_by_class(checked)} if checked.index.classes else {}),
        "findings": [codec.to_json(finding) for finding in findings],
    }


def _spacing(checked: Checked) -> dict[str, Any]:
    """Return the smallest, median and largest voxel size in mm, in plane and between slices."""
    table: dict[str, Any] = {}
    for name, pick in (("in_plane", 1), ("between_slices", 0 if checked.index.layout == "dicom" else 2)):
        values = [case.grid.spacing_mm[pick] for case in checked.index.cases]
        if values:
            table[name] = {
                "min": round(min(values), 4),
                "median": round(statistics.median(values), 4),
                "max": round(max(values), 4),
            }
    return table


def image_sizes(checked: Checked) -> dict[str, list[int]]:
    """Return the smallest and largest number of columns and of rows."""
    shapes = [case.grid.shape for case in checked.index.cases]
    return {
        name: [min(shape[axis] for shape in shapes), max(shape[axis] for shape in shapes)] if shapes else []
        for axis, name in enumerate(("columns", "rows"))
    }


def cases_by_class(checked: Checked) -> dict[str, int]:
    """Return the number of cases of each class, in the order of the classes."""
    counts = Counter(name for case in checked.index.cases for name in case.classes or ())
    return {one.name: counts[one.name] for one in checked.index.classes}


def _class_lines(checked: Checked, values: Mapping[str, Any]) -> list[str]:
    index = checked.index
    if not index.classes:
        return []
    known = sum(case.classes is not None for case in index.cases)
    kind = "any number of them for each case" if index.is_multi_label else "one for each case"
    counts = ", ".join(f"{name} {number}" for name, number in values["cases_by_class"].items())
    lines = [
        f"check: {len(index.classes)} {'class' if len(index.classes) == 1 else 'classes'}, {kind}; cases: {counts}"
    ]
    if index.is_multi_label:
        lines[0] += f", none of them {sum(case.classes == () for case in index.cases)}"
    if known < len(index.cases):
        lines.append(f"check: {len(index.cases) - known} of {len(index.cases)} cases without target")
    return lines


def _first_lines(checked: Checked, values: Mapping[str, Any]) -> list[str]:
    """Return what the cohort has: images with their sizes, or volumes with their masks and voxels."""
    kind = {"dicom": "DICOM", "nifti": "NIfTI", "msd": "data set with dataset.json", "bids": "BIDS"}
    channels = checked.index.channels
    synthetic = ", synthetic" if values["synthetic"] else ""
    patients = counted(values["num_patients"], "patient")
    if checked.index.layout == "images":
        sizes = values["image_size"]
        image = {COLOR_CHANNELS: "color", GRAY_CHANNELS: "gray"}.get(channels, channels[0])
        lines = [f"check: {counted(values['num_cases'], f'usable {image} image')} of {patients}{synthetic}"]
        if sizes["columns"]:
            text = " x ".join(_range(*sizes[name]) for name in ("columns", "rows"))
            lines.append(f"check: {text} pixels (columns x rows)")
        return lines
    if checked.index.layout == "signals":
        recordings = counted(values["num_patients"], "recording")
        return [
            f"check: {counted(values['num_cases'], 'sample')} of five heartbeats ({channels[0]}) of {recordings}{synthetic}"
        ]
    modality = MODALITY_NAMES[modality_of(channels)]
    lines = [
        f"check: {counted(values['num_cases'], f'usable {modality} volume')} of {patients} "
        f"({kind[values['layout']]}){synthetic}",
        # Label maps of a classification show structures, not lesions.
        f"check: {values['num_labelled']} with a label map"
        if checked.index.classes
        else f"check: {values['num_labelled']} with a mask, {counted(values['num_lesions'], 'lesion')} in total, "
        f"{counted(values['num_empty_masks'], 'empty mask')}",
    ]
    for name, row in values["spacing_mm"].items():
        lines.append(
            f"check: voxels {name.replace('_', ' ')}: {row['min']:.2f} to {row['max']:.2f} mm, median {row['median']:.2f} mm"
        )
    if len(channels) > 1:
        lines.append(f"check: channels {', '.join(channels)}")
    return lines


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def _codes(label: Label) -> str:
    terms = [term for term in (label.type, label.laterality, label.anatomy) if term]
    return f": {', '.join(term.meaning for term in terms)}" if terms else ", without DICOM codes"


def counted(number: int, noun: str) -> str:
    """Return a count with its noun: `1 lesion`, `2 lesions`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def print_summary(checked: Checked, context: StepContext) -> None:
    """Print the content of the cohort and every notice; keep both for the report."""
    values = figures(checked)
    lines = [*_first_lines(checked, values), *_class_lines(checked, values)]
    lines += [f"check: label {label.text}{_codes(label)}" for label in checked.index.labels]
    lines += [f"check: values {merge.text}, merged by --merge-labels" for merge in checked.index.merges]
    lines += [f"check: region {region.text}" for region in checked.index.regions]
    if checked.index.ignore_value is not None:
        lines.append(f"check: value {checked.index.ignore_value}: voxels without annotation")
    if checked.rule:
        lines.append(f"check: rule: {checked.rule}")
    print("\n".join([*lines, *_pair_lines(checked)]), file=sys.stderr, flush=True)
    for finding in checked.index.findings:
        if finding.severity == "notice":
            seen = f" (seen: {finding.seen})" if finding.seen else ""
            context.notice(f"{finding.what}{seen}{' Do: ' + finding.do + '.' if finding.do else ''}")
    pairs = _pairs(checked)
    shapes = {case.case_id: case.grid for case in checked.index.cases}
    for examined in checked.examined:
        grid = shapes.get(examined.name.case_id)
        if grid is not None:
            context.add_case(
                examined.name.case_id, shape=list(grid.shape), spacing_mm=[round(x, 4) for x in grid.spacing_mm],
                num_lesions=examined.num_lesions, num_label_voxels=examined.num_label_voxels,
                **pairs.get(examined.name.case_id, {}),
            )  # fmt: skip


def _pairs(checked: Checked) -> dict[str, dict[str, Any]]:
    """Return, for each case id, the file numbers of its volume (the first file of a series) and of its mask.

    A case with a file for each channel has `channel_files`, the numbers in the order of the channels.
    """
    numbers = checked.file_numbers
    pairs: dict[str, dict[str, Any]] = {}
    for case in checked.index.cases:
        mask = case.ground_truth
        if mask is None or mask not in numbers or case.files[0] not in numbers:
            continue
        pairs[case.case_id] = {"volume_file": numbers[case.files[0]], "mask_file": numbers[mask]}
        if case.source_format == "nifti" and len(case.files) > 1:
            pairs[case.case_id]["channel_files"] = [numbers[file] for file in case.files]
    return pairs


def _pair_lines(checked: Checked) -> list[str]:
    """Return a line that lists the mask of each volume by file number, since file names may contain patient names."""
    pairs = _pairs(checked)
    if not pairs:
        return []
    shown = list(pairs.items())[:_MOST_PAIRS]
    more = f", and {len(pairs) - len(shown)} more in the run report" if len(pairs) > len(shown) else ""
    text = ", ".join(f"{case_id}: {_volume_text(pair)} with mask {pair['mask_file']}" for case_id, pair in shown)
    return [f"check: volume and mask pairs (file numbers, sorted by path): {text}{more}"]


def _volume_text(pair: Mapping[str, Any]) -> str:
    files = pair.get("channel_files")
    return f"files {', '.join(map(str, files))}" if files else f"file {pair['volume_file']}"
