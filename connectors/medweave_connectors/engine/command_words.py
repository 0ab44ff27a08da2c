"""The words of a tool's command line, built from its bindings as cwltool builds them.

The engine's own builder drops words of nested records, writes `True` for a boolean in an array, gives `valueFrom` of a record's
field the whole record, fails on `Any` values that are mappings, and rounds numbers: `1.0e-7` became `0`. cwltool rounds the same
numbers; CWL v1.2 asks for decimals, so a number is the only word that differs from cwltool's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import zip_longest
from typing import Any

from streamflow.core.exception import WorkflowExecutionException

from medweave_core.documents.cwl_types import of_value, parse

Evaluate = Callable[[str, Any], Any]  # an expression and the value of `self`
Key = tuple[Any, ...]  # integers and names, compared one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word of a command.

    Attributes:
        text: as the program gets it, unless a shell reads it.
        quoted: whether a shell must take it as it is (`shellQuote`).
    """

    text: str
    quoted: bool


@dataclass(frozen=True, slots=True)
class _Bound:
    """A CommandLineBinding, the value that it is applied to and its place in the command."""

    key: Key
    binding: Mapping[str, Any]
    value: Any


def command_words(
    arguments: Sequence[Any], inputs: Sequence[Mapping[str, Any]], values: Mapping[str, Any], evaluate: Evaluate
) -> list[Word]:
    """Return the words that follow a tool's baseCommand.

    Args:
        arguments: texts and CommandLineBindings.
        inputs: `name`, `type` and, if there is one, `inputBinding` of each input; types of types the same.
        values: of the inputs; files and folders as mappings with their `path`.
        evaluate: returns the value of a text that may hold expressions.
    """
    bound = [*_bound_fields(inputs, values, (), evaluate), *_bound_arguments(arguments, evaluate)]
    ordered = sorted(bound, key=functools.cmp_to_key(_compare))
    return [
        Word(text=text, quoted=part.binding.get("shellQuote") is not False)
        for part in ordered
        for text in _texts(part, evaluate)
    ]


def decimal_text(value: float) -> str:
    """Return the decimal digits of a number, without an exponent: as its document writes them, else the fewest that name it.

    A document's digits are kept so that `1.50` stays `1.50` and `1.23e5` becomes `123000`, as the conformance tests expect.
    """
    if not math.isfinite(value):
        return str(float(value))
    written = Decimal(_written(value))
    return format(written if float(written) == value else Decimal(repr(float(value))), "f")


def _written(value: float) -> str:
    """Return a number as its document writes it, as far as ruamel.yaml stores that."""
    from ruamel.yaml.representer import RoundTripRepresenter
    from ruamel.yaml.scalarfloat import ScalarFloat

    if isinstance(value, ScalarFloat):
        try:
            return str(Decimal(RoundTripRepresenter().represent_scalar_float(value).value))
        except (
            ArithmeticError,
            IndexError,
            ValueError,
        ):  # ruamel.yaml cannot write some of the forms that it reads: `1e0`
            pass
    return repr(float(value))


def _bound_arguments(arguments: Sequence[Any], evaluate: Evaluate) -> Iterator[_Bound]:
    for number, argument in enumerate(arguments):
        binding = argument if isinstance(argument, Mapping) else {"valueFrom": argument}
        yield _Bound((*_position(binding, None, evaluate), number), binding, None)


def _bound_fields(
    fields: Sequence[Mapping[str, Any]], values: Mapping[str, Any], lead: Key, evaluate: Evaluate
) -> Iterator[_Bound]:
    for field in fields:
        name = field["name"]
        if values.get(name) is not None:
            yield from _bound(field["type"], field.get("inputBinding"), values[name], lead, (name,), evaluate)


