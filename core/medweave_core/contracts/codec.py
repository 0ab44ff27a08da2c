"""Frozen dataclasses to JSON and back, strictly: an unknown or missing key, or a wrong type, is an error."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from medweave_core.errors import UserInputError

T = TypeVar("T")

_OMITTED = "omitted"
_SURROGATE = re.compile("[\ud800-\udfff]")


def omitted(default: Any) -> Any:
    """Return a field that is not written while it has its default, so that files which do not use it keep their bytes."""
    return dataclasses.field(default=default, metadata={_OMITTED: True})


def to_json(value: Any) -> Any:
    """Return dataclasses, tuples and mappings as values for `json.dumps`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_json(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if _OMITTED not in field.metadata or getattr(value, field.name) != field.default
        }
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def dumps(value: Any) -> str:
    """Return the JSON text of a contract, indented, keys in the order of the class, NaN refused.

    A byte of a file name that is not UTF-8 is a lone surrogate in Python; it is written as an escape, and read back as it was.
    """
    text = json.dumps(to_json(value), indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def from_json(cls: type[T], data: Any, *, where: str) -> T:
    """Build a contract from parsed JSON.

    Args:
        cls: the dataclass to build.
        data: what `json.loads` gave.
        where: the file's role, for the error ("model_card.json of the model").
    Raises:
        UserInputError: a key is unknown (ignored in classes with `ACCEPTS_NEWER`) or missing, or a value has another type; the
            message names the path in the document.
    """
    return typing.cast(T, _build(cls, data, where, "$"))


@functools.cache
def hints_of(cls: type) -> dict[str, Any]:
    """Return the resolved type hints of a dataclass's fields."""
    return typing.get_type_hints(cls)


def _wrong(where: str, path: str, seen: Any, expected: str) -> UserInputError:
    return UserInputError(
        f"{where}: the content does not match this version of medweave.",
        seen=f"{path}: {json.dumps(seen, default=str)[:120]}",
        expected=expected,
        do="create the file again with the same version of medweave",
    )


def _build_dataclass(cls: type, data: Any, where: str, path: str) -> Any:
    if not isinstance(data, Mapping):
        raise _wrong(where, path, data, "an object")
    from_older = getattr(cls, "from_older", None)  # a contract that can read what an older version wrote
    data = from_older(data) if from_older else data
    fields = {field.name: field for field in dataclasses.fields(cls)}
    unknown = sorted(set(data) - set(fields))
    if unknown and not getattr(cls, "ACCEPTS_NEWER", False):
        raise _wrong(where, path, unknown, f"only the keys {', '.join(fields)}")
    values = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _build(hints_of(cls)[name], data[name], where, f"{path}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise _wrong(where, path, sorted(data), f"the key '{name}'")
    return cls(**values)


def _build_sequence(arguments: tuple[Any, ...], data: Any, where: str, path: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise _wrong(where, path, data, "a list")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        arguments = (arguments[0],) * len(data)
    if len(arguments) != len(data):
        raise _wrong(where, path, data, f"a list of {len(arguments)}")
    return tuple(
        _build(a, item, where, f"{path}[{i}]") for i, (a, item) in enumerate(zip(arguments, data, strict=True))
    )


def _build_union(arguments: tuple[Any, ...], data: Any, where: str, path: str) -> Any:
    if data is None and type(None) in arguments:
        return None
    rest = [argument for argument in arguments if argument is not type(None)]
    for argument in rest[:-1]:
        try:
            return _build(argument, data, where, path)
        except UserInputError:
            continue
    return _build(rest[-1], data, where, path)


def _build(expected: Any, data: Any, where: str, path: str) -> Any:
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if expected is Any:
        return data
    if dataclasses.is_dataclass(expected) and isinstance(expected, type):
        return _build_dataclass(expected, data, where, path)
    if origin is tuple:
        return _build_sequence(arguments, data, where, path)
    if origin in (dict, Mapping) or origin is typing.get_origin(Mapping[str, int]):
        if not isinstance(data, Mapping):
            raise _wrong(where, path, data, "an object")
        return {key: _build(arguments[1], item, where, f"{path}.{key}") for key, item in data.items()}
    if origin in (typing.Union, types.UnionType):
        return _build_union(arguments, data, where, path)
    if origin is typing.Literal:
        if data not in arguments:
            raise _wrong(where, path, data, f"one of {', '.join(map(str, arguments))}")
        return data
    if expected is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if not isinstance(data, expected) or (isinstance(data, bool) and expected is not bool):
        raise _wrong(where, path, data, f"a {expected.__name__}")
    return data
