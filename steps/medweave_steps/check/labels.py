"""The labels of a cohort: those it declares, those its masks hold, and those of `--labels` and `--merge-labels`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from medweave_core.contracts.body_parts import contradiction
from medweave_core.contracts.cohort import CaseEntry, Finding
from medweave_core.contracts.labels import Label, LabelMerge, Region, merge_advice, shown
from medweave_core.errors import UsageError
from medweave_steps.check.cases import Examined, MaskRules
from medweave_steps.io.cohort.discovery import FoundSeries
from medweave_steps.io.cohort.labels import merged_labels, renamed, value_table
from medweave_steps.io.findings import first_of, notice, refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelOptions:
    """The user's options for labels.

    Attributes:
        declared: labels of `--labels`, after merging; None without that option.
        merges: of `--merge-labels`.
        ignore_value: of `--ignore-label`; None without that option.
    """

    declared: tuple[Label, ...] | None = None
    merges: tuple[LabelMerge, ...] = ()
    ignore_value: int | None = None

    def rules(self, own: Sequence[Label] | None, *, ignore_value: int | None = None) -> MaskRules:
        """Return the rules for the label values of the masks.

        Args:
            own: labels that the cohort itself declares, before merging; None where it declares none.
            ignore_value: value without annotation that the cohort itself declares; the option takes precedence.
        Raises:
            UsageError: the value without annotation is a label too.
        """
        declared = own if self.declared is None else self.declared
        merged = None if declared is None else merged_labels(declared, self.merges)
        ignored = ignore_value if self.ignore_value is None else self.ignore_value
        if ignored is not None and any(label.value == ignored for label in merged or ()):
            raise UsageError(
                "invalid value of --ignore-label.",
                seen=f"{ignored}, which is the value of a label",
                expected="a mask value that no label has",
            )
        return MaskRules(declared=merged, merges=self.merges, ignore_value=ignored)


NO_LABEL_OPTIONS = LabelOptions()


def cohort_labels(
    rules: MaskRules, own: Sequence[Label], examined: Sequence[Examined]
) -> tuple[tuple[Label, ...], list[Finding]]:
    """Return the labels of the cohort after merging, and the findings about them.

    Args:
        own: labels as the cohort or its segmentations name them, before merging; empty where nothing names them.
        examined: all volumes, with the values of their masks.
    """
    observed = Counter(value for one in examined for value in one.labels_found)
    labels = rules.declared
    if labels is None:
        named = {label.value: label for label in merged_labels(own, rules.merges)}
        named |= {
            merge.value: Label(value=merge.value, name=merge.name) for merge in rules.merges if merge.value in observed
        }
        unnamed = {value: Label(value=value, name="lesion") for value in observed if value not in named}
        labels = tuple(label for _, label in sorted((named | unnamed).items()))
        if unnamed and len(labels) > 1:
            return labels, [_undeclared(sorted(unnamed), observed)]
    has_truth = any(one.num_lesions is not None for one in examined)
    findings = []
    if has_truth and len(labels) > 1:
        findings += _absent(labels, observed)
    elif has_truth and len(labels) == 1 and labels[0].value != 1:
        what = f"the mask value of the label {labels[0].name} is {labels[0].value}, not 1."
        findings.append(notice("label-value", what))
    for label, other in renamed(labels, merged_labels(own, rules.merges)):
        what = f"label {label.value} is declared as {label.name}, but the cohort has another name for it."
        findings.append(
            notice(
                "labels-renamed",
                what,
                seen=f"'{other.name}'",
                do="change the declaration if these are different structures",
            )
        )
    known = {label.value for label in own}
    absent = sorted({value for merge in rules.merges for value in merge.values if value} - known) if known else []
    if absent:
        what = f"--merge-labels contains values that the cohort does not declare: {', '.join(map(str, absent))}."
        findings.append(notice("merge-without-label", what))
    return labels, findings


def usable_regions(
    regions: tuple[Region, ...], labels: Sequence[Label], rules: MaskRules
) -> tuple[tuple[Region, ...], list[Finding]]:
    """Return the regions that a cohort declares if they are unions of its labels; else none, and a notice.

    Args:
        labels: of the cohort, after merging.
    """
    values = {value for region in regions for value in region.values}
    if not regions or (values == {label.value for label in labels} and not rules.merges):
        return regions, []
    finding = notice(
        "regions-dropped",
        "the regions that dataset.json declares are not used, because the labels are merged or declared otherwise.",
        seen=f"{shown(labels)} as labels; {', '.join(region.text for region in regions)}",
        do="remove --merge-labels and --labels to use the regions, or declare regions with train --regions",
    )
    return (), [finding]


def segment_labels(
    series: Sequence[FoundSeries], merges: Sequence[LabelMerge]
) -> tuple[tuple[Label, ...], list[Finding]]:
    """Return the labels as the masks name them, before merging, and findings where masks name one number differently.

    A number with several names is a notice. It is an error if one of these names also has another number after merging: then
    the numbers mean different structures in the masks.
    """
    names: dict[int, dict[str, None]] = {}
    for entry in series:
        for mask in entry.masks:
            for number, text in mask.segments:
                if 0 < number < 256:  # 0 is the background of a LABELMAP
                    names.setdefault(number, {})[text or f"segment {number}"] = None
    findings = _renumbered(names, merges) or [
        notice(
            "labels-differ",
            f"segment {number} has different names in the segmentations.",
            seen=", ".join(f"'{text}'" for text in list(texts)[:4]),
            do="declare the labels in cohort_card.json if the names mean the same structure, else renumber the segments",
        )
        for number, texts in names.items()
        if len(texts) > 1
    ]
    return tuple(Label(value=number, name=next(iter(names[number]))) for number in sorted(names)), findings


def _renumbered(names: Mapping[int, Iterable[str]], merges: Sequence[LabelMerge]) -> list[Finding]:
    """Return an error where masks give the numbers of structures in different orders.

    Args:
        names: of each number in any mask, before merging.
    """
    values = value_table(merges)
    by_value: dict[int, set[str]] = {}
    by_name: dict[str, set[int]] = {}
    for number, texts in names.items():
        for text in texts if values[number] else ():
            by_value.setdefault(int(values[number]), set()).add(text.casefold())
            by_name.setdefault(text.casefold(), set()).add(int(values[number]))
    wrong = [
        f"'{name}' is {' and '.join(map(str, sorted(numbers)))}"
        for name, numbers in by_name.items()
        if len(numbers) > 1 and any(len(by_value[value]) > 1 for value in numbers)
    ]
    if not wrong:
        return []
    finding = refuse(
        "label-numbers-differ",
        "the same number means different structures in the masks.",
        seen=first_of(wrong, 4),
        expected="the same segment or ROI number for a structure in all masks",
        do="renumber the segments or ROIs, or merge these values with --merge-labels",
    ).finding
    return [finding]


def body_part_findings(cases: Sequence[CaseEntry], labels: Sequence[Label]) -> list[Finding]:
    """Return a notice for each case whose header names another part of the body than the labels lie in."""
    findings = []
    for case in cases:
        seen, expected = contradiction(case.body_part, labels)
        if seen:
            what = f"{case.case_id} (series {case.series_ordinal}): the body part differs from that of the labels ({expected})."
            do = "remove the case if it is another examination"
            findings.append(notice("body-part-differs", what, seen=seen, do=do, case_id=case.case_id))
    return findings


def _undeclared(values: Sequence[int], observed: Counter[int]) -> Finding:
    seen = [f"value {value} in {observed[value]} mask{'' if observed[value] == 1 else 's'}" for value in values]
    return refuse(
        "undeclared-labels",
        "the masks contain several values, and not all of them are declared as labels.",
        seen=", ".join(seen),
        expected="a name for every value",
        do=f"declare the labels with --labels FILE, or {merge_advice(values if len(values) > 1 else sorted(observed))}",
    ).finding


def _absent(labels: Sequence[Label], observed: Counter[int]) -> list[Finding]:
    """Return a notice for labels that are declared and in no mask: a model cannot learn them."""
    absent = [label for label in labels if not observed[label.value]]
    if not absent:
        return []
    what = f"no mask contains the label {shown(absent)}."
    return [notice("label-in-no-mask", what, do="correct the declaration, or add cases with this label")]
