"""YAML files as plain data, with the line and column of each value. Parsed by libyaml, ten times faster than ruamel.yaml."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_core.documents.line_numbers import FieldPath, below, position
from medweave_core.documents.yaml_documents import not_installed, parse_mapping, read_text, with_whole_characters

SCALAR, SEQUENCE = "scalar", "sequence"  # kinds of nodes of PyYAML
_LINE = 80  # characters of a source line that a message quotes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceDocument:
    """A document of a YAML file.

    Attributes:
        data: its content as plain data.
        root: its root node in PyYAML, which has line numbers.
    """

    path: Path
    text: str
    data: Any
    root: Any

    def position(self, field: FieldPath) -> tuple[int, int]:
        """Return line and column, from 1, of a key or item; of its nearest existing parent if it does not exist."""
        return position(self.root, field)

    def node(self, field: FieldPath) -> Any:
        """Return the node of a key or item; None if it does not exist."""
        node = self.root
        for part in field:
            mark_and_node = below(node, part)
            if mark_and_node is None:
                return None
            node = mark_and_node[1]
        return node


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntaxFault:
    """An error in a file as YAML.

    Attributes:
        line, column: from 1.
        is_duplicate_key: a mapping has a key twice; any other fault makes the whole file unreadable.
    """

    path: Path
    line: int
    column: int
    field: FieldPath = ()
    is_duplicate_key: bool = False
    what: str
    seen: str
    expected: str
    fix: str


@dataclass(frozen=True, slots=True)
class ParsedFile:
    """The documents of a file, and its errors as YAML."""

    documents: tuple[SourceDocument, ...] = ()
    faults: tuple[SyntaxFault, ...] = ()


class DocumentReader:
    """Reads YAML files, each at most once; one reader serves one command.

    Attributes:
        checked: files whose content passed the check of their kind.
    """

    def __init__(self) -> None:
        self.checked: set[Path] = set()
        self._parsed: dict[Path, ParsedFile] = {}
        self._mappings: dict[Path, SourceDocument] = {}

    def parse(self, path: Path) -> ParsedFile:
        """Return the documents and errors of a file; nothing if there is no such file."""
        if path not in self._parsed:
            self._parsed[path] = parse_file(path) if path.is_file() else ParsedFile()
        return self._parsed[path]

    def mapping(self, path: Path, what: str) -> SourceDocument:
        """Return the one document of a file, which is a mapping.

        Args:
            what: the file's role, for errors ("site file").

        Raises:
            UserInputError: there is no such file, or it is not YAML, or its document is not a mapping.
            StorageError: it cannot be read.
        """
        if path not in self._mappings:
            parsed = self._parsed.get(path)
            text = parsed.documents[0].text if parsed and parsed.documents else read_text(path, what)
            self._mappings[path] = parse_strictly(path, text, what, parsed)
        return self._mappings[path]


def parse_strictly(path: Path, text: str, what: str, parsed: ParsedFile | None = None) -> SourceDocument:
    """Return the one document of the text of a file, which is a mapping.

    Args:
        what: the file's role, for errors.
        parsed: result of `parse_text`, if it is known.

    Raises:
        UserInputError: the text is not YAML, or its document is not a mapping.
    """
    parsed = parsed or parse_text(path, text)
    if len(parsed.documents) == 1 and not parsed.faults and _is_usual_mapping(parsed.documents[0]):
        return parsed.documents[0]
    # ruamel.yaml decides about files with errors, several documents, aliases, merges and tags.
    data = parse_mapping(text, path, what)
    root = parsed.documents[0].root if parsed.documents else _fast_yaml().compose_all("{}")[0]
    return SourceDocument(path=path, text=text, data=data, root=root)


def parse_file(path: Path) -> ParsedFile:
    """Return the documents of a file, and its errors as YAML."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        seen = f"byte {error.start}"
        return ParsedFile((), (_fault(path, 1, 1, "this file is not UTF-8 text.", seen, "save it as UTF-8"),))
    return parse_text(path, text)


