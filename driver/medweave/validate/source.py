"""YAML files as plain data, each value with its line and column. Read by libyaml: a tenth of ruamel.yaml's time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from medweave.validate.findings import Finding
from medweave_core.documents.fast_yaml import Loader, scalar
from medweave_core.documents.line_numbers import FieldPath, below, position
from medweave_core.documents.yaml_documents import with_whole_characters

_LINE = 80  # characters of a line that are shown


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """A document of a file.

    Attributes:
        data: what it holds, as plain data.
        root: its nodes, which know their lines.
    """

    path: Path
    text: str
    data: Any
    root: Any

    def position(self, field: FieldPath) -> tuple[int, int]:
        """Line and column, from 1, of the key or item that a path leads to; of the nearest above it where it leads to none."""
        return position(self.root, field)

    def node(self, field: FieldPath) -> Any:
        """The node that a path leads to; None where it leads to none."""
        node = self.root
        for part in field:
            found = below(node, part)
            if found is None:
                return None
            node = found[1]
        return node

    def finding(
        self, rule: str, field: FieldPath, what: str, *, seen: str = "", expected: str = "", fix: str
    ) -> Finding:
        """A finding at a place of this document."""
        line, column = self.position(field)
        return Finding(
            file=self.path, line=line, column=column, field=field, rule=rule, what=what, seen=seen, expected=expected, fix=fix
        )  # fmt: skip


def read(path: Path) -> tuple[list[Source], list[Finding]]:
    """The documents of a file, and what is wrong with it as YAML."""
    try:
        text = path.read_text(encoding="utf-8")
        loader = Loader(with_whole_characters(text))
        try:
            roots = []
            while loader.check_node():
                roots.append(loader.get_node())
        finally:
            loader.dispose()
    except UnicodeDecodeError as error:
        return [], [_syntax(path, 1, 1, "this file is not text in UTF-8.", f"byte {error.start}", "save it as UTF-8")]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        lines = text.splitlines()
        seen = lines[line - 1].strip()[:_LINE] if 0 < line <= len(lines) else "the end of the file"
        return [], [
            _syntax(
                path, line, column, f"this is not valid YAML: {problem}.", seen, "mend that line or the one above it"
            )
        ]
    try:
        faults = [*_circles(path, roots)] if "&" in text and "*" in text else []
        if faults:
            return [], faults
        sources = [Source(path=path, text=text, data=_plain(root, path, (), faults), root=root) for root in roots]
    except RecursionError:
        return [], [_syntax(path, 1, 1, "this file is nested too deeply.", "hundreds of levels", "write it flatter")]
    return sources, faults


def _circles(path: Path, roots: list[Any]) -> Iterator[Finding]:
    """Aliases of what they stand in: no reader of the file comes to an end with them."""
    done: set[int] = set()

    def search(node: Any, above: tuple[Any, ...]) -> Iterator[Finding]:
        if isinstance(node, yaml.ScalarNode) or id(node) in done:
            return
        if any(node is each for each in above):
            mark = node.start_mark
            yield _syntax(
                path, mark.line + 1, mark.column + 1, "an alias (*name) in here repeats what it stands in.", "a circle",
                "write out what was meant in its stead",
            )  # fmt: skip
            return
        inner = node.value if isinstance(node, yaml.SequenceNode) else [each for pair in node.value for each in pair]
        for each in inner:
            yield from search(each, (*above, node))
        done.add(id(node))

    for root in roots:
        yield from search(root, ())


def no_json(path: Path, error: json.JSONDecodeError, rule: str) -> Finding:
    """A finding where a text is no JSON."""
    return Finding(
        file=path, line=error.lineno, column=error.colno, rule=rule, what=f"this is not valid JSON: {error.msg}.",
        seen="".join(error.doc.splitlines()[error.lineno - 1 : error.lineno]).strip()[:80], expected="JSON",
        fix="mend that line or the one above it",
    )  # fmt: skip


def _syntax(path: Path, line: int, column: int, what: str, seen: str, fix: str) -> Finding:
    return Finding(
        file=path, line=line, column=column, rule="yaml-syntax", what=what, seen=seen, expected="YAML in UTF-8", fix=fix
    )  # fmt: skip


def _plain(node: Any, path: Path, field: FieldPath, faults: list[Finding]) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return scalar(node)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, path, (*field, number), faults) for number, item in enumerate(node.value)]
    found: dict[Any, Any] = {}
    lines: dict[Any, int] = {}
    for key_node, value_node in node.value:
        key = str(key_node.value)  # as it is written: what is read here has names for keys
        value = _plain(value_node, path, (*field, key), faults)
        if key == "<<" and isinstance(value, dict):  # a merge: keys that the mapping has itself win
            found = {**value, **found}
            continue
        mark = key_node.start_mark
        if key in lines:
            faults.append(
                Finding(
                    file=path,
                    line=mark.line + 1,
                    column=mark.column + 1,
                    field=(*field, key),
                    rule="duplicate-key",
                    what=f"'{key}' stands twice in this mapping.",
                    seen=f"first on line {lines[key]}",
                    expected="each key once",
                    fix="rename one of them, or take it away",
                )
            )
            continue
        lines[key] = mark.line + 1
        found[key] = value
    return found
