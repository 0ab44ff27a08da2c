"""Line numbers of fields in YAML files, for error messages. No streamflow in here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FIELD = re.compile(r"(deployments|workflows|dataManager|scheduling|database)(?:\.[\w-]+|\[\d+\])+(?=[:, ])")
_PART = re.compile(r"([\w-]+)|\[(\d+)\]")
FieldPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Where:
    """A field of a file; `str` of it begins an error, as compilers write it: `streamflow.yml:12: deployments.hpc.wraps`."""

    file: Path
    field: FieldPath = ()

    def __truediv__(self, part: str | int) -> Where:
        return Where(self.file, (*self.field, part))

    def __str__(self) -> str:
        line = line_of(self.file, self.field)
        place = shown(self.file) if line is None else f"{shown(self.file)}:{line}"
        return f"{place}: {spelled(self.field)}" if self.field else place


class ThisRun:
    """The StreamFlow file of the run in this process, for errors after it was read."""

    file: Path | None = None


def placed(text: str) -> str:
    """Return a message that starts with a field of that file, prefixed with file and line; other messages unchanged."""
    match = _FIELD.match(text)
    if match is None or ThisRun.file is None:
        return text
    field = tuple(name or int(number) for name, number in _PART.findall(match[0]))
    return f"{Where(ThisRun.file, field)}{text[match.end() :]}"


def shown(path: Path) -> str:
    """Return a path as the user would write it: relative to the current folder if that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path.absolute())) else str(path)


def spelled(field: FieldPath) -> str:
    """Return a field as text: `deployments.hpc.config.nodes[0]`."""
    text = ""
    for part in field:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")


def line_of(file: Path, field: FieldPath) -> int | None:
    """Return the line of a field, or of its nearest existing parent; None if the file cannot be read."""
    import yaml  # type: ignore[import-untyped]  # comes with StreamFlow; `--help` does without it

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, where PyYAML has it
    try:
        root = next(yaml.compose_all(file.read_text(encoding="utf-8"), Loader=loader), None)
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return position(root, field)[0] if root is not None else 1


def position(root: Any, field: FieldPath) -> tuple[int, int]:
    """Return line and column, from 1, of a key or item; of its nearest existing parent if it does not exist.

    Args:
        root: a node of PyYAML.
    """
    node, mark = root, root.start_mark
    for part in field:
        entry = below(node, part)
        if entry is None:
            break
        mark, node = entry
    return mark.line + 1, mark.column + 1


def below(node: Any, part: str | int) -> tuple[Any, Any] | None:
    """Return mark and node of an entry; in a list of CWL, also by its `id` or `class`."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value == str(part):
                return key.start_mark, value
    elif isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            if number == part or (isinstance(part, str) and part in _names(item)):
                return item.start_mark, item
    return None


def _names(item: Any) -> Iterator[str]:
    import yaml

    if isinstance(item, yaml.ScalarNode):
        yield item.value
    elif isinstance(item, yaml.MappingNode):
        for key, value in item.value:
            if key.value in ("id", "class", "name"):
                yield value.value.lstrip("#") if isinstance(value.value, str) else ""