def _bound(kind: Any, binding: Any, value: Any, lead: Key, tail: Key, evaluate: Evaluate) -> list[_Bound]:
    """Return the bindings of a value and of its parts.

    Args:
        kind: its type: a name, a mapping, or a list of alternatives.
        binding: of the input, field or item; None where it has none.
        lead, tail: what its key begins and ends with.
    """
    has_expression = binding is not None and binding.get("valueFrom") is not None
    if isinstance(kind, list):
        if has_expression:
            return _own(binding, value, lead, tail, evaluate)
        return _bound(_alternative(kind, value), binding, value, lead, tail, evaluate)
    if not isinstance(kind, Mapping):
        return _bound_plain({"type": kind}, binding, value, lead, tail, evaluate)
    own, inner = _own(binding, value, lead, tail, evaluate), []
    if not has_expression:
        of_type = kind.get("inputBinding")
        if of_type is None and own and kind["type"] == "array" and binding.get("itemSeparator") is None:
            of_type = {}  # each item is a word
        inner = _bound_plain(kind, of_type, value, lead, tail, evaluate)
    return _below(own, inner)


def _bound_plain(
    kind: Mapping[str, Any], binding: Any, value: Any, lead: Key, tail: Key, evaluate: Evaluate
) -> list[_Bound]:
    """Return the same where the binding is the type's own, or the type is a name."""
    own = _own(binding, value, lead, tail, evaluate)
    if kind["type"] == "record":
        return _below(own, _bound_fields(kind["fields"], value, lead, evaluate))
    if kind["type"] == "array" or (kind["type"] == "Any" and isinstance(value, list)):
        of_items = {**binding, "position": own[0].key} if own else None
        return [
            part
            for number, item in enumerate(value)
            for part in _bound(kind.get("items", "Any"), of_items, item, (number,), tail, evaluate)
        ]
    return own


def _own(binding: Any, value: Any, lead: Key, tail: Key, evaluate: Evaluate) -> list[_Bound]:
    if binding is None:
        return []
    return [_Bound((*lead, *_position(binding, value, evaluate), *tail), binding, value)]


def _below(own: list[_Bound], inner: Iterable[_Bound]) -> list[_Bound]:
    lead = own[0].key if own else ()
    return [*(_Bound((*lead, *part.key), part.binding, part.value) for part in inner), *own]


def _position(binding: Mapping[str, Any], value: Any, evaluate: Evaluate) -> Key:
    position = binding.get("position")
    if isinstance(position, str):
        position = evaluate(position, value)
    if isinstance(position, tuple):
        return position
    if position is not None and (isinstance(position, bool) or not isinstance(position, int)):
        raise WorkflowExecutionException(f"'position' must be an integer, and its expression returned {position!r}")
    return (position or 0,)


def _alternative(kinds: Sequence[Any], value: Any) -> Any:
    for kind in kinds:
        if of_value(value, parse(kind, declared=True)):
            return kind
    raise WorkflowExecutionException(f"a value is of none of the types of its input: {kinds}")


def _compare(first: _Bound, second: _Bound) -> int:
    """Compare two keys: the shorter one first, and as texts where one part is a name."""
    for one, other in zip_longest(first.key, second.key):
        if one == other:
            continue
        if one is None or other is None:
            return -1 if one is None else 1
        if isinstance(one, str) or isinstance(other, str):
            one, other = str(one), str(other)
        return 1 if one > other else -1
    return 0


def _texts(bound: _Bound, evaluate: Evaluate) -> list[str]:
    """Return the words of one binding."""
    binding, value = bound.binding, bound.value
    prefix, expression = binding.get("prefix"), binding.get("valueFrom")
    if expression is not None:
        value = evaluate(expression, value)
    before = [] if prefix is None else [prefix]
    if isinstance(value, list):
        separator = binding.get("itemSeparator")
        if not (separator and value):
            return before + [_text(item) for item in value] if expression else before if value else []
        text = separator.join(map(_text, value))
    elif isinstance(value, bool):
        return before if value else []
    elif value is None:
        return []
    elif isinstance(value, Mapping) and value.get("class") not in ("File", "Directory"):
        return before
    else:
        text = _text(value)
    return [*before, text] if binding.get("separate") is not False else ["".join((*before, text))]


def _text(value: Any) -> str:
    if isinstance(value, Mapping) and value.get("class") in ("File", "Directory"):
        if "path" not in value:
            raise WorkflowExecutionException(f"a {value['class']} of the command line has no path")
        return str(value["path"])
    return decimal_text(value) if isinstance(value, float) else str(value)
