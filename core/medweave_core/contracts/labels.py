"""Labels of a segmentation: their values, their names and their DICOM codes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medweave_core.errors import UserInputError

HIGHEST_VALUE = 255
_MOST_CHARACTERS = 64
_ABNORMAL_STRUCTURE = "49755003"  # SCT: lesions can be counted, organs cannot


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedTerm:
    """A DICOM coded term (PS3.3, 8.8).

    Attributes:
        value: code, such as 39607008.
        scheme: coding scheme designator, such as SCT for SNOMED CT.
        meaning: text of the code, such as Lung.
    """

    value: str
    scheme: str
    meaning: str

    def __post_init__(self) -> None:
        """Raise UserInputError for a part that a DICOM code sequence cannot hold."""
        most = {"value": 64, "scheme": 16, "meaning": _MOST_CHARACTERS}
        for part, limit in most.items():
            text = getattr(self, part)
            if not 0 < len(text.strip()) <= len(text) <= limit or not text.isprintable() or "\\" in text:
                raise UserInputError(
                    "the coded term of a label is not valid in DICOM.",
                    seen=f"{part} {text!r}",
                    expected=f"1 to {limit} printable characters, no backslash",
                    do="correct the coded term: {value, scheme, meaning}",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """One foreground label; the value 0 is background and has none.

    Attributes:
        value: value of its voxels in a mask, 1 to 255.
        name: name of the structure, such as nodule.
        category: segmented property category, such as Morphologically Abnormal Structure.
        type: segmented property type, such as Nodule.
        anatomy: anatomic region, such as Lung.
        laterality: side of the anatomic region, if the cohort or the card declares it.
    """

    value: int
    name: str
    category: CodedTerm | None = None
    type: CodedTerm | None = None
    anatomy: CodedTerm | None = None
    laterality: CodedTerm | None = None

    def __post_init__(self) -> None:
        """Raise UserInputError for a value that a mask of bytes cannot hold."""
        if not 1 <= self.value <= HIGHEST_VALUE:
            raise UserInputError(
                "the value of a label is out of range.",
                seen=f"value {self.value}",
                expected=f"1 to {HIGHEST_VALUE}; 0 is background",
                do="correct the value of the label",
            )

    @property
    def has_codes(self) -> bool:
        """Return whether DICOM SEG and SR can name the structure: category and type are known."""
        return self.category is not None and self.type is not None

    @property
    def title(self) -> str:
        """Return the name after its side and anatomic region, such as `lung nodule`."""
        words = [term.meaning.lower() for term in (self.laterality, self.anatomy) if term]
        added = [word for word in words if not re.search(rf"\b{re.escape(word)}", self.name.lower())]
        return " ".join([*added, self.name])

    @property
    def titles(self) -> str:
        """The title of several of them: `lung nodules`; of an organ the title itself."""
        is_countable = self.category is not None and self.category.value == _ABNORMAL_STRUCTURE
        if not is_countable or self.name.endswith("s"):
            return self.title
        return self.title[:-1] + "ies" if re.search("[^aeiou]y$", self.title) else self.title + "s"

    @property
    def text(self) -> str:
        """Return the value and name, as messages show a label: `1 (nodule)`."""
        return f"{self.value} ({self.name})"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelMerge:
    """Values of the ground truth that count as one label, because the user requested it.

    Attributes:
        values: the values as the masks hold them, ascending.
        name: name of the merged label; its value is the lowest of `values`, so that values merged with 0 become background.
    """

    values: tuple[int, ...]
    name: str

    @property
    def value(self) -> int:
        """Return the value of the merged label."""
        return self.values[0]

    @property
    def text(self) -> str:
        """Return a text such as `1, 2, 3 as whole tumor`."""
        return f"{', '.join(map(str, self.values))} as {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A union of labels that a model predicts as one of several overlapping outputs, such as the whole tumor of BraTS.

    Attributes:
        name: name of the region.
        values: values of its labels, ascending.
    """

    name: str
    values: tuple[int, ...]

    @property
    def text(self) -> str:
        """Return a text such as `tumor core (labels 2, 3)`."""
        return f"{self.name} (label{'s' if len(self.values) > 1 else ''} {', '.join(map(str, self.values))})"


LUNG_NODULE = Label(
    value=1,
    name="nodule",
    category=CodedTerm(value=_ABNORMAL_STRUCTURE, scheme="SCT", meaning="Morphologically Abnormal Structure"),
    type=CodedTerm(value="27925004", scheme="SCT", meaning="Nodule"),
    anatomy=CodedTerm(value="39607008", scheme="SCT", meaning="Lung"),
)
PRESETS: Mapping[str, tuple[Label, ...]] = {"lung-nodule": (LUNG_NODULE,)}