def parse_text(path: Path, text: str) -> ParsedFile:
    """Return the documents of the text of a file, and its errors as YAML."""
    fast_yaml = _fast_yaml()
    try:
        roots = fast_yaml.compose_all(with_whole_characters(text))
    except fast_yaml.YAMLError as error:
        return ParsedFile((), (_fault_of_parser(path, text, error),))
    try:
        if "&" in text and "*" in text and (cycles := tuple(_alias_cycles(path, roots))):
            return ParsedFile((), cycles)
        faults: list[SyntaxFault] = []
        documents = [
            SourceDocument(path=path, text=text, data=_plain(root, path, (), faults), root=root) for root in roots
        ]
    except RecursionError:
        fault = _fault(path, 1, 1, "this file is nested too deeply.", "hundreds of levels", "use fewer levels")
        return ParsedFile((), (fault,))
    return ParsedFile(tuple(documents), tuple(faults))


@functools.cache
def _fast_yaml() -> Any:
    """Return the module that uses libyaml: a bare installation explains its commands without PyYAML."""
    try:
        from medweave_core.documents import fast_yaml
    except ImportError as error:
        raise not_installed(error) from error
    return fast_yaml


def _is_usual_mapping(document: SourceDocument) -> bool:
    """Return whether libyaml and ruamel.yaml read the document alike, and it is a mapping."""
    if document.text.startswith("%") or not isinstance(document.data, dict):
        return False
    return bool(_fast_yaml().is_usual(document.root))


def _fault_of_parser(path: Path, text: str, error: Exception) -> SyntaxFault:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    problem = " ".join(str(getattr(error, "problem", None) or error).split())
    lines = text.splitlines()
    seen = lines[line - 1].strip()[:_LINE] if 0 < line <= len(lines) else "the end of the file"
    what = f"this is not valid YAML: {problem}."
    return _fault(path, line, column, what, seen, "correct this line or the line above it")


def _alias_cycles(path: Path, roots: list[Any]) -> Iterator[SyntaxFault]:
    """Yield a fault for each alias of a node that contains it: no reader of such a file terminates."""
    done: set[int] = set()

    def search(node: Any, parents: tuple[Any, ...]) -> Iterator[SyntaxFault]:
        if node.id == SCALAR or id(node) in done:
            return
        if any(node is parent for parent in parents):
            mark = node.start_mark
            yield _fault(
                path, mark.line + 1, mark.column + 1, "this alias (*name) refers to its own node.", "a cycle",
                "write the intended value instead",
            )  # fmt: skip
            return
        members = node.value if node.id == SEQUENCE else [item for pair in node.value for item in pair]
        for member in members:
            yield from search(member, (*parents, node))
        done.add(id(node))

    for root in roots:
        yield from search(root, ())


def _fault(path: Path, line: int, column: int, what: str, seen: str, fix: str) -> SyntaxFault:
    return SyntaxFault(path=path, line=line, column=column, what=what, seen=seen, expected="YAML in UTF-8", fix=fix)


def _plain(node: Any, path: Path, field: FieldPath, faults: list[SyntaxFault]) -> Any:
    """Return the plain data of a node; duplicate keys are added to `faults`."""
    if node.id == SCALAR:
        return _fast_yaml().scalar(node)
    if node.id == SEQUENCE:
        return [_plain(item, path, (*field, number), faults) for number, item in enumerate(node.value)]
    values: dict[Any, Any] = {}
    lines: dict[Any, int] = {}
    for key_node, value_node in node.value:
        key = str(key_node.value)  # as it is written: keys of these files are names
        value = _plain(value_node, path, (*field, key), faults)
        if key == "<<" and isinstance(value, dict):  # a merge: keys of the mapping itself take precedence
            values = {**value, **values}
            continue
        mark = key_node.start_mark
        if key in lines:
            faults.append(
                SyntaxFault(
                    path=path, line=mark.line + 1, column=mark.column + 1, field=(*field, key), is_duplicate_key=True,
                    what=f"'{key}' occurs twice in this mapping.", seen=f"first on line {lines[key]}",
                    expected="each key once", fix="rename or remove one of them",
                )
            )  # fmt: skip
            continue
        lines[key] = mark.line + 1
        values[key] = value
    return values
