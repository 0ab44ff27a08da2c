"""YAML as ruamel.yaml reads it, by libyaml in a tenth of the time.

The words are those of YAML 1.2, which StreamFlow and CWL runners read; PyYAML's own are of YAML 1.1, where `on` and `no` are
booleans.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import yaml  # type: ignore[import-untyped]

_WORDS = (
    ("null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    ("bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    # The first pattern that matches counts, in this order; the patterns are ruamel.yaml's.
    (
        "float",
        re.compile(
            r"^(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"
            r"|[-+]?\.[0-9_]+(?:[eE][-+][0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        list("-+.0123456789"),
    ),
    ("int", re.compile(r"^[-+]?(?:0b[01_]+|0o?[0-7_]+|[0-9_]+|0x[0-9a-fA-F_]+)$"), list("-+0123456789")),
)
_STRING = "tag:yaml.org,2002:str"
_KINDS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", *(name for name, _, _ in _WORDS))}


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Composes the nodes of a text."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  # PyYAML's own name, filled below


for _name, _pattern, _first in _WORDS:
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", _pattern, _first)


class Unusual(Exception):
    """YAML that only ruamel.yaml reads correctly: a merge, an alias, a tag, or a key that is duplicate or not a name."""


YAMLError = yaml.YAMLError


def compose_all(text: str) -> list[Any]:
    """Return the root nodes of the documents in a text.

    Raises:
        YAMLError: it is not YAML.
    """
    loader = Loader(text)
    try:
        roots = []
        while loader.check_node():
            roots.append(loader.get_node())
        return roots
    finally:
        loader.dispose()


def scalar(node: Any) -> Any:
    """Return the value of a scalar node."""
    kind, text = node.tag.rpartition(":")[2], node.value
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind not in ("int", "float"):
        return text
    digits = text.replace("_", "").lower()
    try:
        if kind == "float":
            return float(digits.replace(".inf", "inf").replace(".nan", "nan"))
        return int(digits, 0 if any(base in digits for base in ("0b", "0o", "0x")) else 10)
    except ValueError:  # `+_`, `._`, or more digits than Python reads: ruamel.yaml has an error there
        return text


def commented(node: Any) -> Any:
    """Return data as ruamel.yaml makes it, with the line numbers that schema-salad reports; keys as written."""
    from ruamel.yaml.comments import CommentedMap, CommentedSeq

    if isinstance(node, yaml.ScalarNode):
        return _float(node.value) if node.tag.endswith(":float") else scalar(node)
    mark = node.start_mark
    if isinstance(node, yaml.SequenceNode):
        listed = CommentedSeq(commented(item) for item in node.value)
        listed.lc.line, listed.lc.col = mark.line, mark.column
        for number, item in enumerate(node.value):
            listed.lc.add_idx_line_col(number, [item.start_mark.line, item.start_mark.column])
        return listed
    mapping = CommentedMap()
    mapping.lc.line, mapping.lc.col = mark.line, mark.column
    for key, value in node.value:
        name = str(key.value)  # as it is written
        mapping[name] = commented(value)
        at, of = key.start_mark, value.start_mark
        mapping.lc.add_kv_line_col(name, [at.line, at.column, of.line, of.column])
    return mapping


def _float(text: str) -> Any:
    """Return a number that keeps its notation: StreamFlow writes it into commands with decimals, others with an exponent."""
    from ruamel.yaml.nodes import ScalarNode

    return _constructor().construct_yaml_float(ScalarNode("tag:yaml.org,2002:float", text))


@functools.cache
def _constructor() -> Any:
    from ruamel.yaml import YAML

    return YAML().constructor


def load(text: str) -> Any:
    """Return the one document of a text, as `commented` makes it.

    Raises:
        Unusual: ruamel.yaml may read it otherwise.
        yaml.YAMLError: it is no YAML.
    """
    if text.startswith("%"):  # a directive: YAML 1.1 has other words
        raise Unusual
    loader = Loader(text)
    try:
        node = loader.get_single_node()
    finally:
        loader.dispose()
    _refuse_unusual(node, set())
    return commented(node)


def is_usual(node: Any) -> bool:
    """Return whether ruamel.yaml reads a node as `scalar` and `commented` do."""
    try:
        _refuse_unusual(node, set())
    except Unusual:
        return False
    return True


def _refuse_unusual(node: Any, seen: set[int]) -> None:
    if id(node) in seen or node is None:
        raise Unusual
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        if node.tag not in _KINDS:
            raise Unusual
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_unusual(item, seen)
    else:
        names = {key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.tag == _STRING}
        if len(names) < len(node.value) or "<<" in names:
            raise Unusual
        for key, value in node.value:
            _refuse_unusual(key, seen)
            _refuse_unusual(value, seen)