def upper_first(text: str) -> str:
    """Return the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def joint_title(labels: Sequence[Label]) -> str:
    """Return the title of several labels together, such as `brain: edema, necrosis`; of one label its title."""
    if len(labels) == 1:
        return labels[0].title
    places = {label.anatomy.meaning.lower() if label.anatomy else "" for label in labels}
    place = f"{next(iter(places))}: " if len(places) == 1 and places != {""} else ""
    return place + ", ".join(label.name if place and not label.laterality else label.title for label in labels)


def model_name(label: Label) -> str:
    """Return the default name of a model for a label, such as `lung-nodule`."""
    return re.sub(r"[^a-z0-9]+", "-", label.title.lower()).strip("-") or "model"


def shown(labels: Sequence[Label]) -> str:
    """Return the labels as messages list them: `1 (lung), 2 (cancer)`."""
    return ", ".join(label.text for label in labels)


def declared_or_lesion(labels: Sequence[Label]) -> tuple[Label, ...]:
    """Return the foreground labels; one label named `lesion` if none is declared."""
    return tuple(labels) or (Label(value=1, name="lesion"),)


def ascending(labels: Sequence[Label]) -> tuple[Label, ...]:
    """Return the labels in the order of their values."""
    return tuple(sorted(labels, key=lambda label: label.value))


def as_regions(labels: Sequence[Label]) -> tuple[Region, ...]:
    """Return a region of each label, in their order: the outputs of a model whose labels exclude each other."""
    return tuple(Region(name=label.name, values=(label.value,)) for label in labels)


def distinct_names(outputs: Sequence[Region]) -> tuple[str, ...]:
    """Return the names of outputs; with the label values where two have one name, such as both kidneys."""
    names = [output.name for output in outputs]
    return tuple(output.name if names.count(output.name) == 1 else output.text for output in outputs)


def slugs(names: Sequence[str]) -> tuple[str, ...]:
    """Return distinct keys for the metrics of outputs, such as `tumor_core`.

    Args:
        names: of `distinct_names`.
    """
    keys = [re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "label" for name in names]
    return tuple(key if keys.count(key) == 1 else f"{key}_{place}" for place, key in enumerate(keys, start=1))


def check_regions(regions: Sequence[Region], labels: Sequence[Label]) -> None:
    """Check that regions can be predicted together and turned into one label map again.

    Two regions are nested or have no label in common, each label is in a region, and each region has exactly one label that is in
    none of the smaller regions inside it; a voxel gets that label where no smaller region holds it.

    Raises:
        UserInputError: one of these does not hold; the message names the regions.
    """
    known, used = {label.value for label in labels}, {value for region in regions for value in region.values}
    problem = ""
    if len({region.name for region in regions}) < len(regions) or not all(region.values for region in regions):
        problem = "two regions with one name, or a region without labels"
    elif used != known:
        problem = f"labels {', '.join(map(str, sorted(used ^ known)))} in a region and not declared, or declared and in no region"
    for region in regions if not problem else ():
        for other in regions:
            common = set(region.values) & set(other.values)
            if region is not other and common and common not in (set(region.values), set(other.values)):
                problem = f"{region.text} and {other.text} overlap in part"
        if not problem and own_value(region, regions) is None:
            problem = f"{region.text} does not have exactly one label outside of the regions inside it"
    if problem:
        raise UserInputError(
            "the regions cannot be predicted together.",
            seen=problem,
            expected="regions that are nested or separate, over all declared labels, each with one label of its own: "
            '"whole tumor:1,2,3" "tumor core:2,3" "enhancing tumor:3"',
            do="correct --regions",
        )


def own_value(region: Region, regions: Sequence[Region]) -> int | None:
    """Return the label of a region that is in none of the smaller regions inside it; None if that is not exactly one."""
    inside = {value for other in regions if set(other.values) < set(region.values) for value in other.values}
    own = [value for value in region.values if value not in inside]
    return own[0] if len(own) == 1 else None


def merge_advice(values: Sequence[int]) -> str:
    """Return what to do about several foreground values: which option of check merges them."""
    listed = ",".join(map(str, values))
    return (
        f"run check with --merge-labels {listed}:NAME to count them as one label, "
        f"or with --merge-labels 0,{values[0]}:background to leave one out"
    )


def declared_as_mapping(labels: Any) -> Any:
    """Return labels of an older document, `{"0": "background", "1": "nodule"}`, as a list; anything else unchanged."""
    if not isinstance(labels, Mapping):
        return labels
    names = {int(key): name for key, name in labels.items() if str(key).isdecimal()}
    return [{"value": number, "name": names[number]} for number in sorted(names) if number]


def older_labels(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a document with its labels as a list, whichever version of medweave wrote it."""
    return {**data, "labels": declared_as_mapping(data["labels"])} if "labels" in data else data
