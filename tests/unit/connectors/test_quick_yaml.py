"""Documents that libyaml reads for the engine are those that ruamel.yaml reads, with the same lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cwl_utils.parser
import pytest
import yaml  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml.error import YAMLError
from schema_salad.exceptions import ValidationException
from schema_salad.utils import yaml_no_ts
from streamflow.cwl.command import _get_value_repr

from medweave_connectors.engine.loading import document_loading
from medweave_core.documents import fast_yaml
from medweave_core.documents.yaml_documents import parse_mapping

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = sorted((ROOT / "workflows").rglob("*.cwl"))
WORDS = st.sampled_from(
    [
        "yes",
        "on",
        "No",
        "~",
        "null",
        "017",
        "0o17",
        "0x1f",
        "1e3",
        "1.",
        ".5",
        "-0",
        "2026-11-25",
        "1_000",
        ".inf",
        "0b11",
        "12:30:45",
        "a: b",
        "#c",
        "",
    ]
)
VALUES = st.recursive(
    WORDS
    | st.text(max_size=8)
    | st.integers()
    | st.booleans()
    | st.none()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, str) else value


def lines(value: Any) -> list[Any]:
    """Return the line and column of each key and each item."""
    if isinstance(value, dict):
        return [(key, tuple(value.lc.data[key]), lines(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [(tuple(value.lc.data[number]), lines(item)) for number, item in enumerate(value)]
    return []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_document_of_ours_is_the_same_with_the_same_lines(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    expected, loaded = yaml_no_ts().load(text), fast_yaml.load(text)
    assert plain(loaded) == plain(expected)
    assert lines(loaded) == lines(expected)


@given(value=VALUES, width=st.sampled_from([10, 80]), flow=st.booleans())
def test_what_is_read_at_all_is_read_alike(value: Any, width: int, flow: bool) -> None:
    text = yaml.safe_dump(value, width=width, default_flow_style=flow, allow_unicode=True)
    try:
        loaded = fast_yaml.load(text)
    except fast_yaml.Unusual:
        return
    if isinstance(value, dict | list):  # the stock reader keeps no bare scalar
        assert repr(plain(loaded)) == repr(plain(yaml_no_ts().load(text)))


@given(word=st.text("0123456789._+-eEboxinfNaAyYtruTR~", min_size=1, max_size=7))
def test_every_reader_takes_a_word_for_the_same_value(word: str) -> None:
    text = f"a: {word}\n"
    try:
        expected = plain(yaml_no_ts().load(text)["a"])
    except (YAMLError, ValueError):  # such as `+_`
        return
    try:
        document = plain(fast_yaml.load(text)["a"])
    except fast_yaml.Unusual:
        document = expected
    of_driver = fast_yaml.scalar(yaml.compose(text, fast_yaml.Loader).value[0][1])
    of_site_files = parse_mapping(text, Path("x.yml"), "file")["a"]
    assert {repr(value) for value in (document, of_driver, of_site_files)} == {repr(_number(expected))}


def _number(value: Any) -> Any:
    """Return a number without its text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return int(value) if isinstance(value, int) else float(value)


def written(number: Any) -> str:
    try:
        return str(_get_value_repr(number))
    except (ValueError, ArithmeticError, IndexError):
        return "not at all"  # of `1e0` or `0.E0`, by ruamel.yaml; the engine ends with that


@given(
    text=st.from_regex(r"[-+]?(0|[1-9][0-9]{0,8})(\.[0-9]{0,9})?([eE][-+]?[0-9]{1,2})?", fullmatch=True)
    | st.sampled_from(["0.00001", "1.23e-05", "1.23e5", "1230000", ".5", "-.5", "1.", "1.50", "+0.1", "1e3", "+0.E0"])
)
def test_a_number_comes_into_a_command_as_the_stock_reader_has_it(text: str) -> None:
    # StreamFlow writes a number with decimals only if it knows how it was written.
    expected, loaded = (read(f"a: {text}\n")["a"] for read in (yaml_no_ts().load, fast_yaml.load))
    assert loaded == expected
    assert written(loaded) == written(expected)


@pytest.mark.parametrize(
    "text",
    [
        "a: &x 1\nb: *x\n",
        "a: &x [*x]\n",
        "a: 1\na: 2\n",
        "x: {<<: {a: 1}}\n",
        "a: !!python/none\n",
        "a: !Ref b\n",
        "? [a]\n: b\n",
        "",
    ],
)
def test_what_is_unusual_is_left_to_the_stock_reader(text: str) -> None:
    with pytest.raises(fast_yaml.Unusual):
        fast_yaml.load(text)


def test_errors_are_the_stock_ones(tmp_path: Path) -> None:
    errors = []
    for number, load in enumerate(
        (document_loading._stock_document_by_string, document_loading.load_document_by_string)
    ):
        for text in (
            "cwlVersion: v1.2\nclass: CommandLineTool\ninputs: {a: strng}\noutputs: {}\n",
            "a: [",
            "cwlVersion: v1.2\n",
        ):
            with pytest.raises((ValidationException, YAMLError)) as caught:
                load(text, "file:///x.cwl")
            errors.append((number, type(caught.value), str(caught.value)))
    assert [error for number, *error in errors if number] == [error for number, *error in errors if not number]


def test_the_engine_reads_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cwl_utils.parser, "load_document_by_string", document_loading.load_document_by_string)
    read: list[str] = []
    monkeypatch.setattr(fast_yaml, "load", lambda text: read.append(text) or yaml_no_ts().load(text))
    cwl_utils.parser.load_document_by_uri(str(DOCUMENTS[0]))
    assert len(read) == 1
