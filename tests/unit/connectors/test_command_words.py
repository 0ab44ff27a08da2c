"""Words of a command line: those of cwltool, with numbers that keep their value."""

from __future__ import annotations

import asyncio
import json
import logging
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml.scalarfloat import ScalarFloat
from schema_salad.utils import yaml_no_ts
from streamflow.core.exception import WorkflowExecutionException
from streamflow.core.workflow import CommandTokenProcessor

from medweave_connectors.engine.command_lines import CommandWords
from medweave_connectors.engine.command_words import command_words, decimal_text
from support.command_lines import by_cwltool, by_engine, tool_document

INTS = st.integers(-(2**31), 2**31 - 1)
DOUBLES = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([1e-7, 3e-8, 1e22, 0.1, 1.0, -0.0, 5e-324])
TEXTS = st.sampled_from(
    ["a", "", "-x", "--", "a b", "1e5", "0o17", "yes", "null", "2026-01-01", "1_000", ".5", "NaN", "é😀", "'q\"", "$HOME",
     "`x`", "*", "a\nb", "\\", "#c", " lead", "$(1)"]
) | st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=4)  # fmt: skip
VALUES = {
    "int": INTS, "long": st.integers(-(2**63), 2**63 - 1), "float": DOUBLES, "double": DOUBLES | INTS, "string": TEXTS,
    "boolean": st.booleans(), "Any": INTS | DOUBLES | TEXTS | st.booleans() | st.lists(INTS | TEXTS, max_size=2)
    | st.dictionaries(st.sampled_from("kl"), INTS | st.none(), max_size=2),
}  # fmt: skip
NUMBER = r"[-+]?(?:0|[1-9][0-9]{0,20})\.[0-9]{0,20}(?:[eE][-+]?[0-9]{1,2})?"


def bindings(*, is_array: bool) -> st.SearchStrategy[Any]:
    """Return inputBindings, and None for an input without one."""
    keys = {"position": st.integers(-1, 3), "valueFrom": st.sampled_from(["$(self)", "a$(self)"])}
    keys |= {"itemSeparator": st.sampled_from([",", " "])} if is_array else {}
    plain = st.fixed_dictionaries({}, optional=keys)
    prefixed = st.fixed_dictionaries(
        {"prefix": st.sampled_from(["-p", "--q="])}, optional=keys | {"separate": st.just(False)}
    )
    return st.none() | plain | prefixed


@st.composite
def inputs(draw: Any, depth: int = 2) -> tuple[dict[str, Any], Any]:
    """Draw an input, or a field of a record, with a value."""
    kind, value = draw(types(depth))
    binding = draw(bindings(is_array=isinstance(kind, dict) and kind["type"] == "array"))
    return {"type": kind} | ({} if binding is None else {"inputBinding": binding}), value


def is_array_of_named(kind: Any) -> bool:
    """Whether cwltool refuses the type in a union: it defines an enum or a record twice ("the name is already in use")."""
    if isinstance(kind, dict) and kind["type"] == "array":
        return '"enum"' in json.dumps(kind) or '"record"' in json.dumps(kind)
    return False


@st.composite
def types(draw: Any, depth: int) -> tuple[Any, Any]:
    name = draw(st.sampled_from([*VALUES, "enum", *(("array", "record", "optional") if depth else ())]))
    if name == "enum":
        return {"type": "enum", "symbols": ["red", "yes"]}, draw(st.sampled_from(["red", "yes"]))
    if name == "optional":
        kind, value = draw(types(depth - 1))
        if kind == "Any" or isinstance(kind, list) or is_array_of_named(kind):
            return kind, value
        return ["null", kind], draw(st.sampled_from([None, value]))
    if name == "record":
        members = {field: draw(inputs(depth - 1)) for field in ("fb", "fa")}
        fields = [{"name": name, **field} for name, (field, _) in members.items()]
        return {"type": "record", "fields": fields}, {name: value for name, (_, value) in members.items()}
    if name == "array":
        kind, value = draw(types(depth - 1))
        binding = draw(bindings(is_array=False))
        own = {} if binding is None else {"inputBinding": binding}
        # Of an array of Any, cwltool writes inner arrays as Python does.
        return {"type": "array", "items": "string" if kind == "Any" else kind, **own}, (
            draw(st.lists(TEXTS, max_size=2)) if kind == "Any" else [value] * draw(st.integers(0, 2))
        )
    return name, draw(VALUES[name])


