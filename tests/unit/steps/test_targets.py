"""Tables of targets: what `check` understands, in which words it says so, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medweave_steps.io.cohort.tables import CaseNames, Table, read_table
from medweave_steps.io.cohort.targets import Targets, read_targets
from medweave_steps.io.findings import FindingError
from support.image_files import save_table


def targets(folder: Path, *lines: str, name: str = "table.csv") -> Targets:
    return read_targets(read_table(save_table(folder / name, *lines)))


def test_isic_columns_are_classes_in_their_order_without_the_empty_one(tmp_path: Path) -> None:
    found = targets(tmp_path, "image,NV,MEL,UNK", "a,1.0,0.0,0.0", "b,0.0,1.0,0.0", "c,0.0,0.0,0.0")
    assert (found.classes, found.is_multi_label) == (("NV", "MEL"), False)
    assert [row.classes for row in found.rows] == [("NV",), ("MEL",), None]
    assert [(finding.code, finding.seen) for finding in found.findings] == [
        ("class-without-case", "UNK"),
        ("row-without-class", ""),
    ]
    assert (
        found.rule == "targets: column 'image' names the image; columns of 0 and 1 (NV, MEL): one class for each image"
    )


def test_the_weights_in_the_test_set_of_isic_2019_are_no_classes(tmp_path: Path) -> None:
    found = targets(tmp_path, "image,MEL,NV,score_weight,validation_weight", "a,1,0,1.0,0.0", "b,0,1,1.0,0.0")
    assert (found.classes, found.is_multi_label) == (("MEL", "NV"), False)


def test_columns_with_several_ones_in_a_row_are_multi_label(tmp_path: Path) -> None:
    found = targets(tmp_path, "image_id,a,b,sex", "x,1,1,F", "y,0,1,M", "z,0,0,M")
    assert (found.classes, found.is_multi_label) == (("a", "b"), True)
    assert [row.classes for row in found.rows] == [("a", "b"), ("b",), ()]


def test_finding_labels_are_multi_label(tmp_path: Path) -> None:
    found = targets(tmp_path, "Image Index,Finding Labels,Patient ID", "a.png,Mass|Edema,1", "b.png,No Finding,2")
    assert (found.classes, found.is_multi_label) == (("Edema", "Mass"), True)
    assert [row.classes for row in found.rows] == [("Edema", "Mass"), ()]


def test_an_empty_cell_of_findings_is_not_known_and_not_no_finding(tmp_path: Path) -> None:
    found = targets(tmp_path, "Image Index,Finding Labels", "a.png,Mass", "b.png,", "c.png,|", "d.png,No Finding")
    assert [row.classes for row in found.rows] == [("Mass",), None, None, ()]
    assert [finding.code for finding in found.findings] == ["row-without-class"]


@pytest.mark.parametrize(("name", "separator"), [("a.csv", ","), ("a.csv", ";"), ("a.tsv", "\t"), ("a.csv", "\t")])
def test_a_column_of_classes(tmp_path: Path, name: str, separator: str) -> None:
    lines = ["\ufeffimage_id,dx,age", "x,nv,3", '"y",mel,4', "z,,5"]
    if separator != ",":
        lines = [line.replace(",", separator) for line in lines]
    if separator == "\t":
        lines[2] = "y\tmel\t4"
    found = targets(tmp_path, *lines, name=name)
    assert (found.classes, found.is_multi_label) == (("mel", "nv"), False)
    assert [(row.number, row.key, row.classes) for row in found.rows] == [
        (2, "x", ("nv",)),
        (3, "y", ("mel",)),
        (4, "z", None),
    ]


def test_rows_have_their_number_in_the_file_after_an_empty_line(tmp_path: Path) -> None:
    assert [row.number for row in targets(tmp_path, "image,class", "a,x", "", "b,y").rows] == [2, 4]


def test_the_patient_and_the_lesion_have_columns_of_their_own(tmp_path: Path) -> None:
    table = read_table(save_table(tmp_path / "t.csv", "lesion_id,Patient ID,image,class", "L1,P1,a,x"))
    assert (table.lesion, table.patient, table.key) == (0, 1, 2)


@pytest.mark.parametrize(
    ("lines", "seen"),
    [
        (["image,class,label", "a,x,y"], "several columns of classes: class, label"),
        (["name,class", "a,x"], "no column that names the image"),
        (["image,class,class", "a,x,y"], "a column name twice"),
        (["image,class", "a,x", "Doe^Jane"], "row 3 with another number of cells"),
        (["image,age", "a,3"], "no targets in columns image, age"),
        (["image,MEL,NV", "a,1,0", "b,-1,1"], "cells other than 0 and 1 in MEL"),
        (["image,class", "a,x", "b,x"], "1 classes"),
        (["image,a,b", "x,0,0"], "0 classes"),
        (["image,class"], "0 classes"),
    ],
)
def test_tables_that_cannot_be_used_are_refused_without_their_cells(
    tmp_path: Path, lines: list[str], seen: str
) -> None:
    with pytest.raises(FindingError) as caught:
        targets(tmp_path, *lines)
    assert seen in caught.value.seen
    assert "Doe" not in str(caught.value)


def test_a_table_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe\x00image")
    with pytest.raises(FindingError, match="cannot be used"):
        read_table(tmp_path / "t.csv")


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=12))
def test_every_one_of_a_table_is_a_class_of_its_row(cells: list[list[bool]]) -> None:
    rows = tuple((f"i{number}", *("1" if cell else "0" for cell in row)) for number, row in enumerate(cells))
    table = Table(
        columns=("image", "a", "b", "c"), rows=rows, numbers=tuple(range(len(rows))), key=0, patient=None, lesion=None
    )
    try:
        found = read_targets(table)
    except FindingError:
        assert sum(any(column) for column in zip(*cells, strict=True)) < 2
        return
    assert found.is_multi_label == any(sum(row) > 1 for row in cells)
    for row, expected in zip(found.rows, cells, strict=True):
        assert (row.classes or ()) == tuple(name for name, one in zip("abc", expected, strict=True) if one)


@pytest.mark.parametrize(
    ("cell", "found"),
    [
        ("p1/view.jpg", {"p1"}),
        ("./train/p1/view", {"p1"}),
        ("set/train/p2/view.PNG", {"p2"}),
        ("p3/view.jpg", set()),
        ("view", {"p1", "p2"}),
        ("elsewhere/only.png", set()),
        ("only.dcm", {"only"}),
        ("case-1", {"p1"}),
        ("1.2.3.4", {"uid"}),
        ("1.2.3.5", set()),
        ("scan", {"scan"}),
        ("a/scan.nii.gz", {"scan"}),
        ("", set()),
    ],
)
def test_a_cell_names_no_file_of_another_folder(cell: str, found: set[str]) -> None:
    names = CaseNames()
    files = {
        "p1": "train/p1/view.jpg", "p2": "train/p2/view.jpg", "only": "train/only.jpg", "uid": "train/1.2.3.4",
        "scan": "scan.nii.gz",
    }  # fmt: skip
    for number, (case, file) in enumerate(files.items(), start=1):
        names.add(case, case_id=f"case-{number}", file=file)
    assert names.cases_of(cell) == found


PATHS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4).map("/".join)


@given(st.lists(PATHS, unique=True, max_size=8), PATHS)
def test_a_cell_names_the_files_whose_folders_agree_as_far_as_both_go(paths: list[str], cell: str) -> None:
    names = CaseNames()
    for path in paths:
        names.add(path, case_id=f"case-of-{path}", file=f"{path}.png")
    agreeing = {path for path in paths if f"/{path}".endswith(f"/{cell}") or f"/{cell}".endswith(f"/{path}")}
    exact = {path for path in paths if path.rpartition("/")[2] == cell}  # without folders
    assert names.cases_of(f"{cell}.jpg") == agreeing
    assert names.cases_of(cell) == (exact or agreeing)


def test_a_cell_names_one_of_many_files_of_one_name() -> None:
    names = CaseNames()
    for number in range(20_000):
        names.add(str(number), case_id=f"case-{number}", file=f"train/patient-{number}/view.jpg")
    for number in range(20_000):
        assert names.cases_of(f"CheXpert/train/patient-{number}/view.jpg") == {str(number)}
