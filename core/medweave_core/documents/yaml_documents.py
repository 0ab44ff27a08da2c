"""YAML documents as plain data, and the positions of the entries of a section."""

from __future__ import annotations

import functools
import json
import pickle
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_core.documents.closest_match import closest
from medweave_core.documents.line_numbers import FieldPath, shown
from medweave_core.errors import BackendMissingError, StorageError, UserInputError

_MOST_NAMED = 5  # files, in an error
_PAIR = r"u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})"
_ESCAPE_PAIR = re.compile(rf"\\{_PAIR}", re.IGNORECASE)
_ESCAPE = re.compile(rf"\\(?:{_PAIR}|.)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """A value in the text.

    Attributes:
        field: keys and indices that lead to it from the entry it belongs to.
        start, end: offsets in the document's text, in characters, with quotes.
    """

    field: FieldPath
    value: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A named entry of a section, with its position in the text.

    Attributes:
        start, end: offsets of its lines in the document's text, in characters: with the comment lines above it, without the
            line feed after its last line.
        scalars: the values in these lines, in order; without those that an alias (`*name`) repeats.
    """

    name: str
    start: int
    end: int
    scalars: tuple[Scalar, ...]


def read_mapping(path: Path, what: str) -> dict[str, Any]:
    """Return the document of a YAML file whose top level is a mapping.

    Args:
        what: the file's role, for errors ("site file").
    Raises:
        UserInputError: there is no such file, or it is no YAML, or no mapping.
    """
    return parse_mapping(read_text(path, what), path, what)


def read_text(path: Path, what: str) -> str:
    """Return the text of a file.

    Raises:
        UserInputError: there is no such file, or it is not UTF-8.
        StorageError: it is there, and cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except IsADirectoryError as error:
        inside = ", ".join(sorted(file.name for file in path.iterdir() if file.is_file())[:_MOST_NAMED])
        raise UserInputError(
            f"{shown(path)}: not a {what}.", seen="a folder", expected=f"a {what} (YAML)",
            do=f"name a file inside it: {inside}" if inside else "correct the path",
        ) from error  # fmt: skip
    except (FileNotFoundError, NotADirectoryError) as error:
        siblings = [file.name for file in path.parent.glob(f"*{path.suffix}") if file.is_file()]
        raise UserInputError(
            f"{shown(path)}: there is no such {what}.", seen="nothing at this path", expected=f"a {what} (YAML)",
            do=closest(path.name, siblings) or "correct the path",
        ) from error  # fmt: skip
    except OSError as error:
        raise StorageError(
            f"{shown(path)}: this {what} cannot be read.", seen=error.strerror or str(error),
            expected=f"a readable {what} (YAML)", do="check the path and its permissions",
        ) from error  # fmt: skip
    except UnicodeDecodeError as error:
        raise UserInputError(
            f"{shown(path)}: this {what} is not text.",
            seen=f"byte {error.start} is not UTF-8",
            expected="YAML in UTF-8",
            do="save it as UTF-8",
        ) from error


def parse_mapping(text: str, path: Path, what: str) -> dict[str, Any]:
    """Return the document in a text; see `read_mapping`."""
    try:
        document = pickle.loads(_loaded(text))
    except Exception as error:  # ruamel.yaml's errors, and ValueError for odd scalars such as an impossible date
        mark = getattr(error, "problem_mark", None)
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise UserInputError(
            f"{shown(path)}{f':{mark.line + 1}' if mark else ''}: this {what} is not valid YAML.",
            seen=problem,
            expected="YAML, with each key once per mapping",
            do="correct this line",
        ) from error
    if not isinstance(document, dict):
        raise UserInputError(
            f"{shown(path)}: this {what} is empty or not a mapping.",
            seen=type(document).__name__ if document is not None else "nothing",
            expected="a mapping: lines `key: value`",
            do="start from an existing file",
        )
    return document


def with_whole_characters(text: str) -> str:
    """Return a JSON text with each character outside the Basic Multilingual Plane as one escape.

    JSON writes such a character as two escapes, which readers of YAML take for two characters or refuse.
    """
    if not _ESCAPE_PAIR.search(text):
        return text
    try:
        json.loads(text)
    except ValueError:
        return text  # in YAML a backslash may be an ordinary character
    return _ESCAPE.sub(lambda match: _joined(match[1], match[2]) if match[1] else match[0], text)


def _joined(high: str, low: str) -> str:
    code = 0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00
    return f"\\U{code:08x}"


@functools.lru_cache(maxsize=256)
def _loaded(text: str) -> bytes:
    """Return the pickled document of a text: each caller unpickles its own copy, four times faster than copy.deepcopy."""
    document = _yaml("safe").load(with_whole_characters(text))
    if "&" in text and "*" in text:
        json.dumps(document, default=str, skipkeys=True)  # a ValueError if an alias refers to its own parent
    return pickle.dumps(document)


@functools.lru_cache(maxsize=16)
def entries(text: str, section: str) -> Sequence[Entry]:
    """Return the entries of a top-level section in block style, one below the other.

    Raises:
        ValueError: the section is written in flow style (`{...}`), so that its entries are not on separate lines.
    """
    root = _yaml("rt").compose(text)
    keys = [key for key, _ in root.value]
    number = next(i for i, key in enumerate(keys) if key.value == section)
    node = root.value[number][1]
    if node.flow_style:
        raise ValueError(f"{section} is written in flow style")
    starts: list[int] = []
    earlier = _line_start(text, keys[number].start_mark.index)
    for key, value in node.value:
        starts.append(_with_comments_above(text, key.start_mark.index, earlier))
        earlier = max([key.end_mark.index, *(scalar.end for scalar in _scalars(value, ()))])
    following = keys[number + 1].start_mark.index if number + 1 < len(keys) else len(text)
    ends = [*starts[1:], _with_comments_above(text, following, earlier)]
    section_entries = []
    for (key, value), start_offset, end in zip(node.value, starts, ends, strict=True):
        inside = {scalar.start: scalar for scalar in _scalars(value, ()) if start_offset <= scalar.start < end}
        ordered = tuple(inside[start] for start in sorted(inside))
        section_entries.append(
            Entry(
                name=key.value,
                start=start_offset,
                end=start_offset + len(text[start_offset:end].rstrip()),
                scalars=ordered,
            )
        )
    return section_entries


def _scalars(node: Any, field: FieldPath) -> Iterator[Scalar]:
    if node.id == "scalar":
        yield Scalar(field=field, value=node.value, start=node.start_mark.index, end=node.end_mark.index)
    elif node.id == "sequence":
        for number, item in enumerate(node.value):
            yield from _scalars(item, (*field, number))
    elif node.id == "mapping":
        for key, value in node.value:
            yield from _scalars(value, (*field, key.value))


def _line_start(text: str, offset: int) -> int:
    return text.rfind("\n", 0, offset) + 1


def _with_comments_above(text: str, offset: int, earlier: int) -> int:
    """Return the start of a line with the comment lines directly above it, but not before `earlier`."""
    start = _line_start(text, offset)
    while start > 0:
        above = _line_start(text, start - 1)
        if above < earlier or not text[above:start].lstrip().startswith("#"):
            break
        start = above
    return start


def _yaml(kind: str) -> Any:
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.constructor import SafeConstructor
    except ImportError as error:
        raise not_installed(error) from error

    class WithoutDates(SafeConstructor):
        """Reads a date as text, as CWL runners do."""

    WithoutDates.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str)
    reader = YAML(typ=kind, pure=True)
    if kind == "safe":
        reader.Constructor = WithoutDates
    return reader


def not_installed(error: ImportError) -> BackendMissingError:
    """Return the error for a missing library of the extra `driver`."""
    return BackendMissingError(
        f"the library '{error.name}' is missing.",
        seen=str(error),
        expected="medweave with the extra 'driver'",
        do="install it: pip install 'medweave[driver]'",
    )