@st.composite
def tools(draw: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw a tool and its job."""
    drawn = {name: draw(inputs()) for name in ("b", "a")}
    arguments = draw(st.lists(st.sampled_from(["lit $x", {"prefix": "-A", "valueFrom": "$(inputs.b)"}]), max_size=1))
    declared = {name: field for name, (field, _) in drawn.items()}
    return tool_document(declared, arguments, shell=draw(st.booleans())), {
        name: value for name, (_, value) in drawn.items()
    }


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(tool_and_job=tools())
def test_the_words_of_a_command_are_those_of_cwltool(
    tmp_path_factory: pytest.TempPathFactory, tool_and_job: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    logging.getLogger("cwltool").setLevel(logging.ERROR)
    (tool, values), folder = tool_and_job, tmp_path_factory.getbasetemp()
    job = json.dumps(values, ensure_ascii=False)  # a reader of YAML takes an escaped emoji for two characters
    assert by_engine(folder, tool, job) == by_cwltool(folder, tool, job)


@given(value=st.floats(allow_nan=False))
def test_a_number_keeps_its_value_and_has_no_exponent(value: float) -> None:
    text = decimal_text(value)
    assert float(text) == value
    assert "e" not in text.lower()


@pytest.mark.slow
@given(
    text=st.from_regex(NUMBER, fullmatch=True) | st.sampled_from(["1.0e-7", "1e0", "+0.E0", "1.E-9", "-.5", "1e-400"])
)
def test_a_number_of_a_document_keeps_its_value_and_has_no_exponent(text: str) -> None:
    number = yaml_no_ts().load(f"a: {text}\n")["a"]
    assert isinstance(number, ScalarFloat)
    written = decimal_text(number)
    assert float(written) == float(text)
    assert "e" not in written.lower()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("1.0e-7", "0.00000010"), ("0.00001", "0.00001"), ("1.23e-05", "0.0000123"), ("1.23e5", "123000"), ("1.50", "1.50"),
        ("1.0e+22", "10000000000000000000000"), ("-0.0", "-0.0"), (".inf", "inf"), ("-.inf", "-inf"), (".nan", "nan"),
    ],
)  # fmt: skip
def test_a_number_has_the_digits_of_its_document(text: str, word: str) -> None:
    assert decimal_text(yaml_no_ts().load(f"a: {text}\n")["a"]) == word


@pytest.mark.parametrize("value", [2**31 - 1, 2**53 + 1, 2**63 - 1, -(2**63), 10**30])
def test_an_integer_keeps_all_its_digits(value: int) -> None:
    words = command_words([], [{"name": "n", "type": "long", "inputBinding": {}}], {"n": value}, lambda text, _: text)
    assert [Decimal(word.text) for word in words] == [Decimal(value)]


def test_a_value_of_none_of_the_types_is_an_error() -> None:
    field = {"name": "n", "type": ["int", "boolean"], "inputBinding": {}}
    with pytest.raises(WorkflowExecutionException, match="none of the types"):
        command_words([], [field], {"n": "a"}, lambda text, _: text)


def test_a_command_is_the_same_after_the_engine_has_loaded_it_for_a_retry() -> None:
    fields = [{"name": "n", "type": "double", "inputBinding": {"prefix": "-n"}}]
    words = CommandWords([{"valueFrom": "$(inputs.n)"}], fields, True)

    async def loaded() -> Any:
        row = json.loads(json.dumps(await words.save(None)))
        return await CommandTokenProcessor.load(row, None)

    restored = asyncio.run(loaded())
    assert isinstance(restored, CommandWords)
    assert (restored.arguments, restored.inputs, restored.is_shell_command) == (words.arguments, fields, True)
