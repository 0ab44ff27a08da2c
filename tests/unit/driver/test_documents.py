"""Positions of the entries of a section in a YAML text."""

from __future__ import annotations

from pathlib import Path

import pytest

from medweave_core.documents.line_numbers import shown, spelled
from medweave_core.documents.yaml_documents import entries, read_mapping
from medweave_core.errors import UserInputError

TEXT = """\
a: 1
places: # all of them

  # first line about one
  # second line about one
  one:
    script: |
      echo
      # not a comment of two
  two: {x: "quoted", y: [1, b]} # behind two

  three:
    x: ""

# about the end
end: 2
"""


def texts(text: str, section: str = "places") -> dict[str, str]:
    return {entry.name: text[entry.start : entry.end] for entry in entries(text, section)}


def test_each_entry_has_its_lines_and_the_comments_right_above() -> None:
    assert texts(TEXT) == {
        "one": "  # first line about one\n  # second line about one\n  one:\n    script: |\n"
        "      echo\n      # not a comment of two",
        "two": '  two: {x: "quoted", y: [1, b]} # behind two',
        "three": '  three:\n    x: ""',
    }


def test_the_last_section_ends_with_the_text() -> None:
    assert texts("places:\n  one: {a: 1}\n  # about nothing\n\n")["one"] == "  one: {a: 1}\n  # about nothing"


def test_values_are_found_with_their_quotes() -> None:
    two = entries(TEXT, "places")[1]
    values = {spelled(scalar.field): TEXT[scalar.start : scalar.end] for scalar in two.scalars}
    assert values == {"x": '"quoted"', "y[0]": "1", "y[1]": "b"}


def test_what_an_alias_repeats_belongs_to_the_place_where_it_stands() -> None:
    text = "places:\n  one: {a: &key value}\n  two: {a: *key, b: *key, c: own}\n"
    assert [[scalar.value for scalar in entry.scalars] for entry in entries(text, "places")] == [["value"], ["own"]]


def test_flow_style_has_no_lines_of_its_own() -> None:
    with pytest.raises(ValueError, match="flow style"):
        entries("places: {one: {a: 1}}\n", "places")


@pytest.mark.parametrize(
    ("text", "line", "seen"),
    [
        ("a: 1\na: 2\n", ":2", "found duplicate key"),
        ("a: [1\n", ":2", "expected ',' or ']'"),
        ("- a\n", "", "list"),
        ("", "", "nothing"),
    ],
)
def test_what_is_no_mapping_is_an_error_that_says_where(tmp_path: Path, text: str, line: str, seen: str) -> None:
    (tmp_path / "x.yml").write_text(text)
    with pytest.raises(UserInputError) as caught:
        read_mapping(tmp_path / "x.yml", "site file")
    assert seen in caught.value.seen
    assert f"x.yml{line}: this site file is" in caught.value.what


def test_a_file_that_is_not_there_or_no_text_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="there is no such site file"):
        read_mapping(tmp_path / "none.yml", "site file")
    (tmp_path / "x.yml").write_bytes(b"a: \xff")
    with pytest.raises(UserInputError, match="is not text"):
        read_mapping(tmp_path / "x.yml", "site file")


def test_paths_are_shown_from_the_current_folder_where_that_is_shorter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "a" / "b.yml") == "a/b.yml"
    assert shown(Path("/etc/x")) == "/etc/x"
