"""Strategies, networks and tasks that other installed packages bring, found by their entry points."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import Any, Literal

from medweave_core.errors import BackendMissingError

Group = Literal["medweave.strategies", "medweave.networks", "medweave.tasks"]


def names_of(group: Group, *, package: str | None = None) -> list[str]:
    """Return the sorted names of a group's entry points; none of them is imported.

    Args:
        package: only entry points into this top-level package.
    """
    points = metadata.entry_points(group=group)
    return sorted({point.name for point in points if package in (None, point.module.partition(".")[0])})


def load(group: Group, name: str, *, expected: str, is_valid: Callable[[Any], bool]) -> Any:
    """Import and return the object of an entry point.

    Args:
        expected: what the object must be, for the message.
        is_valid: checks the imported object.
    Raises:
        BackendMissingError: the entry point cannot be imported, is not valid, or two packages define the same name.
    """
    points = sorted(metadata.entry_points(group=group, name=name), key=lambda point: point.value)
    packages = ", ".join(dict.fromkeys(_package(point) for point in points))
    if len({point.value for point in points}) > 1:
        raise BackendMissingError(
            f"several packages define '{name}' in the entry-point group {group}.",
            seen=packages,
            expected="one package per name",
            do="uninstall all but one of these packages",
        )
    point = points[0]
    try:
        value = point.load()
    except Exception as error:  # a module of another package may raise anything while it is imported
        raise _broken(group, point, f"{type(error).__name__}: {error}", expected) from error
    if not is_valid(value):
        raise _broken(group, point, f"{point.value} is {value!r}", expected)
    return value


def _package(point: metadata.EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.module


def _broken(group: Group, point: metadata.EntryPoint, seen: str, expected: str) -> BackendMissingError:
    return BackendMissingError(
        f"'{point.name}' of the package {_package(point)} cannot be loaded (entry point in {group}: {point.value}).",
        seen=" ".join(seen.split()),
        expected=expected,
        do=f"correct or update the package {point.dist.name if point.dist else point.module}, or choose another name",
    )
